"""The program, the reward and the question pool of Search Self-Play:

1. The proposer acts until its question is asked; then each attempt has its own conversation, called by the proposer.
2. Questions that leak the answer, have unknown words, are too long, come too early or lead elsewhere are refused;
   without the check the last kind counts. Without documents no question is answerable.
3. The rewards have hand-derived numbers: solvers are paid for the given answer, proposers for difficulty.
4. Held-out and fixed tasks begin with the solver; a question that was asked before can be a task.
5. The stratum makes the batch the proposer's peers, and the other attempts the peers of an attempt.
6. Questions that do not count are replaced from the pool, which drops questions in time and is saved in checkpoints.
7. The expert's questions count and are answered; bad options are refused.
8. A question whose attempts a limit cut off does not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from palaestra.chat import LatestOnly
from palaestra.data import Action, Play, RunSetup, StepTable, Task, Trajectory
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.estimators import dr_mas
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.search_self_play.inquiry import Inquiry
from palaestra.systems.search_self_play.proposer import demonstrate, proposer_solver
from palaestra.systems.search_self_play.question_difficulty import question_difficulty
from palaestra.systems.search_self_play.question_pool import QuestionPool
from palaestra.testing import ScriptedPolicy, check_environment
from tests.golden_cases import Golden

SETTINGS = RolloutSettings(max_turns=100)
Say = Callable[[int, Any], str]


def acting(env: Inquiry, task: Task, *acts: str) -> list[Any]:
    """The results of the environment after these acts, each by the agent that is asked."""
    results = [env.reset(task)]
    for act in acts:
        ((name, _),) = results[-1].observations.items()
        results.append(env.step({name: Action(text=act, value=act)}))
    return results


def task_of(env: Inquiry, split: str = "train") -> Task:
    return env.tasks(split, 1, 0)[0]


def given(env: Inquiry, task: Task) -> str:
    return (env.reset(task).observations["proposer"].text or "").split()[1]


def expert_question(env: Inquiry, task: Task) -> tuple[list[str], str]:
    """The expert's acts up to its question, and the question."""
    result, acts = env.reset(task), list[str]()
    while "proposer" in result.observations:
        acts.append(env.expert("proposer").text or "")
        result = env.step({"proposer": Action(text=acts[-1], value=acts[-1])})
    return acts, acts[-1]


def setup_of(say: Say, env: Any) -> RunSetup:
    return RunSetup(
        environment_name="inquiry",
        make_environment=env,
        roles={name: Role(policy=ScriptedPolicy(say, name=name), context=LatestOnly()) for name in env().agents},
        program=proposer_solver,
        environment_options={},
    )


def play(say: Say, *, env: Any = Inquiry, tasks: Sequence[Task] | None = None, program: Any = None) -> list[Trajectory]:
    chosen = tasks or env().tasks("train", 1, 0)
    plays = [Play(task=task, group=f"g{place}", sample=0, seed=place) for place, task in enumerate(chosen)]
    return EpisodeRunner(setup_of(say, env), SETTINGS).collect(plays, program=program)


# ---- the program ------------------------------------------------------------------------------------------
def test_attempts_are_conversations() -> None:  # rule 1
    env = Inquiry(attempts=3)
    acts, _ = expert_question(env, task_of(env))
    answer = given(env, task_of(env))

    def say(turn: int, seen: Any) -> str:
        if seen.text.startswith("hide"):
            return acts[turn]
        return "search nothing" if turn == 0 else f"answer {answer}"

    (found,) = play(say, env=lambda: Inquiry(attempts=3))
    asked = len(acts)
    assert [(step.agent, step.invocation) for step in found.steps] == [("proposer", 0)] * asked + [
        ("solver", number) for number in (1, 1, 2, 2, 3, 3)
    ]
    assert {step.parent for step in found.steps[asked:]} == {asked - 1}
    assert found.steps[asked].observation.text == found.steps[asked + 2].observation.text, "attempts share no memory"
    assert [step.reward for step in found.steps[asked:]] == [0, 1, 0, 1, 0, 1]
    assert found.steps[asked - 1].info["solved"] == 1.0 and found.outcome == 1.0


