"""What must hold of `searchqa` with `style: calls`:

1. It keeps the contract of environments, and the expert solves every task by calls.
2. A call does what the word command does.
3. A bad call is told, counted as an error, changes nothing else and never ends the episode.
4. The tools fit the options. The instruction has no word command, and only the first observation has the question if
   `notes` is "none".
5. A role whose chat template declares the tools: demonstrations are calls in the template's form, results come back in
   the role of a tool, and so do the faults of bad calls.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Action, Task, ToolCall
from palaestra.envs.worlds.searchqa.world import SearchQA
from palaestra.testing import check_environment
from tests.envs.native_role import played
from tests.extras import needs

pytestmark = needs("bm25s")
PLAYER = "player"
TASK = Task(env="searchqa", seed=4)
BOTH = {"hops": (2, 2), "wordings": 1, "distractors": 0.0}


def called(name: str, **arguments: Any) -> Action:
    return Action(text="so:", tool_calls=[ToolCall(name=name, arguments=arguments)])


def started(**options: Any) -> SearchQA:
    env = SearchQA(**{"style": "calls", **options})
    env.reset(TASK)
    return env


VARIANTS = [
    {},
    {"notes": "none", "passage_words": 0, "graphs": 2},
    {"questions": "masked", "notes": "queries", "graphs": 9},
    {"book": "closed", "graphs": 2},
    {"reader": True, "renamed": True, "noise": 0.2, "graphs": 9},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_1_contract_and_expert(options: dict[str, Any]) -> None:
    check_environment(SearchQA(style="calls", **options), make=lambda: SearchQA(style="calls", **options), episodes=2)
    env, solved = SearchQA(style="calls", max_turns=14, **options), 0
    for task in env.tasks("eval", 40, 0):
        result = env.reset(task)
        while result.observations:
            act = env.expert(PLAYER)
            call = json.loads(act.text or "")
            result = env.step({PLAYER: called(call["name"], **call["arguments"])})
            assert "invalid" not in result.info and result.info["format"] == {PLAYER: 1.0}
        solved += result.info["success"]
    assert solved == 40


def test_2_calls_do_what_words_do() -> None:
    words, calls = SearchQA(**BOTH), started(**BOTH)
    words.reset(TASK)
    name = words.snapshot().question.start
    for text, act in (
        (f"search {name} friend", called("search", query=f"{name}  friend")),
        ("open d3", called("open", id=" D3 ")),
        ("open d999", called("open", id="d999")),
        ("search zzz", Action(text='{"name": "search", "arguments": {"query": "zzz"}}')),
    ):
        plain, other = words.step({PLAYER: Action(text=text)}), calls.step({PLAYER: act})
        one, two = words.snapshot(), calls.snapshot()
        assert (one.said, one.read, one.seen, one.queries, one.calls, one.errors) == (
            two.said, two.read, two.seen, two.queries, two.calls, two.errors
        )  # fmt: skip
        told = {key: value for key, value in plain.info.items() if key != "entities"}
        assert told == {key: value for key, value in other.info.items() if key != "entities"}
    right = words.snapshot().question.answers[0][0]
    ends = [
        env.step({PLAYER: act})
        for env, act in ((words, Action(text=f"answer {right}")), (calls, called("answer", text=right)))
    ]
    assert all(end.info["success"] and end.rewards == {PLAYER: 1.0} and not end.observations for end in ends)


BAD = [
    (called("find", query="anna"), "there is no tool `find`"),
    (called("search"), "the argument `query` is missing"),
    (called("search", query=["anna"]), "`query` must be a text"),
    (called("search", query=" "), "`query` is empty"),
    (called("answer", text=1789), "`text` must be a text"),
    (Action(text="", tool_calls=[ToolCall(name="open", arguments={"id": "d3"})] * 2), "make one call in each turn"),
    (Action(text="search anna friend"), "nothing was called; the tools are: search, open, answer"),
    (Action(text="answer elm"), "nothing was called"),
    (Action(text='<tool_call>\n{"name": "search", "arguments": {'), "this is no JSON"),
]


@pytest.mark.parametrize(("act", "said"), BAD)
def test_3_bad_calls_are_told(act: Action, said: str) -> None:
    env = started(notes="none")
    before = env.snapshot()
    result = env.step({PLAYER: act})
    after = env.snapshot()
    text = result.observations[PLAYER].text
    assert text is not None and text.startswith("error: ") and said in text and text.endswith(".")
    assert result.info["invalid"] == {PLAYER: True} and result.info["tool_error"] == {PLAYER: 1.0}
    assert result.info["executable"] == result.info["format"] == {PLAYER: 0.0}
    assert (after.errors, after.read, after.queries) == (1, before.read, before.queries)
    assert not result.terminated and not result.truncated


def test_4_tools_fit_the_options() -> None:
    def names(**options: Any) -> list[str]:
        tools = started(**options).reset(TASK).observations[PLAYER].tools
        return [one["function"]["name"] for one in tools or ()]

    assert names() == ["search", "open", "answer"]
    assert names(passage_words=0) == ["search", "answer"]
    assert names(book="closed", graphs=2) == ["answer"]
    *_, last = started(reader=True).reset(TASK).observations[PLAYER].tools or ()
    assert last["function"]["parameters"]["properties"] == {} and "reader" in last["function"]["description"]
    assert all(SearchQA(style=s).reset(TASK).observations[PLAYER].tools is None for s in ("words", "tags"))
    whole = started(passage_words=0)
    assert "there is no tool `open`" in whole.step({PLAYER: called("open", id="d3")}).observations[PLAYER].text
    assert not any('"open"' in text for text in whole.expert(PLAYER).text.splitlines())
    legal = whole.step({PLAYER: whole.expert(PLAYER)}).observations[PLAYER].legal
    assert legal and all(json.loads(text)["name"] != "open" for text in legal)


def test_4_instruction_and_observations() -> None:
    env = started(notes="none", **BOTH)
    told = env.instruction(PLAYER)
    assert "WORDS" not in told and "Commands" not in told and "Example" not in told
    assert "one call in each turn" in told and "You have 8 turns." in told and "same name" not in told
    assert "same name" in SearchQA(style="calls").instruction(PLAYER)
    question = env.snapshot().question
    first = env.reset(TASK).observations[PLAYER]
    assert first.text == question.long and first.instruction is None
    after = env.step({PLAYER: called("search", query=question.start)}).observations[PLAYER]
    assert after.text == env.snapshot().said and "question" not in after.text
    noted = started(notes="found", **BOTH)
    text = noted.step({PLAYER: noted.expert(PLAYER)}).observations[PLAYER].text
    assert text is not None and text.startswith(f"{question.long}\nfound: ")


# ---- with a chat template -----------------------------------------------------------------------------------
def short() -> SearchQA:
    return SearchQA(style="calls", notes="none", passage_words=0, passages=1, **BOTH)


@pytest.mark.parametrize("template", ["qwen3", "llama3"])
def test_5_demonstrations_are_calls(tmp_path: Path, template: str) -> None:
    episode, text = played(short, TASK, tmp_path, template=template)
    assert episode.outcome == 1.0 and {step.segment for step in episode.steps} == {0}
    names = [[call.name for call in step.action.tool_calls] for step in episode.steps]
    assert names == [["search"], ["search"], ["answer"]]
    assert text.count("Show the best passages.") == 1 and "search WORDS" not in text and "open" not in text
    assert text.count("question: what is") == 1
    for step in episode.steps[1:]:
        assert step.observation.text is not None and step.observation.text in text
    assert text.count('<tool_call>\n{"name": "search"') == 2 and text.count("<tool_response>\nd") == 2


def test_5_bad_calls_come_back_as_results(tmp_path: Path) -> None:
    replies = [
        [ToolCall(name="find", arguments={"query": "anna"})],
        [ToolCall(name="search", arguments={})],
        [ToolCall(name="search", arguments={"query": "anna"})] * 2,
        '<tool_call>\n{"name": "search", "arguments": {',
        "I think that it is elm.",
    ]
    episode, text = played(short, TASK, tmp_path, replies=replies)
    assert episode.outcome == 1.0 and len(episode.steps) == len(replies) + 3
    assert [step.info.get("invalid", False) for step in episode.steps] == [True] * 5 + [False] * 3
    for said in (
        "<tool_response>\nerror: there is no tool `find`",
        "<tool_response>\nerror: the argument `query` is missing",
        "<tool_response>\nerror: make one call in each turn, found 2; the tools are: search, answer.\n</tool_response>",
        "<tool_response>\nerror: this is no JSON",
        "<|im_start|>user\nerror: nothing was called",  # it answers no call, so it is a message of the user
    ):
        assert said in text, said
