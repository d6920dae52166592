"""A player of PDDL games, as ALFWorld has them (arXiv 2010.03768), with the same members as the players of `play`."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palaestra.envs.adapters.textworld.games import WHERE, package
from palaestra.errors import missing_extra

TASK = re.compile(r"Your task is to:?\s*(.+)", re.IGNORECASE)
NOTHING = "Nothing happens."
TRANSLATIONS = 32  # kept; a game has two, one for playing and one for planning


class PddlPlayer:
    """Plays a `.tw-pddl` file by TextWorld's own PDDL environment, with the texts of the game's grammar.

    A grammar has expressions of Python, which the package evaluates: play only files that you trust.

    Raises: MissingExtra, if Fast Downward, which finds legal commands and plans, is not installed.
    """

    def __init__(self, path: Path, said: Iterable[str] = ()) -> None:
        self.path = path
        self.running = _start(path, plans=False)
        self._planning: tuple[Any, int, list[str]] | None = None
        self.said: list[str] = []
        now = self.running.reset()
        found = TASK.search(now["feedback"])
        self.goal = found[1].strip() if found else ""
        self._take(now)
        for command in said:
            self.step(command)

    def _take(self, now: Any) -> None:
        self.feedback = "\n".join(line for line in map(str.strip, now["feedback"].splitlines()) if line)
        self.commands = dict.fromkeys(command.strip() for command in now["admissible_commands"])
        self._exact = {command.strip(): command for command in now["admissible_commands"]}
        self._facts = now["facts"]
        self.completed, self.failed = bool(now["won"]), bool(now["lost"])

    @property
    def progress(self) -> PddlPlayer:
        """Itself, which has all members of `play.Progress`."""
        return self

    @property
    def score(self) -> float:
        return float(self.completed)

    def step(self, command: str) -> bool:
        exact = self._exact.get(command)
        if exact is None:
            self.feedback = NOTHING
            return False
        now, _, _ = self.running.step(exact)
        self.said.append(command)
        self._take(now)
        return True

    def facts(self) -> list[str]:
        return sorted("\t".join((fact.name, *(argument.name for argument in fact.arguments))) for fact in self._facts)

    def plan(self) -> str | None:
        """The next command of a plan that reaches the goal; None, if the planner finds none."""
        if self._planning is None:
            planner = _start(self.path, plans=True)
            self._planning = (planner, 0, list(planner.reset()["policy_commands"] or ()))
        planner, done, plan = self._planning
        for command in self.said[done:]:
            if plan and plan[0].strip() == command:
                plan = plan[1:]
                planner.step(command)
            else:
                now, _, _ = planner.step(self._known(planner, command))
                plan = list(now["policy_commands"] or ())
        self._planning = (planner, len(self.said), plan)
        return plan[0].strip() if plan else None

    @staticmethod
    def _known(planner: Any, command: str) -> str:
        """The command as the game writes it, which may end with a space."""
        offered = {one.strip(): one for one in planner.state["admissible_commands"]}
        return str(offered.get(command, command))

    def copy(self) -> PddlPlayer:
        """An independent player in the same state. It plays all commands again."""
        return PddlPlayer(self.path, self.said)

    def close(self) -> None:
        self.running.close()


def _start(path: Path, *, plans: bool) -> Any:
    textworld = package()
    try:
        import fast_downward  # TextWorld loads it without saying so
    except ImportError:
        raise missing_extra("fast-downward-textworld", extra="pddl", needed_for=f"{WHERE}, {path}") from None
    _translate_once(fast_downward)
    wanted = textworld.EnvInfos(
        feedback=True, admissible_commands=True, facts=True, won=True, lost=True, policy_commands=plans
    )
    return textworld.start(str(path), wanted, wrappers=[_naming()])


@functools.cache
def _translate_once(fast_downward: Any) -> None:
    """Make Fast Downward keep its translations of problems, which are only read afterwards. TextWorld asks for the same
    one four times at the start of an episode; without this, an episode took two to three times as long to begin.
    """
    fast_downward.pddl2sas = functools.lru_cache(maxsize=TRANSLATIONS)(fast_downward.pddl2sas)


@functools.cache
def _naming() -> Any:
    """A wrapper of TextWorld that gives the things of ALFWorld short names, such as `apple 1`, as ALFWorld does."""
    from textworld.core import Wrapper

    class Named(Wrapper):  # type: ignore[misc]
        def load(self, *arguments: Any, **named: Any) -> None:
            super().load(*arguments, **named)
            names = short_names(info.id for info in self._entity_infos.values())
            for info in self._entity_infos.values():
                info.name = names[info.id]

    return Named


def short_names(ids: Iterable[str]) -> dict[str, str]:
    """Short names for ids of ALFWorld: `apple_bar__minus_00_dot_25…` is `apple 1`. Other ids stay as they are.

    The numbers are those that ALFWorld gives without shuffling: the last id of a kind has the number 1.

    >>> short_names(["apple_bar_b", "apple_bar_a", "agent1"])
    {'apple_bar_b': 'apple 1', 'apple_bar_a': 'apple 2', 'agent1': 'agent1'}
    """
    given = list(ids)
    numbers: Counter[str] = Counter()
    named: dict[str, str] = {}
    for one in sorted(given, reverse=True):
        kind, bar, _ = one.partition("_bar_")
        if bar:
            kind += "basin" if "basin" in one else ""
            numbers[kind] += 1
        named[one] = f"{kind} {numbers[kind]}" if bar else one
    return {one: named[one] for one in given}
