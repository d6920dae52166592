"""What a recipe file may not be: (1) larger than a recipe, also by aliases; (2) with tags that do not fit; (3) with
numbers that no machine holds; (4) too deep; (5) with keys that are no texts; (6) with names that name nothing; (7) with
counts that no machine could serve. Each gets one clean line, soon.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from palaestra.errors import PalaestraError, RecipeError, described
from palaestra.recipe import Recipe, load
from palaestra.recipe.origins import LARGEST_FILE, read_override

BASE: dict[str, Any] = {
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
}
TEXTS = {
    "int": "seed: !!int x",
    "float": "rollout: {temperature: !!float q}",
    "timestamp": "seed: !!timestamp q",
    "date": "name: !!timestamp 2020-01-01",
    "binary": "name: !!binary '%%'",
    "bytes": "name: !!binary aGk=",
    "bool": "strict: !!bool maybe",
    "null": "name: !!int",
    "digits": f"seed: {'9' * 5000}",
    "large": f"seed: {2**63}",
    "small": f"seed: -{2**63}",
    "hexadecimal": f"seed: !!int 0x{'f' * 6000}",
    "deep list": "name: " + "[" * 300 + "]" * 300,
    "deep mapping": "{a: " * 200 + "1" + "}" * 200,
    "list as key": "? [a, b]\n: 3",
    "mapping as key": "? {a: b}\n: 3",
    "NUL": 'name: "a\\0b"',
    "surrogate": 'name: "\\ud800"',
    "itself": "a: &a [*a]",
    "code": "name: !!python/object/apply:os.system ['true']",
    "colon": 'agents: {"*": {context: ":"}}',
    "no attribute": "advantage: 'json:'",
    "no module": "advantage: ':loads'",
    "no file": "advantage: '.py:x'",
    "dots": "advantage: '..:x'",
    "tasks": "rollout: {tasks: 1e9}",
    "group": "rollout: {group: 1e9}",
    "evaluation": "evaluation: {tasks: 1e12}",
    "iterations": "training: {iterations: 1e300}",
    "infinite": "training: {iterations: 1e400}",
    "context": f"policies: {{main: {{policy: {{language: {{context: {2**63}}}}}}}}}",
    "context that fits a number": f"policies: {{main: {{policy: {{language: {{context: {2**62}}}}}}}}}",
    "hidden": "policies: {main: {policy: {language: {hidden: 1e9}}}}",
}


def bomb(levels: int) -> str:
    names = "abcdefghijklmnop"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip(names[:levels], names[1:], strict=False)]
    return "\n".join(lines)


@pytest.mark.parametrize("text", [bomb(9), bomb(15), f"name: {'x' * (LARGEST_FILE + 5)}"], ids=["9", "15", "long"])
def test_1_size(tmp_path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    began = time.monotonic()
    with pytest.raises(RecipeError, match=r"the file (means more|has)"):
        load([BASE, tmp_path / "x.yaml"])
    assert time.monotonic() - began < 20


def test_1_aliases_are_allowed(tmp_path) -> None:
    (tmp_path / "x.yaml").write_text("rollout: {tasks: &many 3, group: *many}")
    assert load([BASE, tmp_path / "x.yaml"]).settings.rollout.group == 3


@pytest.mark.parametrize("case", TEXTS)
def test_2_to_7_one_line(tmp_path, case: str) -> None:
    (tmp_path / "x.yaml").write_text(TEXTS[case])
    with pytest.raises(PalaestraError) as caught:
        load([BASE, tmp_path / "x.yaml"])
    assert "x.yaml:1" in caught.value.where and len(str(caught.value)) < 1500


def test_the_same_on_the_command_line() -> None:
    for text in ("seed=!!int x", f"seed={'9' * 5000}", "name=" + "[" * 300 + "]" * 300):
        with pytest.raises(RecipeError):
            read_override(text)


def test_the_same_in_a_run_folder() -> None:
    entries = load([BASE]).to_json()
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    for value in (deep, 2**64):
        with pytest.raises(PalaestraError):
            Recipe.from_json(entries | {"seed": {"value": value, "origin": "default"}})
    with pytest.raises(RecipeError):
        Recipe.from_json(entries | {"seed": {"value": 1, "origin": "default", "folders": 3}})


@pytest.mark.parametrize("name", ["x" * 5000, f"a/{'x' * 300}.yaml", "a/" * 3000])
def test_a_name_that_no_file_can_have(tmp_path, name: str) -> None:
    (tmp_path / "x.yaml").write_text(f"extends: [{name}]")
    for source in (name, tmp_path / "x.yaml"):
        with pytest.raises(PalaestraError) as caught:
            load([source])
        assert "no recipe file has this path or name" in caught.value.what and len(str(caught.value)) < 1500


@pytest.mark.parametrize("name", ["a/b", "..\\\\a", "a\\x1b[2J", "a\\u202e"])
def test_names_of_policies_are_names_of_files_and_are_shown(name: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f'environment: echo\npolicies: {{"{name}": {{policy: language}}}}\n')
    with pytest.raises(RecipeError, match="cannot be a name in `policies`"):
        load([str(tmp_path / "recipe.yaml")], [])


def test_a_word_of_thousands_of_digits_does_not_fill_the_screen() -> None:
    error = PalaestraError(where=f"a: {'9' * 5000}", what=f"`{'8' * 5000}` is wrong.")
    assert len(str(error)) < 500 and "999… (5,000 characters)" in str(error) and "is wrong." in str(error)
    assert "8" * 5000 in error.what
    for text in ("a b " * 10**6, "a\n" * 10**6):
        shown = str(PalaestraError(where="a", what=text))
        assert len(shown) < 11_000 and shown.count("\n") < 250 and f"({len(text):,} characters)" in shown
        assert described(ValueError(text)).startswith("ValueError: a") and len(described(ValueError(text))) < 11_000
