"""The program `outside_agent`: (1) what is trained on is id for id what the model has read and answered, for agents
that go on, go back, change what was said, call tools and ask for several replies; (2) a chat that goes on is one
segment; (3) many episodes at once do not cross, and the same seeds give the same texts; (4) an agent's fault fails its
own episode, and says where; (5) limits end episodes as those of any program; (6) agents act in environments of several
turns, in this process and by HTTP; (7) commands; (8) what cannot work is refused; (9) the server ends with the run.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from palaestra.chat import FullHistory, LatestOnly
from palaestra.chat.readers import LastLine
from palaestra.data import Action, Observation, Play, RunSetup, StepResult, StopReason, Task
from palaestra.data.table import rows_of
from palaestra.errors import RecipeError
from palaestra.registry.bound import BoundPart, bind
from palaestra.rollout.episode import conversation_of
from palaestra.rollout.programs import roles_of
from palaestra.rollout.roles import Role, RoleTools
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.teaching import taught
from palaestra.testing import ScriptedPolicy
from tests.extras import absent, needs
from tests.messages import told

pytestmark = needs("openai", "fastapi", "uvicorn", "trl")
if not absent(*pytestmark.args):
    from palaestra.gateway import gate
    from palaestra.gateway.program import outside_agent
    from palaestra.http.addresses import address_of
    from tests.chat.conversations import Recorder, find, policy_of
    from tests.gateway.served import Scripted, engine_of
    from tests.gateway.some_agents import COMMAND

AGENTS = Path(__file__).with_name("some_agents.py")
SETTINGS: dict[str, Any] = {"response_tokens": 400, "in_flight": 64, "stuck_seconds": None}


class Questions:
    """A question, whose answer is paid. With `turns`, an act shows the number of the next turn, until the last one."""

    agents = ("player",)

    def __init__(self, turns: int = 1) -> None:
        self._turns = turns

    def reset(self, task: Task) -> StepResult:
        self._turn, self._said = 0, list[str]()
        return StepResult(observations={"player": Observation(text=task.params.get("text", f"question {task.seed}"))})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        self._turn += 1
        self._said.append(str(actions["player"].text))
        if self._turn < self._turns:
            return StepResult(observations={"player": Observation(text=f"turn {self._turn}")})
        info = {"success": bool(self._said[-1]), "said": self._said}
        return StepResult(observations={}, rewards={"player": 1.0}, terminated=frozenset({"player"}), info=info)

    def close(self) -> None:
        return None


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return policy_of("qwen2_5", Path(tmp_path_factory.mktemp("model")))


def setup_of(policy: Any, agent: str | None, *, turns: int = 1, role: Any = None, **options: Any) -> RunSetup:
    named = {} if agent is None else {"agent": f"{AGENTS}:{agent}"}
    return RunSetup(
        environment_name="questions",
        make_environment=functools.partial(Questions, turns),
        source=Questions(),
        roles={"player": role or Role(policy=policy, context=FullHistory())},
        program=functools.partial(outside_agent, **named, **options),
    )


def played(setup: RunSetup, texts: list[str] | int, **settings: Any) -> list[Any]:
    params = [{"text": text} for text in texts] if isinstance(texts, list) else [{}] * texts
    plays = [
        Play(task=Task(env="questions", seed=n, params=one), group=f"g{n}", sample=0, seed=n)
        for n, one in enumerate(params)
    ]
    return EpisodeRunner(setup, RolloutSettings(**(SETTINGS | settings))).collect(plays)


def fault(trajectory: Any) -> str:
    return "" if trajectory.error is None else str(trajectory.error.message)


def differences(policy: Any, read: Mapping[Any, list[np.ndarray]], trajectories: list[Any]) -> list[str]:
    """Where sequences that training reads differ from what the engine has read and answered."""
    found = [f"{one.group}: {one.error}" for one in trajectories if one.error is not None]
    rows = rows_of(trajectories)
    samples = policy.collate(rows, temperature=1.0)
    keys = list(dict.fromkeys((row.trajectory.group, row.step.segment) for row in rows))
    last = {(row.trajectory.group, row.step.segment): row.step for row in rows}
    for (group, number), ids in zip(keys, samples.ids, strict=True):
        conversation, segment = conversation_of(number)
        key = (group, 0, "player", conversation) if conversation else (group, 0, "player")
        whole = np.concatenate(read[key, segment])
        # A text of `stop` cuts the last reply of a segment, and nothing else.
        most = len(last[group, number].action.tokens)
        cut = most > 0 and last[group, number].action.tokens[-1] not in policy.renderer.stop
        if not np.array_equal(ids, whole[: len(ids)]) or (len(ids) < len(whole) and not cut):
            found.append(f"{key} {segment}: {len(ids)} ids, {len(whole)} read")
    answered = np.concatenate([row.step.action.tokens for row in rows])
    trained = np.concatenate([ids[places] for ids, places in zip(samples.ids, samples.places, strict=True)])
    if not np.array_equal(trained[np.argsort(samples.token_index)], answered):
        found.append("the tokens that are trained on are not the responses")
    return found


# ---- (1) ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["qwen3", "qwen2_5", "gptoss", "llama3_2", "gemma3", "phi3", "lfm2"])
def test_ids_are_what_the_model_has_read(family: str, tmp_path: Path) -> None:
    policy = policy_of(family, tmp_path)
    engine = policy.engine = Recorder(policy, (find.declaration(),))
    trajectories = played(setup_of(policy, "wanderer"), 24)
    assert not differences(policy, engine.read, trajectories)
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    segments = {(t.group, step.segment) for t in trajectories for step in t.steps}
    assert len(steps) > 80 and len({number for _, number in segments}) > 3, "they go back and begin anew"
    assert len(segments) < len(steps), "they go on"
    assert all(t.outcome == 1 and sum(step.reward for step in t.steps) == 1 for t in trajectories)


def test_a_client_that_leaves(policy: Any) -> None:
    engine = policy.engine = Scripted(policy, lambda read: "well" if "again" in read else "x" * 300)
    engine.slow = "question"
    (trajectory,) = played(setup_of(policy, "impatient"), 1)
    assert not fault(trajectory) and len(trajectory.steps) == 3, "the reply that nobody heard is no step"
    assert not differences(policy, engine.read, [trajectory])
    assert {conversation_of(step.segment)[0] for step in trajectory.steps} == {1}


def test_numbers_are_those_of_the_engine(policy: Any) -> None:
    engine = policy.engine = engine_of(policy)
    (trajectory,) = played(setup_of(policy, "three_turns"), 1, response_tokens=8)
    assert not fault(trajectory)
    policy.version = 0
    rows = rows_of([trajectory])
    samples = policy.collate(rows, temperature=1.0)
    outputs = policy.forward(samples, range(len(samples.ids)), {"logprob"})
    drawn = np.concatenate([step.action.logprobs for step in trajectory.steps])
    order = np.argsort(samples.token_index)
    assert np.abs(outputs.columns["logprob"].detach().numpy()[order] - drawn).max() < 1e-4
    assert {step.version for step in trajectory.steps} == {0}
    assert not engine._sessions, "the episode has closed them"


# ---- (2) ----------------------------------------------------------------------------------------------------
def test_a_chat_is_one_segment(policy: Any) -> None:
    policy.engine = Scripted(policy, lambda read: "well")
    (trajectory,) = played(setup_of(policy, "three_turns"), 1)
    assert [step.segment for step in trajectory.steps] == [0, 0, 0]
    whole = policy.tokenizer.decode(trajectory.sequence("player", 0).tolist())
    assert whole.count("well<|im_end|>") == 3 and whole.count("Be brief.") == 1
    assert len({step.observation.state_key for step in trajectory.steps}) == 3


def test_tools_in_any_order(policy: Any) -> None:
    call = '<tool_call>\n{"name": "find", "arguments": {"id": %d}}\n</tool_call>'
    policy.engine = Scripted(policy, lambda read: "it is" if "<tool_response>" in read else f"{call % 1}\n{call % 2}")
    (trajectory,) = played(setup_of(policy, "tool_user"), 1)
    assert not fault(trajectory) and [step.segment for step in trajectory.steps] == [0, 0]
    second = policy.tokenizer.decode(trajectory.steps[1].prompt.tolist())
    assert second.index('found {"id": 1}') < second.index('found {"id": 2}')
    assert [call.name for call in trajectory.steps[0].action.tool_calls] == ["find", "find"]


# ---- (3) ----------------------------------------------------------------------------------------------------
def test_many_at_once(policy: Any) -> None:
    def repeats(read: str) -> str:
        return read.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]

    policy.engine = Scripted(policy, repeats, seconds=0.05)
    trajectories = played(setup_of(policy, "at_once"), 60)
    for number, trajectory in enumerate(trajectories):
        assert not fault(trajectory)
        assert trajectory.info["said"] == [" ".join(f"question {number} {place}" for place in range(3))]
        assert len(trajectory.steps) == len({step.segment for step in trajectory.steps}) == 3
    assert len(policy.engine.read) == 180 == len(set(policy.engine.closed))


def test_the_same_seeds(policy: Any) -> None:
    runs = []
    for _ in range(2):
        policy.engine = engine_of(policy)
        runs.append(played(setup_of(policy, "at_once"), 4, response_tokens=6))
    said = [[sorted(step.action.text for step in trajectory.steps) for trajectory in run] for run in runs]
    assert said[0] == said[1] and len({text for texts in said[0] for text in texts}) > 8


# ---- (4) ----------------------------------------------------------------------------------------------------
def test_faults_of_agents(policy: Any) -> None:
    policy.engine = Scripted(policy, lambda read: "well")
    texts = ["raise", "sleep", "none", "exit", "fine"]
    raised, slow, none, left, fine = played(setup_of(policy, "some_fail", seconds=1.0), texts)
    assert "ValueError: I am lost (some_agents.py, line" in fault(raised)
    assert "it has not ended within 1 s" in fault(slow)
    assert "it returned NoneType, and its answer must be a text" in fault(none)
    assert "SystemExit: 3" in fault(left)
    assert fine.outcome == 1 and fine.info["said"] == ["well"]
    assert {one.error.boundary for one in (raised, slow, none, left)} == {"part"}


def test_an_agent_that_never_asks(policy: Any) -> None:
    (trajectory,) = played(setup_of(policy, "never_asks"), 1)
    assert "no role has acted" in fault(trajectory)


def test_faults_of_the_engine(policy: Any) -> None:
    def breaks(read: str) -> str:
        raise ValueError("broken")

    policy.engine = Scripted(policy, breaks)
    (trajectory,) = played(setup_of(policy, "ask_once"), 1)
    assert trajectory.error.boundary == "engine" and "ValueError: broken" in fault(trajectory)


# ---- (5) ----------------------------------------------------------------------------------------------------
def test_limits(policy: Any) -> None:
    policy.engine = Scripted(policy, lambda read: "well")
    (turns,) = played(setup_of(policy, "endless"), 1, max_turns=5)
    assert turns.stop is StopReason.MAX_TURNS and len(turns.steps) == 5 and not fault(turns)
    (tokens,) = played(setup_of(policy, "endless"), 1, max_tokens=20)
    assert tokens.stop is StopReason.MAX_TOKENS
    (seconds,) = played(setup_of(policy, "endless"), 1, max_seconds=0.5)
    assert seconds.stop is StopReason.TIMEOUT


def test_a_full_context(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy.engine = Scripted(policy, lambda read: "well")
    monkeypatch.setattr(policy, "limit", 600)
    (cut,) = played(setup_of(policy, "grows"), 1)
    assert cut.stop is StopReason.CONTEXT_OVERFLOW and len(cut.steps) > 2
    (answered,) = played(setup_of(policy, "grows_and_stops"), 1)
    assert answered.info["said"] == ["context_length_exceeded"] and answered.outcome == 1
    (never,) = played(setup_of(policy, "grows"), ["x" * 700])
    assert "the first prompt has" in fault(never) or "context holds 600" in fault(never)


# ---- (6) ----------------------------------------------------------------------------------------------------
def test_environments_of_several_turns(policy: Any) -> None:
    policy.engine = Scripted(policy, lambda read: "well")
    (trajectory,) = played(setup_of(policy, "counts", turns=3), 1)
    assert not fault(trajectory) and trajectory.info["said"] == ["well"] * 3
    assert [step.reward for step in trajectory.steps] == [0, 0, 1]
    (wrong,) = played(setup_of(policy, "ask_once", turns=2), 1)
    assert "the environment goes on after it" in fault(wrong)


ACTS = """\
import json, os, sys, urllib.request
task = json.loads(sys.stdin.readline())
def post(url, body):
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())))
shown = task["prompt"]
while shown is not None:
    body = {"messages": [{"role": "user", "content": shown}]}
    text = post(task["base_url"] + "/chat/completions", body)["choices"][0]["message"]["content"]
    shown = post(task["base_url"].removesuffix("/v1") + "/act", {"text": text})["observation"]
