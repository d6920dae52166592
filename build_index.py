"""A hook of the wheel's build: writes `palaestra/index.json`, which parts there are and how far each system goes."""

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
        source_search, status = module(root, "registry/source_search.py"), module(root, "catalogue/status.py")
        parts = source_search.search(root / "palaestra")

        place = Path(self.directory) / "index.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        content = {"parts": parts, "systems": statuses(root / "palaestra/systems", parts, status)}
        place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        build_data["force_include"][str(place)] = "palaestra/index.json"


def module(root: Path, file: str) -> Any:
    """A module of the package by its path. Its room is not imported, since it needs packages that a build lacks."""
    sys.path.insert(0, str(root))
    spec = importlib.util.spec_from_file_location(Path(file).stem, root / "palaestra" / file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def statuses(folder: Path, parts: dict[str, dict[str, str]], status: Any) -> dict[str, str]:
    """System or variant → how far it goes. `status` is the module `palaestra.catalogue.status`."""
    probes = status.probes_among(parts.get("environment", {}))
    found = {}
    for path in sorted(folder.glob("*/system.yaml")):
        described = yaml.safe_load(path.read_text(encoding="utf-8"))
        variants = described.pop("variants", {})
        for name, each in ((path.parent.name, described), *variants.items()):
            found[name] = status.status_of(path.parent, {"language": described.get("language", True), **each}, probes)
    return found
