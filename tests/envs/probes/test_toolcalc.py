"""What must hold of `toolcalc`:

1. It keeps the contract of environments, with and without tools, with confirmed answers, and for other families.
2. The expert answers right with tools, and without tools if numbers are small. It needs no more turns than there are.
3. `calc` is right, and `head` only for small numbers. Another operation than the expression's gives another value.
4. A call that fails, is impossible or cannot be read gives a text that begins with `error:`, is counted and changes
   nothing. A share `failure` of possible calls fails, the same ones in the same task.
5. The numbers in `info` add up: calls, errors, answers, format.
6. With `confirm`, the episode ends with `done` and the last answer counts. Several answers have `format` 0.
7. Families and difficulties are as asked for, and splits differ.
8. An answer can have a number.
9. With tags, an act with unclosed or nested tags or text outside of them is a failed call.
10. With calls, each command is a tool, and a call does what the command does. A bad call is told and changes nothing.
11. The instruction has the commands that there are, in the form in which they are read.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from palaestra.data import Action, Task, ToolCall
from palaestra.envs.probes.toolcalc import ToolCalc
from palaestra.envs.probes.toolcalc_expressions import NAMES, build
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.envs.native_role import played
from tests.messages import told

PLAYER = "player"


def act(env, *texts):
    for text in texts:
        result = env.step({PLAYER: Action(text=text)})
    return result


def solve(env, task):
    """All step results of an episode that the expert plays."""
    results = [env.reset(task)]
    while results[-1].observations:
        results.append(env.step({PLAYER: env.expert(PLAYER)}))
    return results


def known(seed, **options):
    """An environment at the start of a seed's task, and the expression."""
    env = ToolCalc(**options)
    env.reset(Task(env="toolcalc", seed=seed))
    return env, env.snapshot().expression


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"confirm": True, "tags": True},
        {"tools": False},
        {"families": ["named"], "failure": 0.5},
        {"operations": [1, 6], "mental": 0},
    ],
)
def test_contract(options):  # rule 1
    check_environment(ToolCalc(**options), make=lambda: ToolCalc(**options))


def test_options_are_checked():
    with pytest.raises(RecipeError, match=r"`operations` is 4 to 2(.|\n)*Write `operations: \[2, 4\]`"):
        ToolCalc(operations=(4, 2))
    with pytest.raises(RecipeError, match="`families` is empty"):
        ToolCalc(families=())
    with pytest.raises(RecipeError, match="no call would ever work"):
        ToolCalc(failure=1.0)
    with told(RecipeError, "`tags: true` and `calls: true`"):
        ToolCalc(tags=True, calls=True)
    with pytest.raises(RecipeError, match="families"):
        ToolCalc(families=("huge",))
    with pytest.raises(ContractError, match="before `reset`"):
        act(ToolCalc(), "answer")


def test_the_expert_is_right():  # rule 2
    for options in ({}, {"confirm": True}, {"failure": 0.0, "operations": (1, 6), "max_turns": 13}):
        env = ToolCalc(**options)
        ends = [solve(env, task)[-1] for task in env.tasks("train", 60, 3)]
        assert all(end.info["success"] and end.info["well_formed"] and end.rewards[PLAYER] == 1 for end in ends)
    bare = ToolCalc(tools=False)
    won = Counter()
    for task in bare.tasks("train", 300, 3):
        results = solve(bare, task)
        won[results[0].info["stratum"], results[-1].info["success"]] += 1
    assert won["named", True] == 0
    assert won["small", True] > won["large", True] > 0


def test_tools_and_heads():  # rule 3
    for seed in range(200):
        env, expression = known(seed, failure=0.0, families=("small", "large"), max_turns=20)
        operation, start = expression.operations[0], env.snapshot()
        assert act(env, f"calc {operation}").info["process"] == {PLAYER: 1.0}
        assert env.snapshot().value == expression.results[1]
        env.restore(start)
        easy = start.easy(10)
        assert easy == (expression.numbers[0] < 10 and (operation != "times" or expression.start < 10))
        assert act(env, f"head {operation}").info["process"] == {PLAYER: float(easy)}
        assert (env.snapshot().value == expression.results[1]) == easy
        env.restore(start)
        other = {"plus": "minus", "minus": "plus", "times": "minus"}[operation]
        assert act(env, f"calc {other}").info["process"] == {PLAYER: 0.0}
        assert env.snapshot().place == 1


