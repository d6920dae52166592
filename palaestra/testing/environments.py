"""`check_environment`: users check with it that their own environment keeps the contract of environments."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.data.abilities import box_of, check_abilities, has, sizes_of
from palaestra.envs.kit.panels import shared
from palaestra.errors import ContractError, InvalidData, MissingExtra
from palaestra.registry import declared
from palaestra.testing.results import (
    broken,
    check_info,
    check_json,
    check_observation,
    check_rewards,
    check_same,
    check_sets,
    short,
)

Act = Callable[[Observation, random.Random], Action]
UNREADABLE = "??"
EVALUATED, TRAINED = 32, 128  # numbers of tasks whose contents are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """What `check_environment` found of the splits "train" and "eval".

    Attributes:
        shared: number of evaluation tasks whose content a training task has. None: the environment has no ability
            `content`.
        evaluated, trained: number of tasks of each split that were compared.
    """

    shared: int | None
    evaluated: int = EVALUATED
    trained: int = TRAINED

    def __str__(self) -> str:
        if self.shared is None:
            return "whether tasks of the split eval are held out is unknown: it does not tell their content"
        return f"{self.shared} of {self.evaluated} tasks of the split eval are also among {self.trained} training tasks"


def check_environment(
    env: Any,
    *,
    episodes: int = 5,
    seed: int = 0,
    make: Callable[[], Any] | None = None,
    act: Act | None = None,
    max_turns: int = 100,
) -> Splits:
    """Play an environment and refuse it if it breaks its contract. At the end the environment is closed.

    The contract:
        1. Members: `agents` (distinct names), `reset`, `step`, `close`. A list of `abilities` names exactly those that
            the environment has. Each ability has all of its members (palaestra.data.abilities).
        2. `reset` returns a StepResult that asks at least one agent to act and ends no agent's episode.
        3. An observation has a text, messages, a vector (float32, 1-D, finite, of `vector_size` with the ability
            `vector`) or an image (uint8). `state_key` is a text or None.
        4. `step` takes one action of each agent that was asked to act. Rewards are finite numbers of agents.
        5. `terminated` and `truncated` are disjoint frozensets of agents. An agent in one of them does not act again.
            `last` has observations of truncated agents only.
        6. An episode is over when no agent is asked to act. All agents that acted are then terminated or truncated.
        7. `info` has JSON values; `success` is a bool; `invalid` names agents.
        8. The same task and the same actions give the same observations, rewards and end: after another
            reset, and in another instance if `make` is given.
        9. Equal `state_key` of an agent in a task means equal situations, so the legal actions are equal too.
        10. Ability `tasks`: the same arguments give the same tasks, n of them, with JSON params and the
            split's label. The splits "train" and "eval" share no content hash. Ability `content`: JSON values, the same
            for the same task; asking for it changes no episode.
        11. Ability `expert`: it gives an Action with a value that is legal and that `step` takes.
        12. Ability `snapshot`: after each restore, the same actions give the same results.
        13. An unreadable action never raises. Where legal actions are listed, it is marked by
            `info["invalid"] = {agent: True}`.
        14. Ability `vector`: every index below `action_count` is an action that the environment can read.
        15. Ability `box`: the bounds are finite, and the environment can read them and the vectors between them.
        16. Ability `instruction`: a text for each agent, not empty, and the same before and after episodes.
        17. If the environment declares `one_act`, every episode ends with the first act.

    Args:
        env: an Environment or an AsyncEnvironment.
        episodes: number of episodes with random actions. Higher: rarer faults are found. Usual: 5.
        seed: seed of the tasks and the random actions.
        make: gives a new instance, for rule 8.
        act: chooses random actions, where `Observation.legal`, `action_count` and `action_box` do not say which exist.
        max_turns: turns after which random play stops an episode.

    Returns: how many evaluation tasks have the content of a training task. A number above 0 breaks no rule, since an
        environment may have a small fixed set of problems on purpose.
    Raises: ContractError, for the first rule that is broken, with the place, what was found, and how to correct it.
    """
    name = type(env).__name__
    _check_members(env, name)
    caller = _Caller(env, name)
    player = _Player(caller, act, random.Random(seed), max_turns)
    told = _instructions(caller)
    tasks = _tasks(caller, episodes, seed)
    for task in tasks:
        moments = player.play(task)
        if declared(env, "one_act") and len(moments) > 2:
            broken(f"{name}, {moments[1].where}", "the episode goes on after its first act.", "Leave out `one_act`.")
        player.replay(task, moments, "a second reset with the same task")
        if make is not None:
            _Player(_Caller(make(), name), act, player.draw, max_turns).replay(task, moments, "a fresh instance")
    splits = _check_content(player, tasks, seed)
    if has(env, "expert"):
        player.play(tasks[0], expert=True)
    if has(env, "snapshot"):
        _check_snapshot(player, tasks[0])
    _check_unreadable(player, tasks[0])
    _check_numbered(player, tasks[0])
    if _instructions(caller) != told:
        broken(f"{name}.instruction", "it says something else after an episode.", "Put what changes into observations.")
    caller("close", where="close")
    caller.loop.close()
    return splits


# ---- calling ----------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Caller:
    """Calls a sync or async environment, and raises a ContractError for any exception of it."""

    env: Any
    name: str
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __call__(self, method: str, *arguments: Any, where: str) -> Any:
        try:
            result = getattr(self.env, method)(*arguments)
            return self.loop.run_until_complete(result) if inspect.isawaitable(result) else result
        except MissingExtra:
            raise  # the environment is not at fault
        except Exception as error:
            remedy = {
                "step": "`step` gets exactly one action for each agent of the last `observations`. "
                'An action that it cannot read costs a turn and is marked by `info["invalid"] = {agent: True}`.',
            }.get(method, f"`{method}` must not raise.")
            where = f"{self.name}, {where}"
            found = f"`{method}` raised {type(error).__name__}: {error}."
            raise ContractError(where=where, what=found, remedy=remedy) from error


def _check_members(env: Any, name: str) -> None:  # rule 1
    for method in ("reset", "step", "close"):
        if not callable(getattr(env, method, None)):
            broken(name, f"it has no method `{method}`.", "Write it as in palaestra.data.abilities.Environment.")
    agents = getattr(env, "agents", None)
    named = isinstance(agents, tuple) and all(isinstance(agent, str) for agent in agents)
    if not named or not agents or len(set(agents)) < len(agents):
        broken(
            f"{name}.agents",
            f"it must be a tuple of distinct names, found {agents!r}.",
            'Set `agents = ("player",)` if there is only one.',
        )
    check_abilities(env)


# ---- tasks ------------------------------------------------------------------------------------------------
def _tasks(caller: _Caller, count: int, seed: int) -> list[Task]:  # rule 10
    if not has(caller.env, "tasks"):
        return [Task(env=caller.name, seed=seed + number) for number in range(count)]
    splits = {split: _tasks_of(caller, split, count, seed) for split in ("train", "eval")}
    shared = {t.content_hash for t in splits["train"]} & {t.content_hash for t in splits["eval"]}
    if shared:
        broken(
            f"{caller.name}, tasks",
            f"{len(shared)} of {count} tasks are in both splits, train and eval: content hash {sorted(shared)[0]}.",
            "Make the split part of each seed, for example by palaestra.data.derive(seed, split, number).",
        )
    return splits["train"]


def _tasks_of(caller: _Caller, split: str, count: int, seed: int) -> list[Task]:
    where = f"tasks({split!r}, {count}, {seed})"
    first, second = (caller("tasks", split, count, seed, where=where) for _ in range(2))
    where = f"{caller.name}, {where}"
    if not isinstance(first, list) or not all(isinstance(task, Task) for task in first) or len(first) != count:
        broken(where, f"it must return a list of {count} Tasks, found {short(first)}.", "Return list[Task].")
    for task in first:
        check_json(dict(task.params), f"{where}, params", "`params`")
        if task.split != split:
            broken(where, f"a task says `split={task.split!r}`.", f"Label it: Task(…, split={split!r}).")
    if [task.content_hash for task in first] != [task.content_hash for task in second]:
        broken(where, "two equal calls gave different tasks.", "Draw from the given seed only, not from global state.")
    return first


def _check_content(player: _Player, tasks: Sequence[Task], seed: int) -> Splits:  # rule 10
    caller = player.caller
    if not has(caller.env, "content"):
        return Splits(shared=None)
    task, other = tasks[0], tasks[-1]
    where = f"content of task seed {task.seed}"
    first, second = (caller("content", task, where=where) for _ in range(2))
    where = f"{caller.name}, {where}"
    check_json(first, where, "it")
    if first != second:
        broken(where, "two equal calls gave different contents.", "Leave out what the task does not determine.")
    moments = player.play(task)

    def choose(turn: int, result: StepResult, where: str) -> Mapping[str, Action] | None:
        caller("content", other, where=f"content of task seed {other.seed} before {where}")
        return moments[turn + 1].actions if turn + 1 < len(moments) else None

    for before, now in zip(moments, player.moments(task, choose), strict=False):
        check_same(before.result, now.result, f"{caller.name}, {before.where}", "asking for the content of a task")
    if not has(caller.env, "tasks"):
        return Splits(shared=None)
    trained = caller("tasks", "train", TRAINED, seed, where=f"tasks('train', {TRAINED}, {seed})")
    evaluated = _as_many(caller, seed)
    return Splits(shared=shared(caller.env, evaluated, trained), evaluated=len(evaluated))


def _as_many(caller: _Caller, seed: int) -> list[Task]:
    """`EVALUATED` evaluation tasks, or fewer if the split has too few different problems."""
    count = EVALUATED
    while True:
        try:
            found: list[Task] = caller("tasks", "eval", count, seed, where=f"tasks('eval', {count}, {seed})")
            return found
        except ContractError as error:
            if count == 1 or not isinstance(error.__cause__, InvalidData):
                raise
            count //= 2


# ---- playing ----------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Moment:
    """One call of the environment: the place for messages, the actions (none for `reset`) and the result."""

    where: str
    actions: Mapping[str, Action]
    result: StepResult


@dataclass(slots=True)
class _Player:
    """Plays episodes and checks the result of each call."""

    caller: _Caller
    act: Act | None
    draw: random.Random
    max_turns: int
    legal_at: dict[tuple[str, str, str], str] = field(default_factory=dict)  # task, agent, state key → legal actions

    def moments(
        self, task: Task, choose: Callable[[int, StepResult, str], Mapping[str, Action] | None]
    ) -> Iterator[_Moment]:
        """Play an episode and check each call. `choose(turn, result, where)` gives the next actions, None to stop."""
        where = f"reset, task seed {task.seed}"
        result = self.caller("reset", task, where=where)
        self._check(result, where, first=True)
        acted: set[str] = set()
        done: set[str] = set()
        moment = _Moment(where, {}, result)
        for turn in range(self.max_turns + 1):
            self._check_end(moment, acted, done)
            self._check_keys(moment, task)
            yield moment
            where = f"step {turn}, task seed {task.seed}"
            actions = choose(turn, moment.result, where) if moment.result.observations else None
            if actions is None:
                return
            acted |= set(actions)
            result = self.caller("step", actions, where=where)
            self._check(result, where)
            done |= result.terminated | result.truncated
            moment = _Moment(where, actions, result)

    def play(self, task: Task, *, expert: bool = False) -> list[_Moment]:
        """Play a whole episode with random actions, or with the expert's actions."""
        choose = self._expert_actions if expert else self._random_actions
        return list(self.moments(task, choose))

    def replay(self, task: Task, moments: Sequence[_Moment], how: str) -> None:  # rule 8
        """Play an episode again with the same actions. All results must be the same."""
        actions = [moment.actions for moment in moments[1:]]
        again = self.moments(task, lambda turn, result, where: actions[turn] if turn < len(actions) else None)
        for before, now in zip(moments, again, strict=False):
            check_same(before.result, now.result, f"{self.caller.name}, {before.where}", how)

    def _random_actions(self, turn: int, result: StepResult, where: str) -> Mapping[str, Action] | None:
        if turn >= self.max_turns:
            return None
        return {agent: self.choose(seen) for agent, seen in result.observations.items()}

    def choose(self, seen: Observation) -> Action:
        """A random action. It can be read if the environment says which actions exist."""
        count, box = sizes_of(self.caller.env)[1], box_of(self.caller.env)
        if self.act is not None:
            return self.act(seen, self.draw)
        if seen.legal is not None and len(seen.legal) > 0:
            value = seen.legal[self.draw.randrange(len(seen.legal))]
            return Action(text=str(value), value=value)
        if count:
            return Action(value=self.draw.randrange(count))
        if box is not None:
            return Action(value=np.array([self.draw.uniform(*ends) for ends in zip(*box, strict=True)], np.float32))
        if seen.text is None and seen.messages is None:
            broken(
                f"{self.caller.name}, check_environment",
                "nothing tells which actions exist.",
                "Fill `Observation.legal`, give the environment `action_count` or `action_box`, or pass `act=`.",
            )
        return Action(text=UNREADABLE)

    def _expert_actions(self, turn: int, result: StepResult, where: str) -> Mapping[str, Action] | None:  # rule 11
        if turn >= self.max_turns:
            return None
        return {agent: self._expert(agent, seen, where) for agent, seen in result.observations.items()}

    def _expert(self, agent: str, seen: Observation, where: str) -> Action:
        action = self.caller("expert", agent, where=f"expert({agent!r}) before {where}")
        where = f"{self.caller.name}, expert({agent!r}) before {where}"
        if not isinstance(action, Action) or action.value is None:
            broken(where, f"it must return an Action with a value, found {short(action)}.", "Return Action(text=…).")
        legal = list(seen.legal) if seen.legal is not None else None
        if legal is not None and action.value not in legal and action.text not in legal:
            broken(where, f"its action {action.value!r} is not legal.", f"Legal are: {short(legal)}.")
        return action

    # ---- what a call returns ------------------------------------------------------------------------------
    def _check(self, result: Any, where: str, *, first: bool = False) -> None:
        where = f"{self.caller.name}, {where}"
        if not isinstance(result, StepResult):
            broken(where, f"it must return a StepResult, found {short(result)}.", "Return StepResult(observations=…).")
        agents = set(self.caller.env.agents)
        check_sets(result, agents, where)
        check_rewards(result, agents, where)
        strangers = set(result.observations) - agents
        if strangers:
            what = f"`observations` names {sorted(strangers)}, which are not agents."
            broken(where, what, f"The agents are {sorted(agents)}.")
        if first and not result.observations:
            broken(where, "no agent is asked to act.", "Give an observation to each agent that acts first.")
        if first and result.terminated | result.truncated:
            broken(where, "an episode ends before any agent acted.", "Leave `terminated` and `truncated` empty.")
        for agent, seen in [*result.observations.items(), *result.last.items()]:
            check_observation(seen, sizes_of(self.caller.env)[0], f"{where}, observation of {agent}")
        check_info(result.info, agents, where)

    def _check_end(self, moment: _Moment, acted: set[str], done: set[str]) -> None:  # rules 5 and 6
        where = f"{self.caller.name}, {moment.where}"
        again = set(moment.result.observations) & done
        if again:
            broken(
                where,
                f"{sorted(again)} are asked to act although their episode has ended.",
                "Put into `observations` only the agents that act next, and end an agent's episode only once.",
            )
        if not moment.result.observations and acted - done:
            broken(
                where,
                f"the episode is over, but {sorted(acted - done)} are neither terminated nor truncated.",
                "Put them into `terminated` (by the rules of the task) or `truncated` (cut off by a limit).",
            )

    def _check_keys(self, moment: _Moment, task: Task) -> None:  # rule 9
        for agent, seen in moment.result.observations.items():
            if seen.state_key is None or seen.legal is None:
                continue
            legal = repr(list(seen.legal))
            before = self.legal_at.setdefault((task.content_hash, agent, seen.state_key), legal)
            if before != legal:
                broken(
                    f"{self.caller.name}, {moment.where}",
                    f"`state_key` {seen.state_key!r} had other legal actions before: {before}, now {legal}.",
                    "Put everything into the key that the agent's legal actions depend on.",
                )


