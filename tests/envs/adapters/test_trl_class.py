"""Environments written for TRL: (1) the contract holds; (2) public methods are tools, their errors are results;
(3) rows become keyword arguments and the prompt; (4) reward by attribute or by TRL's reward function; (5) the ends: an
answer without a call, `done`, the limit of turns; (6) splits, seeds, copies; (7) what does not fit is refused;
(8) `get_reward` and several functions give the reward; (9) a column chooses one of several environments; (10) the roles
of messages are kept; (11) lists of content parts reach the agent, with their images; (12) where the chat template
declares the tools, the prompt explains them once; (13) each native call is answered by a message of its own.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from palaestra.chat import ChatRenderer, FullHistory
from palaestra.chat.places import PLACE
from palaestra.data import Action, StepResult, Task, ToolCall
from palaestra.data.abilities import has
from palaestra.envs.adapters.trl_class.world import AGENT, TrlClass
from palaestra.errors import ContractError, InvalidData, PalaestraError, RecipeError, UnknownName
from palaestra.rollout.roles import Role, RoleTools, declared, tools_of
from palaestra.testing import ScriptedPolicy, check_environment
from tests.chat.templates import tokenizer_of
from tests.messages import told

SOURCE = '''
import random

from palaestra.data import ToolCall


class Guess:
    """TRL's style: no base class, state on the object, ValueError at the end."""

    def reset(self, **kwargs) -> str | None:
        self.secret = kwargs.get("secret", random.randrange(8))
        self.reward, self.done, self.tries = 0.0, False, 0
        return f"Guess a number below {kwargs.get('below', 8)}."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: your guess

        Returns:
            Whether it is higher, lower or right.
        """
        if self.done:
            raise ValueError("Game over.")
        self.tries += 1
        if number == self.secret:
            self.reward, self.done = 1.0, True
            return "right"
        return "higher" if number < self.secret else "lower"

    async def hint(self) -> str:
        """Tell whether the number is even."""
        return "even" if self.secret % 2 == 0 else "odd"

    def _hidden(self):
        raise AssertionError


class Counter:
    def __init__(self):
        self.count = 0

    def reset(self, **kwargs):
        self.count = 0

    def increment(self, step: int = 1) -> int:
        """Add to the counter.

        Args:
            step: what is added
        """
        self.count += step
        return self.count


class Mute:
    def reset(self, **kwargs):
        pass


class Toolless:
    def guess(self):
        """Guess."""


class Undocumented(Mute):
    def guess(self, number: int) -> str:
        return "no"


class Greedy(Counter):
    def __init__(self, url):
        self.url = url


class Locked(Counter):
    def __init__(self):
        import threading
        self.lock = threading.Lock()


def counted(environments, target, prompts, completions, **kwargs):
    assert prompts == ["Count to the target."] and completions[0][0]["role"] == "assistant"
    return [float(env.count == goal) for env, goal in zip(environments, target)]


def rows():
    return [{"secret": number} for number in range(10)]


def best(env):
    return "done" if env.done else ToolCall(name="guess", arguments={"number": env.secret})
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "classes.py"
    path.write_text(SOURCE)
    return path


def play(env: TrlClass, *answers: str, task: Task | None = None) -> list[StepResult]:
    env.reset(task or env.tasks("train", 1, 0)[0])
    return [asyncio.run(env.step({AGENT: Action(text=answer)})) for answer in answers]


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_the_contract_holds(file: Path) -> None:  # rule 1
    for options in ({}, {"expert": f"{file}:best", "data": f"{file}:rows"}, {"format": "words"}, {"format": "code"}):
        made = {"env": f"{file}:Guess", "max_turns": 5} | options
        check_environment(TrlClass(**made), make=lambda made=made: TrlClass(**made))


def test_methods_are_tools(file: Path) -> None:  # rule 2
    env = TrlClass(env=f"{file}:Guess", data=[{"secret": 5, "below": 9}])
    assert sorted(one.name for one in env.tools()) == ["guess", "hint"]
    seen = env.reset(Task(env="trl_class", seed=0)).observations[AGENT]
    assert seen.text == "Guess a number below 9." and "guess(number: integer): Guess the number." in seen.instruction
    texts = [
        r.observations[AGENT].text
        for r in play(
            env,
            call("guess", number=2),
            call("guess", number=7) + call("hint"),
            call("guess", number="many"),
            call("leave"),
            '{"name": "guess", "arguments": ',
        )
    ]
    assert texts[0] == "higher" and texts[1] == "lower\nodd"
    assert texts[2] == "error: `number` must be an integer, found 'many'"
    assert texts[3].startswith("error: there is no tool `leave`") and texts[4].startswith("error: this is no JSON")
    result = play(env, call("guess", number=5))[0]
    assert result.terminated == {AGENT} and result.rewards == {AGENT: 1.0}
    assert result.info == {"calls": 1, "score": 1.0, "success": True}
    gone = play(env, call("guess", number=5) + call("guess", number=5))[0]
    assert env._said[-1]["content"] == "error: guess failed: ValueError: Game over." and gone.info["success"] is True


def test_rows_and_prompts(file: Path, tmp_path: Path) -> None:  # rule 3
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Play. "}]
    env = TrlClass(env=f"{file}:Guess", data=[{"secret": 1, "prompt": chat}], remind=True)
    assert env.reset(env.tasks("train", 1, 0)[0]).observations[AGENT].text == "Be brief.\nPlay. Guess a number below 8."
    assert play(env, call("hint"))[0].observations[AGENT].text == "Be brief.\nPlay. Guess a number below 8.\nodd"
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"secret": 3, "prompt": "one\u2028two"}\n\n{"secret": 4}\n', encoding="utf-8")
    for data in (str(lines), f"{file}:rows"):
        env = TrlClass(env=f"{file}:Guess", data=data, held_out=0)
        env.reset(env.tasks("train", 1, 0)[0])
        assert env._object.secret == env._rows[env.tasks("train", 1, 0)[0].params["row"]]["secret"]
    assert TrlClass(env=f"{file}:Counter").reset(Task(env="trl_class", seed=0)).observations[AGENT].text == "begin"


def test_reward_functions(file: Path) -> None:  # rule 4
    data = [{"target": 3, "prompt": "Count to the target."}]
    env = TrlClass(env=f"{file}:Counter", data=data, reward=f"{file}:counted")
    right = play(env, call("increment"), call("increment", step=2), "I have counted.")
    assert [r.rewards[AGENT] for r in right] == [0.0, 0.0, 1.0] and right[-1].info["success"] is True
    assert play(env, call("increment"), "Done.")[-1].info == {"calls": 1, "score": 0.0, "success": False}


def test_the_ends(file: Path) -> None:  # rule 5
    env = TrlClass(env=f"{file}:Guess", data=[{"secret": 5}], max_turns=2)
    answer = play(env, "It is five.")[0]
    assert answer.terminated == {AGENT} and answer.info["invalid"] == {AGENT: True} and answer.info["success"] is False
    later = play(env, call("hint"), "It is five.")[-1]
    assert later.terminated == {AGENT} and "invalid" not in later.info
    cut = play(env, call("hint"), call("hint"))[-1]
    assert cut.truncated == {AGENT} == set(cut.last) and cut.info["score"] == 0.0


def test_splits_seeds_and_copies(file: Path) -> None:  # rule 6
    env = TrlClass(env=f"{file}:Guess", data=f"{file}:rows", held_out=0.3)
    rows = {split: {task.params["row"] for task in env.tasks(split, 200, 0)} for split in ("train", "eval")}
    assert not rows["train"] & rows["eval"] and len(rows["train"]) == 7 and len(rows["eval"]) == 3
    env = TrlClass(env=f"{file}:Guess")
    secrets = []
    for task in [*env.tasks("train", 12, 0), env.tasks("train", 1, 0)[0]]:
        env.reset(task)
        secrets.append(env._object.secret)
    assert len(set(secrets)) > 3 and secrets[0] == secrets[-1]
    env = TrlClass(env=f"{file}:Guess", seed_column="secret")
    task = env.tasks("train", 1, 0)[0]
    env.reset(task)
    assert env._object.secret == task.seed % (1 << 31)
    saved = env.snapshot()
    asyncio.run(env.step({AGENT: Action(text=call("guess", number=1))}))
    assert env._object.tries == 1
    env.restore(saved)
    assert env._object.tries == 0
    asyncio.run(env.step({AGENT: Action(text=call("guess", number=1))}))
    assert env._object.tries == 1


def test_the_expert_is_ones_own(file: Path) -> None:
    env = TrlClass(env=f"{file}:Guess", expert=f"{file}:best", format="words")
    env.reset(env.tasks("eval", 1, 0)[0])
    result = asyncio.run(env.step({AGENT: env.expert(AGENT)}))
    assert result.info["success"] is True and not has(TrlClass(env=f"{file}:Guess"), "expert")


def test_what_does_not_fit_is_refused(file: Path, tmp_path: Path) -> None:  # rule 7
    (tmp_path / "bad.jsonl").write_text("{")
    (tmp_path / "twice.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": "b", "prompt": "c"}\n')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "latin.json").write_bytes(b'[{"prompt": "\xe9"}]')
    bad: list[tuple[dict[str, Any], type[PalaestraError], str]] = [
        ({"env": f"{file}:Gone"}, UnknownName, "cannot be loaded"),
        ({"env": f"{file}:Mute"}, ContractError, "to use as a tool"),
        ({"env": f"{file}:Toolless"}, ContractError, "no method `reset`"),
        ({"env": f"{file}:Undocumented"}, ContractError, "no docstring"),
        ({"env": f"{file}:Greedy"}, RecipeError, "can be made"),
        ({"env": f"{file}:Guess", "data": "gone.jsonl"}, InvalidData, "gone.jsonl"),
        ({"env": f"{file}:Guess", "data": str(tmp_path / "bad.jsonl")}, InvalidData, "not JSON"),
        ({"env": f"{file}:Guess", "data": str(tmp_path / "twice.jsonl")}, InvalidData, "line 3"),
        ({"env": f"{file}:Guess", "data": str(tmp_path / "deep.json")}, InvalidData, "nested too deeply"),
        ({"env": f"{file}:Guess", "data": str(tmp_path / "latin.json")}, InvalidData, "utf-8"),
        ({"env": f"{file}:Guess", "data": []}, InvalidData, "no list of rows"),
        ({"env": f"{file}:Guess", "held_out": 1.0}, RecipeError, "`held_out: 1.0`"),
        ({"env": f"{file}:Guess", "format": "xml"}, RecipeError, "`format: 'xml'`"),
    ]
    for options, kind, message in bad:
        with told(kind, message):
            TrlClass(**options)
    env = TrlClass(env=f"{file}:Locked")
    env.reset(env.tasks("train", 1, 0)[0])
    with told(ContractError, "cannot be copied"):
        env.snapshot()


# ---- what TRL 1.16 has ------------------------------------------------------------------------------------------
OWNING = '''
from PIL import Image


class Owner:
    """The environment owns the reward."""

    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, **columns):
        self.columns = columns
        self.total = 0
        return columns.get("hello")

    def add(self, number: int) -> str:
        """Add.

        Args:
            number: what is added
        """
        self.total += number
        return str(self.total)

    @property
    def broken(self):
        raise AssertionError("properties are not looked at")

    @staticmethod
    def _private():
        raise AssertionError

    def get_reward(self) -> float:
        return self.total / 4


class Later(Owner):
    async def get_reward(self):
        return 0.5


class Silent:
    def reset(self, **columns):
        return None

    def get_reward(self):
        return 0.25


class Artist(Owner):
    def reset(self, **columns):
        super().reset(**columns)
        return [{"type": "image", "image": Image.new("RGB", (4, 2), "blue")}, {"type": "text", "text": " What is it?"}]

    def draw(self, color: str) -> list:
        """Draw.

        Args:
            color: of the picture
        """
        return [{"type": "text", "text": "Here:"}, {"type": "image", "image": Image.new("RGB", (3, 3), color)}]


class Wrong(Owner):
    def reset(self, **columns):
        return 7


class Unpaid(Owner):
    get_reward = None


def half(completions, environments, completion_ids, log_metric, **columns):
    log_metric("seen", 1.0)
    assert completions[0][-1]["role"] == "assistant" and completion_ids == [[1, 2]]
    return [0.5]


def silent(completions, **columns):
    return [None]


async def slow(prompts, **columns):
    return [float(prompts[0][0]["role"] == "system")]
'''


@pytest.fixture
def owning(tmp_path: Path) -> Path:
    path = tmp_path / "owning.py"
    path.write_text(OWNING)
    return path


def test_get_reward_is_the_reward_and_no_tool(owning: Path) -> None:  # rule 8
    env = TrlClass(env=f"{owning}:Owner", success_at=0.75)
    assert [one.name for one in env.tools()] == ["add"]
    results = play(env, call("add", number=1), call("get_reward"), call("add", number=2), "Done.")
    assert "there is no tool `get_reward`" in results[1].observations[AGENT].text
    assert [r.rewards[AGENT] for r in results] == [0.0, 0.0, 0.0, 0.75] and results[-1].info["success"] is True
    assert play(TrlClass(env=f"{owning}:Later"), "Done.")[-1].rewards == {AGENT: 0.5}
    made = env._object.made
    play(env, "Done.")
    play(env, "Done.")
    assert env._object.made == made  # one object for all episodes
    with told(ContractError, "nothing gives a reward"):
        play(TrlClass(env=f"{owning}:Unpaid"), "Done.")


def test_rewards_are_added(owning: Path) -> None:  # rule 8
    prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": "Begin."}]
    names = tuple(f"{owning}:{name}" for name in ("half", "silent", "slow"))
    env = TrlClass(env=f"{owning}:Owner", data=[{"prompt": prompt}], reward=names, weights=(2.0, 1.0, 0.1))
    env.reset(env.tasks("train", 1, 0)[0])
    asyncio.run(env.step({AGENT: Action(text=call("add", number=4), tokens=np.array([1], np.int32))}))
    last = asyncio.run(env.step({AGENT: Action(text="Done.", tokens=np.array([2], np.int32))}))
    assert last.rewards[AGENT] == pytest.approx(2.1)
    assert {name: last.info[name] for name in ("reward/half", "reward/slow", "reward/Owner")} == {
        "reward/half": 1.0,
        "reward/slow": 0.1,
        "reward/Owner": 1.0,
    }
    with told(RecipeError, "2 numbers for 3 functions"):
        TrlClass(env=f"{owning}:Owner", reward=names, weights=(1.0, 2.0))


def test_a_column_chooses_the_environment(owning: Path, file: Path) -> None:  # rule 9
    rows = [{"environment": "adding", "hello": "Add!"}, {"environment": "guessing", "secret": 3}]
    env = TrlClass(env={"adding": f"{owning}:Owner", "guessing": f"{file}:Guess"}, data=rows, held_out=0)
    tools = {}
    for row in (0, 1, 0):
        seen = env.reset(Task(env="trl_class", seed=0, params={"row": row})).observations[AGENT]
        tools[row] = [one["function"]["name"] for one in seen.tools]
        assert seen.text == ["Add!", "Guess a number below 8."][row]
    assert tools == {0: ["add"], 1: ["guess", "hint"]}
    assert env._object.columns == {"hello": "Add!"}  # the column `environment` is not passed on
    won = play(env, call("guess", number=3), task=Task(env="trl_class", seed=0, params={"row": 1}))
    assert won[-1].rewards == {AGENT: 1.0}
    with told(InvalidData, "`environment` is 'other'"):
        TrlClass(env={"adding": f"{owning}:Owner"}, data=[{"environment": "other"}])
    with told(InvalidData, "there is no data"):
        TrlClass(env={"adding": f"{owning}:Owner"})


def test_roles_are_kept(owning: Path) -> None:  # rule 10
    prompt = [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "Add 1."},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Add 2."},
    ]
    env = TrlClass(env=f"{owning}:Owner", data=[{"prompt": prompt, "hello": " Now!"}])
    seen = env.reset(env.tasks("train", 1, 0)[0]).observations[AGENT]
    assert [dict(one) for one in seen.messages] == [*prompt[:-1], {"role": "user", "content": "Add 2. Now!"}]
    assert prompt[-1]["content"] == "Add 2."  # the row is left as it is
    assert seen.text == "You add.\nAdd 1.\n1\nAdd 2. Now!"


def test_content_lists(owning: Path) -> None:  # rule 11
    env = TrlClass(env=f"{owning}:Artist", data=[{"prompt": [{"role": "user", "content": "Look: "}]}])
    first = env.reset(env.tasks("train", 1, 0)[0]).observations[AGENT]
    (message,) = first.messages
    assert first.text is None and message["content"] == f"Look: {PLACE} What is it?"
    assert message["pictures"][0].shape == (2, 4, 3) and (message["pictures"][0][0, 0] == (0, 0, 255)).all()
    drawn = asyncio.run(env.step({AGENT: Action(text=call("draw", color="red") + call("add", number=1))}))
    (result,) = drawn.observations[AGENT].messages
    assert result["content"] == f"Here:{PLACE}\n1" and (result["pictures"][0][0, 0] == (255, 0, 0)).all()
    alone = TrlClass(env=f"{owning}:Owner", data=[{"prompt": "What?", "image": Image.new("RGB", (2, 2), "red")}])
    shown = alone.reset(alone.tasks("train", 1, 0)[0]).observations[AGENT]
    assert shown.image.shape == (2, 2, 3) and shown.messages[0]["content"] == "What?" and shown.text is None
    check_environment(TrlClass(env=f"{owning}:Artist"), make=lambda: TrlClass(env=f"{owning}:Artist"), episodes=2)
    for data, word in (
        ({"prompt": "What?", "images": ["gone.png"]}, "cannot be read"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "has no image"),
        ({"prompt": [{"role": "user", "content": [{"type": "sound"}]}]}, "no part of a message"),
    ):
        with told(InvalidData, word):
            wrong = TrlClass(env=f"{owning}:Owner", data=[data])
            wrong.reset(wrong.tasks("train", 1, 0)[0])
    with told(ContractError, "`reset` returned '7'"):
        play(TrlClass(env=f"{owning}:Wrong"))


def test_each_native_call_has_its_result(owning: Path) -> None:  # rule 13
    env = TrlClass(env=f"{owning}:Artist")
    env.reset(env.tasks("train", 1, 0)[0])
    calls = (ToolCall(name="add", arguments={"number": 1}), ToolCall(name="draw", arguments={"color": "red"}))
    seen = asyncio.run(env.step({AGENT: Action(text="", tool_calls=calls)})).observations[AGENT]
    *results, pictures = seen.messages
    assert [(one["role"], one["name"], one["content"]) for one in results] == [
        ("tool", "add", "1"),
        ("tool", "draw", "Here:"),
    ]
    assert pictures["role"] == "user" and (pictures["pictures"][0][0, 0] == (255, 0, 0)).all()
    seen = asyncio.run(env.step({AGENT: Action(text="", tool_calls=calls[:1] * 2)})).observations[AGENT]
    assert [one["role"] for one in seen.messages] == ["tool", "tool"] and seen.text == "2\n3"
    seen = asyncio.run(env.step({AGENT: Action(text=call("add", number=1) * 2)})).observations[AGENT]
    assert seen.messages is None and seen.text == "4\n5"


def test_without_tools_the_reply_is_judged(owning: Path) -> None:  # rule 8
    env = TrlClass(env=f"{owning}:Silent", reward=f"{owning}:silent")
    seen = env.reset(env.tasks("train", 1, 0)[0]).observations[AGENT]
    assert seen.tools is None and seen.instruction is None and seen.text == "begin"
    last = play(env, call("add", number=1))[-1]
    assert last.terminated == {AGENT} and last.rewards == {AGENT: 0.25} and "invalid" not in last.info


@pytest.mark.parametrize("template", ["qwen3", "llama3"])
@pytest.mark.parametrize("native", [True, False])
def test_tools_are_explained_once(file: Path, template: str, native: bool) -> None:  # rule 12
    env = TrlClass(env=f"{file}:Guess")
    shown = env.reset(env.tasks("train", 1, 0)[0]).observations[AGENT]
    policy = ScriptedPolicy(["x"])
    policy.renderer = renderer = ChatRenderer(tokenizer_of(template))
    role = Role(policy=policy, tools=RoleTools(native=True) if native else None)
    talk = FullHistory().start(renderer)
    read = renderer.said(talk.observe(declared(shown, tools_of(role, {AGENT: role}), first=True)).ids)
    assert read.count("Guess the number") == 1 and read.count("whether the number is even") == 1
    assert ("Call a tool with one JSON object" in read) is not native
    assert ("<tools>" in read) is native
    assert "Guess a number below 8." in read