def test_errors_come_back_as_text():  # rule 4
    seed = next(seed for seed in range(1000) if build(2, 2, ("named",), seed).names[0])
    env, expression = known(seed, operations=(2, 2), families=("named",), failure=0.0)
    name = expression.names[0]
    other = next(one for one in NAMES if one not in expression.names)
    for text, said in (
        ("calc plus", f"error: {name} is not known."),
        (f"lookup {other}", f"error: no {other} here."),
        ("calc power", "error: cannot read that."),
        ("calc", "error: cannot read that."),
        ("", "error: cannot read that."),
    ):
        before = env.snapshot()
        result = act(env, text)
        after = env.snapshot()
        assert result.observations[PLAYER].text.startswith(said)
        assert result.info["tool_call"] == result.info["tool_error"] == {PLAYER: 1.0}
        assert result.info["executable"] == {PLAYER: 0.0}
        assert bool(result.info.get("invalid")) == ("read" in said)
        assert (after.value, after.place, after.known) == (before.value, before.place, before.known)
    act(env, f"lookup {name}")
    for operation in expression.operations[1:]:
        act(env, f"calc {expression.operations[0]}", *(f"lookup {n}" for n in expression.names[1:] if n))
        act(env, f"calc {operation}")
    assert "error: nothing is left." in act(env, "calc plus").observations[PLAYER].text
    assert act(env, "head plus").info["tool_call"] == {PLAYER: 0.0}


def test_a_share_of_calls_fails():  # rule 4
    def failures():
        found = []
        for seed in range(2000):
            env, expression = known(seed, families=("large",), failure=0.3)
            found.append(act(env, f"calc {expression.operations[0]}").info["tool_error"][PLAYER])
        return found

    first = failures()
    assert 0.27 < np.mean(first) < 0.33
    assert first == failures()


def test_without_tools_there_are_none():
    env, _ = known(4, tools=False)
    assert env.actions == ("head plus", "head minus", "head times", "answer")
    result = act(env, "calc plus")
    assert result.info["invalid"] == {PLAYER: True}
    assert result.info["tool_call"] == {PLAYER: 0.0} and result.info["calls"] == 0


def test_what_is_told_adds_up():  # rule 5
    env = ToolCalc(failure=0.3, confirm=True, max_turns=30)
    for task in env.tasks("eval", 50, 0):
        results = solve(env, task)[1:]
        told = {name: sum(r.info[name][PLAYER] for r in results) for name in ("tool_call", "tool_error", "answer")}
        last = results[-1].info
        assert (told["tool_call"], told["tool_error"], told["answer"]) == (
            last["calls"],
            last["errors"],
            last["answers"],
        )
        assert [r.info["format"][PLAYER] for r in results] == [0.0] * (len(results) - 1) + [1.0]
        texts = [r.observations[PLAYER].text for r in results if r.observations]
        assert sum(text.startswith("error:") for text in texts) == last["errors"]


def test_answers_that_are_confirmed():  # rule 6
    env, expression = known(5, confirm=True)
    assert "answered 1." in act(env, "answer 1").observations[PLAYER].text
    assert f"answered {expression.answer}." in act(env, f"answer {expression.answer}").observations[PLAYER].text
    end = act(env, "done")
    assert end.info["success"] and end.info["answers"] == 2 and not end.info["well_formed"]
    env, _ = known(5, confirm=True)
    end = act(env, "done")
    assert not end.observations and not end.info["success"] and not end.info["well_formed"]
    env, expression = known(5, confirm=True, max_turns=2)
    end = act(env, f"answer {expression.answer}", "calc plus")
    assert end.truncated and not end.info["success"]


def test_families_and_difficulty():  # rule 7
    env = ToolCalc(operations=(2, 4))
    tasks = env.tasks("train", 300, 0)
    strata = Counter(env.reset(task).info["stratum"] for task in tasks)
    assert set(strata) == {"small", "large", "named"} and min(strata.values()) > 60
    assert {env.difficulty(task) for task in tasks} == {2.0, 3.0, 4.0}
    for seed in range(100):
        assert max(build(2, 4, ("small",), seed).numbers) < 10
        assert any(build(2, 4, ("named",), seed).names)
        assert not any(build(2, 4, ("large",), seed).names)


def test_numbers_in_words():  # rule 8
    for text, right in (("answer {}", True), (" Answer  {} ", True), ("answer 0{}0", False)):
        env, expression = known(8, families=("small",), operations=(1, 1))
        end = act(env, text.format(expression.answer))
        assert end.info["success"] is right and end.info["format"] == {PLAYER: 1.0}
    env, _ = known(8)
    assert act(env, "answer 4 5").info["invalid"] and act(env, "answer ٣").info["invalid"]


def test_tags():  # rule 9
    env, expression = known(5, tags=True, failure=0.0, families=("small",), max_turns=20)
    call = f"calc {expression.operations[0]}"
    unreadable = (
        call,
        f"<tool> {call}",
        f"{call} </tool>",
        f"<tool> <tool> {call} </tool> </tool>",
        f"<tool> {call} </tool> so",
        f"<answer> {call} </answer>",
        f"<think> <tool> {call} </tool> </think>",
    )
    for text in unreadable:
        result = act(env, text)
        assert result.info["invalid"] == {PLAYER: True}
        assert result.info["tool_error"] == {PLAYER: 1.0}
        assert result.observations[PLAYER].text.startswith("error: cannot read that.")
    assert env.snapshot().place == 0
    assert act(env, f"<think> first </think> <tool> {call} </tool>").info["process"] == {PLAYER: 1.0}
    assert env.expert(PLAYER).text.startswith("<tool> ")


# ---- calls --------------------------------------------------------------------------------------------------
def called(tool, /, **arguments):
    return {PLAYER: Action(text="so:", tool_calls=[ToolCall(name=tool, arguments=arguments)])}


