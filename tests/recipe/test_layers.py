"""Layers: (1) later files win key by key; (2) a part of the same name keeps the options that are not given again;
(3) a part of another name replaces the former one whole; (4) lists replace; (5) an override reaches into parts,
with their name or, where there is one part, without; (6) overrides reach into roles and policies; (7) the default
part is what an option without a name means; (8) two parts in one place, options of what is not there, and a part
written otherwise are refused; (9) parts in a list may repeat and are then addressed by position.
"""

from __future__ import annotations

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe import load


def test_later_files_win_key_by_key(base, write) -> None:  # rule 1
    one = write("one.yaml", "seed: 1\nrollout: {group: 4, tasks: 2}\n")
    two = write("two.yaml", "rollout: {group: 16}\n")
    settings = load([base, one, two], ["rollout.max_turns=5"]).settings
    assert (settings.seed, settings.rollout.group, settings.rollout.tasks, settings.rollout.max_turns) == (1, 16, 2, 5)


def test_the_same_part_keeps_its_options(base, write, used) -> None:  # rule 2
    one = write("one.yaml", "advantage: {gigpo: {gamma: 0.5, step_weight: 2}}\n")
    two = write("two.yaml", "advantage: {gigpo: {gamma: 0.7}}\n")
    assert used(load([base, one, two]), "advantage") == [("gigpo", {"gamma": 0.7, "step_weight": 2.0})]
    assert used(load([base, one], ["advantage=gigpo"]), "advantage") == [("gigpo", {"gamma": 0.5, "step_weight": 2.0})]


def test_default_options_count_as_given(base, used) -> None:  # rule 2
    recipe = load([base], ["optimizer.weight_decay=0.1"])
    assert used(recipe, "optimizer") == [("adamw", {"lr": 3e-4, "weight_decay": 0.1})]


def test_another_part_replaces_the_former(base, write, used) -> None:  # rule 3
    one = write("one.yaml", "advantage: {gigpo: {gamma: 0.5}}\n")
    assert used(load([base, one], ["advantage=ppo", "policies.main.policy.value_head=true"]), "advantage") == [
        ("ppo", {"gamma": 1.0})
    ]
    assert used(load([base], ["environment.riddle={}"]), "environment") == [("riddle", {})]


def test_lists_replace(base, write, used) -> None:  # rule 4
    one = write("one.yaml", "advantage: [{gigpo: {gamma: 0.5}}, whiten]\n")
    two = write("two.yaml", "advantage: [gigpo]\n")
    assert used(load([base, one]), "advantage") == [("gigpo", {"gamma": 0.5, "step_weight": 1.0}), ("whiten", {})]
    assert used(load([base, one, two]), "advantage") == [("gigpo", {"gamma": 0.95, "step_weight": 1.0})]
    assert used(load([base, one], ["advantage=grpo"]), "advantage") == [("grpo", {"scale": "std"})]
    assert load([base], ["reward=[]"]).settings.reward == []


@pytest.mark.parametrize(
    "override",
    [
        "advantage.gigpo.gamma=0.9",
        "advantage.gamma=0.9",
        "advantage.gigpo={gamma: 0.9}",
        "advantage={gigpo: {gamma: 0.9}}",
    ],
)
def test_overrides_reach_into_parts(base, write, used, override) -> None:  # rule 5
    one = write("one.yaml", "advantage: {gigpo: {step_weight: 2}}\n")
    recipe = load([base, one], [override])
    assert used(recipe, "advantage") == [("gigpo", {"gamma": 0.9, "step_weight": 2.0})]
    assert recipe.origin("advantage.gigpo.gamma") == "command line"
    assert recipe.origin("advantage.gigpo.step_weight") == "one.yaml:1"


def test_overrides_reach_into_lists(base, write, used) -> None:  # rule 5
    one = write("one.yaml", "advantage: [gigpo, whiten]\n")
    recipe = load([base, one], ["advantage.gigpo.gamma=0.9"])
    assert used(recipe, "advantage") == [("gigpo", {"gamma": 0.9, "step_weight": 1.0}), ("whiten", {})]
    assert recipe.origin("advantage") == "one.yaml:1"


