"""The adapter policy: low-rank additions to the model of another policy, which stays as it is (LoRA).

Several stand on one base as policies of their own: the base's weights are in memory once, and each adapter has its own
optimizer, version, value head, checkpoint and reference. Knows the language policy that it stands on and its model.
Knows nothing of environments, rewards or estimators.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from palaestra.data import RunSetup, derive
from palaestra.data.protocols import Engine, Policy
from palaestra.errors import RecipeError
from palaestra.models.adapters import FOLDER, add_adapter, load_adapter, merged, own_weights, second
from palaestra.models.heads import ValueHead
from palaestra.policies.language import LanguagePolicy
from palaestra.registry import Positive, PositiveInt, register

VALUE_HEAD = "value_head.safetensors"


def _through(name: str) -> Any:
    """What it does exactly as the language policy over the adapted model does it."""
    return property(lambda self: getattr(self.language, name))


@register("policy", "adapter", source="arXiv 2106.09685", extra="lora", modules=("peft",))
class AdapterPolicy(Policy):
    """A language policy that is another one plus a low-rank addition; only the addition is its own and learns.

    At the start it is its base exactly (B = 0). Adapters that change places change the roles they play.
    """

    name = property(lambda self: self.language.name, lambda self, name: setattr(self.language, "name", name))
    version = _through("version")
    has_critic = _through("has_critic")
    limit = _through("limit")
    renderer = _through("renderer")
    tokenizer = _through("tokenizer")
    model = _through("model")
    choices = _through("choices")
    session = _through("session")
    weights_changed = _through("weights_changed")
    respond = _through("respond")
    connected = _through("connected")
    collate = _through("collate")
    forward = _through("forward")
    outputs = _through("outputs")

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
            model: folder that `palaestra export` or peft wrote; the next three options are then read from it.
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
        self.base, self.trainable, self.value_layers = of, True, value_layers
        self.language = base.over(name, adapter.get_base_model(), value=value, critic_gradient=critic_gradient)
        self.language.value_layers = value_layers
        self._hold(adapter, value)

    def _hold(self, adapter: Any, value: nn.Module | None) -> None:
        self.adapter = adapter
        parts: dict[str, nn.Module] = {"adapter": own_weights(adapter)}
        self.module = nn.ModuleDict(parts if value is None else {**parts, "value": value})

    @staticmethod
    def stands_on(options: Mapping[str, Any]) -> str:
        """The policy that must be made before one with these options."""
        return str(options["of"])

    @staticmethod
    def outputs_with(options: Mapping[str, Any]) -> frozenset[str]:
        """The outputs that a policy with these options has."""
        return LanguagePolicy.outputs_with(options)

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """What parts may use of this policy: {"tokens"}, and {"critic"} with a value head."""
        return frozenset({"tokens"} | ({"critic"} if options.get("value_head") else set()))

    @property
    def engine(self) -> Engine | None:
        """What generates."""
        return self.language.engine

    @engine.setter
    def engine(self, engine: Engine | None) -> None:
        self.language.engine = engine

    def clone(self) -> AdapterPolicy:
        """The same policy on the same base with an adapter of its own, and no engine yet."""
        other = copy.copy(self)
        adapter = second(self.adapter, self.module)
        value = copy.deepcopy(self.module["value"]) if self.has_critic else None
        model, gradient, version = adapter.get_base_model(), self.language.critic_gradient, self.version
        other.language = self.language.over(self.name, model, value=value, critic_gradient=gradient)
        other.language.version = version
        other._hold(adapter, value)
        return other

    # ---- files --------------------------------------------------------------------------------------------
    def save(self, folder: str) -> None:
        """Write a Hugging Face folder of base and adapter in one, and the adapter alone below `adapter` (for peft)."""
        value = self.module["value"] if self.has_critic else None
        self.language.over(self.name, merged(self.adapter), value=value).save(folder)
        self.adapter.save_pretrained(Path(folder) / FOLDER, save_embedding_layers=False)

    def architecture(self) -> dict[str, Any]:
        """What must agree before weights are exchanged: the base's architecture and the adapter's."""
        config = self.adapter.peft_config[self.adapter.active_adapter]
        own = {"rank": config.r, "alpha": config.lora_alpha, "targets": sorted(config.target_modules)}
        return {**self.language.architecture(), "kind": "adapter", "of": self.base, **own}
