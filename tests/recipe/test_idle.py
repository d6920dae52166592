"""Options and settings that do nothing: (1) an option that its part ignores is refused beside or after what makes it
idle, unless it has its default; (2) in an earlier layer it falls away; (3) the same of keys of sections, (4) and of
keys beside a part that does not read them; (5) `explain` shows none of them; (6) a run's recipe of an earlier
version, which has them, is read; (7) a policy's `load` stands for its option `model`; (8) estimators that nobody
reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe import Recipe, load

PARTS = """
from palaestra.registry import register


@register("policy", "sized", ignores_if={"model": ("hidden", "layers"), "head=False": ("width",)})
class Sized:
    def __init__(
        self, name, setup, *, model: str | None = None, hidden: int = 8, layers: int = 1, head: bool = False,
        width: int = 4,
    ): ...


@register("rollout", "plain")
class Plain:
    ignores = ("window", "workers")


@register("loss", "imitate", reads=("logprob",))
def imitate(batch): ...


@register("learner", "own")
class Own:
    ignores = ("loss", "aggregate.how", "aggregate.constant", "training.epochs", "policies.*.loss", "policies.*.epochs")
"""
SIZED = {"policies": {"main": {"policy": {"parts2.py:Sized": {}}}}}


@pytest.fixture(autouse=True)
def parts(world: Path) -> None:
    (world / "parts2.py").write_text(PARTS)


def refused(*layers: Any, overrides: list[str] | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load(["base.yaml", *layers], overrides or [])
    return str(caught.value)


def policy(**options: Any) -> dict[str, Any]:
    return {"policies": {"main": {"policy": {"parts2.py:Sized": options}}}}


def test_1_beside_and_after(base: Path) -> None:
    beside = refused(policy(model="x", hidden=16))
    assert "`parts2.py:Sized` ignores `hidden` where `model` is set." in beside and beside.startswith("argument")
    after = refused(policy(model="x"), overrides=["policies.main.policy.layers=2"])
    assert after.startswith("command line  policies.main.policy.layers=2\n\n")
    assert "where `head: false`" in refused(policy(width=2))
    assert load(["base.yaml", policy(model="x", hidden=8)]), "the default says nothing"


def test_2_in_an_earlier_layer(base: Path) -> None:
    recipe = load(["base.yaml", policy(hidden=16)], ["policies.main.policy.model=x"])
    (made,) = [part for part in recipe.parts if part.path == "policies.main.policy"]
    assert made.values == {"model": "x", "head": False}
    assert made.values == recipe.settings.policies["main"].policy.options


def test_3_keys_of_sections(base: Path) -> None:
    assert "`training` ignores `stale` where `max_staleness: 0`." in refused({"training": {"stale": "drop"}})
    settings = load(
        ["base.yaml", {"training": {"max_staleness": 2, "stale": "drop"}}], ["training.max_staleness=0"]
    ).settings
    assert settings.training.stale == "wait", "what does nothing has its default"
    frozen = {"policies": {"main": {"trainable": False, "loss": "ppo_clip"}}}
    assert "`policies.main` ignores `loss` where `trainable: false`." in refused(frozen)


def test_4_keys_that_no_part_reads(base: Path) -> None:
    text = refused({"rollout": {"runner": "parts2.py:Plain", "workers": 2}})
    assert "rollout `parts2.py:Plain` does not read `rollout.workers`." in text
    assert load(["base.yaml"], ["rollout.runner=parts2.py:Plain", "rollout.workers=0"]), "the default says nothing"
    learners = ["learner=[parts2.py:Own, policy_gradient]", "training.epochs=2"]
    assert load(["base.yaml"], learners).settings.training.epochs == 2, "one of them reads it"
    assert "does not read `training.epochs`" in refused(overrides=["learner=parts2.py:Own", "training.epochs=2"])
    assert "does not read `loss`" in refused(overrides=["learner=parts2.py:Own", "loss=ppo_clip"])


def test_5_they_are_not_shown(base: Path) -> None:
    plain = load(["base.yaml", policy(model="x")], ["rollout.runner=parts2.py:Plain", "learner=parts2.py:Own"])
    shown = plain.explain()
    for key in (
        "hidden",
        "layers",
        "width",
        "stale ",
        "worker_kind",
        "window",
        "loss",
        "epochs",
        "aggregate",
        "tools.format",
    ):
        assert key not in shown, key
    assert "policies.main.policy.parts2.py:Sized.model" in shown and "training.minibatches" in shown
    whole = load(["base.yaml", policy(head=True)]).explain()
    assert "Sized.hidden" in whole and "Sized.width" in whole and "loss.ppo_clip.low" in whole


def test_6_a_former_run(base: Path) -> None:
    written = load(["base.yaml", policy(hidden=16)]).to_json()
    written["policies.main.policy.parts2.py:Sized.model"] = {"value": "x", "origin": "default"}
    written["training.stale"] = {"value": "drop", "origin": "a.yaml:3"}
    recipe = Recipe.from_json(written)
    assert "hidden" not in recipe.explain() and recipe.settings.training.stale == "wait"
    with pytest.raises(RecipeError, match="ignores `hidden`"):
        recipe.with_overrides(["policies.main.policy.hidden=2"])


def test_7_load(base: Path) -> None:
    recipe = load(["base.yaml", policy(hidden=16)], ["policies.main.load=folder"])
    assert "hidden" not in recipe.explain()
    assert "ignores `hidden` where `model` is set" in refused({"policies": {"main": {**SIZED["policies"]["main"]}}},
        overrides=["policies.main.load=folder", "policies.main.policy.hidden=2"])  # fmt: skip


def test_8_estimators_that_nobody_reads(base: Path) -> None:
    shown = load(["base.yaml", {"advantage": "reinforce"}], ["loss=parts2.py:imitate"]).explain()
    assert "advantage" not in shown
    assert "no loss, factor or learner reads `advantage`" in refused(
        {"advantage": "reinforce", "loss": "parts2.py:imitate"}
    )
