"""The language policy: a causal language model with its tokenizer and an optional value head.

The code for sampling is in `palaestra.policies.language_sampler`, and that for training in
`palaestra.policies.language_trainer`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from palaestra.data import RunSetup, derive
from palaestra.errors import RecipeError
from palaestra.models.adapters import sharing
from palaestra.models.attention import context_of, take_kernel
from palaestra.models.causal_lm import held_after_loading, load_causal_lm, make_causal_lm
from palaestra.models.heads import ValueHead
from palaestra.models.packing import enable
from palaestra.models.precision import chosen_dtype
from palaestra.models.pretrained import located
from palaestra.models.products import is_large
from palaestra.models.quantized import dequantized
from palaestra.models.recompute import enable_recomputation
from palaestra.models.sharding import whole
from palaestra.models.sizes import PolicySize, size_of
from palaestra.models.tokenizer import SMALLEST_VOCABULARY, load_tokenizer, train_tokenizer
from palaestra.policies.adapter import Adaptable, AdapterPolicy, LoraSettings
from palaestra.policies.agreement import must_compare, refuse_disagreement
from palaestra.policies.language_trainer import (
    CHUNK_LOGITS,
    LanguageModule,
    load_value_head,
    refuse_spread_pictures,
    save_language,
)
from palaestra.policies.reading import renderer_of, template_fault
from palaestra.registry import AtMost, PositiveInt, register


@register(
    "policy",
    "language",
    ignores_if={
        "model": ("hidden", "layers", "heads", "context", "vocabulary"),
        "value_head=False": ("value_layers", "critic_gradient"),
    },
)
class LanguagePolicy(Adaptable):
    """Answer observations with text, by a causal language model.

    `model` is a folder that `AutoModelForCausalLM` or `AutoModelForImageTextToText` can load. Without it, a new small
    Llama is made, with a tokenizer that is trained on transcripts of the environment. A vision–language model also
    reads the images of observations.
    """

    small = {"hidden": 32, "layers": 1, "heads": 2}

    def __init__(
        self,
        name: str,
        setup: RunSetup,
        *,
        model: str | None = None,
        hidden: Annotated[PositiveInt, AtMost(2**16)] = 64,
        layers: Annotated[PositiveInt, AtMost(2**10)] = 2,
        heads: Annotated[PositiveInt, AtMost(2**10)] = 4,
        context: Annotated[PositiveInt, AtMost(2**22)] = 512,
        vocabulary: Annotated[PositiveInt, AtMost(2**22)] = 1024,
        value_head: bool = False,
        value_layers: tuple[PositiveInt, ...] = (),
        critic_gradient: bool = True,
        packing: bool | None = None,
        lora: LoraSettings | None = None,
        quantize: Literal["nf4", "int8"] | None = None,
        recompute: bool = False,
        attention: str | None = None,
        pictures: bool | None = None,
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
            packing: read the samples of a batch in one row without padding, and compute equal beginnings once. None:
                if the model has at least ten million parameters and its architecture allows it.
            lora: train low-rank additions of this `rank`, times `alpha` / `rank`, to the linear layers `targets`
                (None: all but the output), in place of the model's own weights. Use a learning rate about ten times as
                high. Checkpoints then hold the additions alone.
            quantize: hold the weights of all linear layers but the output in 4 bits (`nf4`) or 8 bits (`int8`). It
                needs `model`, and `lora` if the policy is trained. None: as the folder has them.
            recompute: compute the layers again in the backward pass. True: much less memory in the update, a third more
                time.
            attention: the kernel of attention in the update, by its name in transformers: `sdpa`, `eager`, or one whose
                package is installed, such as `flash_attention_2`, which needs a GPU and `dtype: bfloat16`. Only with
                `sdpa` samples are packed. None: `sdpa`, or `eager` for models that have no other.
            pictures: read the image of an observation beside its text. Each image costs tokens, and samples are then
                not packed. False: read texts alone. None: if the model can.

        Raises: RecipeError, if the architecture does not allow `packing`, `recompute`, this `attention` or `pictures`,
            or if quantized weights would be trained; MissingExtra, for quantized weights without bitsandbytes.
        """
        self.name, self.trainable, self.version, self.has_critic = name, True, 0, value_head
        self.held = _held(name, setup, model, quantize, lora)
        if model is None:
            sizes = {"hidden": hidden, "layers": layers, "heads": heads, "context": context}
            causal, self.tokenizer = _new(setup, vocabulary, sizes)
        else:
            self.source = model = located(model)
            causal, self.tokenizer = _loaded(setup, model, quantize)
        config = causal.config.get_text_config()
        self.limit = int(getattr(config, "max_position_embeddings", context))
        value = ValueHead(config.hidden_size, widths=value_layers, seed=setup.seed) if value_head else None
        causal.to(setup.device)
        if attention is not None:
            take_kernel(causal, attention, where=f"policies.{name}.policy.language.attention")
        self.renderer = renderer_of(name, model, causal, self.tokenizer, pictures, limit=self.limit)
        reads_pictures = self.renderer.pictures is not None
        self.notes = _prepare(name, causal, packing=packing, recompute=recompute, pictures=reads_pictures)
        made = LanguageModule(name, causal, value, self.token_outputs, critic_gradient=critic_gradient)
        self.module = self.network = made.to(setup.device)
        self.value_layers = value_layers
        self.lora = None if lora is None else LoraSettings.model_validate(lora)
        self._seed = derive(setup.seed, name) % 2**31
        self._base: LanguageModule | None = None
        self._whole: Any = None
        if model is not None and value is not None:
            load_value_head(value, model)

    @property
    def model(self) -> Any:  # type: ignore[override]
        """The causal language model of `module`. If that is sharded over processes, this is an unsharded copy."""
        return self.module.model if self._whole is None else self._whole

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """The abilities that this policy gives: "tokens", "critic" with a value head, and "transformer" without `lora`
        and `quantize`."""
        whole = set() if options.get("lora") or options.get("quantize") else {"transformer"}
        return frozenset({"tokens"} | whole | ({"critic"} if options.get("value_head") else set()))

    @staticmethod
    def no_template(options: Mapping[str, Any]) -> str | None:
        """Why no chat template writes the prompts of a policy with these options; None, if one does."""
        return template_fault(options.get("model"))

    def check_numbers(self) -> None:
        """Compare engine, trainer and transformers, for a model that was loaded or is served by another program.

        Raises: ContractError.
        """
        if must_compare(self, loaded=self.source is not None):
            refuse_disagreement(self)

    def as_trained(self) -> LanguagePolicy | AdapterPolicy:
        """An adapter on this policy, if it has the option `lora`."""
        return self if self.lora is None else AdapterPolicy.alone_on(self, self.lora, seed=self._seed)

    @staticmethod
    def model_size(options: Mapping[str, Any], bases: Mapping[str, PolicySize]) -> PolicySize | None:
        """The sizes of a policy with a pretrained model; None for one that is made on the spot or cannot be counted."""
        model = None if options.get("model") is None else size_of(options["model"])
        if model is None:
            return None
        lora = None if options.get("lora") is None else LoraSettings.model_validate(options["lora"])
        trained = model.parameters if lora is None else model.additions(lora.rank, lora.targets)
        return PolicySize(
            model=model,
            trained=trained,
            holds_model=True,
            adds=lora is not None,
            chunk=CHUNK_LOGITS,
            held=options.get("quantize") or model.held,
        )

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
        refuse_spread_pictures(self.name, self.renderer)
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
        """Write a Hugging Face folder: config, safetensors, tokenizer, image processor and value head, if any.

        Quantized weights are written as whole ones.
        """
        model = self.model if self.held is None else dequantized(self.model, self.model.dtype)
        save_language(Path(folder), model, self.tokenizer, self.module.value, self.renderer.pictures)

    def architecture(self) -> dict[str, Any]:
        """The values that must be equal before weights are loaded."""
        config = self.model.config.get_text_config()
        return {
            "kind": "language",
            "model_type": self.model.config.model_type,
            "hidden": config.hidden_size,
            "layers": config.num_hidden_layers,
            "vocabulary": config.vocab_size,
            "value_head": list(self.value_layers) or self.has_critic,
            "tokenizer": hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16],
            **({} if self.held is None else {"weights": self.held}),  # checkpoints from before this option lack it
        }