"""


def test_acts_by_http(policy: Any, tmp_path: Path) -> None:
    (tmp_path / "acts.py").write_text(ACTS)
    policy.engine = Scripted(policy, lambda read: "well")
    command = (sys.executable, str(tmp_path / "acts.py"))
    (trajectory,) = played(setup_of(policy, None, turns=3, command=command), 1)
    assert not fault(trajectory) and trajectory.info["said"] == ["well"] * 3


# ---- (7) ----------------------------------------------------------------------------------------------------
def test_commands(policy: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(COMMAND)
    policy.engine = Scripted(policy, lambda read: "well")
    command = (sys.executable, str(tmp_path / "agent.py"))
    fine, left = played(setup_of(policy, None, command=command), ["fine", "exit"])
    assert fine.info["said"] == ["well"] and fine.outcome == 1
    assert "ended with status 1" in fault(left) and "I give up" in fault(left)
    (slow,) = played(setup_of(policy, None, command=("sleep", "60"), seconds=0.3), 1)
    assert "it has not ended within 0.3 s" in fault(slow)
    (none,) = played(setup_of(policy, None, command=("no-such-program",)), 1)
    assert "it cannot be started: No such file or directory" in fault(none)


TIDY = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"])
def end(*_):
    open(sys.argv[1], "w").write(str(child.pid))
    sys.exit()
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""


def test_a_command_may_tidy_up(policy: Any, tmp_path: Path) -> None:
    """As the client of Docker does, which stops its container."""
    (tmp_path / "agent.py").write_text(TIDY)
    command = (sys.executable, str(tmp_path / "agent.py"), str(tmp_path / "ended"))
    (slow,) = played(setup_of(policy, None, command=command, seconds=2.0), 1)
    assert "it has not ended within 2 s" in fault(slow)
    child = int((tmp_path / "ended").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


# ---- (8) ----------------------------------------------------------------------------------------------------
def test_roles_that_do_not_fit(policy: Any, tiny: Any) -> None:
    for role, word in [
        (Role(policy=policy, context=LatestOnly()), "context: full_history"),
        (Role(policy=policy, context=FullHistory(), prompt="{text}!"), "`prompt` has no effect"),
        (Role(policy=policy, context=FullHistory(), reader=LastLine()), "`reader` has no effect"),
        (Role(policy=policy, context=FullHistory(), tools=RoleTools(tools=(find,))), "`tools` has no effect"),
        (Role(policy=tiny, context=FullHistory()), "chat template"),
    ]:
        (trajectory,) = played(setup_of(policy, "ask_once", role=role), 1)
        assert word in fault(trajectory)


def test_a_teacher_does_not_fit(policy: Any) -> None:
    setup = setup_of(policy, "ask_once")
    teacher, students = ScriptedPolicy(["well"]), {policy.name}
    setup.program = functools.partial(taught, program=setup.program, teacher=teacher, students=students)
    (trajectory,) = played(setup, 1)
    assert "a teacher cannot answer in its place" in fault(trajectory)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "either `agent` or `command`"),
        ({"agent": f"{AGENTS}:ask_once", "command": ["true"]}, "either `agent` or `command`"),
        ({"agent": f"{AGENTS}:wants_too_much"}, "`reward`"),
    ],
)
def test_recipes_that_do_not_fit(options: dict[str, Any], word: str) -> None:
    with told(RecipeError, word):
        roles_of(bind("program", BoundPart(name="outside_agent", options=options)))


# ---- (9) ----------------------------------------------------------------------------------------------------
def test_the_server_ends(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "IDLE_S", 0.1)
    policy.engine = Scripted(policy, lambda read: "well")
    addresses: list[str] = []

    def noted(listening: Any) -> str:
        addresses.append(address_of(listening))
        return addresses[-1]

    monkeypatch.setattr(gate, "address_of", noted)
    own = gate.Gate()
    monkeypatch.setattr("palaestra.gateway.program.GATE", own)
    (trajectory,) = played(setup_of(policy, "ask_once"), 1)
    assert not fault(trajectory)
    deadline = time.monotonic() + 10
    while any(thread.name == "palaestra gateway" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not own.is_open
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{addresses[0]}/health")
    (again,) = played(setup_of(policy, "ask_once"), 1)
    assert not fault(again)


def test_addresses_of_others(policy: Any) -> None:
    """A key that is wrong or belongs to an episode that is over leads nowhere."""
    policy.engine = Scripted(policy, lambda read: "well")
    with gate.GATE.episode(None) as address:  # type: ignore[arg-type]
        wrong = address[:-4] + "0000/v1/models"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(wrong)
    assert caught.value.code == 404 and json.load(caught.value)["error"]["code"] == "episode_over"
