"""Abilities: what an environment can do beside `reset`, `step` and `close`. Each ability is a small protocol.

An environment lists its abilities in a class attribute, `abilities = ("tasks", "expert", "snapshot")`. A constructor
whose options make some of them impossible sets a shorter list: `self.abilities = without(self.abilities, "expert")`.
For an environment without a list, `abilities_of` looks for the members of each ability. Callers ask
`has(environment, "expert")` or `require(environment, "tasks", where=…)` before they call a method of an ability.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from palaestra.data.interaction import Action, StepResult
from palaestra.data.task import Task, content_digest
from palaestra.errors import ContractError, nearest

if TYPE_CHECKING:
    from palaestra.data.trajectory import Trajectory


# ---- what every environment has ---------------------------------------------------------------------------
@runtime_checkable
class Environment(Protocol):
    """A world in which one or several agents act, one episode at a time. Agents have names, also a single one.

    Attributes:
        agents: distinct names of those who may act.

    A class may also declare the columns that its episodes give, `provides = frozenset({"state_key", "outcome"})`, and
    its abilities. Both are class attributes, so that a recipe can be checked before an environment is made.
    """

    agents: tuple[str, ...]

    def reset(self, task: Task) -> StepResult: ...
    def step(self, actions: Mapping[str, Action]) -> StepResult: ...
    def close(self) -> None: ...


@runtime_checkable
class AsyncEnvironment(Protocol):
    """An environment with asynchronous methods, for one that waits for other processes or machines."""

    agents: tuple[str, ...]

    async def reset(self, task: Task) -> StepResult: ...
    async def step(self, actions: Mapping[str, Action]) -> StepResult: ...
    async def close(self) -> None: ...


# ---- the abilities ----------------------------------------------------------------------------------------
@runtime_checkable
class HasTasks(Protocol):
    """`tasks`: gives tasks. Samplers, panels and tokenizers ask for them before an episode is played."""

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks. The same arguments give the same tasks; splits never share a content hash."""
        ...


@runtime_checkable
class HasContent(Protocol):
    """`content`: tells a problem apart from others. Panels, runs and `check_environment` measure by it whether what is
    evaluated was also trained on."""

    def content(self, task: Task) -> Any:
        """What the agents can see and what solves it, as JSON values: the whole hidden problem.

        Seeds that make the same problem have equal content. Chance during an episode, limits and wordings are no part
        of it. An episode that is under way does not change. None: it cannot be known of this task.
        """
        ...


@runtime_checkable
class HasDifficulty(Protocol):
    """`difficulty`: tells how hard a task is. Curricula ask for it."""

    def difficulty(self, task: Task) -> float:
        """A number that is higher for harder tasks, such as the length of a shortest solution."""
        ...


@runtime_checkable
class HasExpert(Protocol):
    """`expert`: knows a good action. Warm starts, tokenizers and the policy `expert` ask for it during an episode."""

    def expert(self, agent: str) -> Action:
        """A good action for `agent`, whose turn it is. The episode does not change."""
        ...


@runtime_checkable
class HasSnapshot(Protocol):
    """`snapshot`: can return to an earlier state. Strategies and programs that branch need it."""

    def snapshot(self) -> Any:
        """The present state. Later steps do not change the returned object."""
        ...

    def restore(self, state: Any) -> None:
        """Continue from `state`, any number of times. Another object of the same class and options may have given it.

        Raises: ContractError, if this state cannot be reached again.
        """
        ...


@runtime_checkable
class HasGlobalState(Protocol):
    """`global_state`: gives the whole state to a centralized critic, which asks for it after each step."""

    def global_state(self) -> np.ndarray:
        """The present state as float32 (n,), n the same in all episodes."""
        ...


@runtime_checkable
class HasTools(Protocol):
    """`tools`: lists the tools that agents may call in their texts. The environment itself reads and runs the calls."""

    def tools(self) -> Sequence[Any]:
        """The tools of the present episode, as `palaestra.tools.Tool`."""
        ...


@runtime_checkable
class HasInstruction(Protocol):
    """`instruction`: tells an agent the rules and the commands of the environment, in words.

    Models with a chat template get it as the system message (`agents.….instruction`).
    """

    def instruction(self, agent: str) -> str:
        """What `agent` should know before it acts: its goal, the commands in the form that `step` reads, and what ends
        the episode.

        It is the same in every episode, needs no `reset` and changes nothing. What differs between tasks belongs into
        observations; how to think or to wrap a reply belongs to the role's reader.
        """
        ...


@runtime_checkable
class HasGuidance(Protocol):
    """`guidance`: has a teacher that knows the answer and gives hints that do not contain it.

    The strategy `second_attempt` and `warm_start.guidance` call it on an environment in which no episode runs.
    """

    def guidance(self, trajectory: Trajectory, *, seed: int) -> str | None:
        """The teacher's hint for this attempt; None or "": no hint.

        Args:
            trajectory: the attempt; without steps, the agent has not tried yet.
            seed: decides all random choices of the teacher.
        """
        ...

    def reference(self, task: Task) -> str | None:
        """The full answer of a task, which a hint must not contain; None if there is no such text."""
        ...


