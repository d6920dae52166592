"""A hook of MkDocs: the pages of systems, parts, studies and commands, made from the code when the site is built."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import typer.main
from mkdocs.structure.files import File, Files

from palaestra import cli
from palaestra.catalogue.generate import pages, plots
from palaestra.evaluation.curves import Panel, Series, draw

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs once it has collected the pages that are written by hand."""
    for name, text in pages(ROOT, typer.main.get_command(cli.app)).items():
        files.append(File.generated(config, name, content=text))
    with tempfile.TemporaryDirectory() as folder:
        for name, path in plots(ROOT).items():
            files.append(File.generated(config, name, content=plotted(path, Path(folder) / "plot.png")))
    return files


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
