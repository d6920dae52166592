"""A hook of the wheel's build: writes `palaestra/index.json`, which parts there are and each system's verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class IndexHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the index to a wheel; an editable install is searched instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the files are collected."""
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root))
        from palaestra.index import search

        place = Path(self.directory) / "index.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        content = {"parts": search(root / "palaestra"), "systems": verdicts(root / "palaestra/systems")}
        place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        build_data["force_include"][str(place)] = "palaestra/index.json"


def verdicts(folder: Path) -> dict[str, str]:
    """System or variant → what its status says."""
    found = {}
    for path in sorted(folder.glob("*/system.yaml")):
        described = yaml.safe_load(path.read_text(encoding="utf-8"))
        found[path.parent.name] = described["status"]
        found |= {name: variant["status"] for name, variant in described.get("variants", {}).items()}
    return found
