"""The built-in problems of `tool_tasks`: a small table, and a sum of some of its numbers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from palaestra.data import derive
from palaestra.tools.calculator import evaluate

Wording = Literal["goods", "trees"]
SIGNS = ("+", "-", "*")


@dataclass(frozen=True, slots=True)
class Words:
    """The nouns of a table: its name, the names of its lines, and its columns."""

    table: str
    names: tuple[str, ...]
    columns: tuple[str, str, str]


WORDS: dict[str, Words] = {
    "goods": Words(
        "goods",
        ("apple", "bread", "candle", "drum", "engine", "flute", "glove", "hammer", "iron", "jar", "kettle", "lamp"),
        ("price", "weight", "stock"),
    ),
    "trees": Words(
        "trees",
        ("alder", "birch", "cedar", "damson", "elm", "fir", "ginkgo", "hazel", "ironwood", "juniper", "kapok", "larch"),
        ("age", "height", "girth"),
    ),
}
Fact = tuple[str, str]  # name and column


@dataclass(frozen=True, slots=True)
class Problem:
    """A table and a sum of some of its numbers (facts). The signs between them apply from left to right."""

    words: Words
    table: Mapping[Fact, int]
    facts: tuple[Fact, ...]
    signs: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the lines, in their order."""
        return list(dict.fromkeys(name for name, _ in self.table))

    def expression(self, operands: Sequence[str]) -> str:
        """The sum with these operands in place of the facts: `( a + b ) * c`."""
        text = operands[0]
        for number, (sign, operand) in enumerate(zip(self.signs, operands[1:], strict=True)):
            text = f"{text} {sign} {operand}" if number == 0 else f"( {text} ) {sign} {operand}"
        return text

    @property
    def question(self) -> str:
        """The sum as the agent reads it: `( apple price + drum weight ) * jar stock`."""
        return self.expression([f"{name} {column}" for name, column in self.facts])

    @property
    def answer(self) -> str:
        """The value of the sum."""
        return str(Fraction(evaluate(self.expression([str(self.table[fact]) for fact in self.facts]))))

    @property
    def script(self) -> str:
        """The table as SQL statements."""
        columns = self.words.columns
        rows = [[self.table[name, column] for column in columns] for name in self.names]
        made = f"CREATE TABLE {self.words.table} (name TEXT, {', '.join(f'{column} INTEGER' for column in columns)});"
        values = [f"('{name}', {', '.join(map(str, row))})" for name, row in zip(self.names, rows, strict=True)]
        return f"{made}\nINSERT INTO {self.words.table} VALUES {', '.join(values)};"

    @property
    def documents(self) -> dict[str, str]:
        """The table as sentences, one text for each line."""
        return {
            name: " ".join(f"The {column} of {name} is {self.table[name, column]}." for column in self.words.columns)
            for name in self.names
        }


def make_problem(*, facts: tuple[int, int], names: int, largest: int, wording: Wording, seed: int) -> Problem:
    """The problem of a seed.

    Args:
        facts: fewest and most facts, mixed evenly.
        names: lines of the table.
        largest: largest number in the table. The smallest is 1.
        wording: the nouns. They do not change the numbers of a seed, or the cells that its sum has.
    """
    draw = random.Random(derive(seed, "tool_tasks"))
    words = WORDS[wording]
    table = {(name, column): draw.randint(1, largest) for name in words.names[:names] for column in words.columns}
    count = draw.randint(*facts)
    chosen = draw.sample(list(table), count)
    return Problem(words, table, tuple(chosen), tuple(draw.choice(SIGNS) for _ in range(count - 1)))
