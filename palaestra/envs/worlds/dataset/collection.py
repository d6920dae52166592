"""The problems of a data set, divided into those of training and those that are held out.

Every episode has an environment of its own. They share the collection, which is made once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from palaestra.envs.worlds.dataset.files import Row, read_rows
from palaestra.envs.worlds.dataset.layouts import named
from palaestra.envs.worlds.dataset.problems import UNREAD, Layout, Problem

Numbered = tuple[int, Problem]  # the number of a problem in its file
KEPT = 16  # collections


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Problems of the rows of one or two files.

    Attributes:
        problems: of the file. apart: those of the file of evaluations, if there is one.
        train: problems of training. held_out: problems of evaluations, each once.
        have_levels: whether any problem has one. have_demonstrations: whether all problems have one.
        notes: lines that say what of the rows is not read.
    """

    problems: tuple[Problem, ...]
    apart: tuple[Problem, ...] | None
    train: tuple[Numbered, ...]
    held_out: tuple[Numbered, ...]
    have_levels: bool
    have_demonstrations: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Known:
    rows: tuple[Row, ...]
    apart: tuple[Row, ...] | None
    collection: Collection


_known: dict[str, _Known] = {}  # options → what was made of them, the oldest first


def collection_of(path: str, evaluation: str | None, layout: Layout, *, split: float) -> Collection:
    """The collection of these files. It is made again if a file or an option has changed.

    Args:
        evaluation: the file of evaluations; None: the share `split` of `path` is held out, by the hash of the problem.

    Raises: InvalidData, for files or rows that cannot be read.
    """
    rows, apart = read_rows(path), None if evaluation is None else read_rows(evaluation)
    key = json.dumps([path, evaluation, split, asdict(layout)], default=str)
    known = _known.get(key)
    if known is None or known.rows is not rows or known.apart is not apart:
        known = _known[key] = _Known(rows, apart, _divided(rows, apart, layout, split))
        while len(_known) > KEPT:
            del _known[next(iter(_known))]
    return known.collection


def _notes(problems: Sequence[Problem], layout: Layout) -> tuple[str, ...]:
    """Lines that name columns with a known meaning, and keys of messages, that have values and are not read."""
    used = {layout.prompt, layout.completion, layout.answer, layout.difficulty, *layout.problem}
    columns = [
        name for name in UNREAD if name not in used and any(one.columns.get(name) is not None for one in problems)
    ]
    file = problems[0].place.rpartition(":")[0]
    lines = []
    if columns:
        lines.append(f"{file}: only reward functions read {named('column', columns)}")
    if layout.unread:
        lines.append(f"{file}: nothing reads {named('key', sorted(layout.unread))} of messages")
    return tuple(lines)


def _divided(rows: Sequence[Row], others: Sequence[Row] | None, layout: Layout, split: float) -> Collection:
    problems, apart = layout.problems(rows), None if others is None else layout.problems(others)
    numbered = list(enumerate(problems))
    if apart is None:
        held_out = [(n, one) for n, one in numbered if int(one.digest, 16) < split * 16 ** len(one.digest)]
    else:
        held_out = list(enumerate(apart))
    digests = {one.digest for _, one in held_out}
    once = {one.digest: (number, one) for number, one in reversed(held_out)}
    everything = (*problems, *(apart or ()))
    return Collection(
        problems=problems,
        apart=apart,
        train=tuple((number, one) for number, one in numbered if one.digest not in digests),
        held_out=tuple(reversed(once.values())),
        have_levels=any(one.level is not None for one in everything),
        have_demonstrations=all(one.demonstration for one in everything),
        notes=_notes(everything, layout),
    )
