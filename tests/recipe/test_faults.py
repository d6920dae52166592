"""Bad recipes are refused before anything starts, and the message names place, fault, candidates and way out:
(1) unknown key; (2) wrong type; (3) missing key; (4) unknown part; (5) unknown or wrong option; (6) missing extra and
broken own part; (7) a role without policy; (8) a group of one with a group estimator; (9) a column that the
environment does not give; (10) an ability that a policy lacks; (11) no reference, the recipe's or the own one of each
policy concerned; (12) no expert to imitate; (13) settings that exclude each other. (14) What declares nothing is not
refused.
"""

from __future__ import annotations

from typing import get_args

import pytest

from palaestra.columns import FROM_EPISODES
from palaestra.errors import MissingExtra, PalaestraError, RecipeError, UnknownName
from palaestra.options import Aggregation
from palaestra.recipe import load


@pytest.fixture
def message(base, write):
    """The message that a recipe over `base.yaml` gives."""

    def message(text: str = "", *overrides: str, error: type[PalaestraError] = RecipeError) -> str:
        with pytest.raises(error) as caught:
            load([base, write("x.yaml", text)], overrides)
        return str(caught.value)

    return message


def test_unknown_key(message) -> None:  # rule 1
    assert message("seed: 1\nrollout:\n  gruop: 4\n") == (
        "x.yaml:3  gruop: 4\n\n  `rollout` has no key `gruop`.\n  Candidates: group.\n\n"
        "  Its keys are: runner, tasks, group, max_turns, max_tokens, max_seconds, window, response_tokens, "
        "temperature, top_k, top_p, stuck_seconds, in_flight, workers, worker_kind, step_seconds."
    )
    assert message("policies: {main: {polcy: words}}\n") == (
        "x.yaml:1  policies: {main: {polcy: words}}\n\n  `policies.main` has no key `polcy`.\n"
        "  Candidates: policy, epochs.\n\n"
        "  Its keys are: policy, trainable, optimizer, loss, regularizers, epochs, minibatches, every, reference, load."
    )


def test_former_key(message) -> None:  # rule 1
    assert message('agents: {"*": {}, a: {seat: b}}') == (
        'x.yaml:1  agents: {"*": {}, a: {seat: b}}\n\n  `agents.a.seat` is called `agents.a.acts_for` now.\n\n'
        "  Rename the key."
    )


def test_unknown_key_on_the_command_line(message) -> None:  # rule 1
    assert message("", "rolout.group=4").startswith(
        "command line  rolout.group=4\n\n  a recipe has no key `rolout`.\n  Candidates: rollout.\n\n"
        "  Its keys are: name, "
    )


def test_wrong_type(message) -> None:  # rule 2
    assert message("\nrollout: {group: many}\n") == (
        "x.yaml:2  rollout: {group: many}\n\n  `rollout.group` cannot be 'many': input should be a valid integer, "
        "unable to parse string as an integer.\n\n  Give `rollout.group` a value of the right kind."
    )
    assert message("rollout: 5\n").startswith("x.yaml:1  rollout: 5\n\n  `rollout` is a section, found `5`.")
    assert message("rollout:\n  worker_kind: fork\n") == (
        "x.yaml:2  worker_kind: fork\n\n"
        "  `rollout.worker_kind` cannot be 'fork': input should be 'thread' or 'process'."
        "\n\n  Give `rollout.worker_kind` a value of the right kind."
    )


def test_missing_key(write) -> None:  # rule 3
    with pytest.raises(RecipeError) as caught:
        load([write("a.yaml", "seed: 1\n"), write("b.yaml", "policies:\n  main:\n    trainable: true\n")])
    assert str(caught.value) == "a.yaml + b.yaml\n\n  the recipe gives no `environment`.\n\n  Set `environment: …`."
    with pytest.raises(RecipeError) as caught:
        load(["b.yaml"], ["environment=yard"])
    assert str(caught.value) == (
        "b.yaml:2  main:\n\n  the recipe gives no `policies.main.policy`.\n\n  Set `policies.main.policy: …`."
    )


