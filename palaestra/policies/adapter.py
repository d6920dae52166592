"""The adapter policy: low-rank additions (LoRA) to the model of another policy, whose weights do not change.

Several adapters can share one base. They are trained through one shared module. Each is a policy with its own
additions, optimizer, version, value head, checkpoint and reference.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from palaestra.data import RunSetup, derive
from palaestra.errors import RecipeError
from palaestra.models.adapters import (
    FOLDER,
    adapt,
    add_adapter,
    additions_of,
    load_adapter,
    merged,
    own_weights,
    rank_and_targets,
    save_adapter,
    second,
)
from palaestra.models.heads import ValueHead
from palaestra.models.sizes import PolicySize
from palaestra.policies.agreement import must_compare, refuse_disagreement
from palaestra.policies.language_sampler import LanguageSampler
from palaestra.policies.language_trainer import (
    AdapterModule,
    LanguageModule,
    LanguageTrainer,
    load_value_head,
    refuse_spread_pictures,
    save_language,
)
from palaestra.registry import Positive, PositiveInt, Section, register


class LoraSettings(Section):
    """Low-rank additions to all linear layers but the output, or to `targets`: the options of `language.lora`."""

    rank: PositiveInt = 16
    alpha: Positive = 32.0
    targets: tuple[str, ...] | None = None


class Adaptable(LanguageSampler, LanguageTrainer, Protocol):
    """A language policy that can be the base of adapters."""

    value_layers: tuple[int, ...]

    def as_base(self) -> LanguageModule:
        """The module that all adapters on this policy share."""
        ...

    def architecture(self) -> dict[str, Any]:
        """The values that must be equal before weights are loaded."""
        ...


@register(
    "policy",
    "adapter",
    ignores_if={"model": ("rank", "alpha", "targets"), "value_head=False": ("value_layers", "critic_gradient")},
    source="arXiv 2106.09685",
    extra="lora",
    modules=("peft",),
)
class AdapterPolicy(LanguageSampler, LanguageTrainer):
    """A language policy made of another language policy and a low-rank addition. Only the addition is trained.

    At the start it equals its base exactly, since B = 0.
    """

    module: AdapterModule

    def __init__(
        self,
        name: str,
        setup: RunSetup,
        *,
        of: str,
        model: str | None = None,
        rank: PositiveInt = 8,
        alpha: Positive = 16.0,
        targets: tuple[str, ...] | None = None,
        value_head: bool = False,
        value_layers: tuple[PositiveInt, ...] = (),
        critic_gradient: bool = True,
    ) -> None:
        """
        Args:
            name: the name in the recipe.
            setup: gives the seed, the device and the policies that are already made.
            of: name of the base, a language policy that is not trained.
            model: folder that `palaestra export` or peft wrote. It decides the next three options, which are then
                refused.
            rank: of the additions. Higher: more capacity, more memory. Usual: 4 to 64; with reinforcement learning 1
                is often enough.
            alpha: the additions are multiplied by alpha / rank. Higher: larger steps at the same learning rate. Usual:
                16 to 32, with a learning rate about ten times as high as for all weights.
            targets: names of the linear layers that get an addition. None: all but the output layer.
            value_head: add a critic that learns V at the position of each response token.
            value_layers: widths of the layers in the value head.
            critic_gradient: whether the value loss also trains the adapter. False: it trains only the value head.

        Raises: RecipeError, if `of` is not a language policy or a target is not a layer; CheckpointError, if the folder
            does not fit; MissingExtra, if peft is not installed.
        """
        base: Any = setup.policies.get(of)
        if not _is_adaptable(base):
            raise RecipeError(
                where=f"policies.{name}.policy.adapter.of",
                what=f"`{of}` is not a language policy, so it has no model to adapt.",
                options=sorted(other for other, made in setup.policies.items() if _is_adaptable(made)),
                remedy="Give the name of a policy of kind `language`.",
            )
        seed = derive(setup.seed, name) % 2**31
        if model is None:
            adapter = add_adapter(base.model, rank=rank, alpha=alpha, targets=targets, seed=seed)
        else:
            adapter = load_adapter(base.model, model)
        value = None
        if value_head:
            width = base.model.config.get_text_config().hidden_size
            value = ValueHead(width, widths=value_layers, seed=seed).to(setup.device)
            if model is not None:
                load_value_head(value, model)
        self.base, self.value_layers, self.trainable = of, value_layers, True
        self._stand_on(base, name)
        self._hold(adapter, value, critic_gradient)

    @classmethod
    def alone_on(cls, base: Adaptable, lora: LoraSettings, *, seed: int) -> AdapterPolicy:
        """An adapter that takes the place of its base in a run: it has the base's name and value head.

        Args:
            base: a language policy. Its weights do not change.
            seed: for the initial additions.

        Raises: RecipeError, if a target is not a layer; MissingExtra, if peft is not installed.
        """
        made = cls.__new__(cls)
        adapter = add_adapter(base.model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
        made.base, made.value_layers, made.trainable = None, base.value_layers, base.trainable
        made._stand_on(base, base.name)
        made._hold(adapter, base.network.value, base.network.critic_gradient)
        return made

    def _stand_on(self, base: Any, name: str) -> None:
        self.name, self.version, self.engine = name, 0, None
        self.tokenizer, self.renderer, self.limit = base.tokenizer, base.renderer, base.limit
        self.network, self._base_architecture = base.as_base(), base.architecture()
        self._loaded, self.notes = base.source is not None, base.notes

    def _hold(self, adapter: Any, value: nn.Module | None, critic_gradient: bool) -> None:
        self.adapter, additions, self.has_critic = adapter, additions_of(adapter), value is not None
        adapt(self.network.model, dict.fromkeys(additions))
        own = AdapterModule(own_weights(adapter), additions, value, critic_gradient=critic_gradient)
        self.module = self.adapter_module = own

    @property
    def model(self) -> Any:  # type: ignore[override]
        """The causal language model with the additions. It shares the weights of the base."""
        return self.adapter.get_base_model()

    def check_numbers(self) -> None:
        """Compare engine, trainer and transformers, if the base has loaded its model or another program serves it.

        Raises: ContractError.
        """
        if must_compare(self, loaded=self._loaded):
            refuse_disagreement(self)

    @staticmethod
    def stands_on(options: Mapping[str, Any]) -> str:
        """The name of the base, which must be made first."""
        return str(options["of"])

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """The abilities that this policy gives to parts: "tokens", and "critic" with a value head."""
        return frozenset({"tokens"} | ({"critic"} if options.get("value_head") else set()))

    @staticmethod
    def model_size(options: Mapping[str, Any], bases: Mapping[str, PolicySize]) -> PolicySize | None:
        """The sizes of an adapter on a pretrained model; None on a model without known sizes."""
        base = bases.get(options["of"])
        if base is None:
            return None
        rank, targets = options.get("rank", 8), options.get("targets")
        if options.get("model") is not None:
            rank, targets = rank_and_targets(options["model"])
        trained = base.model.additions(rank, targets)
        return PolicySize(
            model=base.model, trained=trained, holds_model=False, adds=True, chunk=base.chunk, held=base.held
        )

    def clone(self) -> AdapterPolicy:
        """A copy on the same base with its own adapter and without an engine."""
        other = copy.copy(self)
        other.engine = None
        other._hold(second(self.adapter, self.module), copy.deepcopy(self.module.value), self.module.critic_gradient)
        return other

    def train_through(self, network: LanguageModule) -> None:
        """Train with this copy of the base, whose weights are sharded over processes. The adapter is not sharded."""
        refuse_spread_pictures(self.name, self.renderer)
        self.network = network

    def trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the additions."""
        return (
            (f"{place}.lora_{kind}", part.weight)
            for place, addition in self.module.additions.items()
            for kind, part in (("A", addition.a), ("B", addition.b))
        )

    # ---- files --------------------------------------------------------------------------------------------
    def save(self, folder: str) -> None:
        """Write the merged model as a Hugging Face folder, and the adapter alone in its folder `adapter`, for peft."""
        save_language(Path(folder), merged(self.adapter), self.tokenizer, self.module.value, self.renderer.pictures)
        save_adapter(self.adapter, Path(folder) / FOLDER)

    def architecture(self) -> dict[str, Any]:
        """The values that must be equal before weights are loaded: those of the base and of the adapter."""
        config = self.adapter.peft_config[self.adapter.active_adapter]
        own = {"rank": config.r, "alpha": config.lora_alpha, "targets": sorted(config.target_modules)}
        own["value_head"] = list(self.value_layers) or self.has_critic
        return {**self._base_architecture, "kind": "adapter", "of": self.base, **own}


def _is_adaptable(policy: Any) -> bool:
    return Adaptable in type(policy).__mro__
