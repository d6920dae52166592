"""Environments written for TRL: (1) the contract holds; (2) public methods are tools, their errors are results;
(3) rows become keyword arguments and the prompt; (4) reward by attribute or by TRL's reward function; (5) the ends: an
answer without a call, `done`, the limit of turns; (6) splits, seeds, copies; (7) what does not fit is refused.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Action, StepResult, Task
from palaestra.data.abilities import has
from palaestra.envs.adapters.trl_class.world import AGENT, TrlClass
from palaestra.errors import ContractError, InvalidData, PalaestraError, RecipeError, UnknownName
from palaestra.testing import check_environment
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
    lines.write_text('{"secret": 3}\n{"secret": 4}\n')
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
    bad: list[tuple[dict[str, Any], type[PalaestraError], str]] = [
        ({"env": f"{file}:Gone"}, UnknownName, "cannot be loaded"),
        ({"env": f"{file}:Mute"}, ContractError, "to use as a tool"),
        ({"env": f"{file}:Toolless"}, ContractError, "no method `reset`"),
        ({"env": f"{file}:Undocumented"}, ContractError, "no docstring"),
        ({"env": f"{file}:Greedy"}, RecipeError, "can be made"),
        ({"env": f"{file}:Guess", "data": "gone.jsonl"}, InvalidData, "gone.jsonl"),
        ({"env": f"{file}:Guess", "data": str(tmp_path / "bad.jsonl")}, InvalidData, "not JSON"),
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
