"""The run folder, where a run keeps its recipe, logs, checkpoints and report.

It has these files:

    runs/name/
      recipe.json            every resolved value with its origin
      signature.json         says that the recipe was written here (`palaestra.registry.trust`)
      metrics.jsonl          one line for each iteration; equal runs write equal bytes
      timings.jsonl          values that depend on the machine: times, the engine's counters
      evaluations.jsonl      one line for each evaluation
      trajectories.jsonl     sampled episodes
      checkpoints/step-000010/          `.damaged` behind the name: set aside, because it or a log was damaged
      report.html            kept current while the run goes on
      result.json            the closing line; it is there once the run has ended
      ahead.jsonl            episodes that were played ahead of the updates
      NAME.jsonl.damaged     a log as it was, if a resume had to leave out lines of it
      .former/               the run that a new one replaces, until the new one has begun
      .lock                  the pid of the process that trains into the folder, as long as it does
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.errors import RunFolderError
from palaestra.registry.trust import SIGNATURE, sign
from palaestra.store.atomic import (
    Content,
    discard,
    folder_atomic,
    is_aside,
    put_back,
    recover,
    set_aside,
    write_atomic,
    write_fault,
)
from palaestra.store.checksums import write_sums
from palaestra.store.json_text import to_document
from palaestra.store.lines import DAMAGED
from palaestra.store.lock import unless_written

RECIPE = "recipe.json"
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
EVALUATIONS = "evaluations.jsonl"
TRAJECTORIES = "trajectories.jsonl"
CHECKPOINTS = "checkpoints"
REPORT = "report.html"
RESULT = "result.json"
JOURNAL = "ahead.jsonl"
NAMES = (RECIPE, METRICS, TIMINGS, EVALUATIONS, TRAJECTORIES, CHECKPOINTS, REPORT, RESULT, JOURNAL, SIGNATURE,
         *(f"{log}{DAMAGED}" for log in (TIMINGS, TRAJECTORIES, JOURNAL)))  # fmt: skip
FORMER = ".former"
DECISIVE = (METRICS, EVALUATIONS)  # logs that a run reads when it continues, so their damage matters
OTHER_FORM = "it is not a resolved recipe, in which each key has a `value` and an `origin`"

_SIGNS_OF_A_RUN = (RECIPE, METRICS, CHECKPOINTS)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run. Make the object by `create` or `open`."""

    path: Path

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, overwrite: bool = False) -> RunFolder:
        """Make a folder for a new run.

        Args:
            path: the folder. It is made with its parents if it is missing.
            overwrite: replace the run that is there already: the files of `NAMES` and nothing else. They are kept in
                `.former`. Call `settle` when the new run has begun, or `give_back` if it cannot begin.

        Raises: RunFolderError, if a run is there already, or if the place cannot be used.
        """
        folder = cls(Path(path))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            recover(folder.path)
            folder.end_replacement()
            if folder.holds_a_run and not overwrite:
                raise _occupied(folder)
            if folder.holds_a_run:
                set_aside(folder.path, NAMES, FORMER)
            for name in NAMES:
                discard(folder.path / name)
        except RunFolderError:
            raise
        except OSError as error:
            raise write_fault(folder.path, error) from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, writing: bool = False) -> RunFolder:
        """Open the folder of a run that began earlier.

        Unfinished writes of a killed process are cleaned up, unless a run in progress may be writing them.

        Args:
            writing: the caller holds the folder's lock, as training does, so no other run is in progress.

        Raises: RunFolderError, if there is no run. It names the runs beside the folder.
        """
        folder = cls(Path(path))
        if not folder.holds_a_run and not (folder / FORMER).is_dir():
            raise _absent(folder.path)
        with nullcontext(True) if writing else unless_written(folder.path) as alone:
            if alone:
                recover(folder.path)
                recover(folder.path / CHECKPOINTS)
                folder.end_replacement()
        return folder

    @property
    def holds_a_run(self) -> bool:
        """Whether the folder has files of a run."""
        return any((self.path / name).exists() for name in _SIGNS_OF_A_RUN)

    def __truediv__(self, name: str) -> Path:
        """The path of a file in the folder, as in `folder / METRICS`."""
        return self.path / name

    def write(self, name: str, content: Content) -> Path:
        """Write one file by `write_atomic`. Returns its path."""
        write_atomic(self.path / name, content)
        return self.path / name

    def write_json(self, name: str, value: Any) -> Path:
        """Write one JSON file atomically, with sorted keys and the shortest exact floats. Returns its path."""
        return self.write(name, to_document(value))

    def write_recipe(self, recipe: Any) -> None:
        """Write `recipe.json`, signed as one that was made here. A kill between the two files does no harm."""
        content = to_document(recipe)
        signature = sign(self.path, content.encode())
        if signature is not None:
            self.write(SIGNATURE, signature)
        self.write(RECIPE, content)

    def discard(self, name: str) -> None:
        """Remove one file, if it is there."""
        discard(self.path / name)

    def read_json(self, name: str) -> Any:
        """The value of a JSON file.

        Raises: RunFolderError, if the file is missing or not JSON.
        """
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(
                where=str(self.path / name),
                what=f"it cannot be read: {error}.",
                remedy="Name a folder that `palaestra train` has written.",
            ) from error

    def read_recipe(self) -> dict[str, dict[str, Any]]:
        """The entries of `recipe.json`: key → its value and origin.

        Raises: RunFolderError, if the file is missing, or has another form.
        """
        try:
            entries = json.loads((self.path / RECIPE).read_text(encoding="utf-8"))
            fault = "" if is_recipe(entries) else OTHER_FORM
        except FileNotFoundError:
            fault = "the file is missing"
        except (OSError, ValueError, RecursionError) as error:
            fault = f"it cannot be read: {error}"
        if fault:
            raise RunFolderError(
                where=str(self.path / RECIPE),
                what=f"{fault}.",
                remedy="Copy the file back. Or name the recipe that was trained: "
                f"`palaestra train RECIPE run={self.path} --resume` continues the run and writes the file anew.",
            )
        return dict(entries)

    # ---- the run that is replaced ---------------------------------------------------------------------
    @property
    def replaces(self) -> bool:
        """Whether the folder still has the run that this one replaces."""
        return (self.path / FORMER).is_dir()

    def settle(self) -> None:
        """Remove the former run for good. Nothing happens, if there is none."""
        if self.replaces:
            unneeded = self.path / f"{FORMER}.tmp"  # `recover` removes it, if a kill leaves a part of it
            discard(unneeded)
            (self.path / FORMER).rename(unneeded)
            discard(unneeded)

    def give_back(self) -> None:
        """Remove this run, and put the former one back. Nothing happens, if there is none."""
        put_back(self.path, NAMES, FORMER)

    def end_replacement(self) -> None:
        """After a kill: keep the new run, if it has a checkpoint, else the former one."""
        if self.replaces:
            self.settle() if self.latest_checkpoint() is not None and is_aside(self.path, FORMER) else self.give_back()

    # ---- checkpoints ----------------------------------------------------------------------------------
    def checkpoint(self, step: int) -> Path:
        """The path of an iteration's checkpoint, whether it exists or not."""
        return self.path / CHECKPOINTS / f"step-{step:06d}"

    @contextmanager
    def write_checkpoint(self, step: int, logs: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[Path]:
        """Give a folder to fill, as in `with folder.write_checkpoint(10) as place:`. Then it becomes the checkpoint.

        It gets the checksums of its files, and of the logs of metrics and evaluations.

        Args:
            logs: checksums of further logs, as `GrowingSum.now` gives them, by name.

        Raises: RunFolderError, if the disk is full. Earlier checkpoints are intact.
        """
        with folder_atomic(self.checkpoint(step)) as place:
            yield place
            write_sums(place, [self.path / name for name in DECISIVE], logs)

    def set_aside_after(self, step: int) -> None:
        """Rename the checkpoints after iteration `step` to `step-….damaged`, so that no run continues from them."""
        for later in self.checkpoint_steps():
            if later > step:
                place = self.checkpoint(later)
                aside = place.with_name(f"{place.name}{DAMAGED}")
                discard(aside)
                place.rename(aside)

    def checkpoint_steps(self) -> list[int]:
        """The iterations with a complete checkpoint, in ascending order."""
        return sorted(step for step, _ in self._found())

    def latest_checkpoint(self) -> Path | None:
        """The path of the newest complete checkpoint. None if there is none."""
        steps = self.checkpoint_steps()
        return self.checkpoint(steps[-1]) if steps else None

    def keep_checkpoints(self, count: int) -> None:
        """Remove all checkpoints but the newest `count`. At least one is kept."""
        for step in self.checkpoint_steps()[: -max(count, 1)]:
            shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def _found(self) -> Iterator[tuple[int, Path]]:
        for place in (self.path / CHECKPOINTS).glob("step-*"):
            match = re.fullmatch(r"step-(\d{6,})", place.name)
            if match and place.is_dir():
                yield int(match[1]), place


def is_recipe(entries: object) -> bool:
    """Whether this has the form of a `recipe.json`."""
    return isinstance(entries, Mapping) and all(_is_entry(entry) for entry in entries.values())


def _is_entry(entry: object) -> bool:
    if not (isinstance(entry, Mapping) and "value" in entry and isinstance(entry.get("origin"), str)):
        return False
    folders = entry.get("folders", [])
    return isinstance(folders, list | tuple) and all(isinstance(one, str) for one in folders)


def _occupied(folder: RunFolder) -> RunFolderError:
    there = [name for name in NAMES if name != SIGNATURE and (folder / name).exists()]
    steps = folder.checkpoint_steps()
    newest = f", and its newest checkpoint is of iteration {steps[-1]}" if steps else ", and it has no checkpoint"
    return RunFolderError(
        where=f"run={folder.path}",
        what=f"a run is already there ({', '.join(there)}){newest}.",
        remedy="Do one of these:\n"
        "  • continue it with `--resume`,\n"
        "  • give this run another folder with `run=<folder>`, or\n"
        "  • replace it with `--overwrite`.",
    )


def _absent(path: Path) -> RunFolderError:
    neighbors = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    return RunFolderError(
        where=f"run={path}",
        what="no run is there." if path.is_dir() else "there is no such folder.",
        options=[str(other) for other in neighbors if other.is_dir() and RunFolder(other).holds_a_run][:12],
        remedy="Name the folder of a run, or start one with `palaestra train`.",
    )
