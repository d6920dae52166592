"""The trainer half of a language policy: from recorded steps to log-probabilities, entropies and values with gradient.

How a token is sampled is in `palaestra.policies.language_sampler`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from palaestra.data import Row
from palaestra.data.protocols import Policy, PolicyOutputs
from palaestra.models.adapters import Additions, adding
from palaestra.models.attention import reading
from palaestra.models.devices import device_of
from palaestra.policies.outputs import TokenOutput, refuse_unknown_outputs, token_columns, token_entropy, token_logprob
from palaestra.policies.sequences import LanguageInputs, LanguageSamples, collate

CHUNK_LOGITS = 2**26  # logits that exist at once: 256 MB in float32
VALUE_HEAD = "value_head.safetensors"  # beside an exported model


class LanguageModule(nn.Module):
    """A causal language model, an optional value head, and what both say about sequences of tokens.

    Policies on one base call the same object and hand over their adapter; without one it is the base itself, which is
    also their reference. A call changes neither a setting nor a `requires_grad`.

    Args:
        name: of the policy, for messages.
        model: of transformers. value: V of each position, from the last hidden states.
        token_outputs: functions that `LanguageTrainer` describes.
        critic_gradient: let the value loss move the model, not the value head alone.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        value: nn.Module | None,
        token_outputs: Mapping[str, TokenOutput],
        *,
        critic_gradient: bool,
    ) -> None:
        super().__init__()
        self.name, self.model, self.value = name, model, value
        self.token_outputs, self.critic_gradient = dict(token_outputs), critic_gradient

    def forward(
        self, batch: LanguageInputs, outputs: Collection[str], adapter: AdapterModule | None = None
    ) -> PolicyOutputs:
        """These outputs of the response tokens, with gradient.

        Args:
            adapter: low-rank additions, and a value head of its own; None: the base.
        """
        head, additions = (self, None) if adapter is None else (adapter, adapter.additions)
        with reading(batch.lengths), adding(additions):
            hidden = self.model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
        rows, places = batch.response
        at = hidden[rows, places]
        wanted = [name for name in self.token_outputs if name in outputs]
        out = PolicyOutputs(columns=self._of_tokens(at, batch, wanted, additions))
        if head.value is not None and "value" in outputs:
            seen, judged = (hidden, at) if head.critic_gradient else (hidden.detach(), at.detach())
            out.columns["value"] = head.value(judged).float()
            if "bootstrap_value" in outputs:
                out.bootstrap_value = _end_values(head.value, seen, batch.ends)
        return out

    def _of_tokens(
        self, hidden: Tensor, batch: LanguageInputs, wanted: Sequence[str], additions: Additions | None
    ) -> dict[str, Tensor]:
        """These outputs, chunk by chunk, so that logits of all tokens never exist at once.

        With gradient and several chunks, the backward pass computes each chunk's logits again.
        """
        chunk = max(1, CHUNK_LOGITS // int(self.model.config.get_text_config().vocab_size))
        if len(hidden) <= chunk:
            return self._of_chunk(hidden, batch.targets, batch.temperature, wanted, additions)
        pieces = [
            checkpoint(self._of_chunk, h, t, batch.temperature, wanted, additions, use_reentrant=False)
            for h, t in zip(hidden.split(chunk), batch.targets.split(chunk), strict=True)
        ]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in wanted}

    def _of_chunk(
        self, hidden: Tensor, targets: Tensor, temperature: float, wanted: Sequence[str], additions: Additions | None
    ) -> dict[str, Tensor]:
        with adding(additions):
            logits = self._logits(hidden).float()
        if temperature not in (0.0, 1.0):  # dividing by 1 would cost a tenth of a step
            logits = logits / temperature
        return token_columns(self.token_outputs, torch.log_softmax(logits, -1), targets, wanted, policy=self.name)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.get_output_embeddings()(hidden)
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        return logits if not cap else cap * torch.tanh(logits / cap)


class AdapterModule(nn.Module):
    """What is an adapter's own, and trained: low-rank additions by their places in the model, and a value head.

    Args:
        adapter: the modules that hold the additions' weights. additions: the same weights by layer of the model.
        value: V of each position, from the last hidden states.
        critic_gradient: let the value loss move the adapter, not the value head alone.
    """

    def __init__(
        self, adapter: nn.Module, additions: Additions, value: nn.Module | None, *, critic_gradient: bool
    ) -> None:
        super().__init__()
        self.adapter, self.value, self.critic_gradient = adapter, value, critic_gradient
        self.additions = additions


def _end_values(head: nn.Module, hidden: Tensor, ends: Tensor) -> Tensor:
    rows = torch.arange(len(ends), device=ends.device)
    values = head(hidden[rows, ends.clamp_min(0)]).float()
    return torch.where(ends >= 0, values, torch.nan)


class LanguageTrainer(Policy, Protocol):
    """What the training room asks of policies of a causal language model.

    Attributes:
        token_outputs: output → function of log-probabilities (tokens, vocabulary) and the taken ids (tokens,), giving
            (tokens, …). A subclass adds an entry, and losses may read the output.
        module: what is trained, saved and handed to the optimizer.
        network: what is called; policies on one base share it.
        adapter_module: what is the policy's own on a shared network; None: the network is the policy's own.
    """

    token_outputs: ClassVar[Mapping[str, TokenOutput]] = {"logprob": token_logprob, "entropy": token_entropy}

    name: str
    limit: int
    has_critic: bool
    network: LanguageModule
    adapter_module: AdapterModule | None = None

    @classmethod
    def outputs_with(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """The outputs that a policy with these options has."""
        return frozenset({*cls.token_outputs, *(("value",) if options.get("value_head") else ())})

    @property
    def outputs(self) -> frozenset[str]:  # type: ignore[override]
        """What `forward` can be asked for: the names of `token_outputs`, and "value" with a value head."""
        return frozenset({*self.token_outputs, *(("value",) if self.has_critic else ())})

    def collate(self, rows: Sequence[Row], *, temperature: float) -> LanguageSamples:
        """Rows of this policy as token sequences: one per segment, steps merged where ids are an exact prefix."""
        return collate(rows, temperature=temperature, limit=self.limit)

    def forward(self, samples: LanguageSamples, which: Sequence[int], outputs: Collection[str]) -> PolicyOutputs:
        """Outputs for the response tokens of these samples, with gradient.

        Args:
            outputs: names of `self.outputs`; "bootstrap_value" adds the value behind samples that were cut off.

        Raises: ContractError, for an output that the policy does not have.
        """
        refuse_unknown_outputs(outputs, self)
        batch = samples.batch(which, device=device_of(self.network))
        return self.network(batch, outputs, adapter=self.adapter_module)  # type: ignore[no-any-return]


def save_language(folder: Path, model: Any, tokenizer: Any, value: nn.Module | None) -> None:
    """Write a Hugging Face folder: config, safetensors, tokenizer, and the value head beside them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if value is not None:
        save_file(dict(value.state_dict()), folder / VALUE_HEAD)
