"""What must hold of `tool_tasks` with questions of a file:

1. Splits, aliases and calls for the expert are read. Errors name the line. A question in two splits is refused.
2. Answers match by words, by value, or as mathematics.
"""

from __future__ import annotations

import json

import pytest

from palaestra.envs.worlds.tool_tasks.matching import equals, matches, number
from palaestra.envs.worlds.tool_tasks.world import ToolTasks
from palaestra.errors import InvalidData, RecipeError
from palaestra.testing import check_environment
from tests.envs.worlds.test_tool_tasks import A, acted, run, solved, started
from tests.messages import told

# ---- rule 1 -----------------------------------------------------------------------------------------------
LINES = [
    {"question": "capital of france?", "answer": "Paris", "split": "train"},
    {"question": "2 + 2?", "answer": 4, "aliases": ["four"], "split": "train"},
    {"question": "3 + 3?", "aliases": ["6", "six"], "split": "eval"},
]
LINES[1]["calls"] = [{"name": "calculator", "arguments": {"expression": "2 + 2"}}]


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        path = tmp_path / "questions.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return str(path)

    return write


def test_questions_of_a_file(file):
    options = {"questions": file(*LINES), "tools": ("calculator",)}
    env = ToolTasks(**options)
    check_environment(env, make=lambda: ToolTasks(**options))
    tasks = env.tasks("train", 4, 0)
    assert [task.params["question"] for task in tasks[:2]] == [task.params["question"] for task in tasks[2:]]
    assert {task.params["question"] for task in tasks} == {"capital of france?", "2 + 2?"}
    assert solved(env, tasks) == (4, 2)

    async def answered(text):
        await env.reset(next(task for task in tasks if "2 + 2" in task.params["question"]))
        assert env.expert(A).text == "calculator 2 + 2"
        return (await acted(env, f"answer {text}")).info["success"]

    assert run(answered("Four!")) and run(answered("4.0")) and not run(answered("5"))
    with told(InvalidData, "'test'"):
        env.tasks("test", 1, 0)


def test_files_without_splits_hold_some_out(file):
    env = ToolTasks(questions=file(*[{"question": f"q{n}", "answer": "a"} for n in range(60)]), tools=("calculator",))
    train, held_out, shown = (
        {task.params["question"] for task in env.tasks(split, 60, 0)} for split in ("train", "eval", "play")
    )
    assert len(train) + len(held_out) == 60 and 4 <= len(held_out) <= 24 and shown == held_out


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (['{"question": "a", "answer": "b"}', "{"], "questions.jsonl:2"),
        ([{"question": 3, "answer": "b"}], "`question`"),
        ([{"question": "a"}], "no answer"),
        ([{"question": "a", "answer": " "}], "no answer"),
        ([{"question": "a", "answers": ["b"]}], "`answers`"),
        ([{"question": "a", "answer": "b", "calls": [3]}], "`calls`"),
        ([{"question": "a", "answer": "b", "split": s} for s in ("train", "eval")], "train and eval"),
        ([], "no questions"),
    ],
)
def test_faults_of_files_name_the_line(file, lines, word):
    with told(InvalidData, word):
        ToolTasks(questions=file(*lines), tools=("calculator",))


def test_a_file_of_questions_has_no_table(file):
    with told(RecipeError, "`lookup`"):
        ToolTasks(questions=file(*LINES))


# ---- rule 2 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "right", "same"),
    [
        ("The Eiffel  Tower.", "eiffel tower", True),
        ("tower", "eiffel tower", False),
        ("-5", "5", False),
        ("5.0", "5", True),
        ("1,000", "1000", True),
        ("1/2", "0.5", True),
        ("1.5", "15", False),
        ("five", "5", False),
        ("", "5", False),
        ("", "the", False),
        ("5" * 10**6, "5", False),
        ("\ud800", "a", False),
        ("1e999999999", "1", False),
    ],
)
def test_exact_matches(given, right, same):
    assert matches(given, [right]) == same


def test_mathematics():
    for given, right, same in (
        (r"\frac{1}{2}", "0.5", True),
        ("x^2 + 2x + 1", "(x+1)^2", True),
        ("3", "4", False),
        ("nonsense {", "4", False),
    ):
        assert run(equals(given, [right])) == same
    assert number("1/0") is None and number("12 apples") is None
    env, problem = started(match="math")
    assert run(acted(env, f"answer {problem.answer} + 0")).info["success"] in (True, False)