# ---- questions --------------------------------------------------------------------------------------------
def test_questions_that_do_not_count() -> None:  # rule 2
    env = Inquiry(longest=2, noise_facts=0)
    task = task_of(env)
    answer = given(env, task)
    acts, question = expert_question(env, task)
    start, *relations = question.split()[1:]

    def fault(*moves: str, setup: Inquiry = env) -> str:
        return str(acting(setup, task, *moves)[-1].info.get("fault"))

    assert fault(*acts) == ""
    assert fault(f"search {answer}", f"ask {answer} home") == "leak"
    assert fault(f"search {answer}", f"ask {start}") == "unknown words"
    assert fault(f"search {answer}", f"ask {start} gloves") == "unknown words"
    assert fault(f"search {answer}", f"ask {start} home home home") == "too long"
    assert fault(question) == "few searches"
    assert fault(*acts[:-1], question, setup=Inquiry(least_searches=9, noise_facts=0)) == "few searches"
    assert fault(*["hm"] * 6) == "unasked"
    wrong = next(
        f"ask {name} {word}"
        for name in ("anna", "boris", *env_names(env, task))
        for word in ("friend", "home", "mayor")
        if name != answer and name in env_names(env, task) and leads(env, task, [name, word]) != answer
    )
    assert fault(f"search {answer}", wrong) == "unanswerable"
    assert fault(f"search {answer}", wrong, setup=Inquiry(check=False)) == ""
    blind = Inquiry(least_searches=0, noise_facts=0)
    assert fault(f"ask {start} {' '.join(relations)}", setup=blind) == "unanswerable", "no documents"
    assert all(not one.observations for one in acting(env, task, f"search {answer}", f"ask {answer} home")[-1:])


def env_names(env: Inquiry, task: Task) -> tuple[str, ...]:
    env.reset(task)
    return tuple(env.snapshot().graph.names)


def leads(env: Inquiry, task: Task, question: Sequence[str]) -> str | None:
    env.reset(task)
    found: str | None = env.snapshot().forward(question)
    return found


def test_by_numbers(golden: Golden) -> None:  # rule 3
    for case in golden.cases("question_difficulty"):
        assert question_difficulty(case.table, **case.options).tolist() == pytest.approx(case.expected)
    table = golden.search_self_play
    solver = table.replace(agent=["proposer", "solver"] * 5, reward=[0.0, 1.0] * 5)
    assert question_difficulty(solver).tolist() == [0.0, 1.0] * 5, "solvers keep their rewards"
    with pytest.raises(InvalidData, match="lies outside"):
        question_difficulty(table.replace(solved=[0.0, 1.5] + [0.0] * 8))
    with pytest.raises(RecipeError, match="not below"):
        question_difficulty(table, form="balanced", left=0.9, right=0.1)


def test_fixed_questions() -> None:  # rule 4
    held, fixed = Inquiry(), Inquiry(questions="fixed", hops=(2, 2))
    assert set(held.reset(task_of(held, "eval")).observations) == {"solver"}
    seen = fixed.reset(task_of(fixed)).observations
    assert set(seen) == {"solver"} and len((seen["solver"].text or "").split()) == 2 + 2 + 1
    while seen:
        action = fixed.expert("solver")
        result = fixed.step({"solver": Action(text=action.text, value=action.text)})
        seen = result.observations
    assert result.info["success"] and result.rewards == {"solver": 1.0}
    before = replace(task_of(held), params={**task_of(held).params, "question": ["anna", "home"], "answer": "elm"})
    shown = held.reset(before).observations["solver"].text
    assert shown == "find anna home ."
    assert held.step({"solver": Action(text="answer elm", value="answer elm")}).info["success"]


def test_peers() -> None:  # rule 5
    env = Inquiry(attempts=4)
    tasks = env.tasks("train", 2, 0)
    acts = {given(env, task): expert_question(env, task)[0] for task in tasks}
    tries = iter(range(100))

    def say(turn: int, seen: Any) -> str:
        if seen.text.startswith("hide"):
            return acts[seen.text.split()[1]][turn]
        return f"answer {sorted(acts)[next(tries) % 2]}"

    table = StepTable.from_trajectories(play(say, env=lambda: Inquiry(attempts=4), tasks=tasks))
    assert len({label for label in table.labels("stratum") if label is not None}) == 3
    paid = table.replace(reward=question_difficulty(table))
    found = dr_mas(paid, by=("stratum",), returns=("trajectory", "agent", "invocation"), scale="none")
    solving = [label == "solver" for label in (table.labels("agent")[code] for code in table["agent"])]
    for stratum in range(3):
        rows = table["stratum"] == stratum
        assert float(found[rows].sum()) == pytest.approx(0.0, abs=1e-5)
    assert any(abs(float(a)) > 0.1 for a, own in zip(found, solving, strict=True) if own)


