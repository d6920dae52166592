"""Reference pages of parts: (1) each option stands with what it may be, in words, its default and its meaning; (2) no
page shows how Python writes that; (3) what an option may be is told in the same words when a recipe is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
import pytest
from site_pages.reference import slot_page

from palaestra.errors import RecipeError
from palaestra.registry import SLOTS, part
from palaestra.registry.options import Discount, Fraction, NonNegative, PositiveInt, Section, kind_in_words
from tests.messages import told
from tests.registered import declared


class Chat(Section):
    model: str
    key: str = ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NonNegative, "float ≥ 0"),
        (Discount, "float in (0, 1]"),
        (PositiveInt | None, "int ≥ 1 or null"),
        (Annotated[int, pydantic.Field(gt=1, lt=5)], "int in [2, 4]"),
        (Annotated[int, pydantic.Field(le=10**6)], "int ≤ 1000000"),
        (Annotated[float, pydantic.Field(lt=0.5)], "float < 0.5"),
        (Annotated[float, pydantic.Field(gt=-1)] | None, "float > -1 or null"),
        (Literal["none", "std", 3], '"none", "std" or 3'),
        (tuple[str, ...], "list of str"),
        (Annotated[tuple[str, ...], pydantic.Field(min_length=1)], "list of at least 1 str"),
        (Annotated[tuple[float, ...], pydantic.Field(min_length=2, max_length=6)], "list of 2 to 6 float"),
        (tuple[Literal["a", "b"], ...], 'list of ("a" or "b")'),
        (tuple[PositiveInt, PositiveInt], "pair of int ≥ 1"),
        (tuple[int, str], "list of 2: int, str"),
        (Mapping[str, Fraction], "mapping of str to float in [0, 1]"),
        (dict[str, Any] | None, "mapping or null"),
        (Chat | None, "mapping of model, key or null"),
        (Any, "anything"),
        (bool, "bool"),
    ],
)
def test_kinds_in_words(kind: Any, words: str) -> None:  # rule 1
    made = pydantic.create_model("Made", option=(kind, ...))
    assert kind_in_words(made.model_fields["option"]) == words


@pytest.mark.parametrize("slot", SLOTS)
def test_pages_of_parts(slot: str) -> None:  # rules 1 and 2
    own = [part for part in declared() if part.slot == slot]
    page = slot_page(slot, own)
    for sign in ("Annotated[", "pydantic", "Field(", "Literal[", "Optional[", "typing.", "tuple[", "<class"):
        assert sign not in page
    for each in own:
        section = page.partition(f"\n## {each.name}\n")[2].partition("\n## ")[0]
        for option in each.options:
            (row,) = [line for line in section.splitlines() if line.startswith(f"| `{option.name}` |")]
            cells = [cell.strip() for cell in row.replace("\\|", "").strip("|").split(" | ")]
            assert len(cells) == 4 and all(cells), row


def test_an_example() -> None:  # rule 1
    page = slot_page("advantage", [part for part in declared() if (part.slot, part.name) == ("advantage", "gigpo")])
    assert "| `gamma` | `float in (0, 1]` | `0.95` | " in page
    assert '| `scale` | `"none" or "std"` | `\'none\'` | ' in page


def test_refusals_tell_what_is_allowed() -> None:  # rule 3
    with told(RecipeError, "float in (0, 1]."):
        part("advantage", "gigpo").check({"gamma": 2}, where="advantage: gigpo")
