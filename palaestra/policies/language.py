"""The language policy: a causal language model with its tokenizer and an optional value head.

The code for sampling is in `palaestra.policies.language_sampler`, and that for training in
`palaestra.policies.language_trainer`.
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
from palaestra.models.pretrained import located
from palaestra.models.sharding import whole
from palaestra.models.sizes import PolicySize, size_of
from palaestra.models.tokenizer import load_tokenizer, train_tokenizer
from palaestra.policies.language_sampler import LanguageSampler
from palaestra.policies.language_trainer import (
    CHUNK_LOGITS,
    VALUE_HEAD,
    LanguageModule,
    LanguageTrainer,
    save_language,
)
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
    """Answer observations with text, by a causal language model.

    `model` is a folder that `AutoModelForCausalLM` can load. Without it, a new small Llama is made, with a tokenizer
    that is trained on transcripts of the environment.
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
            name: the name in the recipe.
            setup: gives the seed, the transcripts and the device.
            model: folder in Hugging Face format, name of a folder in the folder of models, or id of a model that was
                downloaded before, such as `Qwen/Qwen3-0.6B`. It decides the next five options, which are then refused.
            hidden: width. Higher: more capacity, quadratic cost. Usual here: 64 to 256.
            layers: number of blocks of attention and MLP. Higher: more capacity, slower. Usual here: 2 to 4.
            heads: number of attention heads, a divisor of hidden. Usual here: 4.
            context: largest number of tokens of a prompt with its response. Higher: longer episodes, more memory. Usual
                here: 512.
            vocabulary: largest number of tokens of the trained tokenizer.
            value_head: add a critic that learns V at the position of each response token.
            value_layers: widths of the layers in the value head. Usual: none, or (hidden,) without critic_gradient.
            critic_gradient: whether the value loss also trains the model. False: it trains only the value head.
        """
        self.name, self.trainable, self.version, self.has_critic = name, True, 0, value_head
        if model is None:
            # The renderer puts a space before every text.
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
            model = located(model)
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
        """The causal language model of `module`. If that is sharded over processes, this is an unsharded copy."""
        return self.module.model if self._whole is None else self._whole

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """The abilities that this policy gives to parts: "tokens" and "transformer", and "critic" with a value head."""
        return frozenset({"tokens", "transformer"} | ({"critic"} if options.get("value_head") else set()))

    @staticmethod
    def model_size(options: Mapping[str, Any], bases: Mapping[str, PolicySize]) -> PolicySize | None:
        """The sizes of a policy with a pretrained model; None for one that is made on the spot or cannot be counted."""
        model = None if options.get("model") is None else size_of(options["model"])
        if model is None:
            return None
        return PolicySize(model=model, trained=model.parameters, whole=True, chunk=CHUNK_LOGITS)

    def clone(self) -> LanguagePolicy:
        """A copy of the policy with its own weights and without an engine."""
        other = copy.copy(self)
        other.module = other.network = copy.deepcopy(self.module)
        other.engine = other._base = None
        return other

    def train_through(self, network: LanguageModule) -> None:
        """Train `network`, a copy whose weights are sharded over processes. The engine uses `model`, which stays whole.

        `weights_changed` copies each update to `model`.
        """
        self._whole = self.model.requires_grad_(False)
        self.module = self.network = network

    def weights_changed(self, version: int) -> None:
        """Publish the weights to the engine. If weights are sharded, all processes must call this together."""
        if self._whole is not None:
            with torch.no_grad():
                for own, spread in zip(self._whole.parameters(), self.module.model.parameters(), strict=True):
                    own.copy_(whole(spread))
        super().weights_changed(version)

    def as_base(self) -> LanguageModule:
        """The module that all adapters on this policy share. It has the same weights but does not train them."""
        if self._base is None:
            model = sharing(self.model)
            self._base = LanguageModule(self.name, model, None, self.token_outputs, critic_gradient=True)
        return self._base

    # ---- files --------------------------------------------------------------------------------------------
    def save(self, folder: str) -> None:
        """Write a Hugging Face folder: config, safetensors, tokenizer, and the value head if there is one."""
        save_language(Path(folder), self.model, self.tokenizer, self.module.value)

    def architecture(self) -> dict[str, Any]:
        """The values that must be equal before weights are loaded."""
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