def test_overrides_bring_parts(base, used) -> None:  # rule 5
    recipe = load([base], ["environment.yard.level=GoToObj", "regularizers.entropy.coefficient=0.5"])
    assert used(recipe, "environment") == [("yard", {"size": 3, "level": "GoToObj", "mix": {}})]
    assert used(recipe, "regularizers") == [("entropy", {"coefficient": 0.5})]


def test_mappings_in_options_merge(base, used) -> None:  # rule 2, 5
    recipe = load([base], ["environment.yard.mix={near: 0.5}", "environment.mix.far=0.2"])
    assert used(recipe, "environment") == [("yard", {"size": 3, "level": "easy", "mix": {"far": 0.2, "near": 0.5}})]


def test_overrides_reach_roles_and_policies(base, used) -> None:  # rule 6
    overrides = ["policies.main.policy.words.hidden=128", "agents.solver.context.window.turns=2"]
    recipe = load([base], [*overrides, "policies.main.loss.ppo_clip.low=0.1", "policies.main.every=2"])
    assert used(recipe, "policies.main.loss") == [("ppo_clip", {"low": 0.1})]
    assert recipe.settings.policies["main"].every == 2
    assert used(recipe, "policies.main.policy") == [("words", {"hidden": 128, "value_head": False})]
    assert used(recipe, "agents.solver.context") == [("window", {"turns": 2})]


def test_an_own_part_keeps_its_dots(base, write, used) -> None:  # rule 5
    write("my/credit.py", "def half(table, *, share: float = 0.5): ...\n")
    recipe = load([base], ["advantage=my/credit.py:half", "advantage.my/credit.py:half.share=0.25"])
    assert used(recipe, "advantage") == [("my/credit.py:half", {"share": 0.25})]
    assert used(load([base], ["advantage.my/credit.py:half.share=0.1"]), "advantage")[0][1] == {"share": 0.1}


def test_an_option_without_a_name_means_the_default_part(base, used) -> None:  # rule 7
    assert used(load([base], ["advantage.scale=none"]), "advantage") == [("grpo", {"scale": "none"})]
    assert used(load([base], ["warm_start.optimizer.lr=0.5"]), "warm_start.optimizer")[0][1]["lr"] == 0.5


def refusal(*arguments) -> str:
    with pytest.raises(RecipeError) as caught:
        load(*arguments)
    return str(caught.value)


def test_two_parts_where_one_is_taken(base, write) -> None:  # rule 8
    one = write("one.yaml", "environment:\n  yard:\n  fog:\n")
    assert refusal([base, one]) == (
        "one.yaml:1  environment:\n\n  `environment` takes one part, found `{'fog': None, 'yard': None}`.\n\n"
        "  Write `name`, or `{name: {option: value}}`."
    )
    two = write("two.yaml", "advantage: {gigpo: 0.5}\n")
    assert refusal([base, two]) == (
        "two.yaml:1  advantage: {gigpo: 0.5}\n\n  `advantage` takes one part, found `{'gigpo': 0.5}`.\n\n"
        "  Write `name`, or `{name: {option: value}}`, or a list of those."
    )


def test_which_of_several_parts(base) -> None:  # rule 8
    assert refusal([base], ["advantage=[gigpo, whiten]", "advantage.gamma=0.5"]) == (
        "command line  advantage.gamma=0.5\n\n  `advantage` holds 2 parts, so the key must name one of them.\n"
        "  Candidates: gigpo, whiten.\n\n"
        "  Write advantage.name.option=value, or give all parts: 'advantage=[name, {name: {option: value}}]'"
    )
    assert "`regularizers` holds 0 parts" in refusal([base], ["regularizers.coefficient=0.5"])


def test_a_part_takes_options_only(base) -> None:  # rule 8
    assert refusal([base], ["environment.yard=3"]) == (
        "command line  environment.yard=3\n\n  `yard` is a part; it takes options, found `3`.\n\n"
        "  Write environment.yard.option=value"
    )


def test_repeated_parts_have_positions(base, used) -> None:  # rule 9
    recipe = load([base], ["regularizers=[entropy, entropy]", "regularizers.1.coefficient=0.5"])
    assert used(recipe, "regularizers") == [("entropy", {"coefficient": 0.01}), ("entropy", {"coefficient": 0.5})]
    assert recipe.origin("regularizers.1.coefficient") == "command line"
    assert recipe.origin("regularizers.0.coefficient") == "default"
