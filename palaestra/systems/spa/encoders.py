"""The network of SPA's estimator: from the steps of an episode, as vectors or token ids, to one number per step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from palaestra.models.devices import device_of

# An episode as the estimator reads it: its inputs, and how many of them each step has, int64 (steps,). Inputs are
# float32 (steps, size) for vectors, one per step, or int64 (tokens,) for ids.
Episode = tuple[Tensor, Tensor]


class VectorReader(nn.Module):
    """A linear layer and tanh over each step's vector."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, hidden)

    def forward(self, inputs: Float[Tensor, "steps size"], widths: Int[Tensor, " steps"]) -> Tensor:
        """(steps, hidden)."""
        return torch.tanh(self.layer(inputs))


class TokenReader(nn.Module):
    """A GRU over the tokens of each single step; its last state represents the step."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.memory = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, inputs: Int[Tensor, " tokens"], widths: Int[Tensor, " steps"]) -> Tensor:
        """(steps, hidden)."""
        seen: Tensor = self.memory(padded(self.embedding(inputs), widths))[0]
        return seen[torch.arange(len(widths), device=widths.device), widths - 1]


class StepEstimator(nn.Module):
    """One number c_k per step, from everything up to that step.

        h_k = GRU(reader(step k), h_{k−1}),  h_0 = 0          c_k = w · [reader(step k), h_k] + b

    w and b are 0 before training. Initial weights depend on `seed` alone; the global random state does not change.

    Args:
        size: length of a step's vector. Give this or `vocabulary`.
        vocabulary: number of token ids.
        hidden: width of the layers. Higher: learns more, slower. Usual: 32 to 64 for small environments.
        memory: False leaves the GRU out, so that c_k depends on step k alone.
        seed: of the initial weights.
    """

    def __init__(
        self, *, size: int | None = None, vocabulary: int | None = None, hidden: int, memory: bool = True, seed: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.reader = VectorReader(size or 0, hidden) if vocabulary is None else TokenReader(vocabulary, hidden)
            self.memory = nn.GRU(hidden, hidden, batch_first=True) if memory else None
            self.head = nn.Linear(hidden * (2 if memory else 1), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, episodes: Sequence[Episode]) -> Float[Tensor, " steps"]:
        """c of all steps, episode after episode; the episodes' tensors may be on the CPU."""
        device = device_of(self)
        turns = torch.tensor([len(widths) for _, widths in episodes], device=device)
        inputs, widths = (torch.cat(parts).to(device) for parts in zip(*episodes, strict=True))
        read = self.reader(inputs, widths)
        if self.memory is not None:
            row, column = places(turns)
            read = torch.cat([read, self.memory(padded(read, turns))[0][row, column]], 1)
        return self.head(read)[:, 0]  # type: ignore[no-any-return]


def padded(values: Float[Tensor, "units hidden"], lengths: Int[Tensor, " rows"]) -> Tensor:
    """Consecutive units as rows of these lengths, padded with zeros: (rows, longest, hidden)."""
    row, column = places(lengths)
    out = values.new_zeros(len(lengths), int(lengths.max()), values.shape[1])
    out[row, column] = values
    return out


def places(lengths: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
    """The row of each unit, and its place inside the row."""
    row = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    return row, torch.arange(len(row), device=row.device) - (lengths.cumsum(0) - lengths)[row]
