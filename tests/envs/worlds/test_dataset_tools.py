"""Tools, roles and layouts of rows of `dataset`:

1. The tools of a row, a list or a JSON text, are declared to the policy; a column that declares none is refused.
2. A call of the model reaches reward functions as a call, and verifiers as JSON; words beside it stay words.
3. An answer to a call is a tool's result.
4. A good reply with a call beside its words is cloned with both, in ids that the template itself writes.
5. Calls of rows that Parquet and Arrow store have the arguments that were stored; a null of JSON stays.
6. OpenAI's rows are read: `developer` is a system message, prompts may be texts in some rows and messages in others.
7. ShareGPT and Alpaca are read by name, and rows of other layouts refused.
8. What has a known meaning and is not read is said in one line.
9. Files may be compressed, and a key that stands twice in a row is refused.
"""

from __future__ import annotations

import asyncio
import gzip
import json

import numpy as np
import pytest

from palaestra.chat import FullHistory
from palaestra.data import Action, FinishReason, Play, RunSetup, ToolCall
from palaestra.data.protocols import Engine, Response
from palaestra.envs.worlds.dataset.files import read_rows
from palaestra.envs.worlds.dataset.groups import reply_of
from palaestra.envs.worlds.dataset.world import AGENT, Dataset
from palaestra.errors import InvalidData
from palaestra.rollout.programs import demonstrate, play
from palaestra.rollout.roles import Role, RoleTools
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from tests.extras import imported, needs
from tests.messages import told

TOOL = {
    "type": "function",
    "function": {
        "name": "stock",
        "description": "Pieces in stock.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
CALL = {"id": "abc", "type": "function", "function": {"name": "stock", "arguments": '{"item": "M3"}'}}
REPLY = {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}
ASKED = {"role": "user", "content": "How many bolts M3?"}
JUDGES = """
seen = []

def called(completions, prompts, **columns):
    seen.append((prompts[0], completions[0]))
    return [float(completions[0][-1].get("tool_calls", [{}])[0].get("function", {}).get("name") == "stock")]

def arguments(completion, tool_calls):
    return float(tool_calls == [{"name": "stock", "arguments": {"item": "M3"}}])

def reply(messages):
    return None if messages[-1]["content"] == "done" else "7"
"""


@pytest.fixture
def made(tmp_path):
    """The environment of rows."""

    def make(*rows, name="rows.jsonl", **options):
        path = tmp_path / name
        rows = [row if isinstance(row, str) else {"answer": "7", **row} for row in rows]
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        (tmp_path / "judges.py").write_text(JUDGES)
        return Dataset(path=str(path), split=1e-9, **options)

    return make


def seen(env):
    return env.reset(env.tasks("train", 1, 0)[0]).observations[AGENT]


# ---- rule 1 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [TOOL["function"]]], ids=["list", "text", "functions"])
def test_1_tools_of_a_row(made, tools):
    env = made({"prompt": [ASKED], "tools": tools, "answer": "7"})
    assert list(seen(env).tools) == [TOOL] and seen(env).text == ASKED["content"]
    assert seen(made({"prompt": "x", "functions": [TOOL["function"]]}, name="b.jsonl")).tools
    assert seen(made({"prompt": "x", "tools": None}, name="c.jsonl")).tools is None


def test_1_tools_that_are_none(made):
    with told(InvalidData, "`tools.0`"):
        made({"prompt": "x", "tools": [{"type": "web_search"}]})


# ---- rules 2 to 4 -----------------------------------------------------------------------------------------
class Scripted(Engine):
    """Answers by these ids, one after the other."""

    def __init__(self, *replies):
        self.replies = list(replies)

    async def generate(self, request):
        return Response(action=Action(tokens=self.replies.pop(0), finish=FinishReason.STOP))

    def publish(self, policy, named_tensors, version):
        return None

    def close(self, session):
        return None

    def context(self, policy):
        return 32_768


def played(env, folder, *replies, template="qwen2_5", program=play):
    """An episode, and the policy. Replies are calls with words, or words alone."""
    from tests.chat.conversations import policy_of

    policy = policy_of(template, folder)
    write = policy.renderer
    ids = [write.action(one) if isinstance(one, str) else write.call(one[0], (TOOL,), said=one[1]) for one in replies]
    policy.engine = Scripted(*ids)
    setup = RunSetup(
        environment_name="dataset",
        make_environment=lambda: env,
        source=env,
        roles={"*": Role(policy=policy, context=FullHistory(), tools=RoleTools(native=True))},
        program=program,
    )
    runner = EpisodeRunner(setup, RolloutSettings(response_tokens=400, stuck_seconds=None))
    (episode,) = runner.collect([Play(task=env.tasks("train", 1, 0)[0], group="g", sample=0, seed=0)])
    runner.close()
    assert episode.error is None, episode.error
    return episode, policy


STOCK = (ToolCall(name="stock", arguments={"item": "M3"}),)


@needs("trl")
def test_2_calls_reach_the_judges(made, tmp_path):
    judges = [f"{tmp_path}/judges.py:called", f"{tmp_path}/judges.py:arguments", "exact_match"]
    answer = '{"name": "stock", "arguments": {"item": "M3"}}'
    env = made({"prompt": [ASKED], "tools": [TOOL], "answer": answer}, reward=judges)
    episode, _ = played(env, tmp_path / "model", (STOCK, "Let me look."))
    assert [episode.info[name] for name in ("called", "arguments", "exact_match")] == [1.0, 1.0, 1.0]
    function = {"name": "stock", "arguments": {"item": "M3"}}
    (message,) = reply_of(episode, env).messages
    assert message["content"] == "Let me look." and message["tool_calls"][0]["function"] == function
    episode, _ = played(env, tmp_path / "other", "Seven.")
    assert [episode.info[name] for name in ("called", "arguments", "exact_match")] == [0.0, 0.0, 0.0]


@needs("trl")
def test_3_an_answer_to_a_call_is_its_result(made, tmp_path):
    env = made(
        {"prompt": [ASKED], "tools": [TOOL], "answer": "done"}, respond=f"{tmp_path}/judges.py:reply", max_turns=3
    )
    episode, policy = played(env, tmp_path / "model", (STOCK, ""), "done")
    whole = policy.renderer.said(episode.sequence(AGENT, 0))
    assert "<tool_response>\n7\n</tool_response>" in whole and episode.info["success"]
    result = reply_of(episode, env).messages[1]
    assert (result["role"], result["name"], result["content"]) == ("tool", "stock", "7")


@needs("trl")
@pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "llama3", "mistral", "glm4moe", "gemma4"])
def test_4_demonstrations_have_words_and_calls(made, tmp_path, template):
    env = made({"messages": [ASKED, REPLY], "tools": [TOOL]})
    episode, policy = played(env, tmp_path, template=template, program=demonstrate)
    (step,) = episode.steps
    said = policy.renderer.said(step.action.tokens)
    assert "stock" in said and "M3" in said
    if template == "mistral":  # it writes no words beside a call
        return
    assert "Let me look." in said
    if policy.renderer.support.calls:
        reply = {**REPLY, "tool_calls": [{**CALL, "function": {"name": "stock", "arguments": {"item": "M3"}}}]}
        whole = policy.tokenizer.apply_chat_template([ASKED, reply], tools=[TOOL], tokenize=False)
        if template == "qwen3":  # it leaves an empty thought out of earlier replies, so demonstrations have none
            whole = whole.replace("<think>\n\n</think>\n\n", "")
        assert whole.startswith(policy.renderer.said(episode.sequence(AGENT, 0)[:-1]))  # all but the end of the reply


