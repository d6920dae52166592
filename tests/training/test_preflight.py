"""Rules: (1) `explain`, `plan` and `train` refuse a recipe with the same error, before a run folder is made, and say
the same lines on what is not used. (2) A role with native tools has a context that keeps messages, and a policy with a
chat template. (3) A policy that nobody plays, and a role that never acts, are refused. (4) Parts that cannot be made
are refused. (5) `explain` makes no part that needs code of the user, says so, and makes it with `--trust`. (6) Parts
that need whole iterations are refused beside episodes that are played ahead. (7) Recipes of systems are refused in an
environment, or with a context, a program or a policy, that they cannot work with. The same recipes without that pass.
(8) An environment whose options rule out an ability lacks it. (9) Every recipe of the project passes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palaestra.commands import explain, plan, train
from palaestra.errors import MissingExtra, PalaestraError, RecipeError
from palaestra.models.causal_lm import make_causal_lm
from palaestra.models.tokenizer import train_tokenizer
from palaestra.recipe import load
from palaestra.registry.signatures import signatures_only
from palaestra.training.preflight import check_start
from tests.chat.templates import PATHS, with_template
from tests.messages import told

ROOMS: dict[str, Any] = {"environment": "rooms", "policies": {"main": {"policy": "network"}}}
WORDS: dict[str, Any] = {"environment": "sums", "policies": {"main": {"policy": {"language": {"hidden": 32}}}}}
CHAT = {**WORDS, "policies": {"main": {"policy": {"endpoint": {"model": "any"}}, "trainable": False}}}


def checked(*layers: Any) -> Any:
    recipe = load(layers)
    return check_start(recipe.settings, recipe.to_json())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


CARTPOLE = ["setups/rooms-tiny.yaml", "gigpo/method.yaml", "environment={gymnasium: {id: CartPole-v1}}"]


def of_all_commands(recipe: list[str]) -> dict[str, Callable[[], None]]:
    return {
        "explain": lambda: explain.run(recipe=recipe),
        "plan": lambda: plan.run(recipe=recipe),
        "train": lambda: train.run(recipe=recipe, resume=False, overwrite=False, quiet=False, smoke=False),
    }


@pytest.mark.parametrize(
    ("recipe", "word"), [(["grpo", "policies.other.policy=random"], "policies.other"), (CARTPOLE, "column `state_key`")]
)
def test_1_the_same_error_everywhere(recipe: list[str], word: str, folder: Path) -> None:
    said = set()
    for run in of_all_commands(recipe).values():
        with pytest.raises(RecipeError) as caught:
            run()
        said.add(str(caught.value))
    assert len(said) == 1 and word in said.pop()
    assert not list(folder.iterdir())


def test_1_the_same_lines_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (f'{{"words": "a {number}", "answer": "b", "chosen": "x"}}\n' for number in range(8))
    (folder / "words.jsonl").write_text("".join(rows))
    world = "{path: words.jsonl, template: '{words}', split: 0.5}"
    recipe = [f"environment={{dataset: {world}}}", "policies.main.policy={language: {hidden: 16, layers: 1}}"]
    recipe += ["training.iterations=1", "evaluation.tasks=1", "rollout.tasks=1", "rollout.group=2"]
    for name, run in of_all_commands(recipe).items():
        run()
        printed = capsys.readouterr()
        assert (printed.out + printed.err).count("`chosen`") == 1, name


def test_2_native_tools_need_messages() -> None:
    native = {"agents": {"*": {"tools": {"native": True}}}}
    for context in ("full_history", "window", "latest_only"):
        checked(CHAT, native, {"agents": {"*": {"context": context}}})
    checked(CHAT, {"agents": {"*": {"context": "editable"}}})
    with told(RecipeError, "`editable`"):
        checked(CHAT, native, {"agents": {"*": {"context": "editable"}}})
    with told(RecipeError, "`sampled_history`"):
        checked(CHAT, native, {"agents": {"*": {"context": "full_history"}, "player": {"context": "sampled_history",
                "tools": {"native": True}}}})  # fmt: skip


def test_2_native_tools_need_a_template(folder: Path) -> None:
    with_template(PATHS["gemma"].read_text(encoding="utf-8")).save_pretrained(folder / "chat")
    train_tokenizer(["a text"], vocabulary=300).save_pretrained(folder / "tagged")
    for kind in ("chat", "tagged"):
        make_causal_lm(vocabulary=600, hidden=16, layers=1, heads=2, context=512).save_pretrained(folder / kind)
    native = {"agents": {"*": {"tools": {"native": True}}}}
    with told(RecipeError, "is made on the spot"):
        checked(WORDS, native)
    with told(RecipeError, "reads no text"):
        checked(ROOMS, native)
    based = {"policies": {"base": {"policy": {"language": {"hidden": 32}}, "trainable": False}}}
    with told(RecipeError, "policy `main` is made"):
        checked(WORDS, native, based, {"policies": {"main": {"policy": {"adapter": {"of": "base"}}}}})
    checked(WORDS, native, {"policies": {"main": {"policy": {"language": {"model": str(folder / "chat")}}}}})
    with told(RecipeError, "has a tokenizer with tags"):
        checked(WORDS, native, {"policies": {"main": {"policy": {"language": {"model": str(folder / "tagged")}}}}})


def test_2_contexts_of_the_user(folder: Path) -> None:
    inherits = "from palaestra.chat import FullHistory\nclass Mine(FullHistory): ...\n"
    own = "from palaestra.data.protocols import Context\nclass Mine(Context): ...\n"
    native = {"agents": {"*": {"context": "mine.py:Mine", "tools": {"native": True}}}}
    (folder / "mine.py").write_text(inherits)
    checked(CHAT, native)
    (folder / "other.py").write_text(own)
    with told(RecipeError, "`keeps_messages = True`"):
        checked(CHAT, native, {"agents": {"*": {"context": "other.py:Mine"}}})


def test_3_policies_and_roles() -> None:
    checked(ROOMS)
    with told(RecipeError, "plays no role"):
        checked(ROOMS, {"policies": {"other": {"policy": "random", "trainable": False}}})
    with told(RecipeError, "no role of this name"):
        checked(ROOMS, {"agents": {"*": {}, "plyer": {}}})


def test_4_constructors_of_the_user(folder: Path) -> None:
    (folder / "own.py").write_text(
        "class Broken:\n    def __init__(self, *, size: int):\n        raise KeyError(size)\n"
    )
    broken = {"own.py:Broken": {"size": 2}}
    places: list[dict[str, Any]] = [{"agents": {"*": {key: broken}}} for key in ("context", "reader")]
    places += [{key: broken} for key in ("environment", "sampler", "strategy", "reward", "advantage", "learner")]
    for place in places:
        with pytest.raises(KeyError):  # the command line shows its line (tests/commands/test_clean_lines.py)
            checked(ROOMS, place)


def test_4_constructors_of_the_library(folder: Path) -> None:
    with told(PalaestraError, "CartPole-v9"):
        checked({"environment": {"gymnasium": {"id": "CartPole-v9"}}, "policies": {"main": {"policy": "network"}}})


OPTIONS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a reward": ([ROOMS, {"reward": [{"overlong": {"maximum": 10, "buffer": 20}}]}], "`buffer: 20`"),
    "a role": ([ROOMS, {"reward": [{"role_mix": {"weight": {"boss": 0.5}}}]}], "role `player`"),
    "an estimator": ([ROOMS, {"advantage": [{"canon": {"metric": "random", "alpha": 0.5}}]}], "`alpha: 0.5`"),
    "a weight": ([ROOMS, {"weights": [{"truncated_importance": {"cap": 1.0, "low": 2.0}}]}], "lower bound 2"),
    "a regularizer": (
        [ROOMS, {"regularizers": [{"kl": {"cap": 1.0, "estimator": "k1"}}], "reference": "start"}],
        "`cap: 1`",
    ),
    "an optimizer": ([ROOMS, {"optimizer": {"adamw": {"lr": 0.1, "decay": "linear"}}}], "`decay: linear`"),
    "a policy": ([WORDS, {"policies": {"main": {"policy": {"language": {"hidden": 30, "heads": 4}}}}}], "heads"),
    "a file": ([WORDS, {"experience": {"dataset": {"path": "pairs.jsonl"}}}], "pairs.jsonl"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_4_options_that_are_checked_when_they_are_used(case: str, folder: Path) -> None:
    (folder / "pairs.jsonl").write_text('{"prompt": "a"}\n')
    layers, word = OPTIONS[case]
    with told(PalaestraError, word):
        checked(*layers)


def test_4_functions_of_the_user_are_not_called(folder: Path) -> None:
    (folder / "own.py").write_text("def paid(table):\n    raise SystemExit('it was called')\n")
    checked(ROOMS, {"reward": ["own.py:paid"]})


def test_5_code_that_is_not_imported(folder: Path) -> None:
    (folder / "loud.py").write_text("raise RuntimeError('imported')\n")
    (folder / "words.jsonl").write_text('{"words": "a", "answer": "a"}\n')
    words = {"environment": {"dataset": {"path": "words.jsonl", "template": "{words}", "reward": "loud.py:f"}}}
    with signatures_only() as unread:
        assert checked(WORDS, {"environment": None}, words).source is None
    assert [name.rpartition("/")[2] for name in unread] == ["loud.py:f"]
    with told(PalaestraError, "imported"):
        checked(WORDS, {"environment": None}, words)


def test_6_strategies_ahead(folder: Path) -> None:
    (folder / "own.py").write_text("class Mine:\n    async def __call__(self, plays, rollout, collect): ...\n")
    ahead = {"rollout": {"runner": "episodes"}, "training": {"max_staleness": 1}}
    with told(RecipeError, "must be called once an iteration"):
        checked(ROOMS, ahead, {"strategy": ["own.py:Mine"]})


ROOT = Path(__file__).parents[2]
SHIPPED = [path.parent.name for path in ROOT.glob("palaestra/systems/*/recipe.yaml")]
SHIPPED += [str(path) for path in (ROOT / "recipes").rglob("*.yaml")]
MISFITS = {
    "one act": (["comas", "environment=household"], "first act"),
    "one act, two answers": (["cory", "environment=twenty_questions"], "first act"),
    "one agent": (["debate", "environment=textarena"], "one agent"),
    "vectors": (["grpo", "environment=sums"], "no vectors"),
    "numbered actions": (
        ["grpo", "environment={gymnasium: {id: Pendulum-v1}}"],
        "takes vectors as actions",
    ),
    "lock step": (["grpo", "policies.main.policy={language: {hidden: 32}}"], "in lock step"),
    "editable memory": (["dcpo", "agents.*.context=window"], "no memory that can be edited"),
    "compressed history": (["hicon_agent", "agents.*.context=full_history"], "no history is compressed"),
    "an opponent": (["pfsp", "environment=rooms"], "cannot play against itself"),
    "difficulty": (["craft_gui", "environment=twenty_questions"], "`difficulty`"),
    "expert": (["dart", "environment={gymnasium: {id: CartPole-v1}}"], "no expert"),
    "calls": (["spear", "environment=twenty_questions"], "`tool_call`"),
    "most rewards": (["multi_turn_guide", "environment.rooms.reward=goal"], "`maximum`"),
    "a planner": (["hi_agent", "program.foresight.planner=boss"], "`boss`"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_7_systems_and_what_they_need(case: str) -> None:
    (name, *overrides), word = MISFITS[case]
    recipe = load([name])
    check_start(recipe.settings, recipe.to_json())
    with told(PalaestraError, word):
        recipe = load([name], overrides)
        check_start(recipe.settings, recipe.to_json())


def test_8_options_rule_out_an_ability(folder: Path) -> None:
    (folder / "words.jsonl").write_text("".join(f'{{"prompt": "{i}", "answer": "a"}}\n' for i in range(20)))
    (folder / "chat.py").write_text("def reply(messages): ...\n")
    words = {"dataset": {"path": "words.jsonl", "split": 0.5}}
    talk = {"dataset": {"respond": "chat.py:reply", "max_turns": 3, **words["dataset"]}}
    judged = ["comas", {"environment": None, "warm_start": None}]
    checked(*judged, {"environment": words})
    with told(RecipeError, "first act"):
        checked(*judged, {"environment": talk})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHIPPED), ids=lambda name: name.removeprefix(f"{ROOT}/"))
def test_9_every_recipe_passes(name: str) -> None:
    try:
        checked(name)
    except MissingExtra as error:
        pytest.skip(str(error))
