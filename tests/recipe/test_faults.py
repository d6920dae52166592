"""Bad recipes are refused before anything starts, and the message names place, fault, candidates and way out:
(1) unknown key; (2) wrong type; (3) missing key; (4) unknown part; (5) unknown or wrong option; (6) missing extra and
broken own part; (7) a role without policy; (8) a group of one with a group estimator; (9) a column that the
environment does not give; (10) an ability that a policy lacks; (11) no reference, the recipe's or the own one of each
policy concerned; (12) no expert to imitate; (13) settings that exclude each other. (14) What declares nothing is not
refused. (15) Lock step, and a policy, program, tool or environment that waits.
"""

from __future__ import annotations

import pytest

from palaestra.errors import MissingExtra, PalaestraError, RecipeError, UnknownName
from palaestra.recipe import load
from palaestra.registry.column_names import FROM_EPISODES
from tests.messages import told


@pytest.fixture
def message(base, write):
    """The message that a recipe over `base.yaml` gives; all of it stands in tests/messages.yaml."""

    def message(text: str = "", *overrides: str, says: str = "", error: type[PalaestraError] = RecipeError) -> str:
        with told(error, says) as caught:
            load([base, write("x.yaml", text)], overrides)
        return str(caught.value)

    return message


def test_unknown_key(message) -> None:  # rule 1
    message("seed: 1\nrollout:\n  gruop: 4\n", says="`gruop`")
    message("policies: {main: {polcy: words}}\n", says="`polcy`")


def test_unknown_key_on_the_command_line(message) -> None:  # rule 1
    message("", "rolout.group=4", says="`rolout`")


def test_wrong_type(message) -> None:  # rule 2
    message("\nrollout: {group: many}\n", says="`rollout.group`")
    message("rollout: 5\n", says="`rollout`")
    message("rollout:\n  worker_kind: fork\n", says="`rollout.worker_kind`")


def test_missing_key(write) -> None:  # rule 3
    with told(RecipeError, "`environment`"):
        load([write("a.yaml", "seed: 1\n"), write("b.yaml", "policies:\n  main:\n    trainable: true\n")])
    with told(RecipeError, "`policies.main.policy`"):
        load(["b.yaml"], ["environment=yard"])


def test_unknown_part(message) -> None:  # rule 4
    message("seed: 1\nadvantage: gigp\n", error=UnknownName, says="`gigp`")
    message("", "rollout.runner=episode", error=UnknownName, says="`episode`")


def test_unknown_or_wrong_option(message) -> None:  # rule 5
    message("advantage:\n  gigpo:\n    step_weight: 1\n    gama: 0.5\n", says="`gama`")
    message("", "advantage=gigpo", "advantage.gamma=2", says="`gamma: 2`")
    message("policies:\n  main:\n    optimizer: {adamw: {weight_decay: 0.1}}\n", says="`lr`")


def test_missing_extra(message, write) -> None:  # rule 6
    write(
        "own.py",
        "from palaestra.errors import missing_extra\nraise missing_extra('bm25s', extra='tools', needed_for='x')",
    )
    message("advantage: own.py:f\n", error=MissingExtra, says="`bm25s`")


def test_broken_own_part(message, write) -> None:  # rule 6
    write("broken.py", "1 / 0\n")
    message("advantage: broken.py:f\n", says="`broken.py:f`")
    message("advantage: absent.py:f\n", error=UnknownName, says="`absent.py:f`")


def test_a_role_without_policy(message) -> None:  # rule 7
    message("agents:\n  solver: {policy: mian}\n", says="`solver`")


def test_no_policy_for_every_role(write) -> None:  # rule 7
    with told(RecipeError, "every role"):
        load([write("a.yaml", "environment: yard\npolicies: {solver: {policy: words}}\n")])
    with told(RecipeError, "no policy"):
        load([{"environment": "yard", "policies": {}}])


def test_a_name_with_a_dot(message) -> None:  # rule 7
    message("policies: {a.b: {policy: words}}\n", says="`a.b`")


def test_a_group_of_one(message) -> None:  # rule 8
    message("seed: 1\nadvantage: gigpo\n", "rollout.group=1", says="`gigpo`")
    message("rollout:\n  group: 1\n", says="`grpo`")


def test_a_column_that_nobody_gives(message) -> None:  # rule 9
    message("environment: fog\nadvantage: gigpo\n", says="`state_key`")


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
    message("advantage: ppo\n", says="`ppo`")
    load([base], ["advantage=ppo", "policies.main.policy.value_head=true"])


def test_only_the_policies_concerned_need_it(base, message) -> None:  # rule 10
    critic = "policies.main.policy.value_head=true"
    load([base], ["advantage=ppo", critic, "policies.other={policy: words, trainable: false}"])
    assert "policy `other` (`words`) has none" in message("advantage: ppo\n", critic, "policies.other.policy=words")


def test_no_reference(base, message) -> None:  # rule 11
    message("regularizers: kl\n", says="`kl`")
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
    write("new.py", part.format("snapshot"))
    write("other.py", part.format("expert")), write("maker.py", "def make(): ...\n")
    load([base], ["environment=riddle", "strategy=other.py:F"])  # without a list, by the methods of the class
    load([base], ["environment=maker.py:make", "strategy=new.py:F"])
    said = message("strategy: new.py:F\n")
    assert "`new.py:F` uses `snapshot` of the environment, and `yard` has none." in said
    assert "• give `yard` the ability `snapshot`" in said


def test_no_expert_to_imitate(base, message) -> None:  # rule 12
    message("environment: fog\nwarm_start:\n  episodes: 4\n", says="`warm_start`")
    load([base], ["warm_start={}"])
    load([base], ["environment=fog", "warm_start.episodes=4", "warm_start=null"])


def test_settings_that_exclude_each_other(message) -> None:  # rule 13
    message("aggregate: {how: token-meen}\n", says="`aggregate.how`")
    message("aggregate:\n  how: constant-length\n", says="`aggregate.constant`")
    message("rollout:\n  step_seconds: 2\n", says="`rollout.workers`")


def test_names_held_equal_to_the_data_room() -> None:  # rule 13
    assert "state_key" not in FROM_EPISODES and "reward" in FROM_EPISODES


def test_what_declares_nothing_is_not_refused(base) -> None:  # rule 14
    load([base], ["environment=riddle", "advantage=gigpo"])
    load([base], ["policies.main.policy=unknown", "advantage=ppo"])


def test_lock_step(base, write, message) -> None:  # rule 15
    write("together.py", "class Together:\n    lock_step = True\n    def __init__(self, setup, settings): ...\n")
    write("slow.py", "class Slow:\n    waits = True\n    async def step(self, actions): ...\n")
    runner = "rollout.runner=together.py:Together"
    load([base], [runner])
    places = {"policies.main.policy": "policy", "program": "program", "environment": "environment"}
    for place, slot in {**places, "agents.*.tools.use": "tool"}.items():
        load([base], [f"{place}=slow.py:Slow"])
        message("", runner, f"{place}=slow.py:Slow", says=f"{slot} `slow.py:Slow` makes them wait")
    with told(RecipeError, "lock step") as caught:
        load([base, {"policies": {"main": {"policy": "slow.py:Slow"}}}], [runner])
    assert caught.value.where.startswith("command line")  # the later choice is at fault
