"""Episodes that are played again without each role.

1. The role's last step has the team's return without the role.
2. For a role whose acts change nothing it is the original return.
3. The first episode is that of `play`.
4. Its environment steps are counted.
5. The difference reaches the rewards.
6. An episode that a limit cut off gets replays too.
7. `roles` names the roles that are left out, `default` the action in their place.
8. Without `default`, an environment must list legal actions.
9. It plays in lock step with network policies.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.data import Action, Observation, StepResult, StepTable, StopReason, Task, Trajectory
from palaestra.recipe import load
from palaestra.rollout.programs import play as plain
from palaestra.store.metrics import MetricsLog
from palaestra.systems.counterfactual import counterfactual
from palaestra.systems.counterfactual.replayed import replayed
from palaestra.training.start import train
from tests.teams.playing import play


@dataclass
class Lift:
    """Three agents act in turn, twice each: `a` and `b` lift when both say 1, `c` only watches."""

    listed: bool = True
    agents: tuple[str, ...] = ("a", "b", "c")

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        return [Task(env="lift", seed=seed + k) for k in range(n)]

    def reset(self, task: Task) -> StepResult:
        self.said: list[Any] = []
        return self._ask()

    def _ask(self) -> StepResult:
        legal = [0, 1] if self.listed else None
        who = self.agents[len(self.said) % 3]
        return StepResult(observations={who: Observation(text=f"{who}{len(self.said)}", legal=legal)})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        ((who, action),) = actions.items()
        self.said.append(int(action.value))
        lifted = who == "b" and self.said[-2:] == [1, 1]
        if len(self.said) < 6:
            return StepResult(observations=self._ask().observations, rewards={who: float(lifted)})
        success = self.said[4] == self.said[3] == 1
        return StepResult(observations={}, rewards={}, info={"success": success}, terminated=frozenset(self.agents))

    def close(self) -> None:
        pass


ONES = {name: (lambda turn, seen: "1") for name in "abc"}


def one(program: Any = replayed, environment: Any = Lift, **given: Any) -> Trajectory:
    (trajectory,) = play(program, ONES, environment=environment, **given)
    return trajectory


def without(trajectory: Trajectory) -> dict[str, float]:
    return {step.agent: step.info["without"] for step in trajectory.steps if "without" in step.info}


def test_what_the_team_comes_to() -> None:  # rules 1, 2, 4
    trajectory = one()
    assert sum(step.reward for step in trajectory.steps) == 2.0
    assert without(trajectory) == {"a": 0.0, "b": 0.0, "c": 2.0}
    assert [("without" in step.info) for step in trajectory.steps] == [False] * 3 + [True] * 3
    assert trajectory.info["replayed_steps"] == 18


def test_the_first_episode_is_as_always() -> None:  # rule 3
    first, other = one(), one(plain)
    for name in ("agent", "turn", "reward", "terminated", "truncated"):
        assert [getattr(s, name) for s in first.steps] == [getattr(s, name) for s in other.steps]
    assert (first.outcome, first.returns, first.stop) == (other.outcome, other.returns, other.stop)


def test_the_difference_is_paid() -> None:  # rule 5
    table = StepTable.from_trajectories([one()])
    assert counterfactual(table, against="replay").tolist() == [0, 0, 0, 2, 2, 0]


def test_a_cut_episode() -> None:  # rule 6
    trajectory = one(max_turns=4)
    assert trajectory.stop is StopReason.MAX_TURNS and len(trajectory.steps) == 4
    assert without(trajectory) == {"a": 0.0, "b": 0.0, "c": 1.0}
    assert trajectory.info["replayed_steps"] == 12


def test_who_and_what() -> None:  # rule 7
    assert without(one(options={"roles": ("b", "nobody"), "default": 1})) == {"b": 2.0}
    assert without(one(options={"default": 1})) == {"a": 2.0, "b": 2.0, "c": 2.0}


def test_what_it_refuses() -> None:  # rule 8
    bare = functools.partial(Lift, listed=False)
    failed = one(environment=bare)
    assert failed.error is not None and "lists no legal actions, and no default is given" in failed.error.message
    assert without(one(environment=bare, options={"default": 0})) == {"a": 0.0, "b": 0.0, "c": 2.0}


def test_in_lock_step(tmp_path: Any) -> None:  # rule 9
    small = ["rollout.tasks=2", "rollout.group=2", "warm_start=null", "evaluation.tasks=2", "training.iterations=1"]
    recipe = load(
        ["counterfactual/counterfactual_replay.yaml", "setups/relay.yaml"], [*small, f"run={tmp_path / 'run'}"]
    )
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    (metrics,) = MetricsLog(tmp_path / "run").metrics.read()
    assert metrics["info/replayed_steps/mean"] > 4
