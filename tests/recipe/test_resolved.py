"""Resolved recipes: (1) every value knows its origin; (2) `where` is origin and text; (3) `explain` lists every key,
the defaults of all options of all used parts included; (4) JSON and back gives the same recipe, whatever the order
of keys, and defaults of that time stay; further overrides go on top; (5) importing the room loads no torch and no
part; (6) order of policies and roles in files means nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import palaestra
from palaestra.errors import RecipeError, UnknownName
from palaestra.recipe import Recipe, load

GIGPO = """\
# arXiv 2505.10978
advantage:
  gigpo:
    gamma: 0.5
rollout: {group: 4}
"""


@pytest.fixture
def recipe(base, write) -> Recipe:
    return load([base, write("gigpo.yaml", GIGPO)], ["rollout.tasks=2", "advantage.step_weight=0"])


@pytest.mark.parametrize(
    ("key", "origin"),
    [
        ("seed", "default"),
        ("advantage", "gigpo.yaml:2"),
        ("advantage.gigpo.gamma", "gigpo.yaml:4"),
        ("advantage.gamma", "gigpo.yaml:4"),
        ("advantage.gigpo.step_weight", "command line"),
        ("rollout.group", "gigpo.yaml:5"),
        ("rollout.tasks", "command line"),
        ("rollout.max_turns", "default"),
        ("policies.main.policy", "base.yaml:4"),
        ("policies.main.policy.words.hidden", "base.yaml:6"),
        ("policies.main.policy.value_head", "default"),
        ("agents.*.context", "default"),
        ("optimizer.adamw.lr", "default"),
    ],
)
def test_every_value_knows_its_origin(recipe, key, origin) -> None:  # rule 1
    assert recipe.origin(key) == origin


def test_where_is_origin_and_text(recipe) -> None:  # rule 2
    assert recipe.where("advantage.gamma") == "gigpo.yaml:4  gamma: 0.5"
    assert recipe.where("rollout.tasks") == "command line  rollout.tasks=2"
    assert recipe.where("rollout.max_turns") == "default  rollout.max_turns: 32"
    with pytest.raises(UnknownName, match=r"(?s)^recipe: rollout\.grup.*Candidates: rollout\.group"):
        recipe.where("rollout.grup")


def test_explain_lists_every_key(recipe) -> None:  # rule 3
    lines = {line.split()[0]: line.split()[1:] for line in recipe.explain().splitlines()}
    assert lines["key"] == ["value", "origin"]
    assert lines["advantage"] == ["gigpo", "gigpo.yaml:2"]
    assert lines["advantage.gigpo.gamma"] == ["0.5", "gigpo.yaml:4"]
    assert lines["policies.main.policy.words.value_head"] == ["false", "default"]
    assert lines["loss.ppo_clip.low"] == ["0.2", "default"]
    assert lines["warm_start"] == ["null", "default"]
    assert lines["training.token_budget"] == ["null", "default"]
    assert set(lines) == {"key", *recipe.rows}


def test_json_and_back(base) -> None:  # rule 4
    overrides = ["advantage=[gigpo, whiten]", "regularizers=[entropy, {entropy: {coefficient: 1.5}}]", "selection=[]"]
    first = load([base], [*overrides, "warm_start={}", "agents.solver={}", "environment.mix={b: 1, a: 2}"])
    kept = json.loads(json.dumps(first.to_json(), sort_keys=True))
    again = Recipe.from_json(kept)
    assert again.to_json() == first.to_json()
    assert again.explain() == first.explain()
    assert [(u.name, u.values) for u in again.parts] == [(u.name, u.values) for u in first.parts]
    assert kept["advantage"] == {"value": ["gigpo", "whiten"], "origin": "command line"}
    assert kept["policies.main.policy.words.hidden"] == {"value": 32, "origin": "base.yaml:6"}


def test_an_own_part_comes_back(base, write) -> None:  # rule 4
    write("my/credit.py", "def half(table, *, share: float = 0.5): ...\n")
    first = load([base], ["advantage=my/credit.py:half"])
    assert Recipe.from_json(first.to_json()).to_json() == first.to_json()


def test_defaults_of_that_time_stay(base) -> None:  # rule 4
    entries = load([base]).to_json()
    entries["rollout.max_turns"]["value"] = 5
    entries["policies.main.policy.words.value_head"]["value"] = True
    again = Recipe.from_json(entries)
    assert again.settings.rollout.max_turns == 5
    assert again.settings.policies["main"].policy.options["value_head"] is True
    assert again.origin("rollout.max_turns") == "default"


def test_further_overrides(base) -> None:  # rule 4
    first = load([base], ["advantage=gigpo", "advantage.gamma=0.5"])
    for recipe in (first, Recipe.from_json(first.to_json())):
        more = recipe.with_overrides(["advantage.step_weight=2", "rollout.group=3"])
        assert [used.values for used in more.parts if used.path == "advantage"] == [{"gamma": 0.5, "step_weight": 2.0}]
        assert (more.settings.rollout.group, recipe.settings.rollout.group) == (3, 8)


def test_json_of_another_version(base) -> None:  # rule 4
    entries = load([base]).to_json() | {"rollout.gruop": {"value": 3, "origin": "old.yaml:7"}}
    with pytest.raises(RecipeError) as caught:
        Recipe.from_json(entries)
    assert str(caught.value).startswith("old.yaml:7  rollout.gruop: 3\n\n  `rollout` has no key `gruop`.")


def test_importing_is_cheap() -> None:  # rule 5
    code = (
        "import palaestra.recipe, sys; print([m for m in ('torch', 'palaestra.parts.estimators') if m in sys.modules])"
    )
    root = Path(palaestra.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_order_of_names_means_nothing(write) -> None:  # rule 6
    names = ["b", "a", "main"]
    texts = [
        "environment: yard\npolicies:\n" + "".join(f"  {name}: {{policy: words}}\n" for name in order)
        for order in (names, names[::-1])
    ]
    one, two = (load([write(f"{i}.yaml", text)]).settings for i, text in enumerate(texts))
    assert list(one.policies) == list(two.policies) == ["a", "b", "main"]