def test_unknown_part(message) -> None:  # rule 4
    assert message("seed: 1\nadvantage: gigp\n", error=UnknownName) == (
        "x.yaml:2  advantage: gigp\n\n  no advantage is called `gigp`.\n  Candidates: gigpo, grpo.\n\n"
        "  `palaestra methods --slot advantage` lists all; a part of your own is `path/to/file.py:function`."
    )
    assert message("", "rollout.runner=episode", error=UnknownName).startswith(
        "command line  rollout.runner=episode\n\n  no rollout is called `episode`.\n  Candidates: episodes."
    )


def test_unknown_or_wrong_option(message) -> None:  # rule 5
    assert message("advantage:\n  gigpo:\n    step_weight: 1\n    gama: 0.5\n") == (
        "x.yaml:4  gama: 0.5\n\n  `gigpo` has no option `gama`.\n  Candidates: gamma.\n\n"
        "  Its options are: gamma, step_weight."
    )
    assert message("", "advantage=gigpo", "advantage.gamma=2") == (
        "command line  advantage.gamma=2\n\n  `gigpo` cannot take `gamma: 2`: input should be less than or equal to 1."
        "\n\n  Give `gamma` a value of the right kind. `gamma` is: float in (0, 1]."
    )
    assert message("policies:\n  main:\n    optimizer: {adamw: {weight_decay: 0.1}}\n") == (
        "x.yaml:3  optimizer: {adamw: {weight_decay: 0.1}}\n\n  `adamw` needs the option `lr`.\n\n  Set `lr: …`."
    )


def test_missing_extra(message, write) -> None:  # rule 6
    write(
        "own.py",
        "from palaestra.errors import missing_extra\nraise missing_extra('bm25s', extra='tools', needed_for='x')",
    )
    assert message("advantage: own.py:f\n", error=MissingExtra) == (
        "x.yaml:1  advantage: own.py:f\n\n  the package `bm25s` is not installed.\n\n"
        "  Install it with: pip install 'palaestra[tools]'"
    )


def test_broken_own_part(message, write) -> None:  # rule 6
    write("broken.py", "1 / 0\n")
    assert message("advantage: broken.py:f\n") == (
        "x.yaml:1  advantage: broken.py:f\n\n  `broken.py:f` fails when it is imported: ZeroDivisionError: division by "
        "zero.\n\n  Import the file in Python to see the whole traceback."
    )
    assert message("advantage: absent.py:f\n", error=UnknownName).startswith(
        "x.yaml:1  advantage: absent.py:f\n\n  `absent.py:f` cannot be loaded: no file absent.py."
    )


def test_a_role_without_policy(message) -> None:  # rule 7
    assert message("agents:\n  solver: {policy: mian}\n") == (
        "x.yaml:2  solver: {policy: mian}\n\n  role `solver` is played by policy `mian`, which does not exist.\n"
        "  Candidates: main.\n\n"
        "  Name a policy of the recipe in `agents.solver.policy`, or add it under `policies`."
    )


def test_no_policy_for_every_role(write) -> None:  # rule 7
    with pytest.raises(RecipeError) as caught:
        load([write("a.yaml", "environment: yard\npolicies: {solver: {policy: words}}\n")])
    assert str(caught.value).startswith(
        "default  agents.*.policy: main\n\n  every role is played by policy `main`, which does not exist.\n"
        "  Candidates: solver."
    )
    with pytest.raises(RecipeError, match="there is none"):
        load([{"environment": "yard", "policies": {}}])


def test_a_name_with_a_dot(message) -> None:  # rule 7
    assert message("policies: {a.b: {policy: words}}\n").startswith(
        "x.yaml:1  policies: {a.b: {policy: words}}\n\n  `a.b` cannot be a name in `policies`"
    )