@runtime_checkable
class HasVector(Protocol):
    """`vector`: gives observations as vectors and takes numbered actions. Network policies and random play need it.

    Attributes:
        vector_size: length of every `Observation.vector`; None if observations have no vector.
        action_count: number of actions; every index below it is valid. None if actions have no numbers.
    """

    vector_size: int | None
    action_count: int | None


@runtime_checkable
class HasBox(Protocol):
    """`box`: takes vectors as actions. Policies over vectors and random play need it. `box_of` reads it.

    Attributes:
        action_box: the lowest and the highest action, each float32 (n,) and finite. `Action.value` is float32 (n,). A
            number outside its bounds is clipped to them.
    """

    action_box: tuple[np.ndarray, np.ndarray]


@runtime_checkable
class HasVectorEnvironment(Protocol):
    """`vector_environment`: steps many copies in one call, for the runner `vector`. It needs a single agent."""

    def vector_environment(self, count: int) -> Any:
        """A `gymnasium.vector.VectorEnv` of `count` copies with autoreset disabled.

        Each copy behaves as the environment itself does for the same task seed.
        """
        ...


@runtime_checkable
class HasPhrases(Protocol):
    """`phrases`: gives texts that its expert's episodes do not contain, for a tokenizer that is made for a run."""

    @property
    def phrases(self) -> Sequence[str]:
        """The texts; making them may be slow."""
        ...


@runtime_checkable
class HasJudging(Protocol):
    """`judging`: calls functions of the user, which may cost money or write logs, to judge or answer an agent.

    A run sets it to False for the episodes whose texts train a tokenizer.

    Attributes:
        judging: whether `step` calls them. False: rewards are 0, and the agent is not answered.
    """

    judging: bool


@runtime_checkable
class HasNotes(Protocol):
    """`notes`: says what of its data it does not use.

    Attributes:
        notes: lines that a run prints once, at its start.
    """

    notes: Sequence[str]


ABILITIES: dict[str, type] = {
    "tasks": HasTasks,
    "content": HasContent,
    "difficulty": HasDifficulty,
    "expert": HasExpert,
    "snapshot": HasSnapshot,
    "global_state": HasGlobalState,
    "tools": HasTools,
    "instruction": HasInstruction,
    "guidance": HasGuidance,
    "vector": HasVector,
    "box": HasBox,
    "vector_environment": HasVectorEnvironment,
    "phrases": HasPhrases,
    "judging": HasJudging,
    "notes": HasNotes,
}

ABSENT = object()


@cache
def members_of(ability: str) -> tuple[str, ...]:
    """Names of the methods and attributes that belong to an ability, in the order of its protocol."""
    protocol = ABILITIES[ability]
    return tuple(name for name in (*protocol.__annotations__, *vars(protocol)) if not name.startswith("_"))


# ---- asking -----------------------------------------------------------------------------------------------
def abilities_of(environment: Any) -> frozenset[str]:
    """The names of the abilities that an environment, or a class of environments, has.

    They come from the list `abilities` if there is one, else from the members that the object or class has. The list of
    a class may be longer than that of an object of it.

    Raises: ContractError, for a list with an unknown ability or one whose members are missing, and, without a list, for
        an ability of which only a part of the members is there.
    """
    listed = _listed(environment)
    made = not isinstance(environment, type)
    if listed is None:
        there = {ability: _there(environment, ability) for ability in ABILITIES}
        if made:
            _refuse_halves(environment, there)
        return frozenset(ability for ability, found in there.items() if len(found) == len(members_of(ability)))
    for ability in listed if made else ():
        found = _there(environment, ability)
        lacking = [name for name in members_of(ability) if name not in found]
        if lacking:
            raise ContractError(
                where=_name(environment),
                what=f"its `abilities` list `{ability}`, but it has no `{lacking[0]}`.",
                remedy=f"Give it {_wanted(ability)}, or take `{ability}` out of the list.",
            )
    return frozenset(listed)


def has(environment: Any, ability: str) -> bool:
    """Whether an environment, or a class of environments, has this ability, a key of `ABILITIES`."""
    assert ability in ABILITIES, ability
    return ability in abilities_of(environment)


def require(environment: Any, ability: str, *, where: str, what: str = "", remedy: str = "") -> Any:
    """Return the environment if it has this ability.

    Args:
        where: the place that the error names. what, remedy: texts of the error, in place of the usual ones.

    Raises: ContractError, if it lacks the ability.
    """
    if not has(environment, ability):
        raise ContractError(
            where=where,
            what=what or f"environment `{_name(environment)}` has no `{ability}`.",
            remedy=remedy or f"Give it {_wanted(ability)}.",
        )
    return environment


def content_of(environment: Any, task: Task) -> str | None:
    """The hash of a task's content; None where the environment does not tell it."""
    if task.content is not None:
        return task.content
    content = environment.content(task) if has(environment, "content") else None
    return None if content is None else content_digest(task.env, content)


def difficulty_of(environment: Any, task: Task) -> float | None:
    """The task's label, else what the environment says; None where neither is there."""
    if task.difficulty is not None:
        return task.difficulty
    return float(environment.difficulty(task)) if has(environment, "difficulty") else None


