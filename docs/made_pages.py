"""A hook of MkDocs: the pages of systems, parts, studies and commands, made from the code when the site is built."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import typer.main
from mkdocs.structure.files import File, Files
from site_pages.evidence import evidence_of, studies_page, system_page
from site_pages.reference import commands_page, slot_page, systems_page

from palaestra import cli
from palaestra.catalogue import declarations, studies, systems
from palaestra.catalogue.studies import results_of
from palaestra.evaluation.curves import Panel, Series, draw
from palaestra.registry import SLOTS

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs once it has collected the pages that are written by hand."""
    for name, text in pages(ROOT, typer.main.get_command(cli.app)).items():
        files.append(File.generated(config, name, content=text))
    with tempfile.TemporaryDirectory() as folder:
        for name, path in plots(ROOT).items():
            files.append(File.generated(config, name, content=plotted(path, Path(folder) / "plot.png")))
    return files


def pages(root: Path, command: Any) -> dict[str, str]:
    """Path below docs/ → text of every page that is made.

    Args:
        root: the source checkout. command: the command line's click or typer tree.
    """
    parts = declarations(root / "palaestra")
    found = {f"parts/{slot}.md": slot_page(slot, [part for part in parts if part.slot == slot]) for slot in SLOTS}
    evidence = [evidence_of(root, study) for study in studies(root)]
    described = systems(root / "palaestra/systems")
    found["methods.md"], found["studies.md"] = systems_page(described), studies_page(evidence)
    found["commands.md"] = commands_page(command)
    for system in described:
        own = [each for each in evidence if system.name in each.study.methods]
        found[f"methods/{system.name}.md"] = system_page(system, parts, own)
    return found


def plots(root: Path) -> dict[str, Path]:
    """Path below docs/ of every plot of a study → the comparison that it is drawn from."""
    files = {study.name: results_of(root, study) / "comparison.json" for study in studies(root)}
    return {f"images/studies/{name}.png": path for name, path in files.items() if path.exists()}


def plotted(comparison: Path, place: Path) -> bytes:
    """The curves of a comparison as a PNG."""
    found = json.loads(comparison.read_text(encoding="utf-8"))
    x = np.asarray(found["grid"], np.float64)
    series = []
    for arm, numbers in found["arms"].items():
        curve = {name: np.asarray(values, np.float64) for name, values in numbers["curve"].items()}
        series.append(Series(name=arm, x=x, y=curve["mean"], low=curve["low"], high=curve["high"]))
    axis = found["axis"].replace("_", " ")
    return draw([Panel(title=found["metric"], series=series)], place, x_label=axis, columns=1).read_bytes()
