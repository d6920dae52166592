"""Tasks of splits, and panels: fixed sets of evaluation tasks, committed with hashes, so that results of different days
can be compared.

A panel has three hashes: over its tasks, over what the environment shows first in each of them, and over some whole
episodes. The second and third change when a new version of a package makes other levels from the same seeds. It also
stores its overlap: the share of its tasks whose problem occurs in training too.
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

from palaestra.data import Task, derive
from palaestra.data.abilities import content_of
from palaestra.data.task import content_digest
from palaestra.errors import InvalidData, UnknownName, nearest
from palaestra.registry import part

FILE = Path(__file__).with_name("panels.json")
SEED = 20_000  # of panels, and of evaluations on no panel
SPLIT = "eval"
TRAINED = 2000  # training tasks that a panel's overlap is measured against
PARTS = ("train", "train", "eval", "other")  # a content's hash, modulo 4, decides its part
REPLACED = {name: f"{name}-2" for name in ("clinic", "code", "prover", "puzzles", "rasters")}
PATIENCE = 20  # draws without a new problem, for each that was found, after which there are no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """How a panel is made, and what it must be.

    Attributes:
        environment, options: as in a recipe.
        split, n, seed: arguments of the environment's `tasks`.
        hash: over the tasks, order included.
        first: over the first observations of all tasks.
        played: over 50 whole episodes of random play (palaestra.evaluation.scripted); "": not measured.
        overlap: share of its tasks whose content occurs in 2,000 tasks of split "train"; None: the environment does not
            tell contents.
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

    Seeds of the split "train" are even and all others odd. Where different seeds can make the same problem, this does
    not hold a problem out. Then give `content`: tasks are drawn until the hash of their content falls into their split.
    Half of all contents belong to "train", a quarter to "eval", and a quarter to all other splits, which share it.
    Training may repeat a problem; every other list has each problem once.

    Args:
        content: what the problem of a task is, the environment's ability `content`.

    Raises: InvalidData, if the split has fewer different problems than are asked for.
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
    """How many of `tasks` have the content of a task that was trained on; None where `env` does not tell contents."""
    asked = [content_of(env, task) for task in tasks]
    known = {content_of(env, task) for task in trained} if None not in asked else {None}
    return None if None in known else sum(one in known for one in asked)


# ---- committed panels -------------------------------------------------------------------------------------
@functools.cache
def panels() -> dict[str, Panel]:
    """All committed panels by name."""
    return {name: Panel(**entry) for name, entry in json.loads(FILE.read_text()).items()}


def panel(name: str) -> tuple[list[Task], Panel]:
    """The tasks of a committed panel, made again and compared with its hashes.

    Raises: UnknownName; InvalidData, if the panel is empty or no longer what was committed.
    """
    if name in REPLACED:
        raise UnknownName(
            where=f"panel {name}",
            what=f"`{name}` is replaced by `{REPLACED[name]}`: some of its problems occurred in training, too.",
            options=[REPLACED[name]],
            remedy="Results on the two cannot be compared.",
        )
    if name not in panels():
        raise UnknownName(where=f"panel {name}", what=f"no panel is called `{name}`.", options=nearest(name, panels()))
    entry = panels()[name]
    env = part("environment", entry.environment).target(**entry.options)
    return verified(name, entry, env), entry


def verified(name: str, entry: Panel, env: Any) -> list[Task]:
    """The panel's tasks, if `env` still makes what was committed.

    Raises: InvalidData.
    """
    tasks = _tasks(env, entry.n, where=f"panel {name}", split=entry.split, seed=entry.seed)
    found = measure(entry, env, tasks)
    for key, meaning in (("hash", "its tasks have"), ("first", "what the environment shows first has")):
        if getattr(found, key) != getattr(entry, key):
            raise InvalidData(
                where=f"panel {name} ({FILE.name})",
                what=f"{meaning} changed: hash {getattr(found, key)}, committed {getattr(entry, key)}.",
                remedy="Results on it could not be compared with earlier ones. Install the package versions of\n"
                "constraints.txt; or, if the change was wanted, commit a panel under a new name, with the hashes\n"
                "of palaestra.envs.kit.panels.measure.",
            )
    return tasks


def measure(entry: Panel, env: Any, tasks: Sequence[Task] | None = None) -> Panel:
    """The entry with the hashes of its tasks and of what is shown first, for a new panel. `with_overlap` measures the
    rest."""
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
    """The entry with the share of its tasks that occur among `TRAINED` training tasks."""
    if content_of(env, tasks[0]) is None:
        return replace(entry, overlap=None)
    found = shared(env, tasks, env.tasks("train", TRAINED, 0))
    return replace(entry, overlap=None if found is None else round(found / len(tasks), 4))


async def _awaited(waited: Awaitable[Any]) -> Any:
    return await waited


def panel_for(environment: str, options: Mapping[str, Any]) -> str | None:
    """The name of the committed panel for an environment with these options; None if there is none.

    Options that a panel does not list, such as limits, make no difference to its tasks.
    """
    chosen = part("environment", environment).check(options, where=f"environment: {environment}")
    chosen = json.loads(json.dumps(chosen, default=str))  # as the file has them: a tuple is a list there
    for name, entry in panels().items():
        if entry.environment == environment and entry.options.items() <= chosen.items():
            return name
    return None


# ---- what an evaluation plays -----------------------------------------------------------------------------
def evaluation_tasks(env: Any, n: int, *, name: str | None = None) -> list[Task]:
    """What is evaluated: the first `n` of the committed panel `name`, else of the environment's own split "eval".

    Raises: InvalidData, if there are none, or fewer than `n` in the panel; UnknownName.
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
    tasks: list[Task] = env.tasks(split, n, seed) if n > 0 else []
    if not tasks:
        raise InvalidData(
            where=where,
            what=f"the panel is empty: {n} tasks of split `{split}` were asked for, and none came.",
            remedy="Ask for at least 1 task, and check that the environment's `tasks` gives this split.",
        )
    return tasks


def _panel_hash(tasks: Sequence[Task]) -> str:
    """One hash over a panel of tasks, order included; committed next to the panel's definition."""
    return hashlib.sha256("\n".join(task.content_hash for task in tasks).encode()).hexdigest()[:16]
