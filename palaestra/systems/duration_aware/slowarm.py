"""Slowarm: an environment of programs that run for different times and have different scores.

Durations are reported in `info`; nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import choice, read_index
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register
from palaestra.systems.duration_aware.markers import marker, reached

AGENT = "player"
WORDS = ("fast", "slow", "third", "fourth", "fifth", "sixth")
STAGES = ("imported", "loaded", "trained", "predicted", "wrote")  # stages of a program's run
Arms = Annotated[tuple[float, ...], pydantic.Field(min_length=2, max_length=len(WORDS))]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far one episode is: runs made, and whether all of them came through with the best program."""

    seed: int
    round: int = 0
    best: bool = True


@register("environment", "slowarm")
class SlowArm(KeepsState[State]):
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
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    one_act = True
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
        self.one_act = rounds == 1
        self.actions = WORDS[: len(durations)]
        self.action_count = len(self.actions)

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        crash = " A run may also crash, and then its score is 0." if self._crash else ""
        return write_manual(
            "Run one of several programs in each turn. Every message says how many runs are left, and names the "
            "programs. Each program has a score and runs for some time. Messages tell neither of them, and both are "
            f"the same in every episode.{crash}",
            dict.fromkeys(self.actions, "run this program"),
            example=self.actions[0],
            ending="An answer that cannot be read uses up a run. The episode succeeds if every run succeeds and is one "
            f"of the program with the highest score.{turn_limit(self._rounds)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks, which differ in what crashes only."""
        return seeded_tasks("slowarm", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The same for all tasks: arms, their durations and scores."""
        return as_json((self._params, self._durations, self._scores))

    def reset(self, task: Task) -> StepResult:
        self.state = State(seed=task.seed)
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        arm = read_index(actions[AGENT].value, self.actions)
        stages, output = self._run(before, arm)
        passed, valid = len(reached(output, _nonce(before), STAGES)), stages == len(STAGES)
        best = valid and arm is not None and self._scores[arm] == max(self._scores)
        self.state = after = replace(before, round=before.round + 1, best=before.best and best)
        over = after.round == self._rounds
        took = min(self._durations) if arm is None else self._durations[arm] * (stages + (not valid)) / len(STAGES)
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=self._scores[arm] / self._rounds if valid and arm is not None else 0.0,
            over=over,
            act={"duration": took, "valid": float(valid), "milestones": passed},
            readable=arm is not None,
            info={"success": over and after.best},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The best program."""
        return choice(self.actions[self._scores.index(max(self._scores))], self.actions)

    # ---- playing ------------------------------------------------------------------------------------------
    def _run(self, state: State, arm: int | None) -> tuple[int, str]:
        """How many stages a run came through, and what it printed."""
        draw = derive(state.seed, "crash", state.round)
        crashed = draw / 2**63 < self._crash
        stages = 0 if arm is None else derive(draw, "stages") % len(STAGES) if crashed else len(STAGES)
        return stages, "\n".join(marker(name, _nonce(state)) for name in STAGES[:stages])

    def _observe(self, state: State) -> Observation:
        left = self._rounds - state.round
        return Observation(
            text=f"{left} left. {' '.join(self.actions)}.",
            vector=np.array([left / self._rounds, 1.0], np.float32),
            legal=self.actions,
            state_key=str(left),
        )


def _nonce(state: State) -> str:
    """What the markers of this run carry."""
    return f"{derive(state.seed, 'nonce', state.round):x}"


def _refuse_unequal(durations: tuple[float, ...], scores: tuple[float, ...]) -> None:
    refuse = Refusals("environment: slowarm")
    refuse.when(
        len(durations) != len(scores),
        f"{len(durations)} durations and {len(scores)} scores.",
        "Give one of each for every program.",
    )
    refuse.when(min(durations) <= 0, f"a duration is {min(durations):g}.", "Durations must be above 0.")
    for score in scores:
        refuse.when(not 0 <= score <= 1, f"a score is {score:g}.", "Scores must be in [0, 1].")
