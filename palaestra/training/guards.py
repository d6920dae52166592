"""Guards: stop a run that keeps failing or cannot learn, with the first cause. Knows counts, not causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.data import Batch, StopReason, Trajectory
from palaestra.errors import NoSignal, PalaestraError
from palaestra.training.settings import TrainingSettings

SOLVED = 0.999  # mean outcome from which on an empty update is no fault


class Guard:
    """Counts failed episodes, and iterations in a row without an advantage; the latter is kept in checkpoints."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._empty = 0

    def finished(self, played: Sequence[Trajectory]) -> list[Trajectory]:
        """Episodes that did not fail and have steps; failed ones are kept out of the update.

        Raises: PalaestraError, if all of them, or more than `training.max_failed`, failed.
        """
        failed = [t for t in played if t.stop is StopReason.ERROR]
        if failed and (len(failed) == len(played) or len(failed) > self._settings.max_failed * len(played)):
            first = failed[0].error
            raise PalaestraError(
                where=f"rollout, task {failed[0].task.content_hash}",
                what=f"{len(failed)} of {len(played)} episodes failed. The first:\n\n{first.message if first else ''}",
                remedy="Mend the cause, or raise `training.max_failed` to train on what is left.",
            )
        whole = [t for t in played if t.stop is not StopReason.ERROR and t.steps]
        if not whole:
            raise NoSignal(where="rollout", what=f"none of {len(played)} episodes has a step.")
        return whole

    def learned(self, batch: Batch, signal: bool) -> None:
        """Note whether this iteration had a signal, such as an advantage, to learn from.

        Raises: NoSignal, after `training.max_empty` iterations in a row without any.
        """
        self._empty = 0 if signal else self._empty + 1
        if self._empty < self._settings.max_empty:
            return
        table = batch.table
        outcome = float(table["outcome"].nanmean()) if "outcome" in table else float("nan")
        if outcome >= SOLVED:
            return
        raise NoSignal(
            where=f"advantage, {self._empty} iterations in a row",
            what=f"every advantage was 0 (mean outcome {outcome:.3f}): in each group all episodes had the same result.",
            remedy="Do one of these:\n"
            "  • an easier task or a better warm start, if the outcome is near 0,\n"
            "  • a larger `rollout.group` or a higher `rollout.temperature`, if groups are too alike, or\n"
            "  • look at the reward: `palaestra play` shows it step by step.",
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on counting from, as JSON values."""
        return {"empty": self._empty}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting; a checkpoint of an earlier version has nothing, which is 0."""
        self._empty = int(state.get("empty", 0))
