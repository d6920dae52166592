"""verifiers: (1) the contract holds for single turns, conversations led by an Env, and tools; (2) prompts, system
prompts and rewards are the task's; (3) tools run as MCP servers on this machine; (4) an Env with several seats asks
each of them; (5) limits cut an episode off, unreadable calls are asked again, and an episode can be left unfinished;
(6) training and evaluation share no row, and episodes at the same time do not mix; (7) errors of the taskset fail the
episode; bad options are refused; (8) the model's address is on the loopback and needs its token, and the adapter uses
nothing private of verifiers; (9) metrics of several seats are told apart; (10) a message with an image is refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.adapters import verifiers as verifiers_package
from palaestra.envs.adapters.verifiers.endpoint import TOKEN
from palaestra.envs.adapters.verifiers.machine import machine
from palaestra.envs.adapters.verifiers.world import Verifiers, _metrics, _refuse_images
from palaestra.errors import EpisodeFailure, PalaestraError, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.extras import needs
from tests.messages import told

pytestmark = needs("verifiers")

SUMS = """
import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: int = 0


class SumTask(vf.Task[Sum]):
    @vf.reward(weight=1.0)
    async def correct(self, task, trace) -> float:
        said = trace.assistant_messages[-1].content or ""
        return float(said.strip() == str(task.answer))

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.assistant_messages[-1].content or "") < 5)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class SumsConfig(vf.TasksetConfig):
    count: int = 10
    example: bool = False


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for number in range(self.config.count):
            asked = f"{number} + 1 ="
            if self.config.example:
                example = vf.UserMessage(content="1 + 1 ="), vf.AssistantMessage(content="2")
                asked = [*example, vf.UserMessage(content=asked)]
            data = Sum(prompt=asked, system_prompt="Answer with a number.", answer=number + 1)
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
"""

DIALOG = """
import verifiers.v1 as vf


class Secret(vf.TaskData):
    secret: int = 0


class GuessTask(vf.Task[Secret]):
    @vf.reward
    async def found(self, task, trace) -> float:
        return float((trace.assistant_messages[-1].content or "").strip() == str(task.secret))


class Guesses(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self):
        for number in range(8):
            yield GuessTask(Secret(prompt=None, secret=number), self.config.task)


class DialogConfig(vf.EnvConfig):
    guesser: vf.AgentConfig = vf.AgentConfig()


class Dialog(vf.Env[DialogConfig]):
    async def run(self, task, agents):
        async with agents.guesser.interaction(task) as talk:
            said = await talk.turn("Guess a number below 8.")
            for _ in range(3):
                if said.terminated or said.last_reply == str(task.data.secret):
                    break
                higher = said.last_reply.isdigit() and int(said.last_reply) < task.data.secret
                said = await talk.turn("higher" if higher else "lower")


__all__ = ["Guesses", "Dialog"]
"""

TOOLS = '''
import verifiers.v1 as vf


class Question(vf.TaskData):
    answer: str = ""


class PhoneConfig(vf.ToolsetConfig):
    pass


class Phone(vf.Toolset[PhoneConfig]):
    @vf.tool
    async def look_up(self, name: str) -> str:
        """Look up a number.

        Args:
            name: of whom
        """
        return {"ann": "12", "bob": "34"}.get(name, "unknown")


class PhoneTask(vf.Task[Question]):
    @classmethod
    def toolsets(cls, config):
        return [Phone(PhoneConfig())]

    @vf.reward
    async def right(self, task, trace) -> float:
        return float(task.answer in (trace.assistant_messages[-1].content or ""))


class PhoneBook(vf.Taskset[PhoneTask, vf.TasksetConfig]):
    def load(self):
        for name, answer in (("ann", "12"), ("bob", "34")):
            yield PhoneTask(Question(prompt=f"What is the number of {name}?", answer=answer), self.config.task)


__all__ = ["PhoneBook"]

if __name__ == "__main__":
    Phone.run()
'''

DEBATE = """
import verifiers.v1 as vf

from sums_for_tests import Sums, SumsConfig


class DebateConfig(vf.EnvConfig):
    pro: vf.AgentConfig = vf.AgentConfig()
    con: vf.AgentConfig = vf.AgentConfig()


class Debate(vf.Env[DebateConfig]):
    async def setup(self, agents):
        agents.con.trainable = False

    async def run(self, task, agents):
        first = await agents.pro.run(task)
        await agents.con.run(task)

    async def finalize(self, task, episode):
        for trace in episode.traces:
            trace.record_reward("said", float(trace.agent.name == "pro"))


class Team(Sums):
    pass