def test_a_group_of_one(message) -> None:  # rule 8
    ending = (
        "  A trajectory that is alone equals its group's mean, so every advantage is 0.\n"
        "  Candidates: ppo, reinforce.\n\n  Do one of these:\n    • set rollout.group=2 or more; usual: 8, or\n"
        "    • use a part that does without (`palaestra methods --slot advantage --without group` lists all)."
    )
    assert message("seed: 1\nadvantage: gigpo\n", "rollout.group=1") == (
        "x.yaml:2  advantage: gigpo\n\n"
        "  `gigpo` uses a group of at least 2 trajectories, and `rollout.group` is 1 (command line).\n" + ending
    )
    assert message("rollout:\n  group: 1\n") == (
        "x.yaml:2  group: 1\n\n"
        "  `grpo` uses a group of at least 2 trajectories, and `rollout.group` is 1 (x.yaml:2).\n" + ending
    )


def test_a_column_that_nobody_gives(message) -> None:  # rule 9
    assert message("environment: fog\nadvantage: gigpo\n") == (
        "x.yaml:2  advantage: gigpo\n\n"
        "  `gigpo` reads the column `state_key`, and environment `fog` gives none.\n"
        "  Without it every step is its own state, and comparing equal states compares nothing.\n"
        "  Candidates: grpo, ppo, reinforce.\n\n  Do one of these:\n"
        "    • give `Observation.state_key` in `fog` and name `state_key` in its `provides`, or\n"
        "    • use a part that does without (`palaestra methods --slot advantage --without state_key` lists all)."
    )


def test_a_column_that_another_part_gives(base, write, message) -> None:  # rule 9
    judge = "class Judge:\n    provides = frozenset({'process'})\n"
    reader = (
        "from palaestra.registry import register\n@register('advantage', 'f', reads=('process',))\ndef f(table): ...\n"
    )
    write("judge.py", judge), write("reader.py", reader)
    load([base], ["advantage=reader.py:f", "reward=[environment, judge.py:Judge]"])
    assert "reads the column `process`, and environment `yard` gives none" in message("advantage: reader.py:f\n")


def test_a_column_that_a_part_reads_and_writes(base, write, message) -> None:  # rule 9
    declared = "@register('reward', 'turned', reads=('process',), writes=('process',))"
    write("turner.py", f"from palaestra.registry import register\n{declared}\ndef turned(table): ...\n")
    assert "reads the column `process`, and environment `yard` gives none" in message("reward: turner.py:turned\n")
    write("judge.py", "class Judge:\n    provides = frozenset({'process'})\n")
    load([base], ["reward=[judge.py:Judge, turner.py:turned]"])


def test_an_ability_that_a_policy_lacks(base, message) -> None:  # rule 10
    assert message("advantage: ppo\n") == (
        "x.yaml:1  advantage: ppo\n\n  `ppo` uses a critic, and policy `main` (`words`) has none.\n"
        "  Without it there is no value to compare a return with.\n  Candidates: gigpo, grpo, reinforce.\n\n"
        "  Do one of these:\n"
        "    • give policy `main` one, by an option of `words` (its options are hidden, value_head) "
        "or another policy, or\n"
        "    • use a part that does without (`palaestra methods --slot advantage --without critic` lists all)."
    )
    load([base], ["advantage=ppo", "policies.main.policy.value_head=true"])


def test_only_the_policies_concerned_need_it(base, message) -> None:  # rule 10
    critic = "policies.main.policy.value_head=true"
    load([base], ["advantage=ppo", critic, "policies.other={policy: words, trainable: false}"])
    assert "policy `other` (`words`) has none" in message("advantage: ppo\n", critic, "policies.other.policy=words")


def test_no_reference(base, message) -> None:  # rule 11
    assert message("regularizers: kl\n") == (
        "x.yaml:1  regularizers: kl\n\n  `kl` uses a reference policy, and `reference` is not set.\n"
        "  Without it there is nothing to keep the policy near to.\n  Candidates: entropy.\n\n  Do one of these:\n"
        "    • set `reference: start` (the weights after the warm start), or\n"
        "    • leave it out, or use a part that does without "
        "(`palaestra methods --slot regularizer --without reference` lists all)."
    )
    load([base], ["regularizers=kl", "reference=start"])