# ---- abilities --------------------------------------------------------------------------------------------
def _instructions(caller: _Caller) -> dict[str, str]:  # rule 16
    if not has(caller.env, "instruction"):
        return {}
    told = {agent: caller("instruction", agent, where=f"instruction of {agent}") for agent in caller.env.agents}
    for agent, text in told.items():
        if not isinstance(text, str) or not text.strip():
            broken(
                f"{caller.name}.instruction({agent!r})",
                f"it must be a text that is not empty, found {text!r}.",
                "Say the goal and the commands, or take `instruction` out of `abilities`.",
            )
    return told


def _check_snapshot(player: _Player, task: Task) -> None:  # rule 12
    caller = player.caller
    moments: list[_Moment] = []
    for moment in player.moments(task, player._random_actions):
        moments.append(moment)
        if len(moments) <= 3 and moment.result.observations:  # the last of the first three moments counts
            saved, start = caller("snapshot", where=f"snapshot after {moment.where}"), len(moments)
    for time in ("first", "second"):
        caller("restore", saved, where=f"restore, {time} time")
        for before in moments[start:]:
            now = caller("step", before.actions, where=f"{before.where}, after restore")
            check_same(before.result, now, f"{caller.name}, {before.where}", f"restoring a snapshot, {time} time,")


