"""The journal of a run that plays ahead. Each plan and each finished episode is written at once, as one line.

A killed process loses no finished episode: when the run resumes, it takes the episodes of its plays from the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.data import Play, Trajectory
from palaestra.errors import InvalidData
from palaestra.store.atomic import write_atomic
from palaestra.store.episodes import from_json, to_json
from palaestra.store.folder import JOURNAL
from palaestra.store.json_text import to_line
from palaestra.store.lines import JsonLines, damaged

Name = tuple[str, int, int]  # group, sample and seed, which identify a play


class Journal:
    """`ahead.jsonl` of a run folder.

    Attributes:
        plans: number of a batch → its plays. finished: name of a play → its episode, if no checkpoint has it yet.
    """

    def __init__(self, folder: Path) -> None:
        """Read the journal that is there.

        Raises: RunFolderError, if a line is damaged.
        """
        self._lines = JsonLines(folder / JOURNAL)
        self.plans: dict[int, list[Play]] = {}
        self.finished: dict[Name, Trajectory] = {}
        for number, line in enumerate(self._lines.read(), start=1):
            try:
                if "plan" in line:
                    self.plans[int(line["plan"])] = [play_from_json(play) for play in line["plays"]]
                else:
                    self.finished[line["group"], line["sample"], line["seed"]] = from_json(line["trajectory"])
            except (KeyError, TypeError, ValueError, AttributeError, InvalidData) as error:
                raise damaged(self._lines.path, number, f"it is no plan and no episode ({error!r})") from error

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
        lines = [_planned(number, plays) for number, plays in self.plans.items()]
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
        roles=record.get("roles") or record.get("cast", {}),  # an earlier version wrote `cast`
    )


def _planned(number: int, plays: Sequence[Play]) -> dict[str, Any]:
    return {"plan": number, "plays": [play_to_json(play) for play in plays]}


def _ended(name: Name, trajectory: Trajectory) -> dict[str, Any]:
    group, sample, seed = name
    return {"group": group, "sample": sample, "seed": seed, "trajectory": to_json(trajectory, timed=True)}
