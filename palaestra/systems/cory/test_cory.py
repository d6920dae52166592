"""A pioneer, an observer and the exchange of their roles. Each rule is pinned by a test that names it.

1. Both earn the sum of both answers; the outcome is the pioneer's; without `share` each earns its own.
2. The observer reads the query and the pioneer's answer, without `show` the query alone.
3. A template that lacks a placeholder is refused; braces in a query or an answer are not placeholders.
4. An answer that leaves no room is cut at its end, the query stays whole, and `info` has the share that was cut.
5. In evaluations the observer also answers alone, in a conversation of its own without reward; in training it does not.
6. Environments with several acts are refused.
7. The sum and the KL price, by numbers; a constant second reward changes no standardized advantage.
8. An exchange moves weights and references by one role, makes new optimizers and raises versions; two exchanges of two
   roles restore the weights. With `optimizers: kept` a run equals one in which the policies exchange their roles
   instead.
9. A run that is stopped after an exchange and resumed is the same byte for byte.
10. Refused: a period below 1, one role, a role twice, a role that no agent plays or that is frozen; policies that play
    two roles, are not trained, or differ from each other; stale episodes.
11. KL coefficients, by numbers: each role's own moves toward the target, by at most a fifth, and is in checkpoints.
12. Demonstrations teach both policies both prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.algebra import token_rewards
from palaestra.chat import LatestOnly
from palaestra.data import Batch, Iteration, Play, RunSetup, StepTable, Trajectory
from palaestra.envs.probes.alignment import Alignment
from palaestra.errors import RecipeError
from palaestra.parts.critics import ppo_max
from palaestra.parts.estimators import dr_mas
from palaestra.recipe import load
from palaestra.registry import part
from palaestra.rollout.programs import play as acting
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.cory.adaptive_kl import PPOAdaptiveKL
from palaestra.systems.cory.program import demonstrate, merged, pioneer_observer
from palaestra.systems.cory.role_exchange import RoleExchange
from palaestra.testing import EchoEnvironment, ScriptedPolicy, TinyModel
from palaestra.training.setup import build_setup
from palaestra.training.start import train
from tests.extras import some
from tests.golden_cases import Golden, golden_documents
from tests.messages import told
from tests.training.conftest import curve, stopped_before

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
    with pytest.raises(RecipeError, match="it lacks"):
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
SMALL: dict[str, Any] = {
    "seed": 3,
    "policies": {
        name: {"policy": {"language": {"hidden": 16, "layers": 1, "heads": 2, "vocabulary": 320}}}
        for name in ("main", "second")
    },
    "warm_start": {"episodes": 32, "epochs": 2},
    "rollout": {"tasks": 4, "response_tokens": 6},
    "optimizer": {"adamw": {"lr": 1e-2}},
    "training": {"iterations": 1, "minibatches": 1, "checkpoint_every": None},
    "evaluation": {"tasks": 4, "every": None},
}
BOTH = ("pioneer", "observer")


class Swapped:
    """A strategy: in odd iterations the policies play each other's roles."""

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        roles = dict(zip(BOTH, reversed(BOTH), strict=True)) if rollout.step % 2 else {}
        return await rollout.collect([replace(play, roles=roles) for play in plays])


def exchange(**options: Any) -> dict[str, Any]:
    return {"learner": [{"role_exchange": {"roles": list(BOTH), **options}}]}


def small(*layers: dict[str, Any], overrides: Sequence[str] = ()) -> Any:
    return load(["cory/recipe.yaml", SMALL, *layers], list(overrides))


def run(folder: Path, *layers: dict[str, Any], resume: bool = False, iterations: int = 1) -> Path:
    recipe = small(*layers, overrides=[f"run={folder}", f"training.iterations={iterations}"])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True, resume=resume)
    return folder


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").iterdir())[-1]


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def test_8_weights_and_references_move(tmp_path: Path) -> None:
    plain = last(run(tmp_path / "plain", {"learner": "policy_gradient"}))
    moved = last(run(tmp_path / "moved", exchange(every=1)))
    for kind in ("", ".reference"):
        one, other = (f"{name}{kind}.safetensors" for name in ("main", "second"))
        assert same(moved / one, plain / other) and same(moved / other, plain / one)
        assert not same(plain / one, plain / other)
    states = [json.loads((place / "state.json").read_text())["policies"]["main"] for place in (plain, moved)]
    assert states[1]["version"] == states[0]["version"] + 1
    kept = [torch.load(place / "learner.0.state.pt", weights_only=True) for place in (plain, moved)]
    assert [state["main"]["optimizer"]["steps"] for state in kept] == [2, 0]


def test_8_kept_optimizers_exchange_names_alone(tmp_path: Path) -> None:
    moved = run(tmp_path / "moved", exchange(every=1, optimizers="kept"), iterations=3)
    strategy = {"strategy": f"{Path(__file__).resolve()}:Swapped", "learner": "policy_gradient"}
    swapped = run(tmp_path / "swapped", strategy, iterations=3)
    names = ({}, {"main": "second", "second": "main"})
    for number, (one, other) in enumerate(zip(curve(moved), curve(swapped), strict=True)):
        assert one.pop("exchange/shift") == number % 2
        of = names[number % 2]
        for name in ("main", "second"):
            head = f"policy/{name}/"
            losses = {key: value for key, value in one.items() if key.startswith(head)}
            there = f"policy/{of.get(name, name)}/"
            assert losses == {key: other[key.replace(head, there)] for key in losses} and f"{head}loss" in losses
    for one, other in (("main", "second"), ("second", "main")):  # after three exchanges
        assert same(last(moved) / f"{one}.safetensors", last(swapped) / f"{other}.safetensors")