def test_4_completions_with_calls(made):
    env = made({"prompt": [ASKED], "tools": [TOOL], "completion": [{**REPLY, "reasoning_content": "hm"}]})
    seen(env)
    assert env.expert(AGENT).tool_calls[0].arguments == {"item": "M3"}
    assert env.expert(AGENT).text == "<think>\nhm\n</think>\n\nLet me look."


# ---- rule 5 -----------------------------------------------------------------------------------------------
def stored(number, as_text=False):
    arguments = {"item": f"M{number}", "size": None} if number % 2 else {"sku": number, "currency": "EUR"}
    given = json.dumps(arguments) if as_text else arguments
    call = {"id": f"c{number}", "type": "function", "function": {"name": "stock", "arguments": given}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "7", "tool_call_id": f"c{number}"}
    return {"prompt": [{**ASKED, "content": f"Bolts M{number}?"}, said, result], "answer": "7", "other": None}


def arguments(env):
    problems = sorted(env._given.problems, key=lambda one: one.place)
    return [one.prompt[1]["tool_calls"][0]["function"]["arguments"] for one in problems[:2]]


def test_5_nulls_of_arrow(made, tmp_path):
    pa, pq = imported("pyarrow"), imported("pyarrow.parquet")
    rows = [stored(number) for number in range(2)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, pa.table({}).schema) as _:
        pass
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    for name in ("a.parquet", "b.arrow"):
        env = Dataset(path=str(tmp_path / name), split=1e-9)
        assert arguments(env) == [{"sku": 0, "currency": "EUR"}, {"item": "M1"}]
        assert env._given.problems[0].columns["other"] is None
    plain = [{"sku": 0, "currency": "EUR"}, {"item": "M1", "size": None}]
    assert arguments(made(*rows)) == arguments(made(stored(0, True), stored(1, True), name="t.jsonl")) == plain


