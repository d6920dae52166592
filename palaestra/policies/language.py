"""The language policy: a causal language model, its tokenizer and an optional value head.

Sampling is in `palaestra.policies.language_sampler`, training in `palaestra.policies.language_trainer`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from palaestra.chat import renderer_for
from palaestra.data import RunSetup
from palaestra.models.adapters import sharing
from palaestra.models.causal_lm import load_causal_lm, make_causal_lm
from palaestra.models.heads import ValueHead
from palaestra.models.sharding import whole
from palaestra.models.tokenizer import load_tokenizer, train_tokenizer
from palaestra.policies.language_sampler import LanguageSampler
from palaestra.policies.language_trainer import VALUE_HEAD, LanguageModule, LanguageTrainer, save_language
from palaestra.registry import PositiveInt, register


@register(
    "policy",
    "language",
    ignores_if={
        "model": ("hidden", "layers", "heads", "context", "vocabulary"),
        "value_head=False": ("value_layers", "critic_gradient"),
    },
)
class LanguagePolicy(LanguageSampler, LanguageTrainer):
    """Observations in, text out, by a causal language model.

    Without `model` a small Llama is made on the spot and its tokenizer is trained on transcripts of the
    environment; with `model` any folder that `AutoModelForCausalLM` reads is loaded.
    """

    small = {"hidden": 32, "layers": 1, "heads": 2}

    def __init__(
        self,
        name: str,
        setup: RunSetup,
        *,
        model: str | None = None,
        hidden: PositiveInt = 64,
        layers: PositiveInt = 2,
        heads: PositiveInt = 4,
        context: PositiveInt = 512,
        vocabulary: PositiveInt = 1024,
        value_head: bool = False,
        value_layers: tuple[PositiveInt, ...] = (),
        critic_gradient: bool = True,
    ) -> None:
        """
        Args:
            name: as in the recipe; setup: seed, transcripts, device.
            model: folder in Hugging Face format; it decides the next five options, which are then refused.
            hidden: width. Higher: more capacity, quadratic cost. Usual here: 64 to 256.
            layers: blocks of attention and MLP. Higher: more capacity, slower. Usual here: 2 to 4.
            heads: of attention, a divisor of hidden. Usual here: 4.
            context: most tokens of a prompt and its response. Higher: longer episodes, more memory. Usual here: 512.
            vocabulary: most tokens of the trained tokenizer.
            value_head: learn V of each response token's position (a critic).
            value_layers: widths of the layers in the value head. Usual: none, or (hidden,) without critic_gradient.
            critic_gradient: let the value loss move the model. False: it moves the value head alone.
        """
        self.name, self.trainable, self.version, self.has_critic = name, True, 0, value_head
        if model is None:
            # With the leading space that the renderer gives every text.
            texts = [" " + text.strip() for text in setup.texts()]
            self.tokenizer: Any = train_tokenizer(texts, vocabulary=vocabulary)
            causal: Any = make_causal_lm(
                vocabulary=len(self.tokenizer),
                hidden=hidden,
                layers=layers,
                heads=heads,
                context=context,
                seed=setup.seed,
            )
        else:
            causal, self.tokenizer = load_causal_lm(model), load_tokenizer(model)
        self.limit = int(getattr(causal.config, "max_position_embeddings", context))
        value = ValueHead(causal.config.hidden_size, widths=value_layers, seed=setup.seed) if value_head else None
        made = LanguageModule(name, causal, value, self.token_outputs, critic_gradient=critic_gradient)
        self.module = self.network = made.to(setup.device)
        self.value_layers, self.renderer = value_layers, renderer_for(self.tokenizer)
        self._base: LanguageModule | None = None
        self._whole: Any = None
        if model is not None and value is not None and (Path(model) / VALUE_HEAD).exists():
            value.load_state_dict(load_file(Path(model) / VALUE_HEAD))

    @property
    def model(self) -> Any:  # type: ignore[override]
        """The causal language model inside `module`; where that is spread over processes, a whole copy."""
        return self.module.model if self._whole is None else self._whole

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """What parts may use of this policy: {"tokens", "transformer"}, and {"critic"} with a value head."""
        return frozenset({"tokens", "transformer"} | ({"critic"} if options.get("value_head") else set()))

    def clone(self) -> LanguagePolicy:
        """The same policy with weights of its own, and no engine yet."""
        other = copy.copy(self)
        other.module = other.network = copy.deepcopy(self.module)
        other.engine = other._base = None
        return other

    def train_through(self, network: LanguageModule) -> None:
        """Train this network, a copy whose weights are spread over processes; `model` stays whole, for the engine.

        `weights_changed` brings each update there.
        """
        self._whole = self.model.requires_grad_(False)
        self.module = self.network = network

    def weights_changed(self, version: int) -> None:
        """As every language policy's; where weights are spread, all processes call this together."""
        if self._whole is not None:
            with torch.no_grad():
                for own, spread in zip(self._whole.parameters(), self.module.model.parameters(), strict=True):
                    own.copy_(whole(spread))
        super().weights_changed(version)

    def as_base(self) -> LanguageModule:
        """What adapters on this policy share: one module over the same weights, through which nothing trains them."""
        if self._base is None:
            model = sharing(self.model)
            self._base = LanguageModule(self.name, model, None, self.token_outputs, critic_gradient=True)
        return self._base

    # ---- files --------------------------------------------------------------------------------------------
    def save(self, folder: str) -> None:
        """Write a Hugging Face folder: config, safetensors, tokenizer, and the value head beside them."""
        save_language(Path(folder), self.model, self.tokenizer, self.module.value)

    def architecture(self) -> dict[str, Any]:
        """What must agree before weights are exchanged."""
        config = self.model.config
        return {
            "kind": "language",
            "model_type": config.model_type,
            "hidden": config.hidden_size,
            "layers": config.num_hidden_layers,
            "vocabulary": config.vocab_size,
            "value_head": list(self.value_layers) or self.has_critic,
            "tokenizer": hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16],
        }
