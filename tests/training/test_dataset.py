"""The experience `dataset`: (1) a conversation becomes the ids that play would have written, under tags and under a
chat template; (2) a pair is a group of two with outcomes 1 and 0 and a mark, and answers in its prompt are not learned
from; (3) each pass has every record once, in another order, and a resumed run is the same byte for byte; (4) stored
episodes keep their groups, rewards and, where their ids are those of the policy, log-probabilities; (5) what cannot be
read is refused by file and line; (6) what does not fit the context is counted, and refused where nothing fits; (7) a
policy learns from demonstrations alone, and nothing counts as played; (8) calls beside words, thoughts and results have
the ids that `apply_chat_template` gives with the row's tools, and messages with `weight: 0` are not learned from; (9)
rows of other layouts and formats are read, and what is not read is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.chat import ChatRenderer, LatestOnly
from palaestra.data import RunSetup, Trajectory
from palaestra.envs.worlds.dataset.records import read_records
from palaestra.errors import InvalidData, PalaestraError, RecipeError
from palaestra.rollout.roles import Role
from palaestra.store.episodes import to_json
from palaestra.store.metrics import MetricsLog
from palaestra.testing import TinyModel
from palaestra.testing.fakes import WORDS
from palaestra.training.dataset import Dataset
from palaestra.training.settings import RunSettings
from tests.extras import needs, skip_without
from tests.rollout.test_instructions import DEFAULT, played
from tests.training.conftest import curve, final_weights, stopped_before

Run = Callable[..., Path]
PAIR = {"prompt": "say red", "chosen": "red", "rejected": "blue"}
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "say red"},
    {"role": "assistant", "content": "red"},
    {"role": "user", "content": "say blue"},
    {"role": "assistant", "content": "blue"},
]
SETTINGS = RunSettings.model_construct(seed=3, strategy=[])


def lines(tmp_path: Path, *records: Any) -> str:
    path = tmp_path / "records.jsonl"
    texts = (record if isinstance(record, str) else json.dumps(record) for record in records)
    path.write_text("\n".join(texts), encoding="utf-8")
    return str(path)


def dataset(
    policy: Any, path: str, *, context: Any = None, roles: Sequence[str] = ("player",), **options: Any
) -> Dataset:
    role = Role(policy=policy, context=context)
    return Dataset(RunSetup(roles=dict.fromkeys((*roles, "*"), role), settings=SETTINGS), path=path, **options)


def ids(trajectory: Trajectory) -> list[list[int]]:
    return [[*step.prompt.tolist(), *step.action.tokens.tolist()] for step in trajectory.steps]


@pytest.mark.parametrize("context", [None, LatestOnly()], ids=["full_history", "latest_only"])
def test_ids_are_those_of_play(tiny: Any, tmp_path: Path, context: Any) -> None:  # rule 1
    episode = played(tiny, context, instruction="be brief")
    told = [{"role": "system", "content": "be brief"}]
    for step in episode.steps:
        told += [{"role": "user", "content": step.observation.text}, {"role": "assistant", "content": "red"}]
    kept = dataset(tiny, lines(tmp_path, {"messages": told}), context=context).collect(0).kept
    red = tiny.renderer.action("red").tolist()
    assert [step.action.tokens.tolist() for step in kept[0].steps] == [red] * 4 and kept[0].outcome == 1
    assert kept[0].steps[0].prompt.tolist() == episode.steps[0].prompt.tolist()
    assert [step.segment for step in kept[0].steps] == [step.segment for step in episode.steps]
    if context is not None:
        assert [step.prompt.tolist() for step in kept[0].steps] == [step.prompt.tolist() for step in episode.steps]


def test_a_chat_template(tmp_path: Path) -> None:  # rule 1
    policy = TinyModel()
    policy.tokenizer.chat_template = DEFAULT
    policy.renderer = ChatRenderer(policy.tokenizer)
    [kept] = dataset(policy, lines(tmp_path, {"messages": TALK})).collect(0).kept
    whole = policy.tokenizer.decode([i for piece in ids(kept) for i in piece])
    turns = ["<system>be brief", "<user>say red", "<assistant>red", "<user>say blue", "<assistant>blue<|end|>"]
    assert whole == "<|end|>\n".join(turns)


def test_pairs(tiny: Any, tmp_path: Path) -> None:  # rule 2
    implicit = {"chosen": "say red now", "rejected": "say red never"}
    talks = {"chosen": TALK, "rejected": [*TALK[:4], {"role": "assistant", "content": "green"}]}
    path = lines(tmp_path, PAIR, implicit, talks)
    kept = dataset(tiny, path, shuffle=False).collect(0).kept
    assert [(t.sample, t.outcome, t.returns, t.steps[-1].reward) for t in kept] == [
        (0, 1.0, {"player": 1.0}, 1.0),
        (1, 0.0, {"player": 0.0}, 0.0),
    ] * 3
    assert len({t.group for t in kept}) == 3 and {step.marks.pair for t in kept for step in t.steps} == {1.0}
    said = [[(step.observation.text, step.action.text) for step in t.steps] for t in kept]
    assert said[2:4] == [[("say red ", "now")], [("say red ", "never")]]
    assert said[4] == [("say red", "red"), ("say blue", "blue")] and said[5][1] == ("say blue", "green")
    assert [step.marks.row_weight for step in kept[5].steps] == [0.0, None]
    assert all(t.task.content_hash == other.task.content_hash for t, other in zip(kept[::2], kept[1::2], strict=True))


def test_each_pass_has_every_record(tiny: Any, tmp_path: Path) -> None:  # rule 3
    path = lines(tmp_path, *({"prompt": f"say {i}", "completion": "red", "label": i % 2 == 0} for i in range(10)))

    def read(**options: Any) -> list[list[str]]:
        batches = [dataset(tiny, path, batch=4, **options).collect(number).kept for number in range(5)]
        return [[t.steps[0].observation.text for t in kept] for kept in batches]

    found = read()
    flat = [text for texts in found for text in texts]
    everything = sorted(f"say {i}" for i in range(10))
    assert sorted(flat[:10]) == sorted(flat[10:]) == everything and flat[:10] != flat[10:]
    assert found == read() and read(shuffle=False)[2][:3] == ["say 8", "say 9", "say 0"]
    whole = dataset(tiny, path, batch=64).collect(0)
    assert len(whole.kept) == 10 and whole.metrics["dataset/passes"] == 1
    assert sorted(t.outcome for t in whole.kept) == [0.0] * 5 + [1.0] * 5


def test_stored_episodes(tiny: Any, tmp_path: Path) -> None:  # rule 4
    stored = [played(tiny, seed=seed) for seed in (1, 2, 3)]
    stored[2].group = "h"
    path = lines(tmp_path, *({"step": 0, "name": "train", "trajectory": to_json(t)} for t in stored))
    batch = dataset(tiny, path, shuffle=False).collect(0)
    assert [(t.group, t.sample) for t in batch.kept] == [("000000-00000", 0), ("000000-00000", 1), ("000000-00001", 0)]
    for told, episode in zip(batch.kept, stored, strict=True):
        assert told.returns == episode.returns and told.outcome == episode.outcome
        assert [step.reward for step in told.steps] == [step.reward for step in episode.steps]
        same = [
            np.array_equal(a.action.tokens, b.action.tokens) for a, b in zip(told.steps, episode.steps, strict=True)
        ]
        assert [step.action.logprobs is not None for step in told.steps] == same
    assert batch.played == []


MESSAGE = {"role": "assistant", "content": "red"}
BAD: dict[str, tuple[Any, str]] = {
    "a missing column": ({"prompt": "say red", "chosen": "red"}, "not those of a record: chosen, prompt"),
    "equal answers": ({**PAIR, "rejected": "red"}, "`chosen` and `rejected` are equal"),
    "an empty text": ({**PAIR, "chosen": "  "}, "`chosen` has a message whose text is empty"),
    "no text": ({**PAIR, "chosen": 3}, "`chosen` is neither a text nor a list of messages"),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "part of the type 'text'",
    ),
    "no prompt": ({"chosen": "red", "rejected": "blue"}, "begin differently"),
    "two kinds": ({"chosen": "red", "rejected": [MESSAGE]}, "must be two texts or two lists"),
    "a beginning": ({"chosen": TALK, "rejected": [*TALK, MESSAGE]}, "`chosen` is neither a text nor a list"),
    "a stranger": ({"messages": [{"role": "judge", "content": "x"}]}, "`role` is 'judge'; it must be one of system"),
    "no answer": ({"messages": [{"role": "user", "content": "x"}]}, "no message of the role `assistant`"),
    "no question": ({"messages": [MESSAGE]}, "no message to the assistant"),
    "no answer at the end": ({"messages": [*TALK, TALK[0]]}, "ends with a message that the assistant does not answer"),
    "no weight": ({"messages": [TALK[1], {**MESSAGE, "weight": 0}]}, "all messages of the assistant have `weight: 0`"),
    "images": ({**PAIR, "images": ["a.png"]}, "reads texts alone"),
    "a key twice": ('{"prompt": "x", "prompt": "y", "completion": "z"}', "`prompt` stands twice"),
    "no object": ([1], "the row is not a JSON object"),
    "no episode": ({"trajectory": {"task": {}}}, "`trajectory` is not an episode"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(tmp_path: Path, name: str) -> None:  # rule 5
    record, fault = BAD[name]
    with pytest.raises(InvalidData, match=fault) as caught:
        read_records(Path(lines(tmp_path, PAIR, record)), "player").records
    assert caught.value.where.startswith("records.jsonl:2")


def test_refused_files(tiny: Any, tmp_path: Path) -> None:  # rule 5
    path = tmp_path / "broken.jsonl"
    path.write_text('{"prompt": "say red", "completion": "red"}\n\n{"prompt": ')
    with pytest.raises(InvalidData, match="it is not JSON") as caught:
        read_records(path, "player").records
    assert caught.value.where == "broken.jsonl:3"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "say red", "completion": "red"}')  # with a mark of the byte order
    assert len(read_records(path, "player").records) == 1
    path.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(InvalidData, match="it is not UTF-8"):
        read_records(path, "player").records
    path.write_text("\n")
    with pytest.raises(InvalidData, match="the file has no rows"):
        read_records(path, "player").records
    with pytest.raises(RecipeError, match="there is no file nowhere"):
        dataset(tiny, "nowhere.jsonl")
    with pytest.raises(InvalidData, match="several roles that act"):
        dataset(tiny, lines(tmp_path, PAIR), roles=("one", "other"))
    assert dataset(tiny, lines(tmp_path, PAIR), roles=("one", "other"), agent="other").collect(0)


def test_a_list(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    path.write_text(json.dumps([PAIR, {**PAIR, "prompt": None, "chosen": "say red", "rejected": "say blue"}]))
    assert [len(record) for record in read_records(path, "player").records] == [2, 2]


def test_too_long(tiny: Any, tmp_path: Path) -> None:  # rule 6
    long = {**PAIR, "rejected": "red " * 600}
    batch = dataset(tiny, lines(tmp_path, PAIR, long)).collect(0)
    assert len(batch.kept) == 2 and batch.metrics["dataset/too_long"] == 1
    with pytest.raises(InvalidData, match="none of the 1 records of iteration 0 fits"):
        dataset(tiny, lines(tmp_path, long)).collect(0)


def demonstrations(tmp_path: Path) -> str:
    turns = [{"role": role, "content": text} for w in WORDS for role, text in (("user", f"say {w}"), ("assistant", w))]
    talks = [{"messages": [*turns[2 * a : 2 * a + 2], *turns[2 * b : 2 * b + 2]]} for a in range(4) for b in range(4)]
    return lines(tmp_path, *talks)


CLONING = ["warm_start=null", "loss=behavior_cloning", "optimizer.adamw.lr=0.01"]


def test_learning_from_a_file(echo: Run, tmp_path: Path) -> None:  # rule 7
    layers = {"experience": {"dataset": {"path": demonstrations(tmp_path), "batch": 8}}}
    folder = echo("whole", *CLONING, "training.iterations=120", "evaluation.tasks=16", layers=layers)
    evaluations = MetricsLog(folder).evaluations.read()
    assert evaluations[0]["eval/echo/success"] == 0 and evaluations[-1]["eval/echo/success"] > 0.9
    last = curve(folder)[-1]
    assert (last["environment_steps"], last["tokens"], last["updates"], last["outcome/mean"]) == (0, 0, 120, 1)
    assert last["dataset/passes"] == 60 and last["stop/completed"] == 1
    assert not {"mismatch/kl", "advantage/mean"} & last.keys()  # nobody sampled, and nobody reads an advantage


def test_resumed(echo: Run, tmp_path: Path) -> None:  # rule 3
    layers = {"experience": {"dataset": {"path": demonstrations(tmp_path), "batch": 6}}}
    whole = echo("whole", *CLONING, "training.iterations=5", layers=layers)
    with stopped_before(3):
        echo("parts", *CLONING, "training.iterations=5", layers=layers)
    assert final_weights(echo("parts", *CLONING, "training.iterations=5", layers=layers, resume=True)) == final_weights(
        whole
    )


def test_offline_reinforcement_learning(echo: Run, tmp_path: Path) -> None:  # rule 4
    good = {"messages": [{"role": "user", "content": "say red"}, MESSAGE]}
    records = [read_records(Path(lines(tmp_path, good)), "player").records[0][0] for _ in range(2)]
    records[1].steps[0].action.text = records[1].steps[0].action.value = "blue"
    records[1].outcome = records[1].steps[0].reward = 0.0
    records[1].returns = {"player": 0.0}
    path = lines(tmp_path, *({"trajectory": to_json(t)} for t in records))
    line = curve(echo("offline", layers={"experience": {"dataset": {"path": path}}}))[-1]
    assert line["advantage/nonzero"] == 1 and line["reward/mean"] == 0.5 and line["policy/kl"] == 0


def test_beside_a_strategy(echo: Run, tmp_path: Path) -> None:
    with pytest.raises(PalaestraError, match="experience `dataset` does not read `strategy`"):
        path = lines(tmp_path, PAIR)
        echo("a", layers={"experience": {"dataset": {"path": path}}, "strategy": ["dynamic_sampling"]})


CALL = {"type": "function", "function": {"name": "stock", "arguments": {"item": "M3"}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "stock",
        "description": "Pieces in stock.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
LEARNED = ("qwen2_5", "qwen3", "qwen3_8", "glm4moe", "lfm2", "lfm2_2_5", "gptoss", "gemma4_v5", "muse_glimmer", "phi3")
CALLING = [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": "bolts?"},
    {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL], "weight": 0},
    {"role": "tool", "name": "stock", "content": "7"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "stock", "content": "8"},
    {"role": "assistant", "content": "Eight."},
]


@needs("trl")
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_instruct_2507", "glm4moe", "lfm2"])
def test_calls_are_learned_as_the_template_writes_them(tmp_path: Path, name: str) -> None:  # rule 8
    from tests.chat.conversations import policy_of

    policy = policy_of(name, tmp_path / "model")
    for tools in ([TOOL], json.dumps([TOOL])):
        [kept] = dataset(policy, lines(tmp_path, {"messages": CALLING, "tools": tools})).collect(0).kept
        assert [step.marks.row_weight for step in kept.steps] == [0.0, None, None]
        assert [bool(step.action.tool_calls) for step in kept.steps] == [True, True, False]
        said = [policy.renderer.said(step.action.tokens) for step in kept.steps]
        assert "Let me look." in said[0] and "M3" in said[0] and "M3" in said[1]
        assert kept.steps[-1].observation.messages[0]["role"] == "tool"


@needs("trl")
@pytest.mark.parametrize("name", LEARNED)
def test_thoughts_are_learned_as_the_template_writes_them(tmp_path: Path, name: str) -> None:  # rule 8
    from tests.chat.compared import DECLARED, SCRIPTS, Compared, asked
    from tests.chat.conversations import policy_of

    policy, compared = policy_of(name, tmp_path / "model"), Compared(name)
    for script in ("talk", "call" if name == "gptoss" else "words"):  # gpt-oss writes no words beside a call
        turns, tools = SCRIPTS[script][:-1], None if script == "talk" else DECLARED
        row = {"messages": asked(turns)} | ({"tools": tools} if tools else {})
        [kept] = dataset(policy, lines(tmp_path, row)).collect(0).kept
        declared = tools if compared.declares else None
        shown = compared.applied(compared.messages(turns[:-1], tools), speaks=True, tools=declared)
        reply = compared.reply(shown, turns[-1], compared.message(turns[-1], 0), declared)
        assert kept.sequence("player", kept.steps[-1].segment).tolist() == compared.ids(shown + reply)


def test_layouts_and_what_is_not_read(tiny: Any, tmp_path: Path) -> None:  # rule 9
    turns = [{"from": "human", "value": "say red"}, {"from": "gpt", "value": "red"}]
    told = dataset(tiny, lines(tmp_path, {"conversations": turns, "id": 3}), layout="sharegpt")
    assert [step.action.text for step in told.collect(0).kept[0].steps] == ["red"]
    assert told.notes == ("records.jsonl: nothing reads the column `id`",)
    row = {"instruction": "say", "input": "red", "output": "red"}
    (step,) = dataset(tiny, lines(tmp_path, row), layout="alpaca").records[0][0].steps
    assert (step.observation.text, step.action.text) == ("say\nred", "red")
    preferred = {
        "input": {"messages": [{"role": "user", "content": "say red"}], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [MESSAGE],
        "non_preferred_output": [{"role": "assistant", "content": "blue"}],
    }
    pairs = dataset(tiny, lines(tmp_path, preferred))
    assert [t.outcome for t in pairs.records[0]] == [1.0, 0.0] and "parallel_tool_calls" in pairs.notes[0]
    skip_without("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([PAIR]), tmp_path / "a.parquet")
    assert len(dataset(tiny, str(tmp_path / "a.parquet")).records[0]) == 2
