"""Studies: which comparison is evidence for which method, what was expected of it and what was seen.

A study about one system lies in that system's folder, one about several in `benchmarks/`. `benchmarks/studies.py` runs
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import yaml

from palaestra.catalogue.systems import System, checked
from palaestra.errors import RecipeError

DEFAULT_SETUP = "setups/rooms-tiny.yaml"
STUDIES, RESULTS = "studies", "results"
SYSTEMS, SHARED = "palaestra/systems", "benchmarks"


class Study(pydantic.BaseModel):
    """One comparison at equal budget."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str  # stem of its file
    folder: str = SHARED  # where its `studies` and `results` lie, from the root: a system's folder, or benchmarks
    title: str
    method: str | list[str]  # systems and variants that it is evidence for
    expected: str  # the relation that the method's authors or its formula promise
    setup: str  # a recipe
    arms: dict[str, list[str]]  # name → method file, then overrides of this arm
    reference: str
    seeds: Annotated[int, pydantic.Field(ge=1)] = 5
    overrides: list[str] = []
    metric: Literal["success", "return"] = "success"
    axis: Literal["environment_steps", "tokens", "updates", "step"] = "environment_steps"  # what arms have as much of
    also: list[str] = []  # further logged metrics

    @property
    def methods(self) -> list[str]:
        """The systems and variants, as a list."""
        return [self.method] if isinstance(self.method, str) else list(self.method)

    @property
    def command(self) -> str:
        """What runs it."""
        return f"python benchmarks/studies.py {self.name}"


def studies(root: Path) -> list[Study]:
    """All studies of a source checkout, by name.

    Raises: RecipeError, for an unknown or missing key, a reference that is no arm, or two studies of one name.
    """
    folders = [root / SHARED, *sorted((root / SYSTEMS).glob("*"))]
    found = [_read(path, root) for folder in folders for path in sorted((folder / STUDIES).glob("*.yaml"))]
    names = [study.name for study in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(where="studies", what=f"several studies are called {', '.join(twice)}.")
    return sorted(found, key=lambda study: study.name)


def _read(path: Path, root: Path) -> Study:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    folder = path.parents[1].relative_to(root).as_posix()
    study = checked(Study, content, where=path.name, name=path.stem, folder=folder)
    if study.reference not in study.arms:
        raise RecipeError(
            where=f"{path.name}  reference", what=f"no arm is called `{study.reference}`.", options=study.arms
        )
    return study


def results_of(root: Path, study: Study) -> Path:
    """The folder of what a study gave: comparison.json, measures.json and seen.md."""
    return root / study.folder / RESULTS / study.name


def trained_with(system: System, studies: Sequence[Study]) -> list[str]:
    """What follows `palaestra train` to train a system or a variant: it is complete, and runs as it stands.

    The system's own recipe, if it has one. Else the simplest arm of its studies that takes its overlay, with the setup
    and the overrides that all arms of the study share. Else the overlay over the first study's setup and overrides, and
    without a study over a small default setup. Empty for what is not trained.
    """
    if system.recipe or system.overlay is None:
        return [system.recipe] if system.recipe else []
    arms = [(study, layers) for study in studies for layers in study.arms.values() if system.overlay in layers]
    if arms:
        study, layers = min(arms, key=lambda arm: len(arm[1]))
    elif studies:
        study, layers = studies[0], [system.overlay]
    else:
        return [DEFAULT_SETUP, system.overlay]
    files = [layer for layer in layers if layer.endswith(".yaml")]
    return [study.setup, *files, *study.overrides, *(layer for layer in layers if layer not in files)]
