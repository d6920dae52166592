"""YAML with places: (1) every key knows its file, line and text; (2) plain scalars are those of YAML 1.2;
(3) a key given twice, a top that is not a mapping, and text that is not YAML are refused with their line; (4) an
empty file changes nothing; (5) an override is `key=value`; (6) mappings come out sorted, so that order means nothing.
"""

from __future__ import annotations

from datetime import date

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe.origins import Mark, node_of, read_override, read_yaml
from tests.messages import told

TEXT = """\
# a comment
advantage: gigpo   # the method
rollout:
  group: 16
selection:
  - constant_groups
"""


def test_keys_know_their_places() -> None:  # rule 1
    tree = read_yaml(TEXT, source="a.yaml")
    assert tree.get("advantage").mark.where == "a.yaml:2  advantage: gigpo"
    assert tree.get("rollout").mark.where == "a.yaml:3  rollout:"
    assert tree.get("rollout", "group").mark == Mark("a.yaml", "group: 16", 4)
    assert tree.get("selection", 0).mark.where == "a.yaml:6  - constant_groups"
    assert tree.get("rollout", "absent") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("3e4", 30000.0),
        ("-.5", -0.5),
        ("1_000", 1000),
        ("7", 7),
        (".inf", float("inf")),
        ("true", True),
        ("null", None),
        ("", None),
        ("~", None),
        ("on", "on"),
        ("no", "no"),
        ("007", "007"),
        ("12:30", "12:30"),
        ("2024-01-02", "2024-01-02"),
        ("'5'", "5"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:  # rule 2
    found = read_yaml(f"key: {text}", source="a.yaml").plain()["key"]
    assert found == value and type(found) is type(value) and not isinstance(found, date)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("seed: 1\nname: a\nseed: 2\n", "a.yaml:3  seed: 2\n"),
        ("- seed\n", "mapping"),
        ("seed: 1\nname: [a\n", "a.yaml:3\n"),
    ],
)
def test_refused_files(text: str, word: str) -> None:  # rule 3
    with told(RecipeError, word):
        read_yaml(text, source="a.yaml")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_an_empty_file_changes_nothing(text: str) -> None:  # rule 4
    assert read_yaml(text, source="a.yaml").plain() == {}


def test_overrides() -> None:  # rule 5
    key, value = read_override("advantage.gigpo.gamma=0.9")
    assert (key, value.plain(), value.mark.where) == (
        "advantage.gigpo.gamma",
        0.9,
        "command line  advantage.gigpo.gamma=0.9",
    )
    assert read_override("name=a=b")[1].plain() == "a=b"
    assert read_override("reference=")[1].plain() is None


@pytest.mark.parametrize("text", ["rollout.group", "=3", "rollout..group=3", "rollout.group =3"])
def test_refused_overrides(text: str) -> None:  # rule 5
    with told(RecipeError, f"command line  {text}\n"):
        read_override(text)


def test_an_override_that_is_no_yaml() -> None:  # rule 3, 5
    for text in ("name=[a", "name=&a [*a]", "name=!!python/name:os.system x"):
        with told(RecipeError, f"command line  {text}\n"):
            read_override(text)


def test_order_means_nothing() -> None:  # rule 6
    one, other = ({"b": 1, "a": {"d": 2, "c": 3}}, {"a": {"c": 3, "d": 2}, "b": 1})
    assert str(node_of(one, Mark("x")).plain()) == str(node_of(other, Mark("x")).plain())
