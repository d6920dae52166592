"""The training side of a language policy: log-probabilities, entropies and values of recorded steps, with gradient.

The code for sampling is in `palaestra.policies.language_sampler`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from palaestra.data import Row
from palaestra.data.protocols import Policy, PolicyOutputs
from palaestra.errors import RecipeError
from palaestra.models.adapters import Additions, adding
from palaestra.models.attention import reading
from palaestra.models.devices import device_of, dtype_of
from palaestra.models.own_head import base_of, is_plain, own_logits
from palaestra.models.packing import cost_of_token, is_enabled, read_packed
from palaestra.models.pictures import PictureReader, picture_inputs
from palaestra.models.products import fast_products, is_large
from palaestra.models.recompute import recomputing
from palaestra.models.weight_files import load_weights, open_weights, save_weights, without_progress_bars
from palaestra.policies.frozen_head import covers, frozen_head, is_frozen
from palaestra.policies.outputs import TOKEN_OUTPUTS, TokenOutput, refuse_unknown_outputs, token_columns
from palaestra.policies.sequences import LanguageInputs, LanguageSamples, collate

CHUNK_LOGITS = 2**26  # most logits in memory at once: 256 MB in float32
VALUE_HEAD = "value_head.safetensors"  # in the folder of an exported model


class LanguageModule(nn.Module):
    """A causal language model with an optional value head. It computes the outputs of sequences of tokens.

    Policies on one base share this object, and each call gives the adapter to use. A call without an adapter uses the
    base, which is also the reference of these policies. A call changes no setting and no `requires_grad`.

    Args:
        name: of the policy, for errors.
        model: a model of transformers.
        value: gives V of each position from the last hidden states.
        token_outputs: see `LanguageTrainer`.
        critic_gradient: whether the value loss also trains the model. False: it trains only the value head.
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
        self._plain, self._large = is_plain(model), is_large(model)

    def forward(
        self, batch: LanguageInputs, outputs: Collection[str], adapter: AdapterModule | None = None
    ) -> PolicyOutputs:
        """Compute these outputs of the response tokens, with gradient.

        Args:
            adapter: the low-rank additions and the value head to use; None: those of the base.
        """
        head, additions = (self, None) if adapter is None else (adapter, adapter.additions)
        with fast_products(self._large), reading(batch.lengths), adding(additions), recomputing(self.model):
            if batch.row is not None:
                hidden = read_packed(self.model, batch.row)[None]
            else:
                shown = batch.pictures
                given = picture_inputs(self.model, batch.ids, shown) if shown else {"input_ids": batch.ids}
                hidden = base_of(self.model)(**given, use_cache=False).last_hidden_state
        rows, places = batch.response
        at = hidden[rows, places]
        wanted = [name for name in self.token_outputs if name in outputs]
        out = PolicyOutputs(columns=self._of_tokens(at, batch, wanted, additions))
        if head.value is not None and "value" in outputs:
            seen, judged = (hidden, at) if head.critic_gradient else (hidden.detach(), at.detach())
            out.columns["value"] = head.value(judged.to(dtype_of(head.value))).float()
            if "bootstrap_value" in outputs:
                out.bootstrap_value = _end_values(head.value, seen, batch.ends, packed=batch.row is not None)
        return out

    def _of_tokens(
        self, hidden: Tensor, batch: LanguageInputs, wanted: Sequence[str], additions: Additions | None
    ) -> dict[str, Tensor]:
        """Compute these outputs in chunks, so that the logits of all tokens are never in memory at once.

        If there are several chunks, the backward pass computes the logits of each chunk again, unless the output layer
        is not trained.
        """
        head: Any = self.model.get_output_embeddings() if self._plain else None
        if is_frozen(head) and covers(self.token_outputs, wanted):
            with fast_products(self._large):
                columns = frozen_head(hidden, head, batch.targets, batch.temperature)
            return {name: columns[name] for name in wanted}
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
        with fast_products(self._large), adding(additions):
            logits = self._logits(hidden).float()
        if temperature not in (0.0, 1.0):  # dividing by 1 would cost a tenth of the time of a step
            logits = logits / temperature
        return token_columns(self.token_outputs, torch.log_softmax(logits, -1), targets, wanted, policy=self.name)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden) if self._plain else own_logits(self.model, hidden)


