"""The journal of a run that plays ahead. Each plan and each finished episode is written at once, as one line.

A killed process loses no finished episode: when the run resumes, it takes the episodes of its plays from the journal.
Each line has a checksum, and the first line the identity of the run, since the run learns from these episodes. What is
damaged, or of another run, is left out and played again.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.data import Play, Trajectory
from palaestra.store.atomic import write_atomic
from palaestra.store.episodes import from_json, to_json
from palaestra.store.folder import JOURNAL
from palaestra.store.json_text import to_line
from palaestra.store.lines import JsonLines

Name = tuple[str, int, int]  # group, sample and seed, which identify a play


class Journal:
    """`ahead.jsonl` of a run folder.

    Attributes:
        plans: number of a batch → its plays. finished: name of a play → its episode, if no checkpoint has it yet.
        identity: a random text that no other run has. A checkpoint holds it too.
        left_out: number of lines that are damaged.
    """

    def __init__(self, folder: Path) -> None:
        """Read the journal that is there. Lines that are damaged are left out."""
        self._lines = JsonLines(folder / JOURNAL)
        self.plans: dict[int, list[Play]] = {}
        self.finished: dict[Name, Trajectory] = {}
        self.identity = ""
        self.left_out = self._lines.each(self._take)
        if not self.identity:
            self.identity = secrets.token_hex(8)
            self.keep(self.groups)

    def _take(self, line: Mapping[str, Any]) -> bool:
        """Take what a line holds. Returns whether the line is whole."""
        record = dict(line)
        if "sum" in record and record.pop("sum") != _sum(record):  # those of earlier versions have none
            return False
        if "run" in record:
            self.identity = str(record["run"])
        elif "plan" in record:
            self.plans[int(record["plan"])] = [play_from_json(play) for play in record["plays"]]
        else:
            self.finished[record["group"], record["sample"], record["seed"]] = from_json(record["trajectory"])
        return True

    def belongs_to(self, identity: str) -> bool:
        """Whether this is the journal of that run. If it is of another one, it is emptied and becomes that run's."""
        if self.identity == identity:
            return True
        self.identity, self.plans, self.finished = identity, {}, {}
        self.keep(())
        return False

    def plan(self, number: int, plays: Sequence[Play]) -> None:
        """Record that a batch will be played."""
        self.plans[number] = list(plays)
        self._lines.append(_planned(number, plays), sort=False)

    def finish(self, play: Play, trajectory: Trajectory) -> None:
        """Record a finished episode."""
        self.finished[name_of(play)] = trajectory
        self._lines.append(_ended(name_of(play), trajectory), sort=False)

    @property
    def groups(self) -> set[str]:
        """Names of the groups that have plans or finished episodes."""
        return {play.group for plays in self.plans.values() for play in plays} | {name[0] for name in self.finished}

    def keep(self, groups: Collection[str]) -> None:
        """Keep only the plans and episodes of these groups, and write the file anew in one step."""
        self.finished = {name: trajectory for name, trajectory in self.finished.items() if name[0] in groups}
        kept = {number: [p for p in plays if p.group in groups] for number, plays in self.plans.items()}
        self.plans = {number: plays for number, plays in kept.items() if plays}
        lines = [_summed({"run": self.identity})]
        lines += [_planned(number, plays) for number, plays in self.plans.items()]
        lines += [_ended(name, trajectory) for name, trajectory in self.finished.items()]
        write_atomic(self._lines.path, b"".join(to_line(line, sort=False).encode() for line in lines))


def name_of(play: Play) -> Name:
    """The name of a play, which no other play of the run has."""
    return play.group, play.sample, play.seed


def play_to_json(play: Play) -> dict[str, Any]:
    """A play as JSON values, without its branch, which lasts for one iteration only."""
    head = Trajectory(task=play.task, group=play.group, sample=play.sample, info=dict(play.info))
    record = {"seed": play.seed, "turns": play.turns, "instruction": play.instruction, "head": to_json(head)}
    return record | ({"roles": dict(play.roles)} if play.roles else {})


def play_from_json(record: Mapping[str, Any]) -> Play:
    """The play that `play_to_json` has written."""
    head = from_json(record["head"])
    return Play(
        task=head.task,
        group=head.group,
        sample=head.sample,
        seed=int(record["seed"]),
        turns=record["turns"],
        instruction=record["instruction"],
        info=head.info,
        roles=record.get("roles", {}),
    )


def _planned(number: int, plays: Sequence[Play]) -> dict[str, Any]:
    return _summed({"plan": number, "plays": [play_to_json(play) for play in plays]})


def _ended(name: Name, trajectory: Trajectory) -> dict[str, Any]:
    group, sample, seed = name
    return _summed({"group": group, "sample": sample, "seed": seed, "trajectory": to_json(trajectory, timed=True)})


def _summed(record: dict[str, Any]) -> dict[str, Any]:
    return record | {"sum": _sum(record)}


def _sum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(to_line(record).encode("utf-8", "surrogatepass"))