@pytest.mark.parametrize("options", [{}, {"confirm": True}, {"tools": False, "families": ["small"]}])
def test_the_expert_calls(options):  # rule 10
    env, words = (ToolCalc(**options, calls=calls) for calls in (True, False))
    check_environment(env, make=lambda: ToolCalc(**options, calls=True), episodes=2)
    solved = []
    for task in env.tasks("train", 40, 3):
        result, plain = env.reset(task), words.reset(task)
        assert all(json.loads(text)["name"] in env.instruction(PLAYER) for text in result.observations[PLAYER].legal)
        while result.observations:
            assert result.observations[PLAYER].text == plain.observations[PLAYER].text
            call = json.loads(env.expert(PLAYER).text)
            result = env.step(called(call["name"], **call["arguments"]))
            plain = words.step({PLAYER: words.expert(PLAYER)})
            assert result.info == plain.info and "invalid" not in result.info
        solved.append(result.info["success"])
    assert all(solved) or options.get("tools") is False


def test_tools_of_calls():  # rule 10
    def declared(**options):
        env, _ = known(5, calls=True, **options)
        told = env.instruction(PLAYER)
        assert "Commands" not in told and "calc plus" not in told
        return {
            one["function"]["name"]: one["function"]
            for one in env.reset(Task(env="toolcalc", seed=5)).observations[PLAYER].tools
        }

    assert list(declared()) == ["calc", "head", "lookup", "answer"]
    assert list(declared(confirm=True, tools=False)) == ["head", "answer", "done"]
    assert "ends the episode" not in declared(confirm=True)["answer"]["description"]
    assert declared()["lookup"]["parameters"]["properties"]["name"]["enum"] == list(NAMES)
    assert known(5)[0].reset(Task(env="toolcalc", seed=5)).observations[PLAYER].tools is None


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (called("power", operation="plus"), "there is no tool `power`"),
        (called("calc"), "the argument `operation` is missing"),
        (called("calc", operation="power"), "`operation` must be"),
        (called("calc", operation=3), "`operation` must be"),
        (called("answer", number="4"), "`number` must be an integer"),
        (called("answer", number=10**18), "`number` has more than 18 digits"),
        ({PLAYER: Action(tool_calls=[ToolCall(name="calc", arguments={"operation": "plus"})] * 2)}, "make one call"),
        ({PLAYER: Action(text="calc plus")}, "nothing was called"),
        ({PLAYER: Action(text='{"name": "calc", ')}, "this is no JSON"),
    ],
)
@pytest.mark.parametrize("tools", [True, False])
def test_bad_calls_are_told(act, said, tools):  # rule 10
    env, _ = known(5, calls=True, tools=tools)
    before = env.snapshot()
    result = env.step(act)
    after, text = env.snapshot(), result.observations[PLAYER].text
    assert text.startswith("error: ") and (said in text or (not tools and "there is no tool `calc`" in text))
    assert result.info["invalid"] == {PLAYER: True} and result.info["tool_error"] == {PLAYER: float(tools)}
    assert (after.value, after.place, after.answered) == (before.value, before.place, before.answered)


def test_numbers_of_calls():  # rule 10
    for number in (lambda right: right, float):
        env, expression = known(8, calls=True, families=("small",), operations=(1, 1))
        assert env.step(called("answer", number=number(expression.answer))).info["success"]
    env, _ = known(8, calls=True)
    assert env.step(called("answer", number=-3)).info["success"] is False and env.snapshot().answered == -3
    assert known(8, calls=True)[0].step({PLAYER: Action(value=0)}).info["tool_call"] == {PLAYER: 1.0}


def test_a_template_declares_the_tools(tmp_path):  # rule 10
    def make():
        return ToolCalc(calls=True, failure=0.0)

    (task,) = make().tasks("train", 1, 3)
    shown, text = played(make, task, tmp_path / "shown")
    assert shown.outcome == 1.0 and all(len(step.action.tool_calls) == 1 for step in shown.steps)
    assert text.count("Tell the number of a name.") == 1 and "\n- calc plus" not in text
    assert text.count("<tool_response>\n") == len(shown.steps) - 1
    wrong = [[ToolCall(name="calc", arguments={})], [ToolCall(name="calc", arguments={"operation": "plus"})] * 2]
    other, text = played(make, task, tmp_path / "other", replies=wrong)
    assert other.outcome == 1.0 and len(other.steps) == len(shown.steps) + 2
    assert "<tool_response>\nerror: the argument `operation` is missing" in text
    assert "<tool_response>\nerror: make one call in each turn, found 2" in text


def test_the_instruction_fits_the_options():  # rule 11
    bare, tagged = (known(5, **options)[0].instruction(PLAYER) for options in ({"tools": False}, {"tags": True}))
    assert "lookup" not in bare and "calc" not in bare and "head plus" in bare
    assert "Example: <tool> calc plus </tool>" in tagged and "between tags" in tagged
    assert "`done` ends the episode" in known(5, confirm=True)[0].instruction(PLAYER)
