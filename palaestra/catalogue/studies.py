"""Studies: which comparison is evidence for which method, what was expected of it and what was seen.

Knows the form of `benchmarks/studies/*.yaml` and of what `benchmarks/studies.py` writes. Knows nothing of how arms
are run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml

from palaestra.catalogue.methods import Method
from palaestra.errors import RecipeError

DEFAULT_SETUP = "setups/rooms-tiny.yaml"
STUDIES, RESULTS, IMAGES = "benchmarks/studies", "benchmarks/results", "docs/images/studies"


class Study(pydantic.BaseModel):
    """One comparison at equal budget."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str  # stem of its file
    title: str
    method: str | list[str]  # rows of the catalogue that it is evidence for
    expected: str  # the relation that the method's authors or its formula promise
    setup: str  # below recipes/
    arms: dict[str, list[str]]  # name → method file, then overrides of this arm
    reference: str
    seeds: Annotated[int, pydantic.Field(ge=1)] = 5
    overrides: list[str] = []
    metric: Literal["success", "return"] = "success"
    axis: Literal["environment_steps", "tokens", "updates", "step"] = "environment_steps"  # what arms have as much of
    also: list[str] = []  # further logged metrics
    seen: str = ""  # in words, after the run; with the reason where the relation failed

    @property
    def methods(self) -> list[str]:
        """The rows of the catalogue, as a list."""
        return [self.method] if isinstance(self.method, str) else list(self.method)

    @property
    def command(self) -> str:
        """What runs it."""
        return f"python benchmarks/studies.py {self.name}"


def studies(root: Path) -> list[Study]:
    """All studies of a source checkout, by name.

    Raises: RecipeError, for an unknown or missing key, or a reference that is no arm.
    """
    found = []
    for path in sorted((root / STUDIES).glob("*.yaml")):
        try:
            study = Study(name=path.stem, **yaml.safe_load(path.read_text(encoding="utf-8")))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(piece) for piece in first["loc"])
            raise RecipeError(
                where=f"{path.name}  {key}", what=f"{first['msg'].lower()}.", options=Study.model_fields
            ) from None
        if study.reference not in study.arms:
            raise RecipeError(
                where=f"{path.name}  reference", what=f"no arm is called `{study.reference}`.", options=study.arms
            )
        found.append(study)
    return found


def trained_with(method: Method, studies: Sequence[Study]) -> list[str]:
    """What follows `palaestra train` to train a method: files, then overrides. It is complete: it runs as it stands.

    The row of the catalogue may say it. Else it is the simplest arm of the method's studies that takes its recipe, with
    the setup and the overrides that all arms of the study share. Else the recipe is laid over the first study's setup
    and overrides, and without a study over a small default setup.
    """
    if method.run or method.recipe is None:
        return list(method.run)
    arms = [(study, layers) for study in studies for layers in study.arms.values() if method.recipe in layers]
    if arms:
        study, layers = min(arms, key=lambda arm: len(arm[1]))
    elif studies:
        study, layers = studies[0], [method.recipe]
    else:
        return [DEFAULT_SETUP, method.recipe]
    files = [layer for layer in layers if layer.endswith(".yaml")]
    return [study.setup, *files, *study.overrides, *(layer for layer in layers if layer not in files)]


def result(root: Path, study: Study) -> Mapping[str, Any] | None:
    """What the study's last run gave: the comparison, with `measures`; None if it never ran."""
    path = root / RESULTS / study.name / "comparison.json"
    if not path.exists():
        return None
    measures = path.with_name("measures.json")
    more = json.loads(measures.read_text(encoding="utf-8")) if measures.exists() else {}
    return {**json.loads(path.read_text(encoding="utf-8")), "measures": more}
