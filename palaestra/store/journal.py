"""The journal: plans and finished episodes of a run that plays ahead, a line each, as soon as there is one.

A killed process loses no finished episode: when the run goes on, the same play is answered from the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.data import Play, Trajectory
from palaestra.store.atomic import write_atomic
from palaestra.store.episodes import from_json, to_json
from palaestra.store.json_text import to_line
from palaestra.store.lines import JsonLines

JOURNAL = "ahead.jsonl"
Name = tuple[str, int, int]  # group, sample and seed: what tells plays apart


class Journal:
    """`ahead.jsonl` of a run folder.

    Attributes:
        plans: number of a batch → its plays. finished: episodes that no checkpoint holds yet, by play.
    """

    def __init__(self, folder: Path) -> None:
        """Reads what is there.

        Raises: RunFolderError, if a line is damaged.
        """
        self._lines = JsonLines(folder / JOURNAL)
        self.plans: dict[int, list[Play]] = {}
        self.finished: dict[Name, Trajectory] = {}
        for line in self._lines.read():
            if "plan" in line:
                self.plans[int(line["plan"])] = [play_from_json(play) for play in line["plays"]]
            else:
                self.finished[line["group"], line["sample"], line["seed"]] = from_json(line["trajectory"])

    def plan(self, number: int, plays: Sequence[Play]) -> None:
        """A batch is going to be played."""
        self.plans[number] = list(plays)
        self._lines.append(_planned(number, plays), sort=False)

    def finish(self, play: Play, trajectory: Trajectory) -> None:
        """An episode is over."""
        self.finished[name_of(play)] = trajectory
        self._lines.append(_ended(name_of(play), trajectory), sort=False)

    @property
    def groups(self) -> set[str]:
        """Names of the groups that are planned or have finished episodes."""
        return {play.group for plays in self.plans.values() for play in plays} | {name[0] for name in self.finished}

    def keep(self, groups: Collection[str]) -> None:
        """Forget all but the plans and episodes of these groups, in the file too; all at once."""
        self.finished = {name: trajectory for name, trajectory in self.finished.items() if name[0] in groups}
        kept = {number: [p for p in plays if p.group in groups] for number, plays in self.plans.items()}
        self.plans = {number: plays for number, plays in kept.items() if plays}
        lines = [_planned(number, plays) for number, plays in self.plans.items()]
        lines += [_ended(name, trajectory) for name, trajectory in self.finished.items()]
        write_atomic(self._lines.path, b"".join(to_line(line, sort=False).encode() for line in lines))


def name_of(play: Play) -> Name:
    """What tells it apart from every other play of a run."""
    return play.group, play.sample, play.seed


def play_to_json(play: Play) -> dict[str, Any]:
    """A play as JSON values, without its branch, which is of the iteration alone."""
    head = Trajectory(task=play.task, group=play.group, sample=play.sample, info=dict(play.info))
    record = {"seed": play.seed, "turns": play.turns, "instruction": play.instruction, "head": to_json(head)}
    return record | ({"roles": dict(play.roles)} if play.roles else {})


def play_from_json(record: Mapping[str, Any]) -> Play:
    """The play that `play_to_json` wrote."""
    head = from_json(record["head"])
    return Play(
        task=head.task,
        group=head.group,
        sample=head.sample,
        seed=int(record["seed"]),
        turns=record["turns"],
        instruction=record["instruction"],
        info=head.info,
        roles=record.get("roles") or record.get("cast", {}),  # `cast`: of an earlier version
    )


def _planned(number: int, plays: Sequence[Play]) -> dict[str, Any]:
    return {"plan": number, "plays": [play_to_json(play) for play in plays]}


def _ended(name: Name, trajectory: Trajectory) -> dict[str, Any]:
    group, sample, seed = name
    return {"group": group, "sample": sample, "seed": seed, "trajectory": to_json(trajectory, timed=True)}
