"""The pages of the documentation that are made from code, systems and studies when the site is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palaestra.catalogue.evidence import Evidence, studies_page, system_page
from palaestra.catalogue.pages import commands_page, slot_page, systems_page
from palaestra.catalogue.scan import declarations
from palaestra.catalogue.studies import result, results_of, seen, studies
from palaestra.catalogue.systems import systems
from palaestra.registry import SLOTS


def pages(root: Path, command: Any) -> dict[str, str]:
    """Path below docs/ → text of every page that is made.

    Args:
        root: the source checkout. command: the command line's click or typer tree.
    """
    parts = declarations(root / "palaestra")
    found = {f"parts/{slot}.md": slot_page(slot, [part for part in parts if part.slot == slot]) for slot in SLOTS}
    evidence = [Evidence(study, result(root, study), seen(root, study)) for study in studies(root)]
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