class AdapterModule(nn.Module):
    """The trained weights of an adapter: its low-rank additions and its value head.

    Args:
        adapter: the modules that hold the weights of the additions.
        additions: the same weights by layer of the model.
        value: gives V of each position from the last hidden states.
        critic_gradient: whether the value loss also trains the adapter. False: it trains only the value head.
    """

    def __init__(
        self, adapter: nn.Module, additions: Additions, value: nn.Module | None, *, critic_gradient: bool
    ) -> None:
        super().__init__()
        self.adapter, self.value, self.critic_gradient = adapter, value, critic_gradient
        self.additions = additions


def _end_values(head: nn.Module, hidden: Tensor, ends: Tensor, *, packed: bool) -> Tensor:
    rows = torch.arange(len(ends), device=ends.device)
    if packed:
        rows = torch.zeros_like(rows)
    values = head(hidden[rows, ends.clamp_min(0)].to(dtype_of(head))).float()
    return torch.where(ends >= 0, values, torch.nan)


class LanguageTrainer(Policy, Protocol):
    """The methods of a language policy that training calls.

    Attributes:
        token_outputs: output → function that takes the log-probabilities (tokens, vocabulary) and the taken ids
            (tokens,) and returns (tokens, …). A subclass can add an output, which losses may read.
        module: the module that is trained and saved.
        network: the module that computes outputs. Policies on one base share it.
        adapter_module: the policy's own weights on a shared network; None: the network belongs to this policy alone.
    """

    token_outputs: ClassVar[Mapping[str, TokenOutput]] = TOKEN_OUTPUTS

    name: str
    limit: int
    has_critic: bool
    network: LanguageModule
    adapter_module: AdapterModule | None = None

    @classmethod
    def outputs_with(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """The outputs of a policy with these options."""
        return frozenset({*cls.token_outputs, *(("value",) if options.get("value_head") else ())})

    @property
    def outputs(self) -> frozenset[str]:  # type: ignore[override]
        """The outputs that `forward` can give: the names of `token_outputs`, and "value" with a value head."""
        return frozenset({*self.token_outputs, *(("value",) if self.has_critic else ())})

    def collate(self, rows: Sequence[Row], *, temperature: float) -> LanguageSamples:
        """Make token sequences from rows of this policy, one for each segment, which are packed if the model can."""
        reader = self.renderer.pictures
        return collate(rows, temperature=temperature, limit=self.limit, token_cost=self.token_cost, reader=reader)

    @property
    def token_cost(self) -> float | None:
        """The cost of a token in a packed row; None, if the model does not read packed rows now."""
        model = self.network.model
        return cost_of_token(model) if is_enabled(model) else None

    def forward(self, samples: LanguageSamples, which: Sequence[int], outputs: Collection[str]) -> PolicyOutputs:
        """Compute outputs for the response tokens of these samples, with gradient.

        Args:
            samples: from `collate`.
            which: indices of the samples to read.
            outputs: names from `self.outputs`. "bootstrap_value" also gives the value after samples that were cut off.

        Raises: ContractError, for an output that the policy does not have.
        """
        refuse_unknown_outputs(outputs, self)
        batch = samples.batch(which, device=device_of(self.network))
        return self.network(batch, outputs, adapter=self.adapter_module)  # type: ignore[no-any-return]


def refuse_spread_pictures(name: str, renderer: Any) -> None:
    """Refuse to spread the weights of a policy that reads pictures. Raises: RecipeError.

    Processes read different numbers of pictures, and each would wait for the others in the layers of the vision tower.
    """
    if renderer.pictures is not None:
        raise RecipeError(
            where="training.shard",
            what=f"the policy {name} reads pictures, and its processes would read different numbers of them.",
            remedy=f"Leave `training.shard` out, or set `policies.{name}.policy.language.pictures: false`.",
        )


def save_language(
    folder: Path, model: Any, tokenizer: Any, value: nn.Module | None, pictures: PictureReader | None = None
) -> None:
    """Write a Hugging Face folder: config, safetensors, tokenizer, image processor and value head, if any."""
    with without_progress_bars():
        model.save_pretrained(folder)
    open_weights(folder)
    tokenizer.save_pretrained(folder)
    if pictures is not None:
        pictures.save(folder)
    if value is not None:
        save_weights(value.state_dict(), folder / VALUE_HEAD)


def load_value_head(value: nn.Module, folder: str) -> None:
    """Load the value head of an exported policy, if the folder has one.

    Raises: CheckpointError, for weights that are damaged, or of a head with other layers.
    """
    file = Path(folder) / VALUE_HEAD
    if file.is_file():
        remedy = "Set `value_layers` as in the run that exported it, or delete the file."
        load_weights(value, file, remedy=remedy)