# ---- the pool ---------------------------------------------------------------------------------------------
def pooled(
    strategy: QuestionPool, say: Say, *, step: int, tasks: Sequence[Task]
) -> tuple[list[Trajectory], RolloutContext]:
    runner = EpisodeRunner(setup_of(say, Inquiry), SETTINGS)
    plays = [Play(task=task, group=f"{step}-{i}", sample=0, seed=step * 10 + i) for i, task in enumerate(tasks)]
    rollout = RolloutContext(
        more=lambda groups: plays, settings=SETTINGS, sampling=runner.sampling(), step=step, seed=step
    )
    return runner.perform(plays, [strategy], rollout), rollout


def test_the_pool() -> None:  # rule 6
    env = Inquiry()
    tasks = env.tasks("train", 2, 0)
    acts = {given(env, task): expert_question(env, task)[0] for task in tasks}

    def good(turn: int, seen: Any) -> str:
        return acts[seen.text.split()[1]][turn] if seen.text.startswith("hide") else "answer elm"

    def bad(turn: int, seen: Any) -> str:
        return "ask me" if seen.text.startswith("hide") else "answer elm"

    strategy = QuestionPool(attempts=3, every=4)
    found, rollout = pooled(strategy, bad, step=0, tasks=tasks)
    assert len(found) == 2 and rollout.metrics == {"pool/size": 0.0, "pool/reused": 0.0}
    found, rollout = pooled(strategy, good, step=1, tasks=tasks)
    assert len(found) == 2 and len(strategy.pool) == 2
    state = strategy.state_dict()
    found, rollout = pooled(strategy, bad, step=2, tasks=tasks)
    assert rollout.metrics == {"pool/size": 2.0, "pool/reused": 2.0}
    again = found[2:]
    assert len(again) == 2 * 3 and all({step.agent for step in one.steps} == {"solver"} for one in again)
    assert {one.steps[0].observation.text for one in again} == {
        f"find {' '.join(own[-1].split()[1:])} ." for own in acts.values()
    }
    StepTable.from_trajectories(found)  # every group is of one task
    restored = QuestionPool(attempts=3, every=4)
    restored.load_state_dict(state)
    assert restored.pool == strategy.pool
    found, rollout = pooled(strategy, bad, step=4, tasks=tasks)
    assert len(found) == 2 and rollout.metrics["pool/size"] == 0.0
    halved = QuestionPool(attempts=3, every=4, keep=0.5)
    halved.load_state_dict(state)
    pooled(halved, bad, step=4, tasks=tasks)
    assert halved.pool == restored.pool[1:]


# ---- the expert -------------------------------------------------------------------------------------------
def test_the_expert() -> None:  # rule 7
    check_environment(Inquiry())
    found = play(
        lambda turn, seen: "", tasks=Inquiry().tasks("train", 30, 0), program=functools.partial(demonstrate, noise=0.0)
    )
    assert all(one.error is None for one in found)
    assert sum(bool(one.info.get("valid_questions")) for one in found) >= 28
    answered = [one for one in found if one.info.get("valid_questions")]
    assert sum(one.outcome == 1.0 for one in answered) >= 0.9 * len(answered)
    assert {one.info["asked_hops"] for one in answered} == {1.0, 2.0}
    with pytest.raises(RecipeError, match="first number is larger"):
        Inquiry(hops=(3, 1))


def test_cut_attempts() -> None:  # rule 8
    env = Inquiry(attempts=3)
    acts, _ = expert_question(env, task_of(env))

    def say(turn: int, seen: Any) -> str:
        return acts[turn] if seen.text.startswith("hide") else "answer nothing"

    play = Play(task=task_of(env), group="g", sample=0, seed=0)
    for turns, paid in ((len(acts) + 3, 1.0), (len(acts) + 2, -0.5)):
        runner = EpisodeRunner(setup_of(say, lambda: Inquiry(attempts=3)), RolloutSettings(max_turns=turns))
        table = StepTable.from_trajectories(runner.collect([play]))
        assert question_difficulty(table, penalty=-0.5)[len(acts) - 1] == paid
