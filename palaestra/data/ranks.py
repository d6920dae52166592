"""Ranks: the processes that work on one run together, seen from one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

Item = TypeVar("Item")


class Ranks(Protocol):
    """The processes of a run: one, or several.

    Every rank holds the same tables, makes the same decisions and the same optimizer steps. What takes time is shared
    out: episodes, forward passes, backward passes. Whoever calls a method that exchanges something calls it on every
    rank, in the same order.

    Attributes:
        rank: number of this process. world: how many there are.
        in_step: weights are spread over the ranks, so that all of them must make the same number of passes.
    """

    rank: int = 0
    world: int = 1
    in_step: bool = False

    @property
    def main(self) -> bool:
        """Whether this process writes the run folder and talks to the user."""
        return self.rank == 0

    def own(self, items: Sequence[Item]) -> list[Item]:
        """The items that this rank works on: every `world`-th, so that neighbors, of one group say, are apart."""
        return list(items[self.rank :: self.world])

    def turns(self, items: Sequence[Item]) -> list[tuple[Item, bool]]:
        """The items that this rank passes through a model, each with whether its result counts.

        Where ranks must go in step, one that has fewer items than another repeats the first of all, which does not
        count.
        """
        own = [(item, True) for item in self.own(items)]
        if self.in_step and len(own) * self.world < len(items):
            own.append((items[0], False))
        return own

    def texts(self, own: str) -> list[str]:
        """What each rank has given, in the order of ranks, on every rank."""
        return [own]

    def exchange(self, own: Mapping[int, Mapping[str, Tensor]]) -> dict[int, Mapping[str, Tensor]]:
        """The named tensors that ranks have computed for numbered pieces of work, on every rank."""
        return dict(own)

    def sum_numbers(self, own: Mapping[str, float]) -> dict[str, float]:
        """The sum over ranks of each number; a rank that lacks one adds 0."""
        return dict(own)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Let each parameter's gradient be the sum over ranks. One that no rank has a gradient for keeps none."""
        return

    def sum_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Let each tensor be its sum over ranks, in place."""
        return


class OneProcess(Ranks):
    """A run of one process, which does everything itself."""
