"""Reads systems, which are published lines of work. The `system.yaml` in the folder of a system describes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
import yaml

from palaestra.errors import RecipeError, UnknownName, nearest
from palaestra.registry.source_search import PACKAGE

FOLDER = PACKAGE / "systems"
DESCRIPTION = "system.yaml"
Described = TypeVar("Described", bound=pydantic.BaseModel)


class System(pydantic.BaseModel):
    """A system or a variant of one: its description in `system.yaml`, and its folder."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str  # of the folder; for a variant, the stem of its overlay
    folder: str  # below palaestra/systems
    variant: bool = False
    title: str  # the name that its authors use
    arxiv: Annotated[str, pydantic.Field(pattern=r"^\d{4}\.\d{4,5}$")] | None = None
    formula: str | list[str] = []  # LaTeX, one or several lines
    when: str = ""  # when to use it, and when not
    parts: dict[str, list[str]] = {}  # slot → names of parts; other slots have neutral parts
    evidence: str | None = None  # path of a committed comparison, from the root of the repository
    status: str  # "built", "compared", or a sentence such as "no gain at our scale, see …"

    @property
    def formulas(self) -> list[str]:
        """The lines of the formula."""
        return [self.formula] if isinstance(self.formula, str) else list(self.formula)

    @property
    def overlay(self) -> str | None:
        """The recipe layer that turns a setup into this system, as an argument of commands; None, if it has none."""
        return self._recipe(self.name if self.variant else "method")

    @property
    def recipe(self) -> str | None:
        """The complete recipe, as an argument of commands; None, if it has none or is a variant."""
        return None if self.variant or self._recipe("recipe") is None else self.folder

    @property
    def played(self) -> str | None:
        """The recipe, as an argument of `palaestra run`; None, if nothing is to be run or it is a variant."""
        return None if self.variant or self._recipe("run") is None else self.folder

    def _recipe(self, stem: str) -> str | None:
        return f"{self.folder}/{stem}.yaml" if (FOLDER / self.folder / f"{stem}.yaml").exists() else None


def systems(folder: Path = FOLDER) -> list[System]:
    """All systems in the order of their names, each followed by its variants.

    Raises: RecipeError, for an unknown key, a missing field, or a name that occurs twice.
    """
    found = [system for path in sorted(folder.glob(f"*/{DESCRIPTION}")) for system in _read(path)]
    names = [system.name for system in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(where=folder.name, what=f"several systems or variants are called {', '.join(twice)}.")
    return found


def system(name: str) -> System:
    """The system or variant of this name.

    Raises: UnknownName, with the nearest names.
    """
    found = {each.name: each for each in systems()}
    if name not in found:
        raise UnknownName(
            where=f"palaestra methods {name}",
            what=f"no system is called `{name}`.",
            options=nearest(name, found),
            remedy="`palaestra methods` lists all systems.",
        )
    return found[name]


def _read(path: Path) -> Iterator[System]:
    """The system of a `system.yaml`, then its variants. `variants` maps the stem of an overlay to its description."""
    described, folder = read_yaml(path), path.parent.name
    where = f"systems/{folder}/{path.name}"
    variants = described.pop("variants", {})
    yield checked(System, described, where=where, name=folder, folder=folder)
    for name, variant in variants.items():
        inherited = {"arxiv": described["arxiv"]} if "arxiv" in described else {}
        yield checked(System, {**inherited, **variant}, where=where, name=name, folder=folder, variant=True)


def checked(model: type[Described], described: Mapping[str, Any], *, where: str, **place: Any) -> Described:
    """Check the content of a file, together with values that follow from its place.

    Raises: RecipeError, for an unknown key or a missing field.
    """
    try:
        return model.model_validate({**described, **place})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(piece) for piece in first["loc"])
        raise RecipeError(
            where=f"{where}  {key}",
            what=f"{first['msg'].lower()}: {first['input']!r}.",
            options=[field for field in model.model_fields if field not in place],
        ) from None


def read_yaml(path: Path) -> Any:
    """The content of a YAML file."""
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=fast)
