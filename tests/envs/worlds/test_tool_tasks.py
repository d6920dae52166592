"""What must hold of `tool_tasks`:

1. It keeps the contract of environments, in all formats, with several tools, noise and budgets.
2. The built-in sums: answers by hand, the same sums in other words, options, splits, determinism.
3. The reward of a right answer is 1, and of a wrong one 0. Calls, failures, faults and costs add up. Unreadable acts
    are marked.
4. The expert is right in each task, from any state, with any tools. Random play is not.
5. Results have the names r1, r2 … Several calls in one act run at the same time. After a failed call the agent reads
    the error, and the episode continues.
6. Limits end an episode with their reason: too many calls, too many unreadable acts, too many turns.
7. Tools come by name, from files and from servers, with options. Impossible ones are refused before anything is played.
8. Snapshots are refused if the state of a tool cannot be restored.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from palaestra.data import Action, Task, ToolCall
from palaestra.envs.worlds.tool_tasks.goods import make_problem
from palaestra.envs.worlds.tool_tasks.world import ToolTasks
from palaestra.errors import ContractError, InvalidData, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.messages import told

A = "player"
SERVER = [sys.executable, str(Path(__file__).parents[2] / "tools" / "mcp_server.py")]


def run(waited):
    return asyncio.run(waited)


async def acted(env, *texts):
    for text in texts:
        result = await env.step({A: Action(text=text)})
    return result


def started(seed=2, **options):
    """An environment at the start of a task, and its problem."""
    env = ToolTasks(**options)
    run(env.reset(Task(env="tool_tasks", seed=seed)))
    return env, env.snapshot().problem


def solved(env, tasks):
    """How often the expert is right, and the most turns it took."""

    async def play():
        right, most = 0, 0
        for task in tasks:
            result, turns = await env.reset(task), 0
            while result.observations:
                result, turns = await env.step({A: env.expert(A)}), turns + 1
            right, most = right + result.info["success"], max(most, turns)
        await env.close()
        return right, most

    return run(play())


# ---- rules 1 and 2 ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"refer": True, "manual": False, "noise": 0.3},
        {"format": "json", "tools": ("sql", "calculator")},
        {"format": "code", "tools": ("search", "calculator"), "wording": "trees"},
        {"format": "tagged", "memory": False, "max_calls": 3, "max_faults": 2},
        {"facts": (1, 1), "names": 2, "tools": ("lookup",)},
    ],
)
def test_contract(options):
    check_environment(ToolTasks(**options), make=lambda: ToolTasks(**options))


def test_problems():
    problem = make_problem(facts=(3, 3), names=4, largest=9, wording="goods", seed=6)
    trees = make_problem(facts=(3, 3), names=4, largest=9, wording="trees", seed=6)
    values = [problem.table[fact] for fact in problem.facts]
    expected = values[0]
    for sign, value in zip(problem.signs, values[1:], strict=True):
        expected = {"+": expected + value, "-": expected - value, "*": expected * value}[sign]
    assert problem.answer == trees.answer == str(expected)
    assert list(problem.table.values()) == list(trees.table.values()) and problem.question != trees.question
    assert problem.names == ["apple", "bread", "candle", "drum"] and max(problem.table.values()) <= 9
    assert problem.expression(["a", "b", "c"]) == f"( a {problem.signs[0]} b ) {problem.signs[1]} c"
    counts = {len(make_problem(facts=(1, 3), names=4, largest=9, wording="goods", seed=s).facts) for s in range(50)}
    assert counts == {1, 2, 3}


def test_splits_share_nothing():
    env = ToolTasks()
    train, held_out = ({task.seed for task in env.tasks(split, 300, 0)} for split in ("train", "eval"))
    assert not train & held_out and len(train) == 300


# ---- rules 3 and 5 ----------------------------------------------------------------------------------------
def test_an_episode_by_hand():
    env, problem = started(facts=(2, 2), refer=True, tools=("lookup", {"calculator": {"cost": 0.25}}))
    (n1, c1), (n2, c2) = problem.facts
    v1, v2 = problem.table[n1, c1], problem.table[n2, c2]
    first = run(acted(env, f"lookup {n1} {c1}\nlookup {n2} {c2}"))
    assert first.info["tool_call"] == {A: 2.0} and first.info["tool_error"] == {A: 0.0}
    lines = first.observations[A].text.splitlines()
    assert lines == [
        f"r1 lookup {n1} {c1}: {v1}",
        f"r2 lookup {n2} {c2}: {v2}",
        f"question: {problem.question}",
    ]
    wrong = run(acted(env, "lookup axe price\nlookup apple length\nlookup apple"))
    assert wrong.info["tool_error"] == {A: 3.0} and wrong.info["faults"] == {"arguments": 1, "raised": 2}
    text = wrong.observations[A].text
    assert "error: no axe price; there are: apple, bread" in text and "error: no apple length; there are: price" in text
    assert "error: the argument `column` is missing: a text" in text
    assert "error:" not in run(acted(env, f"lookup {n1} {c1}")).observations[A].text  # errors are shown once
    total = run(acted(env, f"calculator r1 {problem.signs[0]} r2"))
    assert total.observations[A].text.splitlines()[2].endswith(f"r2: {problem.answer}")
    assert (total.info["calls"], total.info["cost"]) == (7, 0.25)
    end = run(acted(env, "answer r3"))
    assert end.info["success"] and end.rewards == {A: 1.0} and end.terminated == {A} and not end.observations


def test_wrong_answers_and_unreadable_acts():
    env, problem = started(refer=False)
    for text in ("", "hello", "r1", "??"):
        result = run(acted(env, text))
        assert result.info["invalid"] == {A: True} and result.info["tool_error"] == {A: 1.0}
        assert "error: nothing was called. Call a tool, or write: answer 42" in result.observations[A].text
    assert result.info["faults"] == {"unreadable": 4} and result.info["calls"] == 0
    assert "error: no a b c; there are: apple" in run(acted(env, "lookup a b c")).observations[A].text
    end = run(acted(env, "answer r1"))
    assert end.info["success"] is False and end.rewards == {A: 0.0}
    run(env.reset(Task(env="tool_tasks", seed=2)))
    assert run(acted(env, f"lookup apple price\nanswer {problem.answer}.0")).info["success"]
    with pytest.raises(ContractError, match="before `reset`"):
        run(ToolTasks().step({A: Action(text="answer 1")}))


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("json", '{"name": "answer", "arguments": {"text": 42}}'),
        ("tagged", "so it is <answer>42</answer>"),
        ("code", "answer('42')"),
        ("words", "answer 42"),
    ],
)
def test_answers_in_all_formats(format, text):
    env, _ = started(format=format)
    end = run(acted(env, text))
    assert end.terminated == {A} and end.info["calls"] == 0


def test_parsed_calls_are_taken():
    env, _ = started()
    call = ToolCall(name="lookup", arguments={"name": "apple", "column": "price"})
    result = run(env.step({A: Action(text="I call.", tool_calls=[call])}))
    assert "r1 lookup apple price: " in result.observations[A].text


def test_results_do_not_repeat_a_call_that_the_dialogue_shows():
    call = ToolCall(name="lookup", arguments={"name": "apple", "column": "price"})
    for calls, lines in (([call], 1), ([call, call], 2)):
        env, _ = started(memory=False)
        said = run(env.step({A: Action(text="", tool_calls=calls)})).observations[A].text.splitlines()
        assert len(said) == lines and all(line.startswith("lookup apple price: ") for line in said) == (lines > 1)
        env, _ = started(memory=False)
        assert run(acted(env, "lookup apple price")).observations[A].text.startswith("lookup apple price: ")


def test_noise_fails_the_same_calls():
    def failed():
        found = []
        for seed in range(100):
            env, _ = started(seed=seed, noise=0.3)
            found.append(run(acted(env, "lookup apple price")).info["tool_error"][A])
        return found

    first = failed()
    assert first == failed() and 0.2 < sum(first) / 100 < 0.4


# ---- rule 4 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        {"facts": (1, 4)},
        {"refer": True, "facts": (1, 4)},
        {"tools": ("sql", "calculator"), "format": "tagged"},
        {"tools": ("search", "calculator"), "format": "json"},
        {"tools": ("calculator",), "format": "code"},
        {"tools": ("lookup",), "memory": False},
        {"refer": True, "noise": 0.3, "max_turns": 40},
    ],
)
def test_the_expert_is_right(options):
    env = ToolTasks(**options)
    tasks = env.tasks("train", 200 if options.get("refer") else 40, 1)
    right, most = solved(env, tasks)
    assert right == len(tasks)
    if not options.get("noise"):
        assert most <= options.get("facts", (2, 3))[1] + 2


def test_the_expert_goes_on_after_others():
    async def play(task, draw):
        result = await env.reset(task)
        for _ in range(3):
            legal = [act for act in result.observations[A].legal if not act.startswith("answer")]
            result = await env.step({A: Action(text=draw.choice(legal))})
        while result.observations:
            result = await env.step({A: env.expert(A)})
        return result.info["success"]

    for refer in (True, False):
        env = ToolTasks(refer=refer)
        assert all(run(play(task, random.Random(7))) for task in env.tasks("train", 40, 2))


def test_random_play_is_not_right():
    async def play(task, draw):
        result = await env.reset(task)
        while result.observations:
            result = await env.step({A: Action(text=draw.choice(result.observations[A].legal))})
        return result.info["success"]

    env, draw = ToolTasks(), random.Random(5)
    assert sum(run(play(task, draw)) for task in env.tasks("train", 100, 3)) < 20


# ---- rule 6 -----------------------------------------------------------------------------------------------
def test_budgets_end_episodes():
    env, _ = started(max_calls=2)
    result = run(acted(env, "lookup apple price\nlookup bread price"))
    assert result.observations
    end = run(acted(env, "lookup apple weight"))
    assert end.truncated == {A} and end.info["stop"] == "max_tool_calls" and end.info["success"] is False
    assert "error: no calls are left: 2 were made" in end.last[A].text
    env, _ = started(max_faults=2)
    end = run(acted(env, "hm", "hm"))
    assert end.truncated == {A} and end.info["stop"] == "parse_error"
    env, _ = started(max_turns=2)
    end = run(acted(env, "lookup apple price", "lookup apple price"))
    assert end.truncated == {A} and "stop" not in end.info and end.last[A].text
    env, problem = started(max_turns=1)
    assert run(acted(env, f"answer {problem.answer}")).terminated == {A}


# ---- rules 7 and 8 ---------------------------------------------------------------------------------------
FUNCTIONS = '''
from palaestra.tools import tool

def double(number: int) -> int:
    """Double a number."""
    return 2 * number

@tool(name="three_times")
def triple(number: int) -> int:
    """Triple a number."""
    return 3 * number

def bad(number):
    """No kind."""
'''


def test_tools_of_all_kinds(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    server = {"mcp": {"command": SERVER, "only": ["add"], "cost": 2.0}}
    tools = (f"{path}:double", {f"{path}:triple": {"cost": 0.5}}, "sql", server)
    env = ToolTasks(tools=tools)

    async def play():
        first = await env.reset(Task(env="tool_tasks", seed=2))
        assert all(f"\n{name}" in first.observations[A].instruction for name in ("double", "three_times", "sql", "add"))
        result = await acted(env, "double 4\nthree_times 4\nadd 1 2\ntables\nsql SELECT count(*) FROM goods")
        await env.close()
        return result

    result = run(play())
    assert result.info["calls"] == 5 and result.info["cost"] == 2.5 and result.info["faults"] == {}
    text = result.observations[A].text
    assert "double 4: 8" in text and "three_times 4: 12" in text and "add 1 2: 3" in text
    assert "goods(name, price, weight, stock)" in text and "count(*)\n6" in text
    with told(ContractError, "tools"):
        env.snapshot()


def test_documents_and_databases(tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"id": "a", "text": "The tower is 300 m high."}\n{"id": "b", "text": "Bread is baked."}')
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "how high is the tower?", "answer": "300", "split": "train"}')
    env = ToolTasks(questions=str(questions), tools=({"search": {"documents": str(texts), "k": 1}},))

    async def play():
        await env.reset(env.tasks("train", 1, 0)[0])
        return await acted(env, "search tower")

    assert "[a] The tower is 300 m high." in run(play()).observations[A].text


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"tools": ()}, RecipeError, "`tools`"),
        ({"tools": ("calculater",)}, RecipeError, "calculator"),
        ({"tools": ({"sql": {}, "search": {}},)}, RecipeError, "sql"),
        ({"facts": (3, 2)}, RecipeError, "`facts: [2, 3]`"),
        ({"facts": (2, 9), "names": 2}, RecipeError, "6 or less"),
        ({"noise": 1.0}, RecipeError, "`noise: 1`"),
        ({"questions": "none.jsonl", "tools": ("calculator",)}, InvalidData, "none.jsonl"),
    ],
)
def test_options_are_checked(options, error, word):
    with told(error, word):
        ToolTasks(**options)


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"tools": ({"sql": {"rowz": 3}},)}, RecipeError, "`rowz`"),
        ({"tools": ({"mcp": {}},)}, RecipeError, "command"),
        ({"tools": ("nowhere.py:f",)}, UnknownName, "tool nowhere.py:f"),
        ({"format": "yaml"}, UnknownName, "`yaml`"),
        ({"names": 13}, RecipeError, "`names`"),
        ({"wording": "cars"}, RecipeError, "`wording`"),
    ],
)
def test_options_of_parts_are_checked(options, error, word):
    with pytest.raises(error, match=word):
        ToolTasks(**options)


def test_functions_of_files_are_checked(tmp_path):
    path = tmp_path / "other.py"
    path.write_text(FUNCTIONS)
    with pytest.raises(ContractError, match="`number` has no type annotation"):
        ToolTasks(tools=(f"{path}:bad",))
