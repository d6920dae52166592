"""Methods: published names for compositions of parts, as `catalogue.yaml` lists them.

Knows the form of a row. Knows nothing of parts beyond their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pydantic
import yaml

from palaestra.catalogue.places import resource
from palaestra.errors import RecipeError


class Method(pydantic.BaseModel):
    """One row of the catalogue."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9_]+$")]  # the stem of its recipe
    title: str
    arxiv: Annotated[str, pydantic.Field(pattern=r"^\d{4}\.\d{4,5}$")] | None = None
    recipe: str | None = None  # below recipes/
    run: list[str] = []  # files and overrides that train it, where no study does
    formula: str | list[str] = []  # LaTeX, one or several lines
    when: str = ""  # in which situation to take it, and when not
    slots: dict[str, list[str]]  # slot → names of parts; slots that are left out are neutral
    comparison: str | None = None  # committed evidence, from the root of the repository
    status: str  # "built", "compared", or a sentence such as "no gain at our scale, see …"

    @property
    def formulas(self) -> list[str]:
        """The formula's lines."""
        return [self.formula] if isinstance(self.formula, str) else list(self.formula)


def methods(path: Path | None = None) -> list[Method]:
    """The rows of the catalogue, in its order.

    Raises: RecipeError, for an unknown key, a missing field or a name that occurs twice.
    """
    place = path or resource("catalogue.yaml")
    try:
        rows = [Method.model_validate(row) for row in yaml.safe_load(place.read_text(encoding="utf-8"))["methods"]]
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(piece) for piece in first["loc"])
        raise RecipeError(
            where=f"{place.name}  {key}",
            what=f"{first['msg'].lower()}: {first['input']!r}.",
            options=Method.model_fields,
        ) from None
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(where=place.name, what=f"several rows are called {', '.join(twice)}.")
    return rows
