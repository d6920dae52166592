"""The language policy: a causal language model, its tokenizer and an optional value head.

Knows models, contexts and an engine by protocol. Knows nothing of environments, rewards or estimators.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from palaestra.chat import Context, ContextFull, Conversation, FullHistory, Prompt, renderer_for
from palaestra.data import Action, NextPrompt, Observation, Row, RunSetup
from palaestra.data.protocols import Engine, Policy, PolicyOutputs, Request, Response, Sampling, Session
from palaestra.errors import EpisodeFailure, PalaestraError
from palaestra.models.attention import reading
from palaestra.models.causal_lm import load_causal_lm, make_causal_lm
from palaestra.models.devices import device_of
from palaestra.models.heads import ValueHead
from palaestra.models.tokenizer import load_tokenizer, train_tokenizer
from palaestra.policies.outputs import TokenOutput, refuse_unknown_outputs, token_columns, token_entropy, token_logprob
from palaestra.policies.responses import responses
from palaestra.policies.sequences import LanguageSamples, collate
from palaestra.registry import PositiveInt, register

CHUNK_LOGITS = 2**26  # logits that exist at once: 256 MB in float32


@register("policy", "language")
class LanguagePolicy(Policy):
    """Observations in, text out, by a causal language model.

    Without `model` a small Llama is made on the spot and its tokenizer is trained on transcripts of the
    environment; with `model` any folder that `AutoModelForCausalLM` reads is loaded.
    """

    # Output → function of log-probabilities (tokens, vocabulary) and the taken ids (tokens,), giving (tokens, …). A
    # subclass adds an entry, and losses may read the output.
    token_outputs: ClassVar[Mapping[str, TokenOutput]] = {"logprob": token_logprob, "entropy": token_entropy}

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
            model: folder in Hugging Face format; the next five options are then read from it.
            hidden: width. Higher: more capacity, quadratic cost. Usual here: 64 to 256.
            layers, heads, context: of the model; context is the longest prompt plus response.
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
        self.limit: int = int(getattr(causal.config, "max_position_embeddings", context))
        parts: dict[str, nn.Module] = {"model": causal}
        if value_head:
            parts["value"] = ValueHead(causal.config.hidden_size, widths=value_layers, seed=setup.seed)
        self.module = nn.ModuleDict(parts).to(setup.device)
        self.critic_gradient, self.value_layers = critic_gradient, value_layers
        self.renderer = renderer_for(self.tokenizer)
        self.engine: Engine | None = None
        if model is not None and value_head and (Path(model) / "value_head.safetensors").exists():
            self.module["value"].load_state_dict(load_file(Path(model) / "value_head.safetensors"))

    @property
    def model(self) -> Any:  # type: ignore[override]
        """The causal language model inside `module`."""
        return self.module["model"]

    @property
    def choices(self) -> int:  # type: ignore[override]
        """How many tokens there are to choose from: their entropy is at most ln(choices)."""
        return int(self.model.config.get_text_config().vocab_size)

    @classmethod
    def outputs_with(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """The outputs that a policy with these options has."""
        return frozenset({*cls.token_outputs, *(("value",) if options.get("value_head") else ())})

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """What parts may use of this policy: {"tokens", "transformer"}, and {"critic"} with a value head."""
        return frozenset({"tokens", "transformer"} | ({"critic"} if options.get("value_head") else set()))

    def session(self, *, context: Context | None, sampling: Sampling, key: Hashable) -> LanguageSession:
        """A conversation of one agent in one episode; without a context it has its full history."""
        context = context or FullHistory()
        return LanguageSession(self, context.start_for(self.renderer, key), sampling, key)

    def clone(self) -> LanguagePolicy:
        """The same policy with weights of its own, and no engine yet."""
        other = copy.copy(self)
        other.module, other.engine = copy.deepcopy(self.module), None
        return other

    def over(
        self, name: str, model: Any, *, value: nn.Module | None = None, critic_gradient: bool = True
    ) -> LanguagePolicy:
        """A policy of another name and model that reads and writes the same tokens; it has no engine yet."""
        other = copy.copy(self)
        other.name, other.trainable, other.version, other.engine = name, True, 0, None
        other.module = nn.ModuleDict({"model": model} | ({} if value is None else {"value": value}))
        other.has_critic, other.critic_gradient = value is not None, critic_gradient
        return other

    def weights_changed(self, version: int) -> None:
        """Call after each update: cached keys and values of older weights are forgotten."""
        self.version = version
        if self.engine is not None:
            self.engine.weights_changed(self.name, version)

    def respond(
        self, rows: Sequence[Row], seeds: Sequence[int], *, temperature: float, max_tokens: int = 32
    ) -> list[Action]:
        """What this policy would say now where these rows were acted; for the time between rollouts.

        Args:
            rows: steps of episodes that this policy (of any version) has played. seeds: one decides each draw.
            max_tokens: most response tokens, as far as the model's context has room.

        Raises: EpisodeFailure, if a prompt leaves no room; PalaestraError, without an engine.
        """
        prompts = [row.trajectory.prompt_of(row.step) for row in rows]
        requests = [
            Request(
                policy=self.name,
                session=("respond", place),
                prompt=prompt,
                seed=int(seed),
                max_tokens=min(max_tokens, self.limit - len(prompt)),
                temperature=temperature,
                stop=self.renderer.stop,
            )
            for place, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]
        return responses(self.connected(), requests, text=self.renderer.text)

    def connected(self) -> Engine:
        """The engine that generates. Raises: PalaestraError, if there is none."""
        if self.engine is None:
            raise PalaestraError(
                where=f"policy {self.name}",
                what="it has no engine to generate with.",
                remedy="Set `policy.engine = InProcessEngine(models={policy.name: policy.model})`.",
            )
        return self.engine

    # ---- training -----------------------------------------------------------------------------------------
    def collate(self, rows: Sequence[Row], *, temperature: float) -> LanguageSamples:
        """Rows of this policy as token sequences: one per segment, steps merged where ids are an exact prefix."""
        return collate(rows, temperature=temperature, limit=self.limit)

    @property
    def outputs(self) -> frozenset[str]:
        """What `forward` can be asked for: the names of `token_outputs`, and "value" with a value head."""
        return frozenset({*self.token_outputs, *(("value",) if self.has_critic else ())})

    def forward(self, samples: LanguageSamples, which: Sequence[int], outputs: Collection[str]) -> PolicyOutputs:
        """Outputs for the response tokens of these samples, with gradient.

        Args:
            outputs: names of `self.outputs`; "bootstrap_value" adds the value behind samples that were cut off.

        Raises: ContractError, for an output that the policy does not have.
        """
        refuse_unknown_outputs(outputs, self)
        batch = samples.batch(which, device=device_of(self.model))
        with reading(samples.cost[list(which)].tolist()):
            hidden = self._hidden(batch.ids)
        rows, places = batch.response
        at = hidden[rows, places]
        wanted = [name for name in self.token_outputs if name in outputs]
        out = PolicyOutputs(columns=self._of_tokens(at, batch.targets, samples.temperature, wanted))
        if self.has_critic and "value" in outputs:
            seen, judged = (hidden, at) if self.critic_gradient else (hidden.detach(), at.detach())
            out.columns["value"] = self.module["value"](judged).float()
            if "bootstrap_value" in outputs:
                out.bootstrap_value = self._end_values(seen, batch.ends)
        return out

    def _of_tokens(
        self, hidden: Tensor, targets: Tensor, temperature: float, wanted: Sequence[str]
    ) -> dict[str, Tensor]:
        """These outputs, chunk by chunk, so that logits of all tokens never exist at once.

        With gradient and several chunks, the backward pass computes each chunk's logits again.
        """
        chunk = max(1, CHUNK_LOGITS // self.choices)
        if len(hidden) <= chunk:
            return self._of_chunk(hidden, targets, temperature, wanted)
        pieces = [
            checkpoint(self._of_chunk, h, t, temperature, wanted, use_reentrant=False)
            for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in wanted}

    def _of_chunk(
        self, hidden: Tensor, targets: Tensor, temperature: float, wanted: Sequence[str]
    ) -> dict[str, Tensor]:
        logits = self._logits(hidden).float()
        if temperature not in (0.0, 1.0):  # dividing by 1 would cost a tenth of a step
            logits = logits / temperature
        logprobs = torch.log_softmax(logits, -1)
        return token_columns(self.token_outputs, logprobs, targets, wanted, policy=self.name)

    def _hidden(self, ids: Tensor) -> Tensor:
        return self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.get_output_embeddings()(hidden)
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        return logits if not cap else cap * torch.tanh(logits / cap)

    def _end_values(self, hidden: Tensor, ends: Tensor) -> Tensor:
        rows = torch.arange(len(ends), device=ends.device)
        values = self.module["value"](hidden[rows, ends.clamp_min(0)]).float()
        return torch.where(ends >= 0, values, torch.nan)

    # ---- files --------------------------------------------------------------------------------------------
    def save(self, folder: str) -> None:
        """Write a Hugging Face folder: config, safetensors, tokenizer, and the value head beside them."""
        path = Path(folder)
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        if self.has_critic:
            save_file(dict(self.module["value"].state_dict()), path / "value_head.safetensors")

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


@dataclass(slots=True)
class LanguageSession(Session):
    """One agent's conversation: a context that appends, and the engine's cached keys and values."""

    policy: LanguagePolicy
    conversation: Conversation
    sampling: Sampling
    key: Hashable
    segment: int = -1
    unread: list[np.ndarray] = field(default_factory=list)  # recorded ids of this segment, new to the engine
    in_engine: bool = False  # the engine has a session for this segment

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """Sample a response.

        Raises: ContextFull, when a grown history leaves no room; EpisodeFailure, when the very first
            prompt does not fit.
        """
        engine = self.policy.connected()
        prompt = self.conversation.observe(observation)
        room = self.policy.limit - self.conversation.length
        if room < 1:
            self._overflow(first=prompt.fresh and self.segment < 0)
        self._enter(prompt)
        response = await engine.generate(
            Request(
                policy=self.policy.name,
                session=(self.key, prompt.segment),
                prompt=np.concatenate([*self.unread, prompt.ids]),
                seed=seed,
                max_tokens=min(self.sampling.max_tokens, room),
                temperature=self.sampling.temperature,
                top_k=self.sampling.top_k,
                top_p=self.sampling.top_p,
                stop=self.policy.renderer.stop,
                entropy=self.sampling.entropy,
                entropy_temperature=self.sampling.entropy_temperature,
            )
        )
        self.unread, self.in_engine = [], True
        self.conversation.respond(response.action.tokens)
        action = replace(response.action, text=self.policy.renderer.text(response.action.tokens))
        return replace(response, action=action, prompt=prompt.ids, segment=prompt.segment)

    def record(self, observation: Observation, action: Action) -> Response:
        """Take a given action: its text becomes the response ids."""
        ids = self.policy.renderer.action(action.text or str(action.value))
        return self.replay(observation, Action(text=action.text, value=action.value, tokens=ids, finish=action.finish))

    def replay(self, observation: Observation, action: Action) -> Response:
        """Take an action of this very policy again: its ids are the response, whatever its text would give."""
        prompt = self.conversation.observe(observation)
        if self.conversation.length + len(action.tokens) > self.policy.limit:
            self._overflow(first=prompt.fresh and self.segment < 0)
        self._enter(prompt)
        self.conversation.respond(action.tokens)
        self.unread += [prompt.ids, action.tokens]  # the engine reads them when the next response is asked for
        return Response(action=action, prompt=prompt.ids, segment=prompt.segment, version=self.policy.version)

    def fork(self, key: Hashable) -> LanguageSession:
        """A copy that goes on from here; what the engine has read is not read again.

        Raises: ContractError, if the engine cannot fork.
        """
        renderer = self.policy.renderer
        conversation = copy.deepcopy(self.conversation, {id(renderer): renderer})
        copied = replace(self, conversation=conversation, key=key, unread=list(self.unread))
        if self.in_engine:
            self.policy.connected().fork((self.key, self.segment), (key, self.segment))
        return copied

    def history(self) -> Conversation:
        """What makes its prompts."""
        return self.conversation

    def end(self, observation: Observation | None) -> NextPrompt | None:
        """Free the engine's memory; the prompt ids that `observation` would have had, if they fit."""
        self._forget()
        if observation is None or self.segment < 0 or not self.policy.has_critic:
            return None
        prompt = self.conversation.observe(observation)
        return NextPrompt(prompt.ids, prompt.segment) if self.conversation.length <= self.policy.limit else None

    def _enter(self, prompt: Prompt) -> None:
        """Where a segment starts, the one before it is forgotten."""
        if prompt.fresh:
            self._forget()
            self.segment, self.unread, self.in_engine = prompt.segment, [], False

    def _forget(self) -> None:
        if self.policy.engine is not None and self.segment >= 0:
            self.policy.engine.close((self.key, self.segment))

    def _overflow(self, *, first: bool) -> None:
        length, limit = self.conversation.length, self.policy.limit
        if not first:
            raise ContextFull
        raise EpisodeFailure(
            boundary="engine",
            where=f"policy {self.policy.name}",
            what=f"the first prompt has {length} tokens and the model's context {limit}: no response fits.",
            remedy="Shorten the observation, or raise `policies.….policy.language.context`.",
        )
