"""Lists the parts by searching the source text for `@register("slot", "name", …)`. It imports none of them.

A checkout is searched each time. The build of a wheel searches once and stores the result in `index.json`. The build
imports this module, so it uses only the standard library and `palaestra.errors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palaestra.errors import ContractError

PACKAGE = Path(__file__).parents[1]
INDEX = PACKAGE / "index.json"
REGISTRATION = re.compile(
    r'^@register\(\s*"(?P<slot>\w+)",\s*"(?P<name>\w+)"(?:.*\n)(?:(?!async def |def |class ).*\n)*'
    r"(?:async def|def|class) (?P<attribute>\w+)",
    re.MULTILINE,
)

Parts = dict[str, dict[str, str]]  # slot → name → `module:attribute`


def known_parts() -> Parts:
    """The parts of this package, from the index of the wheel or from the source text of the checkout.

    Raises: ContractError, if two parts of a slot share a name.
    """
    if INDEX.exists():
        stored: dict[str, Any] = json.loads(INDEX.read_text(encoding="utf-8"))
        return dict(stored["parts"])
    return search(PACKAGE)


def search(package: Path) -> Parts:
    """Find every registration in the source text of a package. Returns slots and names in sorted order.

    Raises: ContractError, if two parts of a slot share a name.
    """
    found: Parts = {}
    for path, match in registrations(package):
        add(found, match["slot"], match["name"], f"{module_of(path, package)}:{match['attribute']}")
    return {slot: dict(sorted(parts.items())) for slot, parts in sorted(found.items())}


def registrations(package: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    """Yield the file and the match of every registration in the source text of a package. Test files are skipped."""
    for path in sorted(package.rglob("*.py")):
        if not path.name.startswith("test_"):
            text = path.read_text(encoding="utf-8")
            if "@register(" in text:
                yield from ((path, match) for match in REGISTRATION.finditer(text))


def module_of(path: Path, package: Path) -> str:
    """The dotted module name of a file of a package."""
    pieces = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(pieces).removesuffix(".__init__")


def add(parts: Parts, slot: str, name: str, target: str) -> None:
    """Add one part to `parts`.

    Raises: ContractError, if another part of the slot has this name.
    """
    other = parts.setdefault(slot, {}).setdefault(name, target)
    if other != target:
        raise ContractError(
            where=target, what=f"{other} is already the {slot} `{name}`.", remedy="Give one of the two another name."
        )