def test_a_reference_for_each_policy_concerned(base, message) -> None:  # rule 11
    one = ["regularizers=kl", "policies.main.reference=start"]
    load([base], one)
    load([base], [*one, "policies.other={policy: words, trainable: false}"])
    load([base], [*one, "policies.other={policy: words, regularizers: [entropy]}"])
    load([base], [*one, "policies.other={policy: words, reference: start}"])
    load([base], ["policies.main.reference=start", "policies.main.regularizers=kl", "policies.other.policy=words"])
    said = message("", *one, "policies.other.policy=words")
    assert "`kl` uses a reference policy, and policy `other` has none." in said
    assert "set policies.other.reference=start, or `reference: start`" in said
    own = ["policies.main.reference=start", "policies.other={policy: words, regularizers: [kl]}"]
    assert "policy `other` has none" in message("", *own)


def test_abilities_of_environments(base, write, message) -> None:  # rules 10 and 14
    part = "from palaestra.registry import register\n@register('strategy', 'f', uses=('{}',))\nclass F: ...\n"
    write("new.py", part.format("snapshot")), write("old.py", part.format("restore"))
    write("other.py", part.format("expert")), write("maker.py", "def make(): ...\n")
    load([base], ["environment=riddle", "strategy=other.py:F"])  # without a list, by the methods of the class
    load([base], ["environment=maker.py:make", "strategy=new.py:F"])
    said = message("strategy: new.py:F\n")
    assert "`new.py:F` uses `snapshot` of the environment, and `yard` has none." in said
    assert "• give `yard` the ability `snapshot`" in said
    assert message("strategy: old.py:F\n") == (
        "x.yaml:1  strategy: old.py:F\n\n  `old.py:F` uses `restore`, which is called `snapshot` now.\n\n"
        '  Register it with uses=("snapshot",).'
    )
    write("former.py", part.format("snapshot").replace("uses", "reads").replace("snapshot", "value_end"))
    assert message("strategy: former.py:F\n") == (
        "x.yaml:1  strategy: former.py:F\n\n  `former.py:F` reads the column `value_end`, which is called "
        "`bootstrap_value` now.\n\n  Rename it in `reads` and in the part."
    )


def test_no_expert_to_imitate(base, message) -> None:  # rule 12
    assert message("environment: fog\nwarm_start:\n  episodes: 4\n") == (
        "x.yaml:2  warm_start:\n\n  `warm_start` imitates the environment's expert, and `fog` has none.\n"
        "  Without one there is nothing to imitate.\n\n  Do one of these:\n"
        "    • give `fog` a method `expert(agent) -> Action`, and name `expert` in its `abilities`, or\n"
        "    • leave `warm_start` out (warm_start=null)."
    )
    load([base], ["warm_start={}"])
    load([base], ["environment=fog", "warm_start.episodes=4", "warm_start=null"])


def test_settings_that_exclude_each_other(message) -> None:  # rule 13
    assert message("aggregate: {how: token-meen}\n") == (
        "x.yaml:1  aggregate: {how: token-meen}\n\n  `aggregate.how` cannot be `token-meen`.\n"
        "  Candidates: token-mean, step-mean, agent-mean.\n\n"
        f"  It is one of: {', '.join(get_args(Aggregation))}."
    )
    assert message("aggregate:\n  how: constant-length\n") == (
        "x.yaml:2  how: constant-length\n\n  `constant-length` divides by `aggregate.constant`, which is not set.\n\n"
        "  Set it to the generation budget of an episode, for instance max_turns × response_tokens."
    )
    assert message("rollout:\n  step_seconds: 2\n") == (
        "x.yaml:2  step_seconds: 2\n\n"
        "  a hanging step can only be left behind in a worker, and `rollout.workers` is 0.\n\n"
        "  Set rollout.workers=1 or more, or leave `rollout.step_seconds` out."
    )


def test_names_held_equal_to_the_data_room() -> None:  # rule 13
    assert "state_key" not in FROM_EPISODES and "reward" in FROM_EPISODES


def test_what_declares_nothing_is_not_refused(base) -> None:  # rule 14
    load([base], ["environment=riddle", "advantage=gigpo"])
    load([base], ["policies.main.policy=unknown", "advantage=ppo"])
