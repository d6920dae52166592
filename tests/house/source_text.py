"""The repository as text and as syntax trees, for the rules of the house."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "palaestra"
SYSTEMS = PACKAGE / "systems"
FOLDERS = ("palaestra", "recipes", "docs", "tests", "benchmarks", "changelog")
TEXTS = (".py", ".md", ".yaml", ".yml", ".toml", ".txt")


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Python files below these folders, sorted."""
    return tuple(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def package_files() -> tuple[Path, ...]:
    """Python files of the package that are no tests."""
    return tuple(path for path in python_files("palaestra") if not path.name.startswith("test_"))


def text_files() -> Iterator[Path]:
    """Everything that people read: code, documentation, recipes."""
    for folder in FOLDERS:
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in TEXTS)
    beside = (path for path in sorted(ROOT.iterdir()) if path.is_file() and path.name != ".git")
    yield from (path for path in beside if path.suffix in (*TEXTS, ""))


def shown(path: Path) -> str:
    """The path as a person would type it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a file with its dotted name inside the file."""
    yield from _functions(tree(path), "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # no function is defined in there
            continue
        name = (
            f"{prefix}{child.name}" if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
        )
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from _functions(child, f"{name}." if name else prefix)


def module_of(path: Path) -> str:
    """The dotted name under which a file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def recipes(folder: str = "") -> list[Path]:
    """Recipe files below recipes/."""
    return sorted((ROOT / "recipes" / folder).rglob("*.yaml"))


def overlays() -> list[Path]:
    """The overlays of systems and of their variants."""
    folders = [path.parent for path in sorted(SYSTEMS.glob("*/system.yaml"))]
    variants = {folder: document(folder / "system.yaml").get("variants", {}) for folder in folders}
    found = [folder / f"{stem}.yaml" for folder in folders for stem in ("method", *variants[folder])]
    return [path for path in found if path.exists()]


def of_systems() -> list[Path]:
    """Every recipe file of a system: overlays, complete recipes, and setups that it alone uses."""
    return [path for path in sorted(SYSTEMS.glob("*/*.yaml")) if path.name not in ("system.yaml", "golden.yaml")]


def strings(value: Any) -> Iterator[str]:
    """All keys and texts of a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def document(path: Path) -> Any:
    """A YAML file."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
