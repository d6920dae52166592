"""The layer `chat` fits a pretrained model into a recipe. Rules:

1. Every recipe that comes with Palaestra resolves with `chat` behind it, with a pretrained model for each policy that
   writes tokens, and with no network. Others are refused, because they have a pretrained model already or train another
   kind of policy.
2. It changes model, roles, runner, sizes, rates, `dtype` and budget. Layers after it and overrides win. It can stand in
   `extends`. A file of this name wins.
3. Several policies are adapters on one model. Adapters of the recipe stay, and so does what is not trained.
4. A part that needs a critic gets a value head; one that needs all weights gets no low-rank additions.
5. It is refused with no recipe before it, with one that has such a model, with another kind of policy, and in a world
   without words.
6. A resolved recipe is read back from `recipe.json`.
7. A system for networks trains with it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from palaestra.errors import RecipeError
from palaestra.models.pretrained import SMOLLM2
from palaestra.recipe import Recipe, load
from palaestra.recipe.sources import packaged
from palaestra.training.start import train
from tests.messages import told

COMPLETE = [name for name in packaged() if not name.endswith("method.yaml")]
ENVIRONMENT = re.compile(r"^(environment|extends):", re.MULTILINE)


@pytest.fixture(autouse=True)
def world() -> None:
    """All parts of the library, and not those of the other tests here."""


@cache
def changed(name: str) -> Recipe:
    return load([name, "chat"])


def model_of(recipe: Recipe, policy: str) -> str | None:
    """The pretrained model of a policy, or of its base."""
    options = recipe.settings.policies[policy].policy.options
    base = options.get("of")
    return model_of(recipe, base) if base is not None else options.get("model")


@pytest.mark.parametrize("name", COMPLETE)
def test_1_every_recipe(name: str) -> None:
    try:
        before = load([name]).settings
    except RecipeError as error:
        assert "the recipe gives no" in str(error), error  # an overlay
        return
    kinds = {policy.policy.name for policy in before.policies.values() if policy.trainable}
    if kinds == {"sac_actor"} or any(policy.policy.options.get("model") for policy in before.policies.values()):
        with pytest.raises(RecipeError, match="chat"):
            changed(name)
        return
    after = changed(name)
    speaking = [name for name, own in after.settings.policies.items() if own.policy.name in ("language", "adapter")]
    assert {model_of(after, policy) for policy in speaking} == {SMOLLM2}
    assert after.settings.environment == before.environment and after.settings.program == before.program
    assert [part.name for part in after.settings.advantage] == [part.name for part in before.advantage]
    assert {policy.policy.name for policy in after.settings.policies.values()}.isdisjoint({"network"})


def test_2_what_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = changed("gigpo")
    settings, role = found.settings, found.settings.role("main")
    options = settings.policies["main"].policy.options
    assert options["lora"].rank == 16 and not options["value_head"]
    assert (role.instruction, role.reader.name, role.context.name) == ("environment", "last_line", "latest_only")
    assert (settings.rollout.runner.name, settings.rollout.response_tokens) == ("episodes", 48)
    assert (settings.dtype, settings.training.token_budget, settings.name) == ("auto", None, "gigpo-chat")
    assert settings.optimizer.options["lr"] == 2e-4 and settings.training.iterations == 40
    assert settings.warm_start is not None and settings.warm_start.optimizer.options["lr"] == 5e-4
    assert found.origin("training.iterations") == "chat (was 150)"
    later = load(["gigpo", "chat", {"training": {"epochs": 7}}], ["rollout.response_tokens=3", "optimizer.lr=1"])
    assert later.settings.training.epochs == 7 and later.settings.rollout.response_tokens == 3
    assert later.settings.optimizer.options["lr"] == 1
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("extends: [gigpo, chat]\ntraining: {iterations: 3}\n")
    mine = load(["mine.yaml"]).settings
    assert mine.training.iterations == 3 and mine.policies == settings.policies
    Path("chat").write_text("training: {iterations: 9}\n")
    assert load(["gigpo", "chat"]).settings.policies["main"].policy.name == "network"


def test_2_a_context_of_the_recipe_stays() -> None:
    assert changed("hicon_agent").settings.role("main").context.name == "sampled_history"
    assert changed("setups/codefix-history.yaml").settings.role("main").context.name == "full_history"


def test_3_several_policies() -> None:
    team = changed("teams/search_qa.yaml").settings
    kinds = {name: policy.policy.name for name, policy in team.policies.items()}
    assert kinds == {"chat": "language", "answerer": "adapter", "searcher": "adapter", "verifier": "adapter"}
    assert not team.policies["chat"].trainable and team.policies["searcher"].policy.options["of"] == "chat"
    own = changed("teams/adapters.yaml").settings
    before = load(["teams/adapters.yaml"]).settings
    assert own.policies["searcher"].policy == before.policies["searcher"].policy
    assert (
        own.policies["base"].policy.options["model"] == SMOLLM2 and own.policies["base"].policy.options["lora"] is None
    )
    frozen = changed("flow_grpo").settings.policies
    assert not frozen["modules"].trainable and frozen["modules"].policy.options["of"] == "chat"
    assert changed("dgrpo").settings.policies["rules"].policy.name == "expert"


def test_4_critics_and_all_weights() -> None:
    assert changed("ppo").settings.policies["main"].policy.options["value_head"]
    whole = load(["setups/toolcalc-language.yaml", "kimi_rl/muon_clip.yaml", "chat"]).settings
    assert whole.policies["main"].policy.options["lora"] is None and whole.optimizer.name == "muon_clip"


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        (["chat"], "there is none"),
        (["models/smollm2-words.yaml", "chat"], "pretrained model already"),
        (["gigpo", "chat", "chat"], "pretrained model already"),
        (["sac", "chat"], "`sac_actor`"),
    ],
)
def test_5_refused(layers: list[str], word: str) -> None:
    with told(RecipeError, word):
        load(layers)


def test_5_a_world_without_words() -> None:
    wordless = {"environment": "tests.recipe.test_chat:Wordless"}
    with told(RecipeError, "`tests.recipe.test_chat:Wordless` has no instruction"):
        load(["reinforce_plus_plus", wordless, "chat"])


class Wordless:
    """A world of vectors."""

    agents, abilities = ("main",), ("tasks", "vector", "expert")
    provides = frozenset({"outcome", "state_key"})


def test_6_read_back() -> None:
    found = changed("teams/search_qa.yaml")
    assert Recipe.from_json(found.to_json()).to_json() == found.to_json()


@pytest.mark.smoke
def test_7_a_run(smollm2: str, tmp_path: Path) -> None:
    few = ["training.iterations=1", "training.epochs=1", "training.minibatches=1", "evaluation.tasks=1"]
    few += ["rollout.tasks=1", "rollout.group=2", "rollout.max_turns=2", "rollout.response_tokens=8"]
    found = load(["gigpo", "chat"], [*few, f"run={tmp_path / 'run'}"], smoke=True)
    line = train(found.settings, recipe=found.to_json(), quiet=True)
    assert "on 1 tasks" in line and "no update" not in line
