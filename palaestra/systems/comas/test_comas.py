"""Discussions and their rewards. Each rule is pinned by a test that names it.

1. Every agent solves, evaluates and scores equally often, decided by the play's seed alone; its rows name its role.
2. Evaluators read question and solution, scorers also the evaluation; later solvers read earlier discussions.
3. Scores are 1, 2 or 3; anything else is invalid and counts as unreadable.
4. Rewards by numbers: solver and evaluator share 1, the scorer is paid for form alone.
5. Rewards do not change when outcomes do; the environment's reward is subtracted, and rows with rewards are refused.
6. Discussions without a role, invalid scores and templates that lack a placeholder are refused.
7. Random scores do not depend on the texts. Self-consistency pays the most frequent answers.
8. Demonstrations: solutions are the expert's, judges are wrong with probability `noise`; templates and rounds are those
   of the recipe.
9. Discussions that a limit cut off are left out, and a limit of turns that cuts every episode off is refused.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from palaestra.chat import LatestOnly
from palaestra.data import Iteration, Play, RunSetup, StepTable, StopReason, Trajectory, rows_of
from palaestra.envs.probes.sums import Sums, read, spell
from palaestra.errors import InvalidData, RecipeError
from palaestra.recipe import load
from palaestra.registry import part
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.systems.comas.discussion import demonstrate, discussion, score_of
from palaestra.systems.comas.interaction import interaction as interaction_part
from palaestra.systems.self_consistency import self_consistency
from palaestra.testing import EchoEnvironment, ScriptedPolicy, check_environment
from palaestra.training.preflight import check_start
from tests.golden_cases import Golden
from tests.messages import told
from tests.teams.playing import demonstrated


def interaction(table: StepTable, *, seed: int = 0, **options: Any) -> torch.Tensor:
    """The rewards of the part in an iteration of this seed."""
    return interaction_part(table, Iteration(seed=seed), **options)["reward"]


NAMES = ("agent_1", "agent_2", "agent_3")


def speaking(turn: int, seen: Any) -> str:
    """Wrong solutions that all differ, a criticism and a score."""
    if seen.text.endswith("?"):
        return "error"
    return "2" if seen.text.endswith("!") else f"9 9 {turn}"


def discuss(
    speak: Any = speaking,
    *,
    program: Any = None,
    env: Any = Sums,
    seed: int = 1,
    tasks: int = 1,
    turns: int = 20,
    **options: Any,
) -> list[Trajectory]:
    async def bound(episode: Any) -> None:
        await discussion(episode, **{"agents": 3, "rounds": 2, "references": 1, **options})

    bound.roles = NAMES  # type: ignore[attr-defined]
    setup = RunSetup(
        environment_name="sums",
        make_environment=env,
        roles={name: Role(policy=ScriptedPolicy(speak, name=name), context=LatestOnly()) for name in NAMES},
        program=bound,
        environment_options={},
    )
    plays = [
        Play(task=task, group=f"g{place}", sample=0, seed=seed + place)
        for place, task in enumerate(env().tasks("train", tasks, 0))
    ]
    return EpisodeRunner(setup, RolloutSettings(max_turns=turns)).collect(plays, program=program)


def duties(found: Trajectory) -> list[tuple[str, str, float]]:
    return [(step.agent, step.info["stratum"], step.info["discussion"]) for step in found.steps]


# ---- the program ------------------------------------------------------------------------------------------
def test_everybody_does_everything() -> None:  # rule 1
    (found,) = discuss()
    assert set(Counter((agent, duty) for agent, duty, _ in duties(found)).values()) == {2}, "once a round"
    for number in range(6):
        assert sorted(duty for _, duty, of in duties(found) if of == number) == ["evaluator", "scorer", "solver"]
    assert duties(found) == duties(discuss()[0])
    assert len({str(duties(discuss(seed=seed)[0])) for seed in range(6)}) > 1, "dealt by the seed"
    assert [duty for _, duty, _ in duties(found)] == 2 * (3 * ["solver"] + 3 * ["evaluator"] + 3 * ["scorer"])


def test_what_is_read() -> None:  # rule 2
    (found,) = discuss()
    texts = [step.observation.text or "" for step in found.steps]
    question, first = texts[0], [step.action.text for step in found.steps[:3]]
    assert texts[:3] == [question] * 3 and set(texts[3:6]) == {f"{question} = {said} ?" for said in first}
    assert set(texts[6:9]) == {f"{question} = {said} error !" for said in first}
    for text in texts[9:12]:
        assert text.removeprefix(question) in {f" ; {said} error" for said in first}
    (two,) = discuss(references=2)
    for step in two.steps[9:12]:
        earlier = (step.observation.text or "").split(" ; ")[1:]
        assert len(earlier) == 2
        assert len({step.observation.text for step in two.steps[:3]}) == 1
    (none,) = discuss(references=0)
    assert {step.observation.text for step in none.steps if step.info["stratum"] == "solver"} == {question}


def test_scores_are_read() -> None:  # rule 3
    assert [score_of(text) for text in ("3", " 1 ", "so <score> 2 </score>.")] == [3, 1, 2]
    assert [score_of(text) for text in ("0", "4", "2.5", "two", "", "<score>9</score> 3")] == [None] * 6
    (found,) = discuss(lambda turn, seen: "5" if seen.text.endswith("!") else speaking(turn, seen))
    scorers = [step for step in found.steps if step.info["stratum"] == "scorer"]
    assert {(step.info["score"], step.info["invalid"]) for step in scorers} == {(0.0, 1.0)}


def test_reports() -> None:  # rules 1, 5
    def knowing(turn: int, seen: Any) -> str:
        question = seen.text.split(" ;")[0].split(" =")[0]
        right = spell(sum(read(side) or 0 for side in question.split(" + ")), 3)
        if seen.text.endswith("!"):
            return "3" if f"= {right} " in seen.text else "1"
        return "fine" if seen.text.endswith("?") else right

    (found,) = discuss(knowing)
    assert {found.info[name] for name in ("accuracy", "majority", "judged")} == {1.0} and found.outcome == 1.0
    (wrong,) = discuss()
    assert wrong.info["accuracy"] == 0.0 and wrong.outcome == 0.0 and wrong.info["judged"] == 1.0
    assert {step.reward for one in (found, wrong) for step in one.steps} == {0.0}, "nobody is paid for the truth"


def test_episodes_of_one_act() -> None:  # rule 6
    (found,) = discuss(env=EchoEnvironment)
    assert found.error is not None and "go on after the first act" in found.error.message


@pytest.mark.parametrize("options", [{"score": "{question} {solution}"}, {"solve": "{question}"}, {"agents": 0}])
def test_bad_options(options: dict[str, Any]) -> None:  # rule 6
    with pytest.raises(RecipeError):
        part("program", "discussion").check(options, where="program")


# ---- what is paid -----------------------------------------------------------------------------------------
def test_by_numbers(golden: Golden) -> None:  # rule 4
    (case,) = golden.cases("interaction")
    paid = interaction(case.table)
    assert paid.tolist() == case.expected
    solved, found_fault = paid[[0, 1, 6]], paid[[2, 3, 8]]
    assert (solved + found_fault).tolist() == [1.0] * 3, "every valid score is shared"


def test_truth_changes_nothing(golden: Golden) -> None:  # rule 5
    (table,) = (case.table for case in golden.cases("interaction"))
    outcomes = [0.0] * 6 + [1.0] * 6
    one, other = (interaction(table.replace(outcome=values)) for values in (outcomes, outcomes[::-1]))
    assert one.tolist() == other.tolist()
    played = discuss(tasks=3)
    before = interaction(StepTable.from_trajectories(played))
    for trajectory, outcome in zip(played, (1.0, 0.0, 1.0), strict=True):
        trajectory.outcome = outcome
    assert interaction(StepTable.from_trajectories(played)).tolist() == before.tolist()
    assert sorted(set(before.tolist())) == [0.0, 0.5]
    with pytest.raises(InvalidData, match="rows have a reward already"):
        interaction(table.replace(reward=[1.0] + [0.0] * 11))


def test_bad_tables(golden: Golden) -> None:  # rule 6
    (table,) = (case.table for case in golden.cases("interaction"))
    for score in (4.0, -1.0, 1.5):
        with pytest.raises(InvalidData, match="1, 2 or 3"):
            interaction(table.replace(score=[0.0] * 4 + [score] + [0.0] * 7))
    duty = ["solver", "solver", "evaluator", "evaluator", "scorer", "scorer"]
    with told(InvalidData, "exactly one scorer"):
        interaction(table.replace(stratum=[*duty, *duty[:5], None]))
    with told(InvalidData, "exactly one solver"):
        interaction(table.replace(discussion=[0] * 12))


def test_discussions_that_were_cut_off() -> None:  # rule 9
    (cut,), (whole,) = discuss(turns=6), discuss()
    table, iteration = StepTable.from_trajectories([cut]), Iteration(rows=rows_of([cut]))
    found = interaction_part(table, iteration)
    assert cut.stop is StopReason.MAX_TURNS and found["row_weight"].tolist() == [1.0] * 9 + [0.0] * 3
    assert found["reward"][:9].tolist() == interaction(StepTable.from_trajectories([whole]))[:9].tolist()
    assert iteration.metrics == {"interaction/left_out": 0.5}
    with told(InvalidData, "exactly one evaluator"):
        interaction_part(table, Iteration())
    for turns in (6, 7):
        recipe = load(["comas"], [f"rollout.max_turns={turns}"])
        with nullcontext() if turns == 7 else told(RecipeError, "need 7 turns"):
            check_start(recipe.settings, recipe.to_json())


def test_controls(golden: Golden) -> None:  # rule 7
    (table,) = (case.table for case in golden.cases("interaction"))
    said = table.replace(score=[0.0] * 4 + [3.0, 3.0] + [0.0] * 4 + [1.0, 1.0])
    one, other = (interaction(each, scores="random") for each in (table, said))
    assert one.tolist() == other.tolist() and one[[4, 5, 10, 11]].tolist() == [0.0] * 4
    assert len({str(interaction(table, scores="random", seed=seed).tolist()) for seed in range(8)}) > 1
    answers = ["7", "7", "x", "x", "3", "3", "7", "8", "x", "x", "1", "1"]
    answered = table.replace(action_key=answers)
    assert self_consistency(answered, stratum="solver").tolist() == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    tied = table.replace(action_key=["7", "8", *answers[2:7], "9", *answers[8:]])
    assert self_consistency(tied, stratum="solver", by=("trajectory",)).tolist() == [1, 1] + [0] * 4 + [1, 1] + [0] * 4
    assert self_consistency(answered).tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    with pytest.raises(InvalidData, match="no row is an answer"):
        self_consistency(answered, stratum="poet")


# ---- demonstrations and the task --------------------------------------------------------------------------
def test_demonstrations() -> None:  # rule 8
    async def noisy(episode: Any) -> None:
        await demonstrate(episode, noise=0.25)

    found = discuss(program=noisy, env=lambda: Sums(slips=0.5), tasks=40)
    assert all(one.error is None for one in found)
    assert 0.3 < sum(one.info["accuracy"] for one in found) / 40 < 0.7
    assert 0.6 < sum(one.info["judged"] for one in found) / 40 < 0.9
    steps = [step for one in found for step in one.steps if step.info["stratum"] != "solver"]
    says = {(step.info["stratum"], step.action.text) for step in steps}
    assert says == {("evaluator", "fine"), ("evaluator", "error"), ("scorer", "3"), ("scorer", "1")}


def test_demonstrations_of_a_recipe() -> None:  # rule 8
    wording = {
        "solve": "SOLVE {question}{earlier}",
        "earlier": " BEFORE {solution}",
        "evaluate": "DOUBT {question} {solution}",
        "score": "SCORE {question} {solution} {evaluation}",
    }
    silent = {"agent_1": ["x"], "agent_2": ["x"]}
    found = demonstrated(discussion, silent, options={"agents": 2, "rounds": 3, **wording}, environment=Sums, count=4)
    for one in found:
        assert one.error is None and len(one.steps) == 3 * 3 * 2
        begins = {(step.info["stratum"], (step.observation.text or "").split()[0]) for step in one.steps}
        assert begins == {("solver", "SOLVE"), ("evaluator", "DOUBT"), ("scorer", "SCORE")}
    assert any("BEFORE" in (step.observation.text or "") for one in found for step in one.steps)
    (short,) = demonstrated(discussion, silent, options={"agents": 2, "rounds": 1}, environment=Sums)
    assert len(short.steps) == 3 * 2


def test_sums() -> None:
    check_environment(Sums())
    env = Sums(digits=2)
    task = env.tasks("train", 1, 0)[0]
    text = env.reset(task).observations["solver"].text or ""
    one, other = (read(side) for side in text.split(" + "))
    assert one is not None and other is not None and len(text) == 9
    said = env.expert("solver")
    assert read(said.text or "") == one + other and len((said.text or "").split()) == 3
    assert env.step({"solver": said}).info["success"]
    slipping = Sums(slips=1.0)
    slipping.reset(task)
    wrong = {read(slipping.expert("solver").text or "") for _ in range(6)}
    assert one + other not in wrong and len(wrong) > 1, "each call slips anew"
    assert read("1 x") is None and read("") is None and spell(7, 3) == "0 0 7"