def _held(name: str, setup: RunSetup, model: str | None, quantize: str | None, lora: Any) -> str | None:
    """The kind in which the policy will hold its weights, before anything is loaded; None: they are whole.

    Raises: RecipeError, if it cannot be held so or would be trained.
    """
    where = f"policies.{name}.policy.language.quantize"
    if model is None:
        if quantize is not None:
            remedy = "Set `model`, or leave `quantize` out."
            raise RecipeError(where=where, what="a model that is made on the spot has whole weights.", remedy=remedy)
        return None
    held = held_after_loading(model, quantize)
    settings = None if setup.settings is None else setup.settings.policies[name]
    if held is not None and lora is None and settings is not None and settings.trainable:
        raise RecipeError(
            where=where,
            what=f"the weights are held in `{held}`, and such weights cannot be trained.",
            remedy=f"Train low-rank additions: policies.{name}.policy.language.lora={{rank: 16, alpha: 32}}.",
        )
    return held


def _new(setup: RunSetup, vocabulary: int, sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """A small model that is not trained, and its tokenizer."""
    texts = setup.texts() if vocabulary > SMALLEST_VOCABULARY else ()  # the smallest one has the bytes alone
    tokenizer = train_tokenizer((f" {text.strip()}" for text in texts), vocabulary=vocabulary)  # as the renderer does
    return make_causal_lm(vocabulary=len(tokenizer), seed=setup.seed, **sizes), tokenizer


def _loaded(setup: RunSetup, model: str, quantize: str | None) -> tuple[Any, Any]:
    """The model of a folder and its tokenizer. The weights are loaded in the type of the run, so that no second copy is
    made."""
    dtype = "float32" if setup.settings is None else chosen_dtype(setup.settings.dtype, setup.settings.device)
    causal = load_causal_lm(model, dtype=getattr(torch, dtype), quantize=quantize, device=setup.device)
    return causal, load_tokenizer(model)


def _prepare(name: str, causal: Any, *, packing: bool | None, recompute: bool, pictures: bool) -> tuple[str, ...]:
    """Let a model read packed rows and compute its layers again. Returns lines for the user: that samples are padded,
    and that prompts end before the model's context does.

    Raises: RecipeError, if it cannot what the recipe demands.
    """
    wanted = is_large(causal) if packing is None else packing
    obstacle = ("it reads pictures" if pictures else enable(causal)) if wanted else ""
    fault = f"{type(causal).__name__} cannot read several sequences in one row: {obstacle}."
    if packing and obstacle:
        raise RecipeError(
            where=f"policies.{name}.policy.language.packing",
            what=fault,
            remedy="Leave it out: batches are then padded.",
        )
    if recompute and not enable_recomputation(causal):
        raise RecipeError(
            where=f"policies.{name}.policy.language.recompute",
            what=f"{type(causal).__name__} cannot compute its layers again.",
            remedy="Leave it out, and lower `training.token_budget` if memory runs out.",
        )
    padded = f"policy {name}: samples are padded, which is slower. {fault}"
    room, why = context_of(causal.config.get_text_config())
    ended = f"policy {name}: a prompt with its response has at most {room} tokens, though the model reads more: {why}."
    return tuple(line for line, true in ((padded, obstacle), (ended, why)) if true)
