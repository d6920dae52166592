"""Names in texts: dotted modules, paths of files and names of recipes, in code, documentation and configuration.

    python tools-dev/texts.py ROOT      after move.py and systems.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import plan

ROOT = Path(sys.argv[1]).resolve()
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".txt"}
LEAVE = {"constraints.txt", "LICENSE"}


def files() -> list[Path]:
    found = [p for p in ROOT.iterdir() if p.is_file()]
    for room in ("palaestra", "tests", "benchmarks", "docs", "recipes"):
        found += [p for p in (ROOT / room).rglob("*") if p.is_file()]
    return [p for p in found if (p.suffix in SUFFIXES or p.name == "Makefile") and p.name not in LEAVE]


def path_of(module: str) -> str:
    inner = module.replace(".", "/")
    return f"{inner}/__init__.py" if (ROOT / inner / "__init__.py").exists() else f"{inner}.py"


def main() -> None:
    moved: dict[str, str] = json.loads((ROOT / "tools-dev/moved.json").read_text())
    modules = {old: new for old, new in moved.items() if old != new}
    swaps: list[tuple[re.Pattern[str], str]] = []
    for old, new in sorted(modules.items(), key=lambda pair: -len(pair[0])):
        swaps.append((re.compile(rf"(?<![\w.]){re.escape(old)}(?![\w])"), new))
        swaps.append((re.compile(rf"(?<![\w/]){re.escape(old.replace('.', '/'))}\.py\b"), path_of(new)))
    rooms = {old: new for old, new in plan.TEST_ROOMS.items()}
    tests = dict(plan.TESTS)
    for old, new in sorted(tests.items(), key=lambda pair: -len(pair[0])):
        swaps.append((re.compile(rf"(?<![\w/]){re.escape(old)}\b"), new))
    for old, new in rooms.items():
        swaps.append((re.compile(rf"(?<![\w/]){re.escape(old)}/"), f"{new}/"))
        swaps.append((re.compile(rf"(?<![\w.]){re.escape(old.replace('/', '.'))}\."), f"{new.replace('/', '.')}."))
    for old, new in sorted(plan.RECIPES.items(), key=lambda pair: -len(pair[0])):
        swaps.append((re.compile(rf"(?<![\w/])recipes/{re.escape(old)}"), f"palaestra/systems/{new}"))
        swaps.append((re.compile(rf"(?<![\w/]){re.escape(old)}"), new))
    for path in files():
        text = path.read_text(encoding="utf-8")
        new = text
        for pattern, replacement in swaps:
            new = pattern.sub(replacement, new)
        if new != text:
            path.write_text(new, encoding="utf-8")


main()
