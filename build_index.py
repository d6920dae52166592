"""A hook of the wheel's build: writes `palaestra/index.json`, which parts there are and each system's verdict."""

from __future__ import annotations

import importlib.util
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
        search = search_of(root).search

        place = Path(self.directory) / "index.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        content = {"parts": search(root / "palaestra"), "systems": verdicts(root / "palaestra/systems")}
        place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        build_data["force_include"][str(place)] = "palaestra/index.json"


def search_of(root: Path) -> Any:
    """The module `palaestra.registry.source_search` without its room, which needs packages that a build lacks."""
    sys.path.insert(0, str(root))
    file = root / "palaestra" / "registry" / "source_search.py"
    spec = importlib.util.spec_from_file_location("source_search", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdicts(folder: Path) -> dict[str, str]:
    """System or variant → what its status says."""
    found = {}
    for path in sorted(folder.glob("*/system.yaml")):
        described = yaml.safe_load(path.read_text(encoding="utf-8"))
        found[path.parent.name] = described["status"]
        found |= {name: variant["status"] for name, variant in described.get("variants", {}).items()}
    return found