@pytest.mark.parametrize("optimizers", some(["kept", "new"], fast=1))
def test_9_resume_is_bit_for_bit(optimizers: str, tmp_path: Path) -> None:
    layers = [exchange(every=2, optimizers=optimizers), {"training": {"checkpoint_every": 1}}]
    whole = run(tmp_path / "whole", *layers, iterations=4)
    with stopped_before(3):  # an iteration after the exchange
        run(tmp_path / "parts", *layers, iterations=4)
    parts = run(tmp_path / "parts", *layers, iterations=4, resume=True)
    for name in sorted(path.name for path in last(whole).iterdir()):
        assert same(last(parts) / name, last(whole) / name), name
    assert same(parts / "metrics.jsonl", whole / "metrics.jsonl")


@pytest.mark.parametrize("options", [{"every": 0}, {"every": -5}, {"roles": BOTH[:1]}, {"roles": (*BOTH, "pioneer")}])
def test_10_bad_exchanges(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        RoleExchange(**{"roles": BOTH, **options})


OTHER_SIZE = {"policies": {"second": {"policy": {"language": {"hidden": 32}}}}}
OTHER_RATE = {"policies": {"second": {"optimizer": {"adamw": {"lr": 1e-3}}}}}


@pytest.mark.parametrize(
    ("layer", "options", "said"),
    [
        ({}, {"roles": ("pioner", "observer")}, r"there is no role `pioner`(.|\n)*Candidates: pioneer"),
        ({"agents": {"observer": {"frozen": True}}}, {}, r"agents\.observer\.frozen"),
        ({"policies": {"second": {"trainable": False}}}, {}, "do not have one trained policy each"),
        (OTHER_SIZE, {}, "differ in their architecture"),
        ({"reference": None, "policies": {"main": {"reference": "start"}}}, {}, "differ in their reference"),
        (OTHER_RATE, {"optimizers": "kept"}, "differ in their optimizer"),
        ({"training": {"lag": 1}}, {}, "after an exchange, stale or lagged episodes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_10_unlike_policies(layer: dict[str, Any], options: dict[str, Any], said: str) -> None:
    setup = build_setup(small({"regularizers": [], "advantage": "grpo", "rollout": {"group": 2}}, layer).settings)
    try:
        with pytest.raises(RecipeError, match=said):
            RoleExchange(**{"roles": BOTH, **options}).start(setup, setup.trained)
    finally:
        setup.runner.close()


def test_10_who_may_act() -> None:
    async def undeclared(episode: Any) -> None:
        await pioneer_observer(episode)

    setup = build_setup(small().settings)
    setup.program = undeclared
    RoleExchange(roles=BOTH).start(setup, setup.trained)  # a program without a declaration may use any role
    with pytest.raises(RecipeError, match="there is no role `pioner`"):
        RoleExchange(roles=("pioner", "observer")).start(setup, setup.trained)
    setup.roles = {"pioneer": setup.roles["pioneer"], "observer": setup.roles["pioneer"]}
    with told(RecipeError, "observer by main"):
        RoleExchange(roles=BOTH).start(setup, setup.trained)
    setup.program, setup.roles = acting, {}
    with pytest.raises(RecipeError, match="there is no role `pioneer`"):
        RoleExchange(roles=BOTH).start(setup, setup.trained)  # this program plays the environment's agents
    setup.runner.close()


# ---- the coefficients -------------------------------------------------------------------------------------
def test_11_coefficients_move_toward_the_target(golden: Golden) -> None:
    table = golden.cory  # drifts: 0 of the pioneer, 0.1 − 0.2 + 0.3 of the observer
    control = PPOAdaptiveKL(kl_coefficient=0.4, target=0.16, horizon=10)
    batch, seen = Batch.of((), table), Iteration({}, 0, seed=0, temperature=1.0, token_budget=64)
    assert control.update(batch, seen) == pytest.approx(
        {
            "kl_control/pioneer/kl": 0.0,
            "kl_control/pioneer/coefficient": 0.4 * (1 - 0.2 / 10),
            "kl_control/observer/kl": 0.2,
            "kl_control/observer/coefficient": 0.4 * (1 + 0.2 / 10),  # 0.2 / 0.16 − 1 is cut at 0.2
        },
        abs=1e-6,
    )
    other = PPOAdaptiveKL(kl_coefficient=0.4, target=0.19, horizon=1)
    other.load_state_dict(control.state_dict())
    coefficient = other.update(batch, seen)["kl_control/observer/coefficient"]
    assert coefficient == pytest.approx(0.408 * (1 + (0.2 / 0.19 - 1)), abs=1e-6)
    lone = PPOAdaptiveKL(horizon=1)
    lone.update(Batch.of((), table.replace(row_weight=[1.0, 0.0])), seen)
    assert lone.coefficients == {"pioneer": pytest.approx(0.4 * 0.8)}


def test_11_each_role_pays_its_own_price(golden: Golden) -> None:
    table = golden.cory.replace(value_old=[0.0] * 4, terminated=[True, True])
    options = {"gamma": 1.0, "lam": 1.0, "whiten": False}
    control = PPOAdaptiveKL(kl_coefficient=0.4, **options)
    assert torch.equal(control(table).advantage, ppo_max(table, kl_coefficient=0.4, **options).advantage)
    control.coefficients = {"observer": 0.1}
    assert control(table).advantage.tolist() == pytest.approx([1.5, 1.48, 1.49, 1.47])


# ---- demonstrations ---------------------------------------------------------------------------------------
def test_demonstrations_teach_both_sides() -> None:  # rule 12
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
