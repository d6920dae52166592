"""Reads studies. A study is a comparison that tests a method, with claims that are written before it runs.

A study of one system is in the folder of the system, and a study of several systems in `benchmarks/`.
`benchmarks/studies.py` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from palaestra.catalogue.systems import System, checked, read_yaml
from palaestra.errors import RecipeError

DEFAULT_SETUP = "setups/rooms-tiny.yaml"
STUDIES, RESULTS = "studies", "results"
SYSTEMS, SHARED = "palaestra/systems", "benchmarks"
RELATIONS = ("above", "below", "level with", "at least", "at most")
_CLAIM = re.compile(rf"(?:(?P<measure>\S+): )?(?P<arm>\S+) (?P<relation>{'|'.join(RELATIONS)}) (?P<other>\S+)")


@dataclass(frozen=True, slots=True)
class Claim:
    """A relation between two arms that a study expects. The numbers of the study decide whether it holds.

    `hrpo above grpo` is about the metric of the study, and `turns/mean: hrpo below grpo` about a further measure.
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
    folder: str = SHARED  # path from the root of the folder with its `studies` and `results`
    title: str
    method: str | list[str]  # systems and variants for which it is evidence
    expected: str  # what the authors of the method or its formula promise
    claims: Annotated[list[str], pydantic.Field(min_length=1)]  # the same as relations of two arms, see Claim
    untested: str = ""  # the part of `expected` that no arm tests
    setup: str  # a recipe
    arms: dict[str, list[str]]  # name → method file, then the overrides of this arm
    reference: str
    seeds: Annotated[int, pydantic.Field(ge=1)] = 5
    overrides: list[str] = []
    metric: Literal["success", "return"] = "success"
    axis: Literal["environment_steps", "tokens", "updates", "step"] = "environment_steps"  # what the budget counts
    also: list[str] = []  # further logged metrics to report

    @property
    def methods(self) -> list[str]:
        """`method` as a list."""
        return [self.method] if isinstance(self.method, str) else list(self.method)

    @property
    def relations(self) -> list[Claim]:
        """The claims as objects.

        Raises: RecipeError, for a claim in another form, or with an arm or a measure that the study does not have.
        """
        return [self._relation(text) for text in self.claims]

    def _relation(self, text: str) -> Claim:
        where, match = f"study {self.name}  claims", _CLAIM.fullmatch(text)
        if match is None:
            raise RecipeError(
                where=where, what=f"`{text}` is not a claim.", remedy=f"Write `ARM {'|'.join(RELATIONS)} ARM`."
            )
        claim = Claim(**match.groupdict())
        for arm in (claim.arm, claim.other):
            if arm not in self.arms:
                raise RecipeError(where=where, what=f"no arm is called `{arm}`.", options=self.arms)
        if claim.measure and claim.measure not in self.also:
            raise RecipeError(where=where, what=f"`also` does not list `{claim.measure}`.", options=self.also)
        return claim

    @property
    def command(self) -> str:
        """The command that runs the study."""
        return f"python benchmarks/studies.py {self.name}"


def studies(root: Path) -> list[Study]:
    """All studies of a source checkout, in the order of their names.

    Raises: RecipeError, for an unknown or missing key, if the reference is not an arm, or if two studies have one name.
    """
    folders = [root / SHARED, *sorted((root / SYSTEMS).glob("*"))]
    found = [_read(path, root) for folder in folders for path in sorted((folder / STUDIES).glob("*.yaml"))]
    names = [study.name for study in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(where="studies", what=f"several studies are called {', '.join(twice)}.")
    return sorted(found, key=lambda study: study.name)


def _read(path: Path, root: Path) -> Study:
    content = read_yaml(path)
    folder = path.parents[1].relative_to(root).as_posix()
    study = checked(Study, content, where=path.name, name=path.stem, folder=folder)
    if study.reference not in study.arms:
        raise RecipeError(
            where=f"{path.name}  reference", what=f"no arm is called `{study.reference}`.", options=study.arms
        )
    _ = study.relations  # raises an error for a wrong claim
    return study


def results_of(root: Path, study: Study) -> Path:
    """The folder with the results of a study: comparison.json, measures.json and seen.md."""
    return root / study.folder / RESULTS / study.name


def trained_with(system: System, studies: Sequence[Study]) -> list[str]:
    """The arguments of `palaestra train` that train a system or a variant. They are a complete recipe.

    They are the first of these that exists: the system's own recipe; the simplest arm of its studies with its overlay,
    on the setup and with the overrides of the study; the overlay on the setup of its first study, with the overrides of
    that study; the overlay on a small default setup. The list is empty if the system is not trained.

    Args:
        studies: the studies of this system.
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
