"""A hook of MkDocs: the pages and pictures that are made from code and results when the site is built."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import typer.main
from mkdocs.structure.files import File, Files
from site_pages import adapters, curves, flow, games, metrics, reference, reliability, templates, zero_shot
from site_pages.environments import environments_page
from site_pages.evidence import evidence_of, studies_page, system_page
from site_pages.keys import keys_page
from site_pages.reference import commands_page, slot_page, systems_page

from palaestra.catalogue import declarations, studies, systems
from palaestra.catalogue.studies import results_of
from palaestra.commands import cli
from palaestra.evaluation.curves import Panel, Series, draw
from palaestra.registry import SLOTS

ROOT = Path(__file__).resolve().parent.parent
# Recipes whose evaluations benchmarks/results/NAME.json keeps.
SINGLE_RUNS = ("textworld", "outside-agent-pydantic-ai", "outside-agent-smolagents")


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs once it has collected the pages that are written by hand."""
    for name, text in pages(ROOT, typer.main.get_command(cli.app)).items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, flow.DRAWING.name, content=flow.drawing(flow.PAGE.read_text(encoding="utf-8"))))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in pictures(ROOT, Path(folder) / "picture.png").items():
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Called by MkDocs for every page: fills in the tables that stand inside of a written page."""
    if reference.MARK in markdown:
        return markdown.replace(reference.MARK, reference.families_list(systems(ROOT / "palaestra/systems")))
    if adapters.MARK in markdown:
        return markdown.replace(adapters.MARK, adapters.adapters_table())
    if games.MARK in markdown:
        return markdown.replace(games.MARK, games.games_tables(ROOT))
    if zero_shot.MARK in markdown:
        markdown = markdown.replace(zero_shot.MARK, zero_shot.zero_shot_tables(ROOT))
        return markdown.replace(templates.MARK, templates.templates_table(ROOT))
    if reliability.MARK in markdown:
        return markdown.replace(reliability.MARK, reliability.reliability_tables(reliability.committed(ROOT)))
    return markdown.replace(metrics.MARK, metrics.metrics_tables())


def pages(root: Path, command: Any) -> dict[str, str]:
    """Path below docs/ → text of every page that is made.

    Args:
        root: the source checkout. command: the command line's click or typer tree.
    """
    parts = declarations(root / "palaestra")
    made = {f"parts/{slot}.md": slot_page(slot, [part for part in parts if part.slot == slot]) for slot in SLOTS}
    evidence = [evidence_of(root, study) for study in studies(root)]
    described = systems(root / "palaestra/systems")
    made["methods.md"], made["studies.md"] = systems_page(described), studies_page(evidence, described)
    made["commands.md"], made["recipe-keys.md"] = commands_page(command), keys_page()
    made["environment-list.md"], made["curves.md"] = environments_page(root, parts), curves.curves_page(root)
    for system in described:
        own = [each for each in evidence if system.name in each.study.methods]
        made[f"methods/{system.name}.md"] = system_page(system, parts, own)
    return made


def pictures(root: Path, place: Path) -> dict[str, bytes]:
    """Path below docs/ → PNG of every curve: of studies, of worlds and of single runs.

    Args:
        place: a file to draw into.
    """
    files = {study.name: results_of(root, study) / "comparison.json" for study in studies(root)}
    made = {f"images/studies/{name}.png": compared(file, place) for name, file in files.items() if file.exists()}
    for name, measured in curves.measured(root).items():
        made[f"images/curves/{name}.png"] = curves.picture(name, measured, place)
    for name in SINGLE_RUNS:
        made[f"images/{name}.png"] = single(root / f"benchmarks/results/{name}.json", place)
    return made


def compared(comparison: Path, place: Path) -> bytes:
    """The curves of a comparison, with a band for each arm."""
    found = json.loads(comparison.read_text(encoding="utf-8"))
    x = np.asarray(found["grid"], np.float64)
    series = []
    for arm, numbers in found["arms"].items():
        curve = {name: np.asarray(values, np.float64) for name, values in numbers["curve"].items()}
        series.append(Series(name=arm, x=x, y=curve["mean"], low=curve["low"], high=curve["high"]))
    axis = found["axis"].replace("_", " ")
    return draw([Panel(title=found["metric"], series=series)], place, x_label=axis, columns=1).read_bytes()


def single(run: Path, place: Path) -> bytes:
    """Success in the evaluations of one run, with Wilson's interval as its band."""
    evaluations = json.loads(run.read_text(encoding="utf-8"))["evaluations"]
    (key,) = {name for name in evaluations[0] if name.startswith("eval/") and name.endswith("/success")}
    y, low, high = (np.array([each[f"{key}{end}"] for each in evaluations]) for end in ("", "_low", "_high"))
    steps = np.array([each["step"] for each in evaluations], np.float64)
    series = Series(name=run.stem, x=steps, y=y, low=low, high=high)
    panel = Panel(title=f"{run.stem}: success in evaluations", series=[series])
    return draw([panel], place, x_label="iteration", columns=1).read_bytes()
