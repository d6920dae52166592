"""Tools through chat templates: (1) a template declares the tools of the role and of the environment; (2) one that
cannot gets them in words; (3) every template's own form of a call is read back; (4) results are messages of the role
`tool`, with the ids that templates ask for, also those of an environment, which begin a turn; (5) what is wrong with a
call comes back as a result; (6) calls of the environment's tools are acts; (7) a tokenizer's own `response_template`
reads its replies; (8) demonstrations write calls in the template's form; (9) contexts that show only the last turn keep
the calls of that turn; (10) thoughts are kept or stripped by choice.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from palaestra.chat import ChatRenderer, Context, FullHistory, LatestOnly, Window
from palaestra.chat.template_tools import RESULT, TOOL, message_of, numbered, result_of
from palaestra.data import Action, Observation, RunSetup, Step, ToolCall
from palaestra.errors import InvalidData
from palaestra.rollout.roles import AgentTools, Role, RoleTools, tools_of
from palaestra.testing import ScriptedPolicy
from palaestra.tools import tool
from tests.chat.conversations import THOUGHT, find, move
from tests.chat.templates import NAMES, tokenizer_of
from tests.messages import told

DECLARED = (find.declaration(), move.declaration())
FIND = ToolCall(name="find", arguments={"id": 7, "words": "7"})
MOVE = ToolCall(name="move", arguments={"place": 'a "b", <|im_end|>\nc'})
WITH_TOOLS = [name for name in NAMES if ChatRenderer(tokenizer_of(name)).support.declares]
ONE_CALL = {"gptoss", "gptoss_training", "llama3_1", "llama3_2"}  # templates that write one call only
SEVERAL_CALLS = [name for name in WITH_TOOLS if name not in ONE_CALL]


def seen(name: str, *replies: Any, context: Context | None = None, tools: Any = DECLARED) -> str:
    """What the model has read and said, as text, after observations and these replies: texts, calls, or results."""
    renderer = ChatRenderer(tokenizer_of(name))
    talk = (context or FullHistory()).start(renderer)
    shown = talk.observe(Observation(text="look", instruction="Walk.", tools=tools)).ids
    for reply in replies:
        if isinstance(reply, Observation):
            prompt = talk.observe(reply)
            shown = prompt.ids if prompt.fresh else np.concatenate([shown, prompt.ids])
        else:
            ids = renderer.action(reply) if isinstance(reply, str) else renderer.call(reply, tools)
            talk.respond(ids)
            shown = np.concatenate([shown, ids])
    return renderer.said(shown)


def results(*texts: str) -> Observation:
    return Observation(text="tool: x", messages=[result_of(text) for text in texts])


# ---- declarations -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_1_and_2_every_template_shows_the_tools(name: str) -> None:
    shown = seen(name)
    assert shown.index("find") < shown.rindex("look") and "the number" in shown and "Walk." in shown
    in_words = "<tools>\n" + json.dumps(DECLARED[0])[:20] in shown and "For each function call" in shown
    assert in_words or name in WITH_TOOLS
    assert len(WITH_TOOLS) >= 40


def test_1_schemas_are_plain() -> None:
    @tool
    def book(days: int | None = None, kind: str = "a") -> str:
        """Book."""
        return ""

    made = book.declaration()["function"]
    assert made["parameters"]["properties"]["days"] == {"default": None, "type": "integer", "nullable": True}
    assert made["parameters"]["type"] == "object" and made["name"] == "book"


def test_2_smollm2_has_no_tools_in_its_template(smollm2: str) -> None:
    from palaestra.models.tokenizer import load_tokenizer

    renderer = ChatRenderer(load_tokenizer(smollm2))
    assert not renderer.support.declares
    prompt = FullHistory().start(renderer).observe(Observation(text="look", instruction="Walk.", tools=DECLARED))
    shown = renderer.said(prompt.ids)
    assert shown.startswith("<|im_start|>system\nWalk.\n\n# Tools") and '{"type": "function"' in shown
    call = renderer.said(renderer.call([FIND], DECLARED))
    assert call.startswith('<tool_call>\n{"name": "find"') and call.endswith("</tool_call><|im_end|>")


# ---- calls and results ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("calls", [[FIND], [MOVE], [FIND, MOVE]], ids=["find", "move", "both"])
def test_3_calls_are_read_as_the_template_writes_them(name: str, calls: list[ToolCall]) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    if name in ONE_CALL and len(calls) > 1:
        with told(InvalidData, "does not write a reply with 2 calls"):
            renderer.call(calls, DECLARED)
        return
    ids = renderer.call(calls, DECLARED)
    parsed = renderer.calls(renderer.text(ids, tools=DECLARED), DECLARED)
    assert parsed.fault is None and ids[-1] in renderer.stop
    assert [(one.name, dict(one.arguments)) for one in parsed.calls] == [(c.name, dict(c.arguments)) for c in calls]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_4_results_stand_where_the_template_puts_them(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    plain = [{"role": "user", "content": "look"}]
    message = message_of("", [ToolCall(name="find", arguments=FIND.arguments, id="call00000")])
    written = renderer._applied([*plain, message, result_of(RESULT, "find", "call00000")], DECLARED)
    shown = seen(name, [FIND], results(RESULT), tools=DECLARED)
    before = written.index(RESULT) - 1
    assert shown.endswith(written[written.rindex("\n", 0, before) + 1 if "\n" in written[:before] else 0 :])


def test_4_mistral_gets_ids_of_nine_characters() -> None:
    shown = seen("mistral", [FIND], results("seven"), numbered([MOVE], 1), Observation(text="a hall"))
    assert '"call_id": "call00000"}[/TOOL_RESULTS]' in shown and '"call_id": "call00001"}[/TOOL_RESULTS]' in shown
    own = FIND.__class__(name="find", arguments={"id": 1}, id="aB3dE6gH9")
    renderer = ChatRenderer(tokenizer_of("mistral"))
    ids = renderer.call([own], DECLARED)
    talk = FullHistory().start(renderer)
    talk.observe(Observation(text="look", tools=DECLARED))
    talk.respond(ids)
    assert '"call_id": "aB3dE6gH9"' in renderer.said(talk.observe(results("one")).ids)


def test_4_a_call_stays_as_it_was_sampled() -> None:
    odd = '<tool_call>{"arguments":   {"id": 7},"name":"find"}</tool_call>'
    shown = seen("qwen3", odd, results("seven"))
    assert f"{odd}<|im_end|>\n<|im_start|>user\n<tool_response>\nseven\n</tool_response><|im_end|>" in shown


def test_4_without_tools_in_the_template_results_are_messages_of_the_user() -> None:
    shown = seen("llama3", [FIND, MOVE], results("seven", "moved"))
    assert (
        "<|start_header_id|>user<|end_header_id|>\n\n<tool_response>\nseven\n</tool_response>\n"
        "<tool_response>\nmoved\n</tool_response><|eot_id|>"
    ) in shown


# ---- roles ------------------------------------------------------------------------------------------------
def tools_with(renderer: Any, *own: Any) -> AgentTools:
    policy = ScriptedPolicy(["x"])
    policy.renderer = renderer
    role = Role(policy=policy, tools=RoleTools(tools=own, native=True))
    made = tools_of(role, {"a": role})
    assert made is not None
    made.acts = (move.declaration(),)
    return made


def said(renderer: ChatRenderer, *calls: ToolCall) -> Step:
    text = renderer.text(renderer.call(calls, DECLARED), tools=DECLARED)
    return Step(agent="a", turn=0, action=Action(text=text), observation=Observation(text="x"), policy="main")


async def answered(tools: AgentTools, step: Step) -> Any:
    return await tools.run(step.action.text or "", step, last=False)


@pytest.mark.parametrize("name", ["qwen3", "mistral", "lfm2_2_5", "gemma4"])
def test_5_and_6_own_calls_are_run_and_others_are_acts(name: str) -> None:
    import asyncio

    renderer = ChatRenderer(tokenizer_of(name))
    tools = tools_with(renderer, find)
    assert [one["function"]["name"] for one in tools.declarations] == ["find", "move"]
    step = said(renderer, FIND)
    assert asyncio.run(answered(tools, step)).texts == ["7 is 7"] and step.info["tool_call"] == 1
    step = said(renderer, MOVE)
    assert asyncio.run(answered(tools, step)) is None and tools.act(step)
    assert [(one.name, dict(one.arguments)) for one in step.action.tool_calls] == [("move", dict(MOVE.arguments))]
    assert json.loads(step.action.value) == {"name": "move", "arguments": dict(MOVE.arguments)}
    assert step.action.reply is not None and step.action.reply != step.action.text
    step = said(renderer, FIND, MOVE)
    first, second = asyncio.run(answered(tools, step)).texts
    assert first == "7 is 7" and "call it in a reply without calls of other tools" in second
    (lost,) = asyncio.run(answered(tools, said(renderer, ToolCall(name="fly", arguments={})))).texts
    assert lost.startswith("error: there is no tool `fly`")
    step = said(renderer, ToolCall(name="find", arguments={"id": "x"}))
    assert "`id` must be an integer" in asyncio.run(answered(tools, step)).text


def test_6_a_tool_that_both_have_is_declared_once() -> None:
    tools = tools_with(ChatRenderer(tokenizer_of("qwen3")), find)
    tools.acts = (find.declaration(), move.declaration())
    assert [one["function"]["name"] for one in tools.declarations] == ["find", "move"]


def test_5_a_call_that_cannot_be_read_is_answered_by_its_fault() -> None:
    import asyncio

    tools = tools_with(ChatRenderer(tokenizer_of("qwen3")), find)
    broken = Action(text='<tool_call>\n{"name": "find", "arguments": {\n</tool_call>')
    step = Step(agent="a", turn=0, action=broken, observation=Observation(text="x"), policy="main")
    given = asyncio.run(answered(tools, step))
    assert given.texts[0].startswith("error: this is no JSON") and step.info["tool_error"] == 1
    shown = tools.shown(Observation(text="x"), broken.text or "", given)
    assert shown.messages == [result_of(given.texts[0])]
    assert f"<tool_response>\n{given.text}\n</tool_response>" in seen("qwen3", broken.text, shown)
    assert given.text in seen("mistral", broken.text, shown)  # whose results need a call: as a message of the user


def test_6_the_environment_hears_a_call_that_cannot_be_read() -> None:
    tools = tools_with(ChatRenderer(tokenizer_of("qwen3")))
    broken = Action(text='<tool_call>{"name": "move"')
    step = Step(agent="a", turn=0, action=broken, observation=Observation(text="x"), policy="main")
    assert tools.act(step) and step.info["invalid"] == 1 and step.action.text == broken.text
    plain = Step(agent="a", turn=0, action=Action(text="done"), observation=Observation(text="x"), policy="main")
    assert not tools.act(plain) and plain.action.text == "done"


def test_6_the_environment_answers_in_the_role_of_a_tool() -> None:
    shown = seen("qwen3", [MOVE], Observation(text="a hall"), "I stay.", Observation(text="a yard"))
    assert "<|im_start|>user\n<tool_response>\na hall\n</tool_response><|im_end|>" in shown
    assert "<|im_start|>user\na yard<|im_end|>" in shown


def environment(*texts: str) -> Observation:
    """The results of an environment, which says again which tools it has."""
    return Observation(text="x", messages=[result_of(text, "find") for text in texts], tools=DECLARED)


@pytest.mark.parametrize("name", SEVERAL_CALLS)
def test_4_an_environment_answers_each_call(name: str) -> None:
    ids = [ToolCall(name=call.name, arguments=call.arguments, id=f"call0000{n}") for n, call in enumerate([FIND, MOVE])]
    renderer = ChatRenderer(tokenizer_of(name))
    answered = [result_of(text, call.name, call.id) for text, call in zip(["seven", "a hall"], ids, strict=True)]
    written = renderer._applied([{"role": "user", "content": "look"}, message_of("", ids), *answered], DECLARED)
    shown = seen(name, [FIND, MOVE], environment("seven", "a hall"))
    begins = written.rindex("\n", 0, written.index("seven")) + 1 if "\n" in written else 0
    assert shown.endswith(written[begins:])


@pytest.mark.parametrize("results_of_whom", [results, environment])
def test_9_only_results_of_an_environment_begin_a_turn(results_of_whom: Callable[..., Observation]) -> None:
    said = ([FIND], results_of_whom("seven"), [FIND], results_of_whom("eight"), "fine")
    shown = seen("qwen3", *said, Observation(text="a hall"), context=Window(turns=2))
    assert "eight" in shown and ("seven" in shown) is (results_of_whom is results)


@pytest.mark.parametrize("name", SEVERAL_CALLS)
def test_9_results_without_their_calls_are_one_message(name: str) -> None:
    shown = seen(name, [FIND, MOVE], environment("seven", "a hall"), context=LatestOnly())
    plain = seen(name, "fine", Observation(text="seven\na hall"), context=LatestOnly())
    assert "seven\na hall" in shown and shown == plain


def test_7_a_response_template_of_the_tokenizer_reads_its_replies() -> None:
    tokenizer = tokenizer_of.__wrapped__("qwen3")
    tokenizer.response_template = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open": "CALL ", "close": " END", "repeats": True, "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"content": "text"},
        },
    }  # fmt: skip
    renderer = ChatRenderer(tokenizer)
    (call,) = renderer.calls('I look. CALL {"name": "find", "arguments": {"id": 3}} END', DECLARED).calls
    assert (call.name, dict(call.arguments)) == ("find", {"id": 3})
    assert renderer.calls("CALL {no END", DECLARED).fault is not None
    assert renderer.calls('CALL {"name": 3} END', DECLARED).fault == "`name` must be a text"


# ---- contexts ---------------------------------------------------------------------------------------------
def test_9_the_latest_turn_has_its_calls() -> None:
    latest = functools.partial(seen, "qwen3", context=LatestOnly())
    shown = latest("fine", Observation(text="a hall"), [FIND], results("seven"))
    assert "a hall" in shown and "<tool_response>\nseven" in shown and "fine" not in shown
    shown = latest([MOVE], Observation(text="a yard"))
    assert "<|im_start|>user\na yard<|im_end|>" in shown and "tool_response" not in shown  # its call is gone


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "nemotron_3_nano", "deepseek_r1_distill", "gptoss"])
def test_10_thoughts(name: str) -> None:
    opened = ChatRenderer(tokenizer_of(name)).opened(ChatRenderer(tokenizer_of(name)).written([USER]))[1]
    thought = {"gptoss": "<think>hm</think>"}.get(name, THOUGHT.removeprefix("<think>\n") if opened else THOUGHT)
    talk: Callable[..., str] = functools.partial(seen, name, tools=None)
    turns = (f"{thought}go", Observation(text="b"), "no", Observation(text="c"))
    assert talk(*turns, context=FullHistory(thoughts="keep")).count("hm") == 1
    assert talk(*turns, context=FullHistory(thoughts="strip")).count("hm") == 0


USER = {"role": "user", "content": "x"}


def test_10_variables_of_the_template() -> None:
    shown = seen("qwen3", tools=None, context=FullHistory(template={"enable_thinking": False}))
    assert shown.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with told(InvalidData, "no variable `enable_thoughts`"):
        seen("qwen3", context=FullHistory(template={"enable_thoughts": False}))
    with pytest.raises(InvalidData, match="the library sets `tools`"):
        seen("qwen3", context=FullHistory(template={"tools": False}))


def test_the_probe_finds_what_a_template_writes() -> None:
    assert TOOL["type"] == "function"
    assert tuple(ChatRenderer(tokenizer_of("deepseekv3")).support) == (False, False, False, True)
    assert tuple(ChatRenderer(tokenizer_of("lfm2")).support) == (True, False, False, True)


def test_messages_and_instruction_are_both_read() -> None:
    """In every context and for contexts that put turns together themselves."""
    few = [
        {"role": "user", "content": "2 + 2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "1"},
    ]
    both = Observation(text="not this", messages=few, instruction="Be brief.")
    renderer = ChatRenderer(tokenizer_of("qwen2_5"))
    for first in (True, False):
        shown = renderer.said(renderer.observation(both, first=first))
        assert "2 + 2" in shown and "assistant\n4<|im_end|>" in shown and "not this" not in shown
    whole = renderer.said(np.concatenate([renderer.instruction("Be brief."), renderer.observation(both, first=True)]))
    assert whole == renderer.said(FullHistory().start(renderer).observe(both).ids)
    talk = FullHistory().start(renderer)
    talk.observe(Observation(text="a"))
    talk.respond(renderer.action("b"))
    assert "2 + 2" in renderer.said(talk.observe(both).ids)


def test_a_setup_without_tools_has_none() -> None:
    assert tools_of(Role(policy=ScriptedPolicy(["x"])), RunSetup().roles) is None
