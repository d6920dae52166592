"""The adapter policy: low-rank additions to the model of another policy, which stays as it is (LoRA).

Several stand on one base as policies of their own. They are trained through one shared module, and each has its own
additions, optimizer, version, value head, checkpoint and reference.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
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
    second,
)
from palaestra.models.heads import ValueHead
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.language_sampler import LanguageSampler
from palaestra.policies.language_trainer import (
    VALUE_HEAD,
    AdapterModule,
    LanguageModule,
    LanguageTrainer,
    save_language,
)
from palaestra.registry import Positive, PositiveInt, register


@register(
    "policy",
    "adapter",
    ignores_if={"model": ("rank", "alpha", "targets"), "value_head=False": ("value_layers", "critic_gradient")},
    source="arXiv 2106.09685",
    extra="lora",
    modules=("peft",),
)
class AdapterPolicy(LanguageSampler, LanguageTrainer):
    """A language policy that is another one plus a low-rank addition; only the addition is its own and learns.

    At the start it is its base exactly (B = 0). Adapters that change places change the roles they play.
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
            name: as in the recipe; setup: seed, device, and the policies that are made already.
            of: the policy that it stands on: a language policy that is not trained.
            model: folder that `palaestra export` or peft wrote; it decides the next three options, which are then
                refused.
            rank: of the addition. Higher: more capacity, more memory. Usual: 4 to 64; 1 is often enough with rewards.
            alpha: the addition is multiplied by alpha / rank. Higher: larger steps at the same learning rate.
                Usual: 16 to 32. Learning rates are about ten times those of all weights.
            targets: names of the linear layers that get one. None: all but the output layer.
            value_head: learn V of each response token's position (a critic).
            value_layers: widths of the layers in the value head.
            critic_gradient: let the value loss move the adapter. False: it moves the value head alone.

        Raises: RecipeError, if `of` is no language policy or a target no layer; CheckpointError, for a folder that
            does not fit; MissingExtra.
        """
        base = setup.policies.get(of)
        if not isinstance(base, LanguagePolicy):
            raise RecipeError(
                where=f"policies.{name}.policy.adapter.of",
                what=f"`{of}` is no language policy, so there is no model to adapt.",
                options=sorted(other for other, made in setup.policies.items() if isinstance(made, LanguagePolicy)),
                remedy="Name a policy of kind `language`.",
            )
        seed = derive(setup.seed, name) % 2**31
        if model is None:
            adapter = add_adapter(base.model, rank=rank, alpha=alpha, targets=targets, seed=seed)
        else:
            adapter = load_adapter(base.model, model)
        value = None
        if value_head:
            value = ValueHead(base.model.config.hidden_size, widths=value_layers, seed=seed).to(setup.device)
            if model is not None and (Path(model) / VALUE_HEAD).exists():
                value.load_state_dict(load_file(Path(model) / VALUE_HEAD))
        self.name, self.base, self.trainable, self.version = name, of, True, 0
        self.tokenizer, self.renderer, self.limit = base.tokenizer, base.renderer, base.limit
        self.has_critic, self.value_layers, self.engine = value_head, value_layers, None
        self.network, self._base_architecture = base.as_base(), base.architecture()
        self._hold(adapter, value, critic_gradient)

    def _hold(self, adapter: Any, value: nn.Module | None, critic_gradient: bool) -> None:
        self.adapter, additions = adapter, additions_of(adapter)
        adapt(self.network.model, dict.fromkeys(additions))
        own = AdapterModule(own_weights(adapter), additions, value, critic_gradient=critic_gradient)
        self.module = self.adapter_module = own

    @property
    def model(self) -> Any:  # type: ignore[override]
        """The causal language model with the addition, over the base's weights."""
        return self.adapter.get_base_model()

    @staticmethod
    def stands_on(options: Mapping[str, Any]) -> str:
        """The policy that must be made before one with these options."""
        return str(options["of"])

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """What parts may use of this policy: {"tokens"}, and {"critic"} with a value head."""
        return frozenset({"tokens"} | ({"critic"} if options.get("value_head") else set()))

    def clone(self) -> AdapterPolicy:
        """The same policy on the same base with an adapter of its own, and no engine yet."""
        other = copy.copy(self)
        other.engine = None
        other._hold(second(self.adapter, self.module), copy.deepcopy(self.module.value), self.module.critic_gradient)
        return other

    def train_through(self, network: LanguageModule) -> None:
        """Train over this copy of the base, whose weights are spread over processes; the adapter itself is whole."""
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
        """Write a Hugging Face folder of base and adapter in one, and the adapter alone below `adapter` (for peft)."""
        save_language(Path(folder), merged(self.adapter), self.tokenizer, self.module.value)
        self.adapter.save_pretrained(Path(folder) / FOLDER, save_embedding_layers=False)

    def architecture(self) -> dict[str, Any]:
        """What must agree before weights are exchanged: the base's architecture and the adapter's."""
        config = self.adapter.peft_config[self.adapter.active_adapter]
        own = {"rank": config.r, "alpha": config.lora_alpha, "targets": sorted(config.target_modules)}
        own["value_head"] = list(self.value_layers) or self.has_critic
        return {**self._base_architecture, "kind": "adapter", "of": self.base, **own}
