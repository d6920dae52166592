"""Random graphs of `searchqa`: people, towns, firms, works and years, and the ten relations between them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from palaestra.data import derive

Entity = int
Fact = tuple[Entity, int]  # an entity and the number of a relation, which leads to `Graph.facts[fact]`


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A relation. It leads from each entity of the kind `source` to one entity of the kind `target`.

    Attributes:
        word: its name. renamed: its name under the option `renamed`. verb: a sentence that states it.
    """

    word: str
    renamed: str
    source: str
    target: str
    verb: str


RELATIONS = (
    Relation(word="friend", renamed="ally", source="person", target="person", verb="{one} is close to {other}"),
    Relation(word="home", renamed="base", source="person", target="town", verb="{one} lives in {other}"),
    Relation(word="mayor", renamed="warden", source="town", target="person", verb="{other} governs {one}"),
    Relation(word="employer", renamed="payer", source="person", target="firm", verb="{one} works for {other}"),
    Relation(word="chief", renamed="captain", source="firm", target="person", verb="{other} runs {one}"),
    Relation(word="author", renamed="creator", source="work", target="person", verb="{other} wrote {one}"),
    Relation(word="seat", renamed="hub", source="firm", target="town", verb="{one} has its offices in {other}"),
    Relation(word="publisher", renamed="printer", source="work", target="firm", verb="{other} brought out {one}"),
    Relation(word="birth", renamed="arrival", source="person", target="year", verb="{one} was born in {other}"),
    Relation(word="charter", renamed="deed", source="town", target="year", verb="{one} became a town in {other}"),
)
KINDS = ("person", "town", "firm", "work", "year")
NAMES = {
    "person": (
        *("anna", "boris", "clara", "david", "elsa", "felix", "greta", "henry", "ida", "jonas", "karla", "leo"),
        *("maria", "niels", "olga", "peter", "rosa", "simon", "tina", "ulrich", "vera", "walter", "yara", "zeno"),
    ),
    "town": (
        *("alder", "birch", "cedar", "dover", "elm", "falls", "glen", "haven"),
        *("iron", "kings", "lowell", "marsh", "norton", "oakley", "paris", "quarry"),
    ),
    "firm": ("acme", "borax", "corvo", "delta", "ergon", "ferrum", "globex", "helix"),
    "work": (
        *("arches", "bells", "clouds", "dreams", "echoes", "flames", "gardens", "harvest"),
        *("islands", "jewels", "keys", "lanterns", "mirrors", "nights", "oceans", "pearls"),
    ),
}
RENAMED = {
    "person": (
        *("aziz", "bela", "chen", "dara", "emeka", "farid", "gita", "hiro", "imani", "jun", "kofi", "lena"),
        *("mei", "nadia", "omar", "priya", "quinn", "ravi", "sana", "taro", "uma", "viktor", "wen", "yusuf"),
    ),
    "town": (
        *("arno", "bari", "cusco", "dakar", "esker", "fez", "galle", "hilo"),
        *("izmir", "jaffa", "kyoto", "lagos", "minsk", "napoli", "osaka", "petra"),
    ),
    "firm": ("apex", "bolt", "crux", "dyna", "echo", "flux", "grid", "halo"),
    "work": (
        *("anvils", "bridges", "canyons", "doves", "embers", "feathers", "glaciers", "horizons"),
        *("icons", "journeys", "kites", "ladders", "meadows", "needles", "orchards", "prisms"),
    ),
}
SURNAMES = ("weber", "lindt", "moreau", "santos", "novak", "hansen", "rossi", "kaya")
SHARES = {"person": 3 / 8, "town": 1 / 4, "firm": 1 / 8}  # of all entities except years; the rest are works
FEWEST, MOST = 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Entities by number, and the entity that each of their relations leads to.

    Attributes:
        seed: the seed that it was drawn from.
        kinds, names: of each entity. aliases: other names of each entity.
        words: names of the relations, by number.
        facts: (entity, relation) → the entity that it leads to, which is never the same.
    """

    seed: int
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    aliases: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]
    facts: dict[Fact, Entity] = field(hash=False)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, entity: Entity) -> list[Fact]:
        """The facts of an entity, in the order of the relations."""
        return [(entity, r) for r in range(len(self.words)) if (entity, r) in self.facts]

    def spell(self, fact: Fact) -> str:
        """A fact in words: `anna friend boris`."""
        return f"{self.names[fact[0]]} {self.words[fact[1]]} {self.names[self.facts[fact]]}"


@lru_cache(maxsize=512)
def build_graph(entities: int, relations: int, renamed: bool, seed: int) -> Graph:
    """The graph of a seed: random facts between `entities` entities and some years. `renamed` changes only words."""
    draw = random.Random(derive(seed, "graph"))
    counts = {kind: max(2, int(entities * share)) for kind, share in SHARES.items()}
    counts["work"] = entities - sum(counts.values())
    named = list(_named(counts, RENAMED if renamed else NAMES, draw))
    used = RELATIONS[:relations]
    if any(relation.target == "year" for relation in used):
        named += [("year", str(y), (f"year {y}",)) for y in draw.sample(range(1500, 2000), max(2, entities // 4))]
    kinds = tuple(kind for kind, _, _ in named)
    facts = {
        (entity, number): draw.choice([o for o, k in enumerate(kinds) if k == relation.target and o != entity])
        for entity, kind in enumerate(kinds)
        for number, relation in enumerate(used)
        if relation.source == kind
    }
    return Graph(
        seed=seed,
        kinds=kinds,
        names=tuple(name for _, name, _ in named),
        aliases=tuple(aliases for _, _, aliases in named),
        words=tuple(relation.renamed if renamed else relation.word for relation in used),
        facts=facts,
    )


def _named(
    counts: dict[str, int], names: dict[str, tuple[str, ...]], draw: random.Random
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Kind, name and aliases of each entity. Names are drawn by position, so that other names have the same facts."""
    for kind, count in counts.items():
        for place in draw.sample(range(len(names[kind])), count):
            name = names[kind][place]
            alias = {
                "person": f"{name} {SURNAMES[draw.randrange(len(SURNAMES))]}",
                "town": f"{name} town",
                "firm": f"{name} company",
                "work": f"book of {name}",
            }[kind]
            yield kind, name, (alias,)
