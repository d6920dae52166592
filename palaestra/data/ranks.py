"""Ranks: what one process of a run asks of, and shares with, the other processes of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

Item = TypeVar("Item")


class Ranks(Protocol):
    """The processes of a run: one, or several. The defaults are those of one process.

    Every rank holds the same tables, makes the same decisions and the same optimizer steps. The ranks divide the
    episodes, forward passes and backward passes among them. A method that exchanges something must be called on every
    rank, in the same order.

    Attributes:
        rank: number of this process, from 0. world: number of processes.
        in_step: True if the weights are spread over the ranks, so that all must make the same number of passes.
    """

    rank: int = 0
    world: int = 1
    in_step: bool = False

    @property
    def main(self) -> bool:
        """Whether this process writes the run folder and talks to the user."""
        return self.rank == 0

    def own(self, items: Sequence[Item]) -> list[Item]:
        """The items that this rank works on: every `world`-th, so that neighbors, such as a group, go to many ranks."""
        return list(items[self.rank :: self.world])

    def turns(self, items: Sequence[Item]) -> list[tuple[Item, bool]]:
        """The items that this rank passes through a model, each with whether its result counts.

        If `in_step`, a rank that has fewer items than another repeats the first item of all. The repeated result does
        not count.
        """
        own = [(item, True) for item in self.own(items)]
        if self.in_step and len(own) * self.world < len(items):
            own.append((items[0], False))
        return own

    def texts(self, own: str) -> list[str]:
        """The text `own` of each rank, in the order of ranks. Every rank gets all of them."""
        return [own]

    def exchange(self, own: Mapping[int, Mapping[str, Tensor]]) -> dict[int, Mapping[str, Tensor]]:
        """The named tensors that all ranks computed, by number of the piece of work. Every rank gets all of them."""
        return dict(own)

    def sum_numbers(self, own: Mapping[str, float]) -> dict[str, float]:
        """The sum over ranks of each number; a rank that lacks one adds 0."""
        return dict(own)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each parameter's gradient by its sum over ranks. Without a gradient on any rank it stays None."""
        return

    def sum_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in place."""
        return


class OneProcess(Ranks):
    """The ranks of a run with one process."""
