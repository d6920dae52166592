"""A pioneer, an observer and the exchange of their roles. Each rule is pinned by a test that names it.

1. Both earn the sum of both answers; the outcome is the pioneer's; without `share` each earns its own.
2. The observer reads the query and the pioneer's answer, without `show` the query alone.
3. A template that lacks a place is refused; braces in a query or an answer are no places.
4. An answer that leaves no room is cut at its end, the query stays whole, and `info` says so.
5. In evaluations the observer also answers alone, in a conversation of its own, which nobody is paid for; in training
   it does not.
6. Environments of several acts are refused.
7. The sum and a price on the drift, by numbers; a constant second reward changes no standardized advantage.
8. Roles move after `every` iterations; two moves of two roles are none; who plays is the other policy.
9. A period below 1, one role, a role twice, a role that nobody plays and plays that give roles away are refused.
10. Demonstrations teach both policies both sides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from palaestra.algebra import token_rewards
from palaestra.chat import LatestOnly
from palaestra.data import Play, RunSetup, StepTable, Trajectory
from palaestra.envs.probes.alignment import Alignment
from palaestra.errors import RecipeError
from palaestra.parts.estimators import dr_mas
from palaestra.registry import part
from palaestra.rollout.programs import play as acting
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.cory.program import demonstrate, merged, pioneer_observer
from palaestra.systems.cory.role_exchange import RoleExchange
from palaestra.testing import EchoEnvironment, ScriptedPolicy, TinyModel
from tests.golden_cases import Golden, golden_documents

FIRST, SECOND = "lovely lovely lovely", "lovely lovely the sea is wide and deep"


def setup_of(policies: dict[str, Any], program: Any = pioneer_observer, env: Any = Alignment) -> RunSetup:
    return RunSetup(
        environment_name="alignment",
        make_environment=env,
        roles={name: Role(policy=policy, context=LatestOnly()) for name, policy in policies.items()},
        program=program,
        environment_options={},
    )


def scripted() -> dict[str, Any]:
    return {"pioneer": ScriptedPolicy([FIRST], name="a"), "observer": ScriptedPolicy([SECOND], name="b")}


def play(policies: dict[str, Any] | None = None, *, temperature: float | None = None, **more: Any) -> Trajectory:
    options = {key: more.pop(key) for key in ("template", "show", "share") if key in more}

    async def program(episode: Any) -> None:
        await pioneer_observer(episode, **options)

    setup = setup_of(policies or scripted(), more.pop("program", program), more.pop("env", Alignment))
    runner = EpisodeRunner(setup, RolloutSettings(max_turns=8, response_tokens=8))
    task = setup.make_environment().tasks("train", 1, 0)[0]
    (found,) = runner.collect([Play(task=task, group="g", sample=0, seed=1, **more)], temperature=temperature)
    return found


# ---- the program ------------------------------------------------------------------------------------------
def test_both_earn_the_sum() -> None:  # rule 1
    found = play()
    assert found.returns == pytest.approx({"pioneer": 3 / 6 + 2 / 6, "observer": 3 / 6 + 2 / 6})
    assert [step.reward for step in found.steps] == pytest.approx([5 / 6, 5 / 6])
    assert (found.info["pioneer"], found.info["observer"]) == pytest.approx((3 / 6, 2 / 6))
    assert found.outcome == 0.0 and found.info["proxy"] == pytest.approx(3 / 6)  # the pioneer's
    assert play(share=False).returns == pytest.approx({"pioneer": 3 / 6, "observer": 2 / 6})


def test_what_the_observer_reads() -> None:  # rule 2
    query, beside = (step.observation.text for step in play().steps)
    assert query is not None and beside == f"{query} said: {FIRST}. now?"
    assert {step.observation.text for step in play(show=False).steps} == {query}


@pytest.mark.parametrize("template", ["improve {answer}", "{query} again", ""])
def test_templates_must_hold_both(template: str) -> None:  # rule 3
    with pytest.raises(RecipeError, match="does not hold"):
        part("program", "pioneer_observer").check({"template": template}, where="program")


def test_braces_in_texts_are_no_places() -> None:  # rule 3
    assert merged("{answer} / {query} / {answer}", "q {answer}", "a {query}") == "a {query} / q {answer} / a {query}"


def test_long_answers_are_cut() -> None:  # rule 4
    policies = {"pioneer": ScriptedPolicy([" ".join(["lovely"] * 40)]), "observer": TinyModel(context=96)}
    found = play(policies)
    query, beside = (step.observation.text or "" for step in found.steps)
    words = beside.removeprefix(f"{query} said: ").removesuffix(". now?").split()
    assert beside.startswith(query) and 0 < len(words) < 40
    assert found.info["cut"] == pytest.approx(1 - len(words) / 40)
    room = 96 - len(found.prompt_of(found.steps[1]))
    assert 8 <= room < 8 + 8, "one more word would have left too little for a response of 8"
    assert play().info["cut"] == 0.0


def test_evaluations_hear_the_observer_alone() -> None:  # rule 5
    assert "observer_alone" not in play().info
    told = ScriptedPolicy(lambda turn, seen: "lovely" if "said:" in (seen.text or "") else SECOND)
    found = play({**scripted(), "observer": told}, temperature=0.0)
    assert [step.invocation for step in found.steps] == [0, 0, 1]
    assert (found.info["observer"], found.info["observer_alone"]) == pytest.approx((1 / 6, 2 / 6))
    assert found.info["pioneer"] == pytest.approx(3 / 6) and found.outcome == 0.0
    assert found.returns == pytest.approx({"pioneer": 4 / 6, "observer": 4 / 6}), "two answers, as in training"
    assert [step.reward for step in found.steps] == pytest.approx([4 / 6, 4 / 6, 0.0])


def test_one_act_only() -> None:  # rule 6
    found = play(env=EchoEnvironment)
    assert found.error is not None and "go on after the first act" in found.error.message


# ---- credit -----------------------------------------------------------------------------------------------
def test_by_numbers(golden: Golden) -> None:  # rule 7
    (document,) = (each for each in golden_documents() if each["name"] == "cory")
    case = document["token_rewards"]
    found = token_rewards(golden.cory, kl=case["kl"], where="")
    assert found.tolist() == pytest.approx(case["expected"], abs=1e-6)


def test_a_constant_partner_changes_nothing() -> None:  # rule 7
    own, agents = [0.6, 0.1, 0.3, 0.9], ["pioneer", "observer"] * 4
    columns = {"group": ["g"] * 8, "trajectory": [t for t in "abcd" for _ in "po"], "turn": [0, 1] * 4}

    def advantages(second: float) -> list[float]:
        reward = [r + second for r in own for _ in "po"]
        table = StepTable(**columns, agent=agents, reward=reward)
        found = dr_mas(table, by=("group", "agent"), returns=("trajectory", "agent"))
        return [float(found[row]) for row in range(0, 8, 2)]

    assert advantages(0.25) == pytest.approx(advantages(0.0), abs=1e-5)


# ---- the exchange -----------------------------------------------------------------------------------------
def exchanged(
    step: int, *, roles: tuple[str, ...] = ("pioneer", "observer"), program: Any = pioneer_observer,
    frozen: bool = False, given: Any = None,
) -> tuple[list[Trajectory], RolloutContext]:  # fmt: skip
    setup = setup_of(scripted(), program)
    if frozen:
        setup.roles = {name: replace(role, frozen=True) for name, role in setup.roles.items()}
    runner, source = EpisodeRunner(setup, RolloutSettings(max_turns=8)), Alignment()
    task = source.tasks("train", 1, 0)[0]
    plays = [Play(task=task, group="g", sample=0, seed=1, roles=given or {})]
    rollout = RolloutContext(
        more=lambda groups: plays, settings=RolloutSettings(), sampling=runner.sampling(), step=step, seed=0,
        setup=replace(setup, source=source),
    )  # fmt: skip
    strategy = RoleExchange(roles=roles, every=5)
    return runner.perform(plays, [strategy], rollout), rollout


def test_roles_move() -> None:  # rule 8
    strategy = RoleExchange(roles=("pioneer", "observer"), every=5)
    swapped = {"pioneer": "observer", "observer": "pioneer"}
    found = [strategy.exchanged(step) for step in (0, 4, 5, 9, 10, 14, 15)]
    assert found == [{}, {}, swapped, swapped, {}, {}, swapped]
    three = RoleExchange(roles=("a", "b", "c"), every=1)
    assert [three.exchanged(step).get("a", "a") for step in range(4)] == ["a", "b", "c", "a"]
    for step in range(6):
        assert sorted(three.exchanged(step).values()) in ([], ["a", "b", "c"]), "nobody plays twice"


def test_the_other_policy_plays() -> None:  # rule 8
    for step, policies in ((0, ["a", "b"]), (5, ["b", "a"]), (10, ["a", "b"])):
        (found,), rollout = exchanged(step)
        assert [(one.agent, one.policy) for one in found.steps] == list(
            zip(["pioneer", "observer"], policies, strict=True)
        )
        assert rollout.metrics["exchange/shift"] == float(policies == ["b", "a"])


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"every": -5}, {"roles": ("pioneer",)}, {"roles": ("pioneer", "pioneer")}]
)
def test_bad_exchanges(options: dict[str, Any]) -> None:  # rule 9
    with pytest.raises(RecipeError):
        RoleExchange(**{"roles": ("pioneer", "observer"), **options})


def test_roles_that_nobody_plays() -> None:  # rule 9
    with pytest.raises(RecipeError, match=r"nobody is called `pioner`(.|\n)*Candidates: pioneer"):
        exchanged(0, roles=("pioner", "observer"))
    with pytest.raises(RecipeError, match=r"nobody is called `pioneer`"):
        exchanged(0, program=acting)  # there the environment's agents act

    async def undeclared(episode: Any) -> None:
        await pioneer_observer(episode)

    assert len(exchanged(5, program=undeclared)[0]) == 1  # then any role of the recipe may act
    with pytest.raises(RecipeError, match=r"nobody is called `pioner`"):
        exchanged(5, program=undeclared, roles=("pioner", "observer"))


def test_frozen_roles_stay_where_they_are() -> None:  # rule 9
    with pytest.raises(RecipeError, match=r"agents.pioneer.frozen"):
        exchanged(0, frozen=True)


def test_roles_of_one_s_own() -> None:  # rule 9
    with pytest.raises(Exception, match="gives roles away already"):
        exchanged(0, given={"pioneer": "observer"})


# ---- demonstrations ---------------------------------------------------------------------------------------
def test_demonstrations_teach_both_sides() -> None:  # rule 10
    async def quiet(episode: Any) -> None:
        await demonstrate(episode, noise=0.0)

    async def noisy(episode: Any) -> None:
        await demonstrate(episode, noise=1.0)

    found = play(program=quiet)
    sides = {(step.policy, "said:" in (step.observation.text or "")) for step in found.steps}
    assert sides == {("a", False), ("a", True), ("b", False), ("b", True)}
    assert len({step.action.text for step in found.steps}) == 1
    right = found.steps[0].action.text or ""
    assert f"said: {right}." in (found.steps[1].observation.text or "")
    assert f"said: {right}." not in (play(program=noisy).steps[1].observation.text or "")
