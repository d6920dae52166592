"""What must hold of the verifiers:

1. Each gives its documented number for right, wrong and malformed replies. It does not apply to a row without what it
   reads, and a right answer that it cannot read fails the episode.
2. Options that cannot work are refused when the environment is made.
3. Code runs in a sandbox that says whether it isolates.
4. A judge's score is read, asked for once, and asked for again if it is missing; a missing score is no 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from decimal import Decimal

import pytest

from palaestra.envs.verifiers.calling import Reply, rewards_of
from palaestra.errors import EpisodeFailure, PalaestraError, RecipeError
from palaestra.registry import index
from palaestra.tools.sandbox import choose
from tests.chat_server import ChatServer
from tests.extras import skip_without
from tests.messages import told


def score(written, text, *, ids=(), **columns):
    """The reward of a reply, and the numbers beside it."""
    (reward,) = rewards_of(written, None, columns, where="test")
    reply = Reply(text=text, messages=(), prompt="What?", tokens=ids, columns=columns, place="a.jsonl:1")
    return asyncio.run(reward(reply))


# ---- rule 1 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "text", "columns", "expected"),
    [
        ("exact_match", " red  fox ", {"answer": "red fox"}, 1),
        ("exact_match", "Red fox", {"answer": "red fox"}, 0),
        ({"exact_match": {"normalize": "none"}}, "red ", {"answer": "red"}, 0),
        ({"exact_match": {"normalize": "case"}}, "RED", {"answer": "red"}, 1),
        ({"exact_match": {"normalize": "words"}}, "The red fox!", {"answer": ["cat", "red fox"]}, 1),
        ({"exact_match": {"after": "####"}}, "2 + 2 #### 4", {"answer": 4}, 1),
        ({"exact_match": {"after": "####"}}, "4", {"answer": 4}, 0),
        ("exact_match", "4", {"answer": 4.0}, 1),
        ("exact_match", "4.0", {"answer": 4.0}, 1),
        ("exact_match", "4", {"answer": Decimal("4.00")}, 1),
        ("exact_match", "true", {"answer": True}, 1),
        ("word_f1", "red fox", {"answer": "red fox"}, 1),
        ("word_f1", "...", {"answer": "red fox"}, 0),
        ("number", "it is 1,234.5 in all", {"answer": "so #### 1234.5"}, 1),
        ("number", "-3", {"answer": 3}, 0),
        ("number", "no idea", {"answer": 3}, 0),
        ("number", "−3", {"answer": -3}, 1),
        ("number", "4", {"answer": ["four", "4"]}, 1),
        ({"number": {"tolerance": 0.1}}, "105", {"answer": 100}, 1),
        ({"number": {"which": "only"}}, "3, or 3.0", {"answer": 3}, 1),
        ("choice", "I think the answer is C.", {"answer": "C"}, 1),
        ("choice", r"A is wrong, so \boxed{B}", {"answer": "(B)"}, 1),
        ("choice", "B", {"answer": 1}, 1),
        ("choice", "both B and C", {"answer": "B"}, 0),
        ("choice", "B", {"answer": 1.0}, 1),
        ("choice", "B", {"answer": ["A", "B"]}, 1),
        ({"choice": {"letters": "ABCDEF"}}, "(F)", {"answer": "F"}, 1),
        ({"regex": {"pattern": r"\d+"}}, "in 1969", {}, 1),
        ({"regex": {"pattern": r"\d+", "whole": True}}, "in 1969", {}, 0),
        ({"regex": {"pattern": r"is (?P<answer>\w+)", "ignore_case": True}}, "It IS Red", {"answer": "red"}, 1),
        ({"regex": {"pattern": r"is (?P<answer>\w+)"}}, "it is blue", {"answer": "red"}, 0),
        ({"json_schema": {"fits": {"type": "object", "required": ["a"]}}}, 'So:\n```json\n{"a": 1}\n```', {}, 1),
        ({"json_schema": {"fits": {"type": "object", "required": ["a"]}}}, '{"b": 1}', {}, 0),
        ({"json_schema": {"fits": {"type": "array"}}}, "{", {}, 0),
        ("json_schema", "[1, 2]", {"schema": '{"type": "array", "maxItems": 2}'}, 1),
        ("json_schema", "[1, 2, 3]", {"schema": {"type": "array", "maxItems": 2}}, 0),
        ("tags", "<think>a</think>\n<answer>b</answer>", {}, 1),
        ("tags", "<answer>b</answer><think>a</think>", {}, 0),
        ("tags", "<think>a</think><answer> </answer>", {}, 0),
        ("tags", "<think>a</think><answer>b</answer> bye", {}, 0),
        ("tags", "</think><think><answer>b</answer>", {}, 0),
        ({"tags": {"only": False}}, "so <think>a</think><answer>b</answer> bye", {}, 1),
        ({"length": {"most": 3, "unit": "letters"}}, "abc", {}, 0),
        ({"length": {"most": 3, "over": 4, "unit": "letters"}}, "abcde", {}, -0.5),
        ({"length": {"most": 1, "unit": "words"}}, "a b c", {}, -1),
    ],
)
def test_verifiers(written, text, columns, expected):
    assert score(written, text, **columns)[0] == pytest.approx(expected)


def test_length_counts_the_tokens_of_the_policy():
    assert score({"length": {"most": 2, "over": 2}}, "x", ids=[5, 6, 7])[0] == -0.5


def test_a_search_that_takes_too_long_finds_nothing():
    assert score({"regex": {"pattern": r"(a|aa)+$", "whole": True}}, "a" * 5000 + "b")[0] == 0


def test_mathematics():
    skip_without("math_verify")
    assert score("math", r"Thus \boxed{\frac{2}{4}}.", answer="0.5")[0] == 1
    assert score("math", "$x = 3$", answer=["4", "3"])[0] == 1
    assert score("math", "no idea", answer="3")[0] == 0


def test_answers_that_cannot_be_right_fail_the_episode():
    for written, answer in (
        ("number", "red"),
        ("choice", "Z"),
        ("number", "1/2"),
        ("choice", "AB"),
        ("choice", 7),
        ("exact_match", {"value": 3}),
        ("exact_match", []),
        ("word_f1", "the"),
    ):
        with told(EpisodeFailure, "a.jsonl:1"):
            score(written, "3", answer=answer)


@pytest.mark.parametrize("schema", ["{", "3", 3])
def test_schemas_that_cannot_be_used_fail_the_episode(schema):
    with told(EpisodeFailure, "`schema`"):
        score("json_schema", "{}", schema=schema)
    with told(EpisodeFailure, "no column `schema`"):
        score("json_schema", "{}", answer="4")


@pytest.mark.parametrize(
    ("written", "columns"),
    [
        ("exact_match", {"answer": None}),
        ("number", {"answer": None}),
        ({"regex": {"pattern": r"(?P<answer>\d+)"}}, {"answer": None}),
        ("json_schema", {"schema": None, "answer": "4"}),
        ({"code": {"require": "none"}}, {"tests": None, "answer": "72"}),
    ],
)
def test_rows_to_which_a_verifier_does_not_apply(written, columns):
    assert score(written, "None", **columns) == (None, {})


def test_every_verifier_is_tested():
    known = {*index()["verifier"]} - {"math", "code", "judge"}
    (cases,) = (mark.args[1] for mark in test_verifiers.pytestmark if mark.name == "parametrize")
    assert known == {written if isinstance(written, str) else next(iter(written)) for written, *_ in cases}


# ---- rule 2 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "word"),
    [
        ({"regex": {"pattern": "("}}, "is no pattern"),
        ({"json_schema": {"fits": {"type": "obj"}}}, "cannot be used"),
        ({"exact_match": {"normal": "case"}}, "no option"),
        ({"exact_match": {"after": ""}}, "`after: ''`"),
        ({"tags": {"names": []}}, "`names: []`"),
        ({"tags": {"names": ["<think>"]}}, "<think>"),
        ({"judge": {"model": "m", "url": "PALAESTRA_NO_SUCH"}}, "PALAESTRA_NO_SUCH is empty"),
    ],
)
def test_options_that_cannot_work(written, word):
    with told(RecipeError, word):
        rewards_of(written, None, {"answer": "a"}, where="test")


def test_a_pattern_of_a_judge_needs_a_group(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with told(RecipeError, "no regular expression with a group"):
        rewards_of({"judge": {"model": "m", "pattern": "score"}}, None, {}, where="test")


# ---- rule 3 -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def require():
    try:
        choose(require="isolation").close()
    except PalaestraError:
        return "none"
    return "isolation"


@pytest.mark.parametrize(
    ("tests", "text", "whole", "part"),
    [
        (["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "```python\ndef add(a, b):\n    return a + b\n```", 1, 1),
        (["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "def add(a, b):\n    return a - b", 0, 0.5),
        ("def test_add():\n    assert add(2, 2) == 4", "def add(a, b):\n    return 4", 1, 1),
        (["assert add(1, 2) == 3"], "def add(a, b: return", 0, 0),
        (["assert add(1, 2) == 3"], "raise SystemExit", 0, 0),
    ],
)
def test_code(require, tests, text, whole, part):
    for partial, expected in ((False, whole), (True, part)):
        number, beside = score({"code": {"require": require, "partial": partial}}, text, tests=tests)
        assert number == expected and beside == {"isolated": float(require == "isolation")}


DOUBLE = "print(2 * int(input()))"
PAIRS = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4"]}
ADDS = "def add(a, b):\n    return a + b if a else None"
CALLS = {"fn_name": "add", "inputs": [[1, 2], [0, 1]], "outputs": [3, 1]}


@pytest.mark.parametrize(
    ("tests", "text", "whole", "part"),
    [
        (PAIRS, DOUBLE, 1, 1),
        (json.dumps(PAIRS), f"So:\n```python\n{DOUBLE}\n```", 1, 1),
        (PAIRS, "print(2)", 0, 0.5),
        (PAIRS, f"{DOUBLE}\nraise SystemExit(1)", 0, 0),
        ([{"input": ["3", "4"], "output": "7"}], "print(int(input()) + int(input()), '\\n')", 1, 1),
        (CALLS, ADDS, 0, 0.5),
        (CALLS, "def add(a, b):\n    return a + b", 1, 1),
        (CALLS | {"outputs": [[3], [1]]}, "class Solution:\n    def add(self, a, b):\n        return a + b", 1, 1),
        ([{"fn_name": "turn", "input": "[1, 2]\n1", "output": "[2, 1]"}], "def turn(x, n): return (x[1], x[0])", 1, 1),
        ({"fn_name": "join", "inputs": ["a"], "outputs": ["a!"]}, "def join(x):\n    return x + '!'", 1, 1),
    ],
)
def test_code_by_inputs_and_outputs(require, tests, text, whole, part):
    for partial, expected in ((False, whole), (True, part)):
        assert score({"code": {"require": require, "partial": partial}}, text, tests=tests)[0] == expected


def test_code_by_the_right_answer_of_verl(require):
    assert score({"code": {"require": require}}, DOUBLE, answer=json.dumps(PAIRS))[0] == 1


def test_code_that_does_not_end(require):
    number, _ = score({"code": {"require": require, "seconds": 1.0, "partial": True}}, "while True: pass", tests=PAIRS)
    assert number == 0


@pytest.mark.parametrize(
    ("tests", "word"),
    [
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"input": "1"}, "no lists `inputs` and `outputs`"),
        ([1, 2], "unknown form"),
        (5, "unknown form"),
        (None, "no column `tests`"),
    ],
)
def test_code_with_tests_that_cannot_be_read(require, tests, word):
    with told(EpisodeFailure, word):
        score({"code": {"require": require}}, "x = 1", **({} if tests is None else {"tests": tests}))


def test_code_without_tests(require):
    with told(EpisodeFailure, "no test"):
        score({"code": {"require": require}}, "x = 1", tests=[])


# ---- rule 4 -----------------------------------------------------------------------------------------------
@pytest.fixture
def endpoint(monkeypatch):
    """A scripted endpoint: it gives the answers in their order, the last one again and again."""
    skip_without("openai")
    with contextlib.ExitStack() as stack:

        def start(*answers):
            server = stack.enter_context(ChatServer(*answers))
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            return server.requests

        yield start


def test_a_judge_is_asked_once(endpoint):
    asked = endpoint("The reply is close. score: 2\nNo, score: 7")
    (reward,) = rewards_of({"judge": {"model": "m"}}, None, {"answer": "Rome"}, where="test")
    reply = Reply(text="Roma {answer}", messages=(), prompt="Where?", tokens=(), columns={"answer": "Rome"}, place="1")

    async def many():
        return await asyncio.gather(*(reward(reply) for _ in range(8)))

    assert asyncio.run(many()) + asyncio.run(many()) == [(0.7, {})] * 16
    (text,) = (one["content"] for request in asked for one in request["messages"])
    assert "Where?" in text and "Rome" in text and "Roma {answer}" in text


def test_a_judge_of_anthropic(endpoint, monkeypatch):
    skip_without("anthropic")
    asked = endpoint("score: 7")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", os.environ["OPENAI_BASE_URL"])
    monkeypatch.delenv("OPENAI_BASE_URL")
    judge = {"model": "m", "style": "anthropic", "prompt": "Grade {completion}", "max_tokens": 9}
    assert score({"judge": judge}, "Roma")[0] == 0.7
    (request,) = asked
    assert request["path"] == "/v1/messages" and request["max_tokens"] == 9 and request["temperature"] == 0
    assert request["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Grade Roma"}]}]


def test_a_judge_without_a_score_is_asked_again(endpoint):
    asked = endpoint("Good.", "score: 20")
    assert score({"judge": {"model": "m"}}, "x", answer="y")[0] == 1 and len(asked) == 2


@pytest.mark.parametrize(("answer", "word"), [("Good.", "no score"), (500, "InternalServerError")])
def test_a_missing_score_is_no_zero(endpoint, answer, word):
    endpoint(answer)
    with told(EpisodeFailure, word) as raised:
        score({"judge": {"model": "m", "retries": 0}}, "x", answer="y")
    assert raised.value.boundary == "judge"
