"""Slowarm: an environment of programs that run for different times and have different scores.

Durations are reported in `info`; nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import Fraction, PositiveInt, register
from palaestra.systems.duration_aware.markers import marker, reached

AGENT = "player"
WORDS = ("fast", "slow", "third", "fourth", "fifth", "sixth")
STAGES = ("imported", "loaded", "trained", "predicted", "wrote")  # stages of a program's run
Arms = Annotated[tuple[float, ...], pydantic.Field(min_length=2, max_length=len(WORDS))]


@register("environment", "slowarm")
class SlowArm:
    """Run one of several programs, `rounds` times; the good one is the slow one.

    Args:
        durations: seconds that each program runs. Usual: 1 and 10.
        scores: score of each program if its run succeeds, in [0, 1]. Usual: 0.5 and 1.
        crash: probability that a run crashes after a random number of its stages; seeded by the task. Usual: 0.
        rounds: runs of an episode. Higher: one episode has acts of different durations. Usual: 1.

    Reward: the score of a successful run, divided by `rounds`; 0 for one that crashed. `success`: all runs succeeded,
        with the best program. A step's `info` has `duration`, for a crashed run that of the part that ran; `valid`, 1
        if the run succeeded; and `milestones`, how many of the five markers its output has. Each marker has a nonce of
        the run, so that a program cannot print markers in advance. An act that cannot be read takes the shortest
        duration.

    `vector` is the share of rounds left, and 1.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "duration", "valid", "milestones"})
    vector_size = 2

    def __init__(
        self,
        *,
        durations: Arms = (1.0, 10.0),
        scores: Arms = (0.5, 1.0),
        crash: Fraction = 0.0,
        rounds: PositiveInt = 1,
    ) -> None:
        _refuse_unequal(durations, scores)
        self._durations, self._scores, self._crash, self._rounds = durations, scores, crash, rounds
        self._params = {"durations": list(durations), "scores": list(scores), "crash": crash, "rounds": rounds}
        self.actions = WORDS[: len(durations)]
        self.action_count = len(self.actions)
        self._seed, self._round, self._best = 0, -1, True

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks, which differ in what crashes only."""
        return seeded_tasks("slowarm", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The same for all tasks: arms, their durations and scores."""
        return as_json((self._params, self._durations, self._scores))

    def reset(self, task: Task) -> StepResult:
        self._seed, self._round, self._best = task.seed, 0, True
        return StepResult(observations={AGENT: self._observe()})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        if self._round < 0:
            raise ContractError(where="environment slowarm", what="`step` was called before `reset`.")
        arm = self._read(actions[AGENT].value)
        stages, output = self._run(arm)
        passed, valid = len(reached(output, self._nonce(), STAGES)), stages == len(STAGES)
        self._best &= valid and arm is not None and self._scores[arm] == max(self._scores)
        self._round += 1
        over = self._round == self._rounds
        took = min(self._durations) if arm is None else self._durations[arm] * (stages + (not valid)) / len(STAGES)
        info: dict[str, Any] = {
            "duration": {AGENT: took},
            "valid": {AGENT: float(valid)},
            "milestones": {AGENT: passed},
            "success": over and self._best,
        }
        if arm is None:
            info["invalid"] = {AGENT: True}
        earned = self._scores[arm] / self._rounds if valid and arm is not None else 0.0
        return StepResult(
            observations={} if over else {AGENT: self._observe()},
            rewards={AGENT: earned},
            terminated=frozenset({AGENT} if over else ()),
            info=info,
        )

    def close(self) -> None:
        self._round = -1

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The best program."""
        arm = self._scores.index(max(self._scores))
        return Action(text=self.actions[arm], value=arm)

    def snapshot(self) -> Any:
        return self._seed, self._round, self._best

    def restore(self, state: Any) -> None:
        self._seed, self._round, self._best = state

    # ---- playing ------------------------------------------------------------------------------------------
    def _read(self, value: Any) -> int | None:
        if isinstance(value, str):
            text = " ".join(value.lower().split())
            return self.actions.index(text) if text in self.actions else None
        if isinstance(value, int | np.integer) and 0 <= value < len(self.actions):
            return int(value)
        return None

    def _nonce(self) -> str:
        return f"{derive(self._seed, 'nonce', self._round):x}"

    def _run(self, arm: int | None) -> tuple[int, str]:
        """How many stages a run came through, and what it printed."""
        draw = derive(self._seed, "crash", self._round)
        crashed = draw / 2**63 < self._crash
        stages = 0 if arm is None else derive(draw, "stages") % len(STAGES) if crashed else len(STAGES)
        return stages, "\n".join(marker(name, self._nonce()) for name in STAGES[:stages])

    def _observe(self) -> Observation:
        left = self._rounds - self._round
        return Observation(
            text=f"{left} left. {' '.join(self.actions)}.",
            vector=np.array([left / self._rounds, 1.0], np.float32),
            legal=self.actions,
            state_key=str(left),
        )


def _refuse_unequal(durations: tuple[float, ...], scores: tuple[float, ...]) -> None:
    for what, remedy in (
        (
            f"{len(durations)} durations and {len(scores)} scores." if len(durations) != len(scores) else "",
            "Give one of each for every program.",
        ),
        (f"a duration is {min(durations):g}." if min(durations) <= 0 else "", "Durations must be above 0."),
        (
            f"a score is {next((s for s in scores if not 0 <= s <= 1), 0):g}."
            if not all(0 <= score <= 1 for score in scores)
            else "",
            "Scores must be in [0, 1].",
        ),
    ):
        if what:
            raise RecipeError(where="environment: slowarm", what=what, remedy=remedy)
