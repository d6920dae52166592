"""Studies: which comparison is evidence for which method, what was expected of it and what was seen.

A study about one system lies in that system's folder, one about several in `benchmarks/`. `benchmarks/studies.py` runs
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import yaml

from palaestra.catalogue.systems import System, checked
from palaestra.errors import RecipeError

DEFAULT_SETUP = "setups/rooms-tiny.yaml"
STUDIES, RESULTS = "studies", "results"
SYSTEMS, SHARED = "palaestra/systems", "benchmarks"
RELATIONS = ("above", "below", "level with", "at least", "at most")
_CLAIM = re.compile(rf"(?:(?P<measure>\S+): )?(?P<arm>\S+) (?P<relation>{'|'.join(RELATIONS)}) (?P<other>\S+)")


@dataclass(frozen=True, slots=True)
class Claim:
    """A relation of two arms that a study expects, so that its numbers can be held against it.

    Written `hrpo above grpo`, which is about the study's metric, or `turns/mean: hrpo below grpo`, which is about one
    of its further measures.
    """

    measure: str | None  # None: the study's metric
    arm: str
    relation: str  # one of RELATIONS
    other: str

    def __str__(self) -> str:
        subject = f"{self.measure}: " if self.measure else ""
        return f"{subject}{self.arm} {self.relation} {self.other}"


class Study(pydantic.BaseModel):
    """One comparison at equal budget."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str  # stem of its file
    folder: str = SHARED  # where its `studies` and `results` lie, from the root: a system's folder, or benchmarks
    title: str
    method: str | list[str]  # systems and variants that it is evidence for
    expected: str  # the relation that the method's authors or its formula promise
    claims: Annotated[list[str], pydantic.Field(min_length=1)]  # the same, each as a relation of two arms: see Claim
    untested: str = ""  # the part of what is expected that no arm tests
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
    def relations(self) -> list[Claim]:
        """The claims, read.

        Raises: RecipeError, for a claim of another form, or one that names no arm or no measure of the study.
        """
        return [self._relation(text) for text in self.claims]

    def _relation(self, text: str) -> Claim:
        where, match = f"study {self.name}  claims", _CLAIM.fullmatch(text)
        if match is None:
            raise RecipeError(
                where=where, what=f"`{text}` is no claim.", remedy=f"Write `ARM {'|'.join(RELATIONS)} ARM`."
            )
        claim = Claim(**match.groupdict())
        for arm in (claim.arm, claim.other):
            if arm not in self.arms:
                raise RecipeError(where=where, what=f"no arm is called `{arm}`.", options=self.arms)
        if claim.measure and claim.measure not in self.also:
            raise RecipeError(where=where, what=f"`also` does not log `{claim.measure}`.", options=self.also)
        return claim

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
    _ = study.relations  # refuses a claim that names nothing
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
