"""Draw the tasks of a split, and keep panels: fixed lists of evaluation tasks, so that results of different days can be
compared.

A panel is committed with three hashes: of its tasks, of the first observations in them, and of some whole episodes. The
second and third hash change when a new version of a package makes other levels from the same seeds. A panel also
stores its overlap: the share of its tasks whose problem occurs in training, too.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from palaestra.boundary.tasks import tasks_of
from palaestra.data import Task, derive
from palaestra.data.abilities import content_of
from palaestra.data.task import content_digest
from palaestra.errors import InvalidData, UnknownName, nearest
from palaestra.registry import part

FILE = Path(__file__).with_name("panels.json")
SEED = 20_000  # of panels, and of evaluations without a panel
SPLIT = "eval"
TRAINED = 2000  # number of training tasks that a panel's overlap is measured with
PARTS = ("train", "train", "eval", "other")  # the hash of a content, modulo 4, is the index of its part
SHARED = "some of its problems occurred in training, too"
REPLACED = {name: (f"{name}-2", SHARED) for name in ("clinic", "code", "prover", "puzzles")} | {
    "rasters": ("rasters-3", SHARED),
    "rasters-2": ("rasters-3", "its images had grays in place of colors"),
}
PATIENCE = 20  # give up after this many tries in a row without a new problem, for each one found


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """How the tasks of a panel are made, and the hashes that they must have.

    Attributes:
        environment, options: as in a recipe.
        split, n, seed: arguments of the environment's `tasks`.
        hash: of the tasks, in their order.
        first: of the first observations of all tasks.
        played: of 50 whole episodes of random play (palaestra.evaluation.scripted). "": not measured.
        overlap: share of the tasks whose content occurs in 2,000 tasks of the split "train". None: the environment has
            no ability `content`.
    """

    environment: str
    options: Mapping[str, Any]
    split: str = SPLIT
    n: int
    seed: int = SEED
    hash: str = ""
    first: str = ""
    played: str = ""
    overlap: float | None = None


# ---- tasks of a split -------------------------------------------------------------------------------------
def seeded_tasks(
    env: str,
    params: Mapping[str, Any],
    split: str,
    n: int,
    seed: int,
    *,
    content: Callable[[Task], Any] | None = None,
) -> list[Task]:
    """`n` tasks that differ in their seed. The first tasks of a longer list are those of a shorter one.

    Seeds of the split "train" are even and all others odd. If different seeds can make the same problem, this does not
    hold a problem out; then give `content`. The hash of a content decides the split that it belongs to: half of all
    contents belong to "train", a quarter to "eval", and a quarter to all other splits together. Training may repeat a
    problem. A list of any other split has each problem once.

    Args:
        content: returns the problem of a task, as the environment's ability `content` does.

    Raises: InvalidData, if the split has fewer than `n` different problems.
    """
    held_out = int(split != "train")

    def task(number: int) -> Task:
        own = derive(seed, env, split, number) // 2 * 2 + held_out
        return Task(env=env, params=params, seed=own, split=split)

    if content is None:
        return [task(number) for number in range(n)]
    part = split if split in PARTS else PARTS[-1]
    found: list[Task] = []
    different: set[str] = set()
    number = idle = 0
    while len(found) < n:
        drawn = task(number)
        digest = content_digest(env, content(drawn))
        number, idle = number + 1, idle + 1
        if part_of(digest) == part and (part == "train" or digest not in different):
            found.append(replace(drawn, content=digest))
            different.add(digest)
            idle = 0
        elif idle > PATIENCE * (len(different) + 5):
            raise InvalidData(
                where=f"environment {env}, split {split}",
                what=f"only {len(different)} different problems were found, in {number} draws, and {n} were asked for.",
                remedy=f"Ask for at most {len(different)} tasks, or set the environment's options so that it has more "
                "different problems.",
            )
    return found


def part_of(digest: str) -> str:
    """The part that a content belongs to: "train", "eval", or "other" for all further splits."""
    return PARTS[int(digest, 16) % len(PARTS)]


def shared(env: Any, tasks: Iterable[Task], trained: Iterable[Task]) -> int | None:
    """The number of `tasks` whose content occurs in `trained`; None if `env` has no ability `content`."""
    asked = [content_of(env, task) for task in tasks]
    known = {content_of(env, task) for task in trained} if None not in asked else {None}
    return None if None in known else sum(one in known for one in asked)


# ---- committed panels -------------------------------------------------------------------------------------
@functools.cache
def panels() -> dict[str, Panel]:
    """All committed panels by name."""
    return {name: Panel(**entry) for name, entry in json.loads(FILE.read_text()).items()}


def panel(name: str) -> tuple[list[Task], Panel]:
    """The tasks of a committed panel, and its entry. The tasks are made again and compared with the hashes.

    Raises: UnknownName; InvalidData, if the panel is empty or no longer what was committed.
    """
    if name in REPLACED:
        new, why = REPLACED[name]
        raise UnknownName(
            where=f"panel {name}",
            what=f"`{name}` is replaced by `{new}`: {why}.",
            options=[new],
            remedy="Results on the two cannot be compared.",
        )
    if name not in panels():
        raise UnknownName(where=f"panel {name}", what=f"no panel is called `{name}`.", options=nearest(name, panels()))
    entry = panels()[name]
    env = part("environment", entry.environment).target(**entry.options)
    return verified(name, entry, env), entry


def verified(name: str, entry: Panel, env: Any) -> list[Task]:
    """The panel's tasks, made again by `env`.

    Raises: InvalidData, if `env` no longer makes the tasks or the first observations that were committed.
    """
    tasks = _tasks(env, entry.n, where=f"panel {name}", split=entry.split, seed=entry.seed)
    found = measure(entry, env, tasks)
    for key, meaning in (("hash", "its tasks"), ("first", "its first observations")):
        if getattr(found, key) != getattr(entry, key):
            raise InvalidData(
                where=f"panel {name} ({FILE.name})",
                what=f"{meaning} have changed: hash {getattr(found, key)}, committed {getattr(entry, key)}.",
                remedy="Results on it could not be compared with earlier ones. Install the package versions of\n"
                "constraints.txt. If you want the change, commit a panel under a new name, with the hashes that\n"
                "palaestra.envs.kit.panels.measure gives.",
            )
    return tasks


def measure(entry: Panel, env: Any, tasks: Sequence[Task] | None = None) -> Panel:
    """The entry of a new panel with the hashes of its tasks and of their first observations."""
    if tasks is None:
        tasks = _tasks(env, entry.n, where="measure", split=entry.split, seed=entry.seed)
    digest = hashlib.sha256()
    for task in tasks:
        result = env.reset(task)
        result = asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
        for agent, seen in sorted(result.observations.items()):
            shown = seen.text if seen.text is not None else repr((seen.messages, seen.vector, seen.image))
            digest.update(f"{agent}\n{shown}\n".encode())
    return Panel(**{**asdict(entry), "hash": _panel_hash(tasks), "first": digest.hexdigest()[:16]})


def with_overlap(entry: Panel, env: Any, tasks: Sequence[Task]) -> Panel:
    """The entry with its overlap: the share of its tasks whose content occurs in `TRAINED` training tasks."""
    if content_of(env, tasks[0]) is None:
        return replace(entry, overlap=None)
    found = shared(env, tasks, tasks_of(env, "train", TRAINED, 0))
    return replace(entry, overlap=None if found is None else round(found / len(tasks), 4))


async def _awaited(waited: Awaitable[Any]) -> Any:
    return await waited


def panel_for(environment: str, options: Mapping[str, Any]) -> str | None:
    """The name of the committed panel for an environment with these options; None if there is none.

    Options that a panel does not list, such as limits, make no difference to its tasks.
    """
    chosen = part("environment", environment).check(options, where=f"environment: {environment}")
    chosen = json.loads(json.dumps(chosen, default=str))  # as in the file, where a tuple is a list
    for name, entry in panels().items():
        if entry.environment == environment and entry.options.items() <= chosen.items():
            return name
    return None


# ---- what an evaluation plays -----------------------------------------------------------------------------
def evaluation_tasks(env: Any, n: int, *, name: str | None = None) -> list[Task]:
    """The tasks of an evaluation: the first `n` of the panel `name`, or, without a name, of the split "eval" of `env`.

    Raises: InvalidData, if there is no task, or if the panel has fewer than `n`; UnknownName.
    """
    if name is None:
        return _tasks(env, n, where="evaluation", split=SPLIT, seed=SEED)
    tasks, _ = panel(name)
    if not 0 < n <= len(tasks):
        raise InvalidData(
            where=f"evaluation, panel {name}",
            what=f"{n} tasks were asked for, and the panel has {len(tasks)}.",
            remedy=f"Set `evaluation.tasks` between 1 and {len(tasks)}.",
        )
    return tasks[:n]


def _tasks(env: Any, n: int, *, where: str, split: str, seed: int) -> list[Task]:
    tasks: list[Task] = tasks_of(env, split, n, seed) if n > 0 else []
    if not tasks:
        raise InvalidData(
            where=where,
            what=f"the panel is empty: {n} tasks of split `{split}` were asked for, and none came.",
            remedy="Ask for at least 1 task, and check that the environment's `tasks` gives this split.",
        )
    return tasks


def _panel_hash(tasks: Sequence[Task]) -> str:
    """The hash of a list of tasks. It depends on their order."""
    return hashlib.sha256("\n".join(task.content_hash for task in tasks).encode()).hexdigest()[:16]
