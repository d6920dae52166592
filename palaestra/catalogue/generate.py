"""Generated texts: which there are, and whether the ones on disk are fresh.

Knows paths. Knows nothing of how a page looks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from palaestra.catalogue.evidence import method_page, studies_page
from palaestra.catalogue.methods import methods
from palaestra.catalogue.pages import commands_page, methods_page, slot_page
from palaestra.catalogue.places import checkout
from palaestra.catalogue.scan import build_index, declarations
from palaestra.catalogue.studies import result, studies
from palaestra.registry import SLOTS


def write(check: bool = False, command: Any = None, root: Path | None = None) -> list[str]:
    """Bring every generated text up to date.

    Args:
        check: change nothing on disk.
        command: the command line's click or typer tree; without it the page of commands is left as it is.
        root: the source checkout; default: the one that this package runs from.

    Returns: the texts that were stale, as paths from the root.
    """
    root = root or checkout()
    texts = generated(root, command)
    stale = [path for path, text in texts.items() if _read(root / path) != text]
    if not check:
        for path in stale:
            _replace(root / path, texts[path])
    return stale


def generated(root: Path, command: Any = None) -> dict[str, str]:
    """Path from the root → text of every generated file."""
    package = root / "palaestra"
    parts = declarations(package)
    texts = {"palaestra/parts.json": json.dumps(build_index(package), indent=2) + "\n"}
    for slot in SLOTS:
        texts[f"docs/parts/{slot}.md"] = slot_page(slot, [part for part in parts if part.slot == slot])
    rows = methods(root / "catalogue.yaml")
    found = [(study, result(root, study)) for study in studies(root)]
    texts["docs/methods.md"] = methods_page(rows)
    texts["docs/studies.md"] = studies_page(found)
    for row in (row for row in rows if row.recipe):
        own = [(study, numbers) for study, numbers in found if row.name in study.methods]
        texts[f"docs/methods/{row.name}.md"] = method_page(row, parts, own)
    if command is not None:
        texts["docs/commands.md"] = commands_page(command)
    return texts


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