__all__ = ["Team", "Debate"]
"""

BROKEN = SUMS.replace("return float(said.strip() == str(task.answer))", "raise KeyError('gone')")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verifiers")
    files = {"sums": SUMS, "dialog": DIALOG, "phone": TOOLS, "debate": DEBATE, "broken": BROKEN}
    for name, source in files.items():
        (made / f"{name}_for_tests.py").write_text(source)
    return made


def named(folder: Path, name: str) -> dict[str, str]:
    return {"taskset": str(folder / f"{name}_for_tests.py")}


def play(env: Verifiers, *answers: str, row: int = 0) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        results = [await env.reset(Task(env="verifiers", seed=0, params={"row": row}))]
        for answer in answers:
            (agent,) = results[-1].observations
            results.append(await env.step({agent: Action(text=answer)}))
        return results

    return asyncio.run(episode())


def seen(result: StepResult) -> Observation:
    (one,) = result.observations.values()
    return one


def number(_: Observation, draw: random.Random) -> Action:
    return Action(text=str(draw.randrange(8)))


def test_the_contract_holds(folder: Path) -> None:  # rule 1
    for name in ("sums", "dialog"):
        options = named(folder, name)
        check_environment(Verifiers(**options), make=lambda o=options: Verifiers(**o), episodes=2, act=number)


def test_single_turns(folder: Path) -> None:  # rule 2
    env = Verifiers(**named(folder, "sums"))
    assert env.agents == ("agent",)
    first, last = play(env, "4", row=3)
    assert seen(first).text == "3 + 1 =" and seen(first).instruction == "Answer with a number."
    assert last.rewards == {"agent": 1.5} and last.terminated == {"agent"} and not last.observations
    assert last.info == {"score": 1.5, "success": True, "metric/turns": 1.0}
    assert play(env, "a long and wrong answer")[-1].info["score"] == 0.0


def test_an_example_in_the_prompt_is_shown(folder: Path) -> None:  # rule 2
    options = named(folder, "sums")
    first, last = play(Verifiers(**options, config={"taskset": {"example": True}}), "4", row=3)
    assert seen(first).text == "user: 1 + 1 =\nassistant: 2\nuser: 3 + 1 ="
    assert last.rewards == {"agent": 1.5}


def test_conversations(folder: Path) -> None:  # rule 1, 2
    env = Verifiers(**named(folder, "dialog"))
    assert env.agents == ("guesser",)
    results = play(env, "2", "7", "5", row=5)
    assert [seen(result).text for result in results[:3]] == ["Guess a number below 8.", "higher", "lower"]
    assert results[-1].rewards == {"guesser": 1.0} and results[-1].info["success"] is True
    whole = play(Verifiers(**named(folder, "dialog"), whole=True), "2", row=5)[1]
    assert seen(whole).text == "user: Guess a number below 8.\nassistant: 2\nuser: higher"
    assert play(env, "0", "1", "2", "3", row=5)[-1].info["success"] is False


@pytest.mark.slow  # two Pythons start, which import much
def test_tools(folder: Path) -> None:  # rule 3
    env = Verifiers(**named(folder, "phone"), held_out=0)
    call = json.dumps({"name": "phone_look_up", "arguments": {"name": "bob"}})
    results = play(env, "{'name': 'phone_look_up'", call, "It is 34.", row=1)
    assert "phone_look_up(name: string): Look up a number." in seen(results[0]).instruction
    assert results[1].info["invalid"] == {"agent": True} and seen(results[1]).text.startswith(
        "What is the number of bob?"
    )
    assert seen(results[2]).text == "34"
    assert results[3].info["success"] is True and results[3].rewards == {"agent": 1.0}


def test_several_seats(folder: Path) -> None:  # rule 4
    env = Verifiers(taskset=str(folder / "sums_for_tests.py"), env=str(folder / "debate_for_tests.py"))
    assert env.agents == ("pro", "con")
    results = play(env, "1", "wrong")
    assert [list(result.observations) for result in results] == [["pro"], ["con"], []]
    assert results[-1].rewards == {"con": 0.0, "pro": 2.5} and results[-1].info["score"] == 2.5


def test_limits(folder: Path) -> None:  # rule 5
    short = Verifiers(**named(folder, "dialog"), max_turns=2)
    last = play(short, "0", "1", row=5)[-1]
    assert last.truncated == {"guesser"} == set(last.last) and last.info == {"score": 0.0, "success": False}
    own = Verifiers(**named(folder, "dialog"), config={"guesser": {"max_turns": 2}})
    last = play(own, "0", "1", row=5)[-1]
    assert last.truncated == {"guesser"} and last.info["success"] is False
    assert play(own, "5", row=5)[-1].terminated == {"guesser"}
    play(own, "0", row=5)  # and left unfinished
    assert play(own, "5", row=5)[-1].info["success"] is True


def test_rows_and_sessions(folder: Path) -> None:  # rule 6
    env = Verifiers(**named(folder, "sums"), config={"taskset": {"count": 20}})
    rows = {split: {task.params["row"] for task in env.tasks(split, 300, 0)} for split in ("train", "eval")}
    assert not rows["train"] & rows["eval"] and len(rows["train"]) == 16 and len(rows["eval"]) == 4
    assert len(Verifiers(**named(folder, "sums"), rows=5)._rows) == 5

    async def both() -> list[StepResult]:
        one, two = Verifiers(**named(folder, "dialog")), Verifiers(**named(folder, "dialog"))
        await one.reset(Task(env="verifiers", seed=0, params={"row": 3}))
        await two.reset(Task(env="verifiers", seed=0, params={"row": 6}))
        guess = {"guesser": Action(text="4")}
        answers = [await one.step(guess), await two.step(guess)]
        await one.close()
        await two.close()
        return answers

    assert [seen(result).text for result in asyncio.run(both())] == ["lower", "higher"]


def test_faults_fail_the_episode(folder: Path) -> None:  # rule 7
    env = Verifiers(**named(folder, "broken"))
    with pytest.raises(EpisodeFailure) as failed:
        play(env, "1")
    assert failed.value.boundary == "environment" and "gone" in failed.value.what
    bad: list[tuple[dict[str, Any], type[PalaestraError], str]] = [
        ({"taskset": "no_such_taskset"}, UnknownName, "verifiers cannot load it"),
        ({"taskset": str(folder / "gone.py")}, UnknownName, "there is no file"),
        ({"taskset": "json"}, UnknownName, "verifiers cannot load it"),
        ({**named(folder, "sums"), "config": {"taskset": {"size": 3}}}, RecipeError, "verifiers refused"),
        ({**named(folder, "sums"), "config": {"taskset": {"count": 0}}}, RecipeError, "the taskset gave no tasks"),
        ({**named(folder, "sums"), "held_out": 1.0}, RecipeError, "cannot take `held_out: 1.0`"),
    ]
    for options, kind, message in bad:
        with pytest.raises(kind) as raised:
            Verifiers(**options)
        assert message in raised.value.what, raised.value.what


def test_a_file_of_a_taken_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    for number, name in enumerate(("json.py", "one_of_two.py", "one_of_two.py")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text("", encoding="utf-8")
    first, second, third = ({"taskset": str(file)} for file in sorted(tmp_path.glob("*/*.py")))
    for options, message in ((first, "imports"), (second, "verifiers cannot load it"), (third, "imports")):
        with pytest.raises(UnknownName) as raised:
            Verifiers(**options)
        assert message in raised.value.what, raised.value.what
    assert str(tmp_path / "0") not in sys.path  # where json.py would stand before Python's own


def test_the_endpoint_is_closed_to_others(folder: Path) -> None:  # rule 8
    env = Verifiers(**named(folder, "sums"))
    play(env)  # asked, and not answered
    endpoint = machine().endpoint
    assert endpoint.url.startswith("http://127.0.0.1:")
    body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}

    def status(headers: dict[str, str]) -> int:
        return httpx.post(f"{endpoint.url}/chat/completions", json=body, headers=headers, trust_env=False).status_code

    assert [status({}), status({TOKEN: "guessed"}), status(endpoint.headers)] == [401, 401, 404]
    asyncio.run(env.close())


def test_the_seam_is_public() -> None:  # rule 8
    places = Path(verifiers_package.__file__).parent.glob("*.py")
    private = [
        found for path in places for found in re.findall(r"\b(?:env|_env|inner|trace|event|vf)\._\w+", path.read_text())
    ]
    assert not private


def test_metrics_of_several_seats() -> None:  # rule 9
    runs = [("a", {"turns": 1, "late": None}), ("b", {"turns": 4, "fit": 0.5}), ("b", {"turns": 2})]
    assert _metrics(runs) == {"metric/a/turns": 1.0, "metric/b/turns": 3.0, "metric/fit": 0.5}


def test_images_are_refused() -> None:  # rule 10
    fine = [{"role": "user", "content": [{"type": "text", "text": "look"}]}, {"role": "assistant", "content": None}]
    _refuse_images(fine, "here")
    with told(EpisodeFailure, "`image_url`"):
        _refuse_images([*fine, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "here")
