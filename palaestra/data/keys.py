"""Key: divides the rows of a table into sets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """The set that each row belongs to.

    Attributes:
        codes: int64 (rows,), 0 … size − 1.
        size: number of sets.
        names: the columns it came from.
        weight: float64 (rows,) how much a row counts; 0 is padding.
    """

    codes: Int[Tensor, " rows"]
    size: int
    names: tuple[str, ...] = ()
    weight: Float[Tensor, " rows"] | None = None

    @property
    def weights(self) -> Float[Tensor, " rows"]:
        """Row weights, ones if none were given: float64 (rows,)."""
        if self.weight is None:
            return torch.ones(self.codes.shape, dtype=torch.float64, device=self.codes.device)
        return self.weight.double()

    def __and__(self, other: Key) -> Key:
        """The finer key: two rows are in one set if, and only if, they are in one set of both keys."""
        if self.size == 1 and other.size >= 1:
            return Key(other.codes, other.size, self.names + other.names, self.weight)
        codes, size = compact(self.codes * other.size + other.codes)
        return Key(codes, size, self.names + other.names, self.weight)

    def spread(self, index: Int[Tensor, " units"], *, weight: Tensor | None = None) -> Key:
        """The key of units which belong to rows: `index[u]` is the row of unit u."""
        own = self.weight[index] if self.weight is not None and weight is None else weight
        return Key(self.codes[index], self.size, self.names, own)


def compact(codes: Shaped[Tensor, " rows"]) -> tuple[Int[Tensor, " rows"], int]:
    """Codes renumbered 0 … size − 1 in ascending order, and size."""
    values, inverse = torch.unique(codes, return_inverse=True)
    return inverse, len(values)
