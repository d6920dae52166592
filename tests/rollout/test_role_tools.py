"""What must hold of tools of roles:

(1) a call is run, its result is what the role reads next, each act is a step, and steps tell of calls and of faults;
(2) who does not have a tool and calls it gets an error, and the tool is not run; plain speech of its own stays speech;
(3) after the last round nothing is run any more: what was said is the response;
(4) a budget of calls holds over the episode, in all conversations of a role together; a tool that hangs is given up and
    others go on;
(5) results stand below what was shown where that is asked for, and the prompt stands around all of it;
(6) a demonstration makes calls that are really run and leaves the same observations as acts do;
(7) calls in fresh conversations count in the budget of the episode;
(8) recipes: tools by name with options and as files; two of one name, an unknown one and an unknown key are refused;
(9) Python runs anew for each call, says how it is isolated, and runs equal code once, unless a limit ended it;
(10) where no role has tools, a text that looks like a call is a text;
(11) a chat model that is told nowhere how to call the tools of an environment is refused, and nobody else is.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from palaestra.chat import ChatRenderer
from palaestra.data import Action, Observation, Play, RunSetup, Step, Task, Trajectory
from palaestra.envs.probes.toolcalc import ToolCalc
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError
from palaestra.recipe import load
from palaestra.rollout.episode import Episode
from palaestra.rollout.programs import play, record_call
from palaestra.rollout.roles import Role, RoleTools, refuse_hidden_tools, tools_of
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.testing import EchoEnvironment, ScriptedPolicy
from palaestra.tools import ToolError, tool
from palaestra.tools.calculator import calculator
from palaestra.tools.formats import FORMATS
from palaestra.tools.python import fresh_python
from palaestra.training.settings import ToolSettings
from palaestra.training.setup import build_setup
from tests.chat.templates import tokenizer_of

RAN: list[str] = []


@tool
def secret(word: str) -> str:
    """Tell what a word stands for."""
    RAN.append(word)
    return f"{word} stands for 7"


def run(program: Any, **roles: Any) -> Trajectory:
    """One episode; each role says its texts in order, and again the last."""
    made = {}
    for name, (texts, tools) in roles.items():
        said = iter([*texts])
        policy = ScriptedPolicy(functools.partial(lambda said, last, turn, seen: next(said, last), said, texts[-1]))
        made[name] = Role(policy=policy, tools=tools)
    setup = RunSetup(
        environment_name="echo",
        make_environment=EchoEnvironment,
        roles=made,
        program=program,
        environment_options={},
    )
    (task,) = EchoEnvironment().tasks("train", 1, seed=1)
    (played,) = EpisodeRunner(setup, RolloutSettings()).collect([Play(task=task, group="g", sample=0, seed=0)])
    assert played.error is None, played.error
    return played


def words(*tools: Any, **options: Any) -> RoleTools:
    return RoleTools(tools=tools, format="words", **options)


def once(name: str, *, shown: str = "what is 2 + 3?") -> Callable[[Episode], Any]:
    """A program in which one role acts once; what it answered is in `info`."""

    async def program(episode: Episode) -> None:
        action = await episode.agents[name].act(shown)
        episode.trajectory.info = {**episode.trajectory.info, "answer": action.text}

    return program


def calls(played: Trajectory) -> list[tuple[float, float]]:
    return [(step.info.get("tool_call", -1.0), step.info.get("tool_error", -1.0)) for step in played.steps]


def shown(played: Trajectory) -> list[str | None]:
    return [step.observation.text for step in played.steps]


def test_calls_are_run() -> None:  # rule 1
    played = run(once("solver"), solver=(["calculator 2 + 3", "5"], words(calculator())))
    assert shown(played) == ["what is 2 + 3?", "tool: 5"] and played.info["answer"] == "5"
    assert calls(played) == [(1.0, 0.0), (0.0, 0.0)]
    assert [step.turn for step in played.steps] == [0, 1]
    assert played.steps[1].observation.state_key == "what is 2 + 3?\ncalculator 2 + 3\ntool: 5"


def test_faults_are_told() -> None:  # rule 1
    played = run(once("solver"), solver=(["calculator 2 /", "calculator", "5"], words(calculator())))
    assert calls(played) == [(1.0, 1.0), (1.0, 1.0), (0.0, 0.0)]
    assert all(text.startswith("tool: error: ") for text in shown(played)[1:])
    two = '[{"name": "calculator", "arguments": {"expression": "1"}}, {"name": "nothing", "arguments": {}}]'
    played = run(once("solver"), solver=([two, "1"], RoleTools(tools=(calculator(),))))
    assert calls(played)[0] == (2.0, 1.0) and shown(played)[1].startswith("tool: 1\nerror: there is no tool `nothing`")


@pytest.mark.parametrize("own", [None, words(calculator())])
def test_tools_of_others_are_not_run(own: RoleTools | None) -> None:  # rule 2
    RAN.clear()
    played = run(once("solver"), solver=(["secret fox", "no idea"], own), verifier=(["yes"], words(secret)))
    assert RAN == [] and played.info["answer"] == "no idea"
    assert shown(played)[1].startswith("tool: error: there is no tool `secret`") and calls(played)[0] == (1.0, 1.0)
    played = run(once("verifier"), solver=(["x"], own), verifier=(["secret fox", "yes"], words(secret)))
    assert RAN == ["fox"] and shown(played)[1] == "tool: fox stands for 7"


def test_speech_without_tools_is_speech() -> None:  # rule 2
    for said in ("the secret is out", '{"name": "fox", "arguments": {}}', "calculator"):
        played = run(once("solver"), solver=([said], None), verifier=(["yes"], words(secret)))
        assert played.info["answer"] == said and len(played.steps) == 1 and calls(played) == [(-1.0, -1.0)]
    again = run(once("solver"), solver=(["secret fox"], None), verifier=(["yes"], words(secret)))
    assert [step.action.text for step in again.steps] == ["secret fox"] * 2  # told once, then it is its response
    assert calls(again) == [(1.0, 1.0)] * 2


def test_rounds_end() -> None:  # rule 3
    RAN.clear()
    played = run(once("solver"), solver=(["secret fox"], words(secret, rounds=2)))
    assert RAN == ["fox", "fox"] and played.info["answer"] == "secret fox"
    assert calls(played) == [(1.0, 0.0), (1.0, 0.0), (1.0, 1.0)]


def test_budgets() -> None:  # rule 4
    async def twice(episode: Episode) -> None:
        await episode.agents["solver"].act("first")
        await episode.agents["solver"].act("second")

    RAN.clear()
    played = run(twice, solver=(["secret a", "x", "secret b", "y"], words(secret, max_calls=1)))
    assert RAN == ["a"] and "no calls are left" in shown(played)[3] and calls(played)[2] == (1.0, 1.0)


def test_a_budget_of_several_conversations() -> None:  # rule 4
    RAN.clear()
    role = Role(policy=ScriptedPolicy(["x"]), tools=words(secret, max_calls=2))
    first = tools_of(role, {"sub": role})
    other, separate = tools_of(role, {"sub": role}, earlier=first), tools_of(role, {"sub": role})
    said = [asyncio.run(own.run(f"secret {word}", act(), last=False)) for own, word in (
        (first, "a"), (other, "b"), (first, "c"), (other, "d"), (separate, "e"),
    )]  # fmt: skip
    assert RAN == ["a", "b", "e"]
    assert ["no calls are left" in (found.text if found else "") for found in said] == [False, False, True, True, False]


def act() -> Step:
    return Step(agent="sub", turn=0, action=Action(text=""), observation=Observation(text=""))


def test_slow_tools_are_given_up() -> None:  # rule 4
    @tool(timeout_s=0.05)
    def sleep(seconds: float) -> str:
        """Wait."""
        time.sleep(seconds)
        return "done"

    played = run(once("solver"), solver=(["sleep 0.4", "never mind"], words(sleep)))
    assert "no answer within 0.05 s" in shown(played)[1] and played.info["answer"] == "never mind"


def test_what_was_shown_stands_above() -> None:  # rule 5
    said = (["secret a", "secret b", "7"], words(secret, repeat=True))
    assert shown(run(once("solver", shown="q"), solver=said)) == [
        "q",
        "q\nsecret a\ntool: a stands for 7",
        "q\nsecret a\ntool: a stands for 7\nsecret b\ntool: b stands for 7",
    ]


def test_prompts() -> None:  # rule 5
    async def program(episode: Episode) -> None:
        await episode.agents["solver"].act("q")

    role = Role(
        policy=ScriptedPolicy(lambda turn, seen: "secret a" if "tool:" not in (seen.text or "") else "7"),
        prompt="<{text}> {tools}",
        tools=words(secret, repeat=True),
    )
    setup = RunSetup(
        environment_name="echo",
        make_environment=EchoEnvironment,
        roles={"solver": role},
        program=program,
        environment_options={},
    )
    (task,) = EchoEnvironment().tasks("train", 1, seed=1)
    (played,) = EpisodeRunner(setup, RolloutSettings()).collect([Play(task=task, group="g", sample=0, seed=0)])
    first, second = shown(played)
    assert first == f"<q> One call on a line:\nsecret WORD: {secret.description}"
    assert second.startswith("<q\nsecret a\ntool: a stands for 7> One call")


def test_demonstrations() -> None:  # rule 6
    async def shown_by(episode: Episode) -> None:
        agent = episode.agents["solver"]
        agent.record(await record_call(agent, "q", "secret", word="a"), "7")

    said = (["secret a", "7"], words(secret, repeat=True))
    acted, demonstrated = run(once("solver", shown="q"), solver=said), run(shown_by, solver=said)
    assert shown(demonstrated) == shown(acted)
    assert [step.action.text for step in demonstrated.steps] == [step.action.text for step in acted.steps]
    assert demonstrated.steps[0].info == {"tool_call": 1.0, "tool_error": 0.0}


def test_a_demonstration_needs_the_tool() -> None:  # rule 6
    async def program(episode: Episode) -> None:
        with pytest.raises(ContractError, match="it calls the tool `secret`, which its role does not have"):
            await record_call(episode.agents["solver"], "q", "secret", word="a")
        await episode.agents["solver"].act("q")

    run(program, solver=(["x"], words(calculator())))
    run(program, solver=(["x"], None))


def test_fresh_conversations() -> None:  # rule 7
    async def program(episode: Episode) -> None:
        for _ in range(2):
            await episode.invoke("sub").act("q")

    RAN.clear()
    played = run(program, sub=(["secret a", "x", "secret b", "y"], words(secret, max_calls=1)))
    assert RAN == ["a"] and [step.invocation for step in played.steps] == [1, 1, 2, 2]
    assert "no calls are left" in shown(played)[3] and calls(played)[2] == (1.0, 1.0)


RECIPE: dict[str, Any] = {
    "environment": {"echo": {"turns": 1}},
    "policies": {"main": {"policy": "expert", "trainable": False}},
    "agents": {"player": {"tools": {"use": ["calculator"], "format": "words", "rounds": 1}}},
}


def tools_in(change: dict[str, Any], *overrides: str) -> RoleTools | None:
    given = {**RECIPE, "agents": {"player": {"tools": change}}}
    setup = build_setup(load([given], list(overrides)).settings)
    setup.runner.close()
    return setup.role("player").tools


def test_recipes(tmp_path: Path) -> None:  # rule 8
    found = tools_in(
        {"use": [{"calculator": {"name": "sum", "cost": 2}}], "max_calls": 3}, "agents.player.tools.rounds=4"
    )
    assert found is not None and (found.rounds, found.max_calls, found.format) == (4, 3, "json")
    assert [(one.name, one.cost) for one in found.tools] == [("sum", 2.0)]
    assert tools_in({}) is None
    file = tmp_path / "own.py"
    file.write_text(
        "from palaestra.tools import Tool, tool\n\n\n"
        "def shout(*, loud: int = 1) -> Tool:\n"
        "    @tool(name='shout')\n    def said(word: str) -> str:\n        '''Shout.'''\n"
        "        return word.upper() + '!' * loud\n    return said\n"
    )
    own = tools_in({"use": [{f"{file}:shout": {"loud": 2}}]})
    assert own is not None and own.tools[0].call(word="hey") == "HEY!!"
    file = tmp_path / "made.py"
    file.write_text(
        "from palaestra.tools import tool\n\n\n@tool\ndef low(word: str) -> str:\n    '''Low.'''\n"
        "    return word.lower()\n"
    )
    made = tools_in({"use": [f"{file}:low"]})
    assert made is not None and made.tools[0].name == "low" and made.tools[0].call(word="HEY") == "hey"


@pytest.mark.parametrize("name", ["plain", "number"])
def test_files_without_tools(name: str, tmp_path: Path) -> None:  # rule 8
    file = tmp_path / "no_tool.py"
    file.write_text("def plain(word: str) -> str:\n    return word\n\n\nnumber = 3\n")
    with pytest.raises(ContractError, match="must be a tool, or a function of options that gives one"):
        tools_in({"use": [f"{file}:{name}"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use": ["calculator", "calculator"]}, "two tools have this name"),
        ({"use": ["calculater"]}, "no tool is called `calculater`"),
        ({"use": ["calculator"], "round": 2}, "has no key `round`"),
        ({"use": ["calculator"], "rounds": 0}, "cannot be 0"),
        ({"use": [{"calculator": {"price": 1}}]}, "has no option `price`"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:  # rule 8
    with pytest.raises(PalaestraError, match=message):
        tools_in(change)


def test_formats_of_recipes_are_those_that_there_are() -> None:  # rule 8
    assert set(get_args(ToolSettings.model_fields["format"].annotation)) == set(FORMATS)


def test_python() -> None:  # rule 9
    made = fresh_python(backend="subprocess", timeout_s=0.5)
    assert "NOT isolated" in made.description and made.call(code="1 + 2") == "3"
    assert made.call(code="x = 4") == "(no output)"
    with pytest.raises(ToolError, match="NameError"):
        made.call(code="x")
    code = "import time; time.time()"
    assert made.call(code=code) == made.call(code=code) != made.call(code=f"{code} ")
    with pytest.raises(ToolError, match=r"stopped after 0\.5 s"):
        made.call(code="while True: pass")


def test_without_tools_anything_is_speech() -> None:  # rule 10
    played = run(once("solver"), solver=(["calculator 2 + 3"], None))
    assert played.info["answer"] == "calculator 2 + 3" and calls(played) == [(-1.0, -1.0)]


# ---- environments with tools ------------------------------------------------------------------------------
CALLED = """{"name": "calc", "arguments": {"operation": "plus"}}"""


def shown_tools(*, chat: bool = True, agent: str = "*", calls: bool = True, **role: Any) -> Trajectory:
    """One episode in which the acts are calls that only `Observation.tools` describes."""
    policy = ScriptedPolicy([CALLED])
    policy.renderer = ChatRenderer(tokenizer_of("qwen3")) if chat else None
    made = functools.partial(ToolCalc, calls=calls, max_turns=2)
    setup = RunSetup(
        environment_name="toolcalc",
        make_environment=made,
        source=made(),
        roles={agent: Role(policy=policy, **role)},
        program=play,
    )
    plays = [Play(task=Task(env="toolcalc", seed=3), group="g", sample=0, seed=1)]
    (played,) = EpisodeRunner(setup, RolloutSettings(response_tokens=8)).collect(plays)
    return played


def test_11_a_chat_model_must_read_how_it_calls() -> None:
    refused = shown_tools()
    assert refused.error is not None and not refused.steps
    assert "Set agents.*.tools.native=true" in refused.error.message and "calc, head, lookup" in refused.error.message
    assert shown_tools(instruction="none").error is not None  # the world's own text would not say it either


@pytest.mark.parametrize(
    "role",
    [
        {"tools": RoleTools(native=True)},
        {"chat": False},
        {"calls": False},
        {"instruction": f"{{environment}} For example: {CALLED}"},
        {"prompt": "Call calc, head or lookup. {text}"},
    ],
    ids=["native", "no-chat", "words", "instruction", "prompt"],
)
def test_11_others_are_not_refused(role: dict[str, Any]) -> None:
    assert shown_tools(**role).error is None


def test_11_a_manual_of_the_world_is_enough() -> None:
    tools = (secret.declaration(),)
    role = Role(policy=ScriptedPolicy(["x"]))
    role.policy.renderer = ChatRenderer(tokenizer_of("qwen3"))
    for name in FORMATS:
        manual = FORMATS[name].explain([secret])
        refuse_hidden_tools(role, "a", Observation(text="go", instruction=manual, tools=tools), None)
        refuse_hidden_tools(role, "a", Observation(text="go", tools=tools), manual)
    with pytest.raises(EpisodeFailure, match="calls of secret"):
        refuse_hidden_tools(role, "a", Observation(text="a secret word", tools=tools), "Make one call in each turn.")
