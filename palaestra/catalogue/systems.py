"""Reads systems, which are published lines of work. The `system.yaml` in the folder of a system describes it."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import yaml

from palaestra.catalogue.status import probes_among, status_of
from palaestra.errors import PalaestraError, RecipeError, UnknownName, nearest
from palaestra.registry.source_search import INDEX, PACKAGE, known_parts

FOLDER = PACKAGE / "systems"
DESCRIPTION = "system.yaml"
# What a line of work is about. A system has one or several of these.
FAMILIES = {
    "credit": "which step, token or agent earned the reward",
    "loss": "the policy loss and its ratios",
    "rollout": "how episodes are played and branched",
    "data": "which tasks and episodes are learned from",
    "reward": "rewards, judges and verifiers",
    "memory": "what is kept beyond a context or an episode",
    "tools": "calls of tools, search and code",
    "teams": "several agents in one episode",
    "multi-agent": "games, self-play and central critics",
    "preference": "pairs and rankings",
    "imitation": "demonstrations and teachers",
    "control": "network policies and value learning",
    "search": "search over acts, at play or in training",
    "improvement": "agents, prompts or teams that improve without gradients",
    "safety": "guards, attacks and costs",
    "evaluation": "measuring agents",
    "optimizer": "how gradients change the weights",
    "systems": "speed and asynchronous training",
}
State = Literal["here", "scripted", "absent"]  # `scripted`: a stand-in plays a strong model, and an endpoint works
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
    symbols: dict[str, str] = {}  # of the formula → what they mean
    family: list[str] = []  # of FAMILIES
    aliases: list[str] = []  # other names of the paper and of its methods
    language: bool = True  # whether the paper is about language models
    paper: dict[str, Annotated[dict[State, str], pydantic.Field(min_length=1, max_length=1)]] = {}  # part → where it is
    parts: dict[str, list[str]] = {}  # slot → names of parts; other slots have neutral parts
    evidence: str | None = None  # path of a committed comparison, from the root of the repository
    findings: str = ""  # verdicts of studies: "as expected in groups of 16, see rooms-group16; …"

    @pydantic.field_validator("family")
    @classmethod
    def _known(cls, family: list[str]) -> list[str]:
        unknown = [name for name in family if name not in FAMILIES]
        if unknown:
            raise ValueError(f"no family is called `{unknown[0]}`; there are {', '.join(FAMILIES)}")
        return family

    @property
    def status(self) -> str:
        """How far it goes: a key of `palaestra.catalogue.status.LEVELS`."""
        stored = _stored()
        if stored is not None:
            return stored[self.name]
        described = {"paper": self.paper, "findings": self.findings, "language": self.language}
        return status_of(FOLDER / self.folder, described, probes())

    @property
    def names(self) -> tuple[str, ...]:
        """By what names it is found."""
        return (self.name, *self.aliases, self.title, self.arxiv or "")

    @property
    def text(self) -> str:
        """The paragraph in the folder's `__init__.py`."""
        module = ast.parse((FOLDER / self.folder / "__init__.py").read_text(encoding="utf-8"))
        return ast.get_docstring(module) or ""

    @property
    def searched(self) -> str:
        """All texts in which a search looks."""
        parts = [name for names in self.parts.values() for name in names]
        return "\n".join((*self.names, self.folder, *parts, self.when, *self.formulas, *self.family, self.text))

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


def systems(folder: Path = FOLDER, *, faults: list[str] | None = None) -> list[System]:
    """All systems in the order of their names, each followed by its variants.

    Args:
        faults: gets a line for each folder that cannot be read, which is then left out. None: such a folder is an
            error.

    Raises: RecipeError, for an unknown key, a missing field, or a variant whose name another folder has.
    """
    found: dict[str, System] = {}
    for path in sorted(folder.glob(f"*/{DESCRIPTION}")):
        try:
            read = list(_read(path))
            twice = [system.name for system in read if system.name in found]
            if twice:
                other = found[twice[0]].folder
                raise RecipeError(where=f"systems/{path.parent.name}", what=f"`{twice[0]}` is in systems/{other} too.")
        except (PalaestraError, OSError, ValueError, yaml.YAMLError) as error:
            if faults is None:
                raise
            faults.append(f"systems/{path.parent.name} is left out: {_in_one_line(error)}")
            continue
        found |= {system.name: system for system in read}
    return list(found.values())


def _in_one_line(error: Exception) -> str:
    return error.what if isinstance(error, PalaestraError) else " ".join(str(error).split())


def system(name: str) -> System:
    """The system or variant of this name, of this alias, or of the paper with this arXiv number.

    Raises: UnknownName, with the nearest names.
    """
    known = systems(faults=[])
    found = [each for each in known if each.name == name]
    if not found:
        plain = _plain(name)
        found = [each for each in known if plain in map(_plain, each.names)]
    if not found:
        raise UnknownName(
            where=f"palaestra methods {name}",
            what=f"no system is called `{name}`.",
            options=nearest(name, [word for each in known for word in (each.name, *each.aliases)]),
            remedy=f"`palaestra methods` lists all systems; `palaestra methods --find {name}` searches their texts.",
        )
    return found[0]


def search(text: str, among: Iterable[System]) -> list[System]:
    """The systems whose texts hold all these words, the best first: names and aliases, then titles, then the rest."""
    words = _plain(text).split()
    ranked = []
    for each in among:
        names = _plain(" ".join((each.name, *each.aliases, each.arxiv or "")))
        title, rest = _plain(each.title), _plain(each.searched)
        if all(word in rest for word in words):
            place = 0 if all(word in names for word in words) else 1 if all(word in title for word in words) else 2
            ranked.append((place, each.variant, each.name, each))
    return [each for *_, each in sorted(ranked, key=lambda entry: entry[:3])]


def _plain(text: str) -> str:
    """A text in lower case, with spaces in place of hyphens and underscores."""
    return re.sub(r"[\s_-]+", " ", text.lower()).strip()


@functools.cache
def probes() -> frozenset[str]:
    """The names of environments that are small diagnostic worlds."""
    return probes_among(known_parts().get("environment", {}))


@functools.cache
def _stored() -> dict[str, str] | None:
    """The status of each system in a wheel's index; None in a checkout."""
    return dict(json.loads(INDEX.read_text(encoding="utf-8"))["systems"]) if INDEX.exists() else None


def _read(path: Path) -> Iterator[System]:
    """The system of a `system.yaml`, then its variants. `variants` maps the stem of an overlay to its description."""
    described, folder = read_yaml(path), path.parent.name
    where = f"systems/{folder}/{path.name}"
    variants = described.pop("variants", {})
    yield checked(System, described, where=where, name=folder, folder=folder)
    for name, variant in variants.items():
        inherited = {key: described[key] for key in ("arxiv", "family", "language") if key in described}
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