def _check_unreadable(player: _Player, task: Task) -> None:  # rule 13
    def choose(turn: int, result: StepResult, where: str) -> Mapping[str, Action] | None:
        return {agent: Action(text=UNREADABLE) for agent in result.observations} if turn == 0 else None

    start, *after = player.moments(task, choose)
    for agent, seen in start.result.observations.items():
        marked = after[0].result.info.get("invalid", {}).get(agent)
        if seen.legal is not None and UNREADABLE not in seen.legal and not marked:
            broken(
                f"{player.caller.name}, {after[0].where}",
                f"the unreadable action {UNREADABLE!r} of {agent} is not marked.",
                'Return info={"invalid": {agent: True}} and change nothing but the turn.',
            )


def _check_numbered(player: _Player, task: Task) -> None:  # rules 14 and 15
    count, box = sizes_of(player.caller.env)[1] or 0, box_of(player.caller.env)
    readable: list[tuple[str, Any, str]] = [
        (f"index {index}", index, f"`action_count` is {count}") for index in range(count)
    ]
    if box is not None:
        inside = "it is within `action_box`"
        readable += [(f"the vector {one}", one, inside) for one in (box[0], (box[0] + box[1]) / 2, box[1])]
    for shown, value, promise in readable:

        def choose(turn: int, result: StepResult, where: str, value: Any = value) -> Mapping[str, Action] | None:
            return {agent: Action(value=value) for agent in result.observations} if turn == 0 else None

        for moment in player.moments(task, choose):
            if moment.result.info.get("invalid"):
                broken(
                    f"{player.caller.name}, {moment.where}",
                    f"{shown} was marked as unreadable, but {promise}.",
                    "Read every action that the environment declares, or declare fewer.",
                )