def sizes_of(environment: Any) -> tuple[int | None, int | None]:
    """`vector_size` and `action_count` of an environment; (None, None) without the ability `vector`."""
    return (environment.vector_size, environment.action_count) if has(environment, "vector") else (None, None)


def box_of(environment: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """`action_box` of an environment; None without the ability `box`.

    Raises: ContractError, for bounds between which no actions can be drawn.
    """
    if not has(environment, "box"):
        return None
    low, high = environment.action_box
    vectors = all(isinstance(end, np.ndarray) and end.dtype == np.float32 and end.ndim == 1 for end in (low, high))
    if not vectors or low.shape != high.shape or not np.isfinite([low, high]).all() or not (low < high).all():
        raise ContractError(
            where=f"{_name(environment)}.action_box",
            what=f"it must be two finite float32 vectors, the first below the second, found {low!r} and {high!r}.",
            remedy="Give every number of an action a lowest and a highest value.",
        )
    return low, high


def without(abilities: tuple[str, ...], *names: str) -> tuple[str, ...]:
    """The list without these names, for a constructor whose options make some abilities of its class impossible."""
    return tuple(ability for ability in abilities if ability not in names)


def check_abilities(environment: Any) -> None:
    """Check that the list `abilities` of an environment, if it has one, agrees with its members.

    Raises: ContractError, as `abilities_of`; also if the list of the class leaves out an ability that the object has or
        lists.
    """
    able, most = abilities_of(environment), _listed(type(environment))
    if most is None:
        most = _listed(environment)  # the object alone has a list
    if most is None:
        return
    there = {ability for ability in ABILITIES if len(_there(environment, ability)) == len(members_of(ability))}
    unlisted = sorted((able | there) - set(most))
    if unlisted:
        raise ContractError(
            where=_name(environment),
            what=f"it has the ability `{unlisted[0]}`, but its list of `abilities` leaves it out.",
            remedy=f"Write `abilities = {(*most, unlisted[0])!r}` in the class.",
        )


def _listed(environment: Any) -> tuple[str, ...] | None:
    """The list `abilities` of an environment or a class; None if it has none."""
    listed = getattr(environment, "abilities", None)
    if listed is None:
        return None
    if not isinstance(listed, tuple) or not all(isinstance(name, str) for name in listed):
        raise ContractError(
            where=f"{_name(environment)}.abilities",
            what=f"it must be a tuple of names, found {listed!r}.",
            remedy='Write it as in `abilities = ("tasks", "expert")`.',
        )
    for name in listed:
        if name not in ABILITIES:
            raise ContractError(
                where=f"{_name(environment)}.abilities",
                what=f"no ability is called `{name}`.",
                options=nearest(name, ABILITIES),
                remedy=f"They are: {', '.join(ABILITIES)}.",
            )
    return listed


def _there(environment: Any, ability: str) -> list[str]:
    """The members of an ability that an environment or a class has. A method counts only if it can be called."""
    found, methods = {name: _member(environment, name) for name in members_of(ability)}, _methods_of(ability)
    return [name for name, member in found.items() if (callable(member) if name in methods else member is not ABSENT)]


@cache
def _methods_of(ability: str) -> frozenset[str]:
    """Those members of an ability that are methods."""
    return frozenset(name for name, member in vars(ABILITIES[ability]).items() if inspect.isfunction(member))


def _member(environment: Any, name: str) -> Any:
    """The member of this name, or `ABSENT`. A property is returned itself and not run, because that may be slow."""
    if isinstance(environment, type):
        return getattr(environment, name, ABSENT)
    own = getattr(environment, "__dict__", {})
    found = own[name] if name in own else getattr(type(environment), name, ABSENT)
    return (
        getattr(environment, name, ABSENT) if found is ABSENT else found
    )  # wrappers forward unknown names by `__getattr__`


def _refuse_halves(environment: Any, there: Mapping[str, Sequence[str]]) -> None:
    for ability, found in there.items():
        lacking = [name for name in members_of(ability) if name not in found]
        if found and lacking:
            raise ContractError(
                where=_name(environment),
                what=f"it has `{found[0]}` but no `{lacking[0]}`, and the ability `{ability}` needs both.",
                remedy=f"Give it {_wanted(ability)}, or list in `abilities` what it can do.",
            )


def _wanted(ability: str) -> str:
    """The members that an environment needs for this ability: methods with their parameters, attributes by name."""
    members = {name: vars(ABILITIES[ability]).get(name) for name in members_of(ability)}
    return " and ".join(_signature(one) if inspect.isfunction(one) else f"`{name}`" for name, one in members.items())


def _signature(method: Callable[..., Any]) -> str:
    called = [p.replace(annotation=p.empty) for p in inspect.signature(method).parameters.values() if p.name != "self"]
    returned = method.__annotations__["return"]
    shown = inspect.Signature(called)
    return f"a method `{method.__name__}{shown}{'' if returned in ('None', 'Any') else f' -> {returned}'}`"


def _name(environment: Any) -> str:
    return environment.__name__ if isinstance(environment, type) else type(environment).__name__
