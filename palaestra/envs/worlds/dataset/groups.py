"""The reward part `group_function`: a user's function judges all replies to a question at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from torch import Tensor

from palaestra.data import Iteration, RunSetup, StepTable, Trajectory
from palaestra.data.protocols import StatefulPart
from palaestra.envs.verifiers.calling import Reply, Reward, rewards_of
from palaestra.envs.worlds.dataset.turns import Given, answered, judged_text, said_by
from palaestra.envs.worlds.dataset.world import AGENT, Dataset
from palaestra.errors import RecipeError
from palaestra.registry import Files, register

WHERE = "reward: group_function"


@register("reward", "group_function", reads=(), writes=("reward",))
class GroupFunction(StatefulPart):
    """Add the reward of a function that sees all replies to a question, for rewards that compare them.

    It is called once for each group, with TRL's signature: `def shortest(completions, answer, **columns)` returns a
    list of one number for each completion, or None where it does not apply. All lists have one length: `completions`,
    `prompts`, `completion_ids`, and each column of the row. A column has the same value for all of them. Replies whose
    episode has failed are left out. It may be `async`. If it takes `trainer_state`, this has `global_step`, the number
    of the iteration from 0, and `max_steps`.

    The environment must be `dataset`. Success in evaluations does not depend on this reward. Its mean is the metric
    `reward/group/<function>`.
    """

    def __init__(self, *, function: Annotated[str, Files(functions=True)], weight: float = 1.0) -> None:
        """
        Args:
            function: `rewards.py:shortest`, or `module:name`.
            weight: the factor of its rewards.
        """
        self._function, self._weight = function, weight
        self._source: Dataset | None = None
        self._reward: Reward | None = None
        self._last = 0

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        if not isinstance(setup.source, Dataset):
            raise RecipeError(
                where=WHERE,
                what=f"it judges replies to rows of a file, and the environment is `{setup.environment_name}`.",
                remedy="Use `environment: dataset`, or write a reward part that reads the table.",
            )
        self._source = setup.source
        self._last = setup.settings.training.iterations
        columns = setup.source.first.columns
        (reward,) = rewards_of(self._function, [self._weight], columns, where=WHERE, further=("trainer_state",))
        if reward.convention != "trl":
            raise RecipeError(
                where=WHERE,
                what=f"`{self._function}` takes one reply, and here it gets all replies to a question.",
                remedy="Write `def name(completions, **columns)`, which returns a list, or name the function in the "
                "option `reward` of the environment.",
            )
        self._reward = reward

    def __call__(self, table: StepTable, iteration: Iteration) -> Tensor:
        """The rewards with those of the function on the last row of each episode: float32 (rows,)."""
        assert self._reward is not None and self._source is not None
        order, last = table.timeline("trajectory")
        ends = [int(row) for row in order[last] if table.row_weight[row] > 0]
        groups: dict[str, list[int]] = {}
        for row in ends:
            groups.setdefault(iteration.rows[row].trajectory.group, []).append(row)
        added, given = torch.zeros(len(table)), []
        for rows in groups.values():
            replies = [reply_of(iteration.rows[row].trajectory, self._source) for row in rows]
            state = SimpleNamespace(global_step=iteration.number, max_steps=self._last)
            values, logged = asyncio.run(self._reward.of_group(replies, state))
            iteration.metrics.update(logged)
            for row, value in zip(rows, values, strict=True):
                added[row] = self._weight * (value or 0.0)
            given += [value for value in values if value is not None]
        if given:
            iteration.metrics[f"reward/group/{self._reward.name}"] = sum(given) / len(given)
        return table["reward"] + added


def reply_of(trajectory: Trajectory, source: Dataset) -> Reply:
    """What an episode of `dataset` said, as reward functions get it."""
    problem, said, tokens = source.problem(trajectory.task), list[Given](), list[int]()
    steps = [step for step in trajectory.steps if step.agent == AGENT] or trajectory.steps  # a team has other names
    for number, step in enumerate(steps):
        if number:
            said.append(answered(step.observation.text or "", said))
        said.append(said_by(step.action, said))
        tokens += step.action.tokens.tolist()
    return Reply(
        text=judged_text(steps[-1].action),
        messages=said,
        prompt=problem.prompt,
        tokens=tokens,
        columns=problem.columns,
        place=problem.place,
    )