def test_5_json_in_arrow(tmp_path):
    datasets = imported("datasets")
    rows = [{**stored(number), "tools": [TOOL]} for number in range(2)]
    whole = datasets.Dataset.from_list(rows, on_mixed_types="use_json")
    whole.to_parquet(tmp_path / "a.parquet")
    whole.save_to_disk(tmp_path / "b")
    for name in ("a.parquet", "b"):
        env = Dataset(path=str(tmp_path / name), split=1e-9)
        assert arguments(env) == [{"sku": 0, "currency": "EUR"}, {"item": "M1", "size": None}]
        assert list(seen(env).tools) == [TOOL]


# ---- rule 6 -----------------------------------------------------------------------------------------------
def test_6_developers_and_prompts_of_two_kinds(made):
    developer = {"prompt": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]}
    env = made({"prompt": "0+0?", "answer": "0"}, {**developer, "answer": "2"})
    shown = {task.params["row"]: env.reset(task).observations[AGENT] for task in env.tasks("train", 2, 0)}
    assert (shown[0].text, shown[0].instruction) == ("0+0?", None)
    assert (shown[1].text, shown[1].instruction, shown[1].messages) == ("1+1?", "Be brief.", None)
    assert [one.prompt for one in env._given.problems] == [
        ({"role": "user", "content": "0+0?"},),
        tuple(developer["prompt"]),
    ]


# ---- rule 7 -----------------------------------------------------------------------------------------------
SHARED = {
    "system": "Be brief.",
    "tools": json.dumps([TOOL["function"]]),
    "conversations": [
        {"from": "human", "value": "How many bolts M3?"},
        {"from": "function_call", "value": '{"name": "stock", "arguments": {"item": "M3"}}'},
        {"from": "observation", "value": "7"},
        {"from": "gpt", "value": "Seven."},
    ],
}


def test_7_sharegpt(made):
    env = made(SHARED, layout="sharegpt")
    shown = seen(env)
    assert [(one["role"], one["content"]) for one in shown.messages] == [
        ("system", "Be brief."),
        ("user", "How many bolts M3?"),
        ("assistant", ""),
        ("tool", "7"),
    ]
    assert shown.messages[2]["tool_calls"][0]["function"] == {"name": "stock", "arguments": {"item": "M3"}}
    assert list(shown.tools) == [TOOL | {"function": TOOL["function"]}] and env.expert(AGENT).text == "Seven."


def test_7_alpaca(made):
    row = {"instruction": "Add.", "input": "1+1", "output": "2", "system": "Be brief.", "history": [["Hi", "Hello"]]}
    env = made(row, layout="alpaca", answer="output")
    shown = [(one["role"], one["content"]) for one in seen(env).messages]
    assert shown == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Add.\n1+1")]
    assert env.expert(AGENT).text == "2"
    assert asyncio.run(env.step({AGENT: Action(text="2", tokens=np.zeros(0, np.int32))})).info["success"]


@pytest.mark.parametrize(
    ("row", "layout", "word"),
    [
        ({"prompt": "x"}, "sharegpt", "`conversations`"),
        ({"conversations": [{"role": "user", "content": "x"}]}, "sharegpt", "no turn"),
        (
            {"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "{"}]},
            "sharegpt",
            "J",
        ),
        ({"prompt": "x"}, "alpaca", "`instruction`"),
    ],
)
def test_7_rows_of_other_layouts(made, row, layout, word):
    with told(InvalidData, word):
        made(row, layout=layout)


# ---- rule 8 -----------------------------------------------------------------------------------------------
def test_8_what_is_not_read(made):
    env = made({"prompt": [{**ASKED, "id": 3}], "parallel_tool_calls": False, "extra": 1})
    assert env.notes == (
        "rows.jsonl: only reward functions read the column `parallel_tool_calls`",
        "rows.jsonl: nothing reads the key `id` of messages",
    )
    assert made({"prompt": [ASKED], "extra": 1}, name="b.jsonl").notes == ()


# ---- rule 9 -----------------------------------------------------------------------------------------------
def test_9_compressed_files(made, tmp_path):
    assert seen(made({"prompt": "x?", "answer": "4"}, name="rows.jsonl.gz")).text == "x?"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"prompt,answer\r\nx,4\r\n"))
    assert [dict(row.columns) for row in read_rows(f"{tmp_path}/a.csv.gz")] == [{"prompt": "x", "answer": "4"}]
    assert len(read_rows(f"{tmp_path}/a.csv")) == 1  # the beginning of its name
    (tmp_path / "b.jsonl.gz").write_bytes(b'{"prompt": "x"}')
    with told(InvalidData, "not compressed by gzip"):
        read_rows(f"{tmp_path}/b.jsonl.gz")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_9_keys_that_stand_twice(made, name):
    rows = ['{"prompt": "x", "answer": "4"}', '{"prompt": "y", "answer": "4", "answer": "5"}']
    with told(InvalidData, "`answer` stands twice"):
        made(*rows, name=name)
