"""`palaestra export`: writes a trained policy into a folder that other programs can read, and compares the two."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers.utils import logging

from palaestra.commands.runs import open_run
from palaestra.data import RunSetup
from palaestra.errors import PalaestraError, RunFolderError, UnknownName, nearest
from palaestra.policies.agreement import refuse_other_copy
from palaestra.process.terminal import visible
from palaestra.store.folder import RECIPE, is_recipe

LIST = "palaestra_export.json"  # names the files that export wrote, so that it may replace them


def run(*, folder: str, out: str, policy: str | None, checkpoint: int | None) -> None:
    """Write the policy. A language policy becomes a Hugging Face folder.

    Args:
        folder: of the run. out: the folder to write.
        policy: its name. None: the only policy that the run trains; if it trains none, the only one with weights.
        checkpoint: iteration of the checkpoint; None: the newest.

    Raises: UnknownName, if the run has no such policy, or if it has several and `policy` is None; RunFolderError, if
        the folder cannot be written, holds something else or belongs to a run; ContractError, if a program that reads
        the folder would compute other numbers than the run.
    """
    written = export(folder=folder, out=out, policy=policy, checkpoint=checkpoint)
    print(visible(f"wrote policy {written} to {out}"))


def export(*, folder: str, out: str, policy: str | None = None, checkpoint: int | None = None) -> str:
    """Write a policy, as `run` does. Returns its name."""
    place, existed = Path(out), Path(out).exists()
    _refuse_place(place)
    with _without_notices():
        _, setup = open_run(folder, checkpoint)
        setup.runner.close()
        name = chosen_policy(setup, policy, where=f"palaestra export {folder}")
        exported: Any = setup.policies[name]
        _refuse_sources(setup, place)
        try:
            _discard(place)
            try:
                exported.save(out)
                if exported.renderer is not None:  # it is a language policy
                    refuse_other_copy(exported, out)
            except BaseException:  # also Ctrl-C
                with suppress(OSError):
                    _discard(place)
                    if not existed:
                        place.rmdir()
                raise
            listed = {"policy": name, "files": sorted(_files(place))}
            (place / LIST).write_text(json.dumps(listed, indent=1), encoding="utf-8")
        except PalaestraError:
            raise
        except OSError as error:
            what = f"it cannot be written: {error.strerror or error}."
            raise RunFolderError(where=out, what=what, remedy="Name a folder that can be made or written.") from error
    return name


def _refuse_place(place: Path) -> None:
    """Raises: RunFolderError, for a place inside of a run, and for a folder with files that export did not write."""
    for above in (place.resolve(), *place.resolve().parents):
        if is_recipe(_read_json(above / RECIPE)):
            raise RunFolderError(
                where=str(place),
                what=f"it is inside of the run {above}, and what is in a run belongs to it.",
                remedy="Name a folder outside of the run.",
            )
    if place.is_dir() and (others := _files(place) - _listed(place)):
        first = ", ".join(sorted(others)[:3])
        raise RunFolderError(
            where=str(place),
            what=f"the folder holds files that `palaestra export` did not write: {first}.",
            remedy="Name a new or an empty folder, or one that `palaestra export` wrote.",
        )


def _refuse_sources(setup: RunSetup, place: Path) -> None:
    """Raises: RunFolderError, for the folder of a model from which the run starts."""
    settings = setup.settings
    policies: Any = {} if settings is None else settings.policies
    for name, one in policies.items():
        for key, source in (("load", one.load), ("model", one.policy.options.get("model"))):
            if isinstance(source, str) and Path(source).resolve() == place.resolve():
                raise RunFolderError(
                    where=str(place),
                    what=f"the policy {name} of this run starts from this folder (`{key}`).",
                    remedy="Name another folder.",
                )


def _files(place: Path) -> set[str]:
    """The files in a folder, by their paths in it. A link is a file, whatever it leads to."""
    found = set()
    for above, folders, files in os.walk(place):
        links = [name for name in folders if (Path(above) / name).is_symlink()]
        found |= {str((Path(above) / name).relative_to(place)) for name in (*files, *links)}
    return found


def _listed(place: Path) -> set[str]:
    """The files of a folder that export wrote, by its list; none without one."""
    listed = _read_json(place / LIST)
    files = listed.get("files") if isinstance(listed, dict) else None
    return {LIST, *map(str, files)} if isinstance(files, list) else set()


def _read_json(file: Path) -> Any:
    """The value in a JSON file; None, if there is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _discard(place: Path) -> None:
    """Remove all files in a folder, which export wrote, and the folders in it that are then empty."""
    for name in _files(place):
        (place / name).unlink()
    for above, folders, _ in os.walk(place, topdown=False):
        for name in folders:
            (Path(above) / name).rmdir()


@contextmanager
def _without_notices() -> Iterator[None]:
    """Hide what other libraries print while they load and write models. What matters in it, the comparison finds."""
    shown = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(shown)


def chosen_policy(setup: RunSetup, policy: str | None, *, where: str) -> str:
    """The policy of this name; None: the only one that is trained, or else the only one with weights.

    Raises: UnknownName, if there is none, or if there are several and `policy` is None.
    """
    learned = sorted(name for name, found in setup.policies.items() if found.module is not None)
    trained = [name for name in learned if setup.policies[name].trainable] or learned
    name = policy or (trained[0] if len(trained) == 1 else "")
    if name not in learned:
        raise UnknownName(
            where=where,
            what=f"the run has no policy `{name}`." if name else f"the run has trained {len(trained)} policies.",
            options=(nearest(name, learned) or learned) if name else trained,
            remedy="Name one with --policy.",
        )
    return name
