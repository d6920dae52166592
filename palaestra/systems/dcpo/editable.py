"""The editable context: memory is a list of records with ids, and the agent itself removes records.

A record is a call and its output, shown with an id. A memory action is a call too: the summary in it stays in memory as
it was written, in place of the removed records, so that no text is rendered again. After an edit the prompt does not
extend the earlier one, and a new segment starts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from palaestra.chat.renderers import Renderer, head_of
from palaestra.data import Observation
from palaestra.data.protocols import Context, Prompt
from palaestra.errors import InvalidData
from palaestra.registry import PositiveInt, register

NOTICE, PRUNED = "memory full.", "pruned."
FORM = re.compile(r"prune\b\s*([\d\s]*)(?::(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A memory action: the ids of the records to remove, and the agent's summary of them."""

    ids: tuple[int, ...]
    summary: str


def read_edit(text: str) -> Edit | None:
    """Read the memory action `prune IDS: SUMMARY`; None if the text is for the environment.

    >>> read_edit("prune 1 2: amber is old")
    Edit(ids=(1, 2), summary='amber is old')

    The summary may be empty. A text that begins with the word `prune` but has another form gives an edit without ids,
    which the context refuses.
    """
    if not re.match(r"prune\b", text.strip()):
        return None
    found = FORM.fullmatch(text.strip())
    if found is None:
        return Edit(ids=(), summary="")
    return Edit(ids=tuple(int(number) for number in found[1].split()), summary=(found[2] or "").strip())


def write_edit(edit: Edit) -> str:
    """Write a memory action as the text that `read_edit` reads."""
    return f"prune {' '.join(str(number) for number in edit.ids)}: {edit.summary}".strip()


@dataclass(slots=True)
class _Record:
    id: int
    ids: np.ndarray  # tokens of the call and of its output


class EditableMemory:
    """One agent's memory in one episode: its task, and a record for each call since."""

    def __init__(self, renderer: Renderer, full: int, notice: bool) -> None:
        self._renderer, self._full, self._notice = renderer, full, notice
        self._task = np.zeros(0, np.int32)
        self._records: list[_Record] = []
        self._call = np.zeros(0, np.int32)  # the next observation is its output
        self._given, self._segment, self._edited = 0, 0, False
        self.length = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the records in memory, oldest first."""
        return tuple(record.id for record in self._records)

    @property
    def coming(self) -> int | None:
        """The id of the next output; None if the next observation is the task."""
        return self._given + 1 if self.length else None

    @property
    def full(self) -> bool:
        """Whether memory holds `full` records once the next output is added."""
        return self.length > 0 and len(self._records) + 1 >= self._full

    def observe(self, observation: Observation) -> Prompt:
        """Add an observation: the first one is the task, which stays; each further one is an output with an id."""
        if not self.length:
            asked = self._renderer.observation(observation, first=True)
            self._task = np.concatenate([head_of(self._renderer, observation), asked])
            self.length = len(self._task)
            return Prompt(self._task, 0, True)
        notice = f"{NOTICE} " if self._notice and self.full else ""
        self._given += 1
        labeled = replace(observation, text=f"{notice}{self._given}) {observation.text}")
        ids = self._renderer.observation(labeled, first=False)
        before = [self._task, *(record.ids for record in self._records), self._call]
        fresh, self._edited = self._edited, False
        self._segment += fresh
        self._records.append(_Record(self._given, np.concatenate([self._call, ids]).astype(np.int32)))
        self._call = np.zeros(0, np.int32)
        prompt = np.concatenate([*before, ids]).astype(np.int32) if fresh else ids
        self.length = sum(map(len, before)) + len(ids)
        return Prompt(prompt, self._segment, fresh)

    def respond(self, ids: np.ndarray) -> None:
        self._call = np.concatenate([self._call, ids]).astype(np.int32)
        self.length += len(ids)

    def prune(self, ids: Sequence[int]) -> None:
        """Remove records; the next prompt starts a segment without them.

        Raises: InvalidData, if an id is not in memory or none is given; memory does not change then.
        """
        missing = [number for number in ids if number not in self.ids]
        if missing or not ids:
            raise InvalidData(
                where="context: editable",
                what=f"memory has no {' '.join(map(str, missing)) or 'output without an id'}.",
                remedy="Use ids that are shown before outputs: `prune 1 2: SUMMARY`. In memory: "
                f"{' '.join(map(str, self.ids)) or 'none'}.",
            )
        self._records = [record for record in self._records if record.id not in ids]
        self._edited = True


@register("context", "editable", source="arXiv 2510.12635")
class Editable(Context):
    """Show all outputs with ids; the agent removes some by `prune IDS: SUMMARY`, with the program `curate`.

    Args:
        full: number of records in memory at which demonstrations prune. Higher: rarer edits, longer prompts.
        notice: begin observations with `memory full.` from this number of records on.

    After an edit everything that stays is computed again, so that few large edits are cheaper than many small ones.
    """

    def __init__(self, *, full: PositiveInt = 4, notice: bool = False) -> None:
        self._full, self._notice = full, notice

    @property
    def phrases(self) -> tuple[str, ...]:
        """Texts of this context, for building a tokenizer."""
        return tuple(f"{NOTICE} {number}) prune {number}: {PRUNED}" for number in range(1, 33))

    def start(self, renderer: Renderer) -> EditableMemory:
        return EditableMemory(renderer, self._full, self._notice)
