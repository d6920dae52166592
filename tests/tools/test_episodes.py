"""Tools in real episodes, played by the library's runner:

1. If a tool hangs, raises, returns 50 MB or bytes that are not text, or if its server dies, the episode goes on to its
   end, the run survives, and the trajectory says what happened.
2. Budgets end an episode with their stop reason.
3. A server that does not start fails its own episode only.
4. 200 episodes at once leave no process, thread or file descriptor behind.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Action, Observation, StopReason, Trajectory
from palaestra.envs.worlds.tool_tasks.world import ToolTasks
from palaestra.evaluation.scripted import play_scripted
from palaestra.rollout.settings import RolloutSettings

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
TOOLS = '''
import subprocess, sys, time, asyncio
from palaestra.tools import tool

@tool(timeout_s=0.2)
def hang() -> str:
    """Hang."""
    time.sleep(2)
    return "late"

@tool(timeout_s=0.2)
async def wait() -> str:
    """Hang."""
    await asyncio.sleep(60)
    return "late"

def leave() -> str:
    """Raise."""
    raise SystemExit("bye")

def large() -> str:
    """Give much."""
    return "x" * 50_000_000

def strange() -> bytes:
    """Give bytes."""
    return b"caf\\xe9 \\xff"

@tool(timeout_s=120)
def run(text: str) -> str:
    """Run a process."""
    return subprocess.run(["/bin/echo", text], capture_output=True, text=True).stdout.strip()
'''


class Reader:
    """The environment with an expert that makes the calls of the question one by one, whatever comes of them."""

    def __init__(self, **options: Any) -> None:
        self.env = ToolTasks(**options)
        self.agents = self.env.agents

    async def reset(self, task: Any) -> Any:
        self.acts = [" ".join((call["name"], *map(str, call["arguments"].values()))) for call in task.params["calls"]]
        self.acts.append(f"answer {task.params['answers'][0]}")
        return await self.env.reset(task)

    async def step(self, actions: Any) -> Any:
        return await self.env.step(actions)

    async def close(self) -> None:
        await self.env.close()

    def expert(self, agent: str) -> Action:
        return Action(text=self.acts.pop(0))


@pytest.fixture
def play(tmp_path):
    """Plays one episode for each list of calls."""
    (tmp_path / "mine.py").write_text(TOOLS)

    def played(*plans: list[tuple[str, dict]], tools: tuple = (), **options: Any) -> list[Trajectory]:
        lines = [
            {
                "question": f"question {n}",
                "answer": "yes",
                "split": "eval",
                "calls": [{"name": name, "arguments": arguments} for name, arguments in plan],
            }
            for n, plan in enumerate(plans)
        ]
        (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
        own = tuple(f"{tmp_path / 'mine.py'}:{name}" for name in ("hang", "wait", "leave", "large", "strange", "run"))
        made = {"questions": str(tmp_path / "q.jsonl"), "tools": (*own, *tools), "max_turns": 20, **options}
        tasks = sorted(
            ToolTasks(**made).tasks("eval", len(plans), 0), key=lambda task: int(task.params["question"][9:])
        )
        settings = RolloutSettings(max_turns=50)
        return play_scripted("tool_tasks", made, "expert", tasks, settings=settings, make=lambda: Reader(**made))

    return played


def seen(trajectory: Trajectory) -> str:
    """All that the agent read."""
    shown: list[Observation] = [step.observation for step in trajectory.steps]
    return "\n".join(str(one.text) for one in shown)


def test_bad_tools_in_one_episode(play):  # rule 1
    names = ("hang", "wait", "leave", "large", "strange", "nope")
    bad, good = play([(name, {}) for name in names], [("run", {"text": "hello"})])
    for trajectory in (bad, good):
        assert (trajectory.stop, trajectory.error, trajectory.outcome) == (StopReason.COMPLETED, None, 1.0)
    assert bad.info["faults"] == {"raised": 1, "timeout": 2, "unreadable": 1}
    text = seen(bad)
    for part in (
        "error: hang: no answer within 0.2 s",
        "error: wait: no answer within 0.2 s",
        "error: leave failed: SystemExit: bye",
        "… 49,999,600 more characters",
        "r2 strange: caf� �",
        "error: nothing was called",
    ):
        assert part in text
    assert [step.info["tool_error"] for step in bad.steps] == [1, 1, 1, 0, 0, 1, 0]
    assert "r1 run hello: hello" in seen(good)


def test_a_server_that_dies_in_mid_episode(play):  # rule 1
    server = {"mcp": {"command": SERVER, "timeout_s": 30.0, "start_s": 90.0, "only": ["add", "die", "err", "garbage"]}}
    add = ("add", {"a": 1, "b": 2})
    dying, hanging = play([add, ("die", {}), add], [("garbage", {}), ("err", {"text": "boo"}), add], tools=(server,))
    assert dying.stop is hanging.stop is StopReason.COMPLETED and dying.outcome == hanging.outcome == 1.0
    assert dying.info["faults"] == {"died": 2} and hanging.info["faults"] == {"raised": 1}
    assert "error: the server has ended: out of ink" in seen(dying) and "r1 add 1 2: 3" in seen(dying)
    assert "boo" in seen(hanging) and "r2 add 1 2: 3" in seen(hanging)


def test_budgets_are_stop_reasons(play):  # rule 2
    many, unread = play([("run", {"text": str(n)}) for n in range(5)], [("nope", {})] * 5, max_calls=2, max_faults=3)
    assert (many.stop, many.outcome, len(many.steps)) == (StopReason.MAX_TOOL_CALLS, 0.0, 3)
    assert (unread.stop, unread.outcome, len(unread.steps)) == (StopReason.PARSE_ERROR, 0.0, 3)
    assert many.steps[-1].truncated and many.last


def test_a_server_that_does_not_start(play):  # rule 3
    (failed,) = play([("run", {"text": "a"})], tools=({"mcp": {"command": ["no-such-server"]}},))
    assert failed.stop is StopReason.ERROR and failed.error.boundary == "environment"
    assert "MCP server" in failed.error.message or "cannot be used" in failed.error.message


@pytest.mark.slow
def test_200_episodes_leave_nothing(play):  # rule 4
    server = {"mcp": {"command": SERVER, "shared": True, "timeout_s": 90.0, "start_s": 90.0, "only": ["add"]}}

    def once(count: int) -> list[Trajectory]:
        plan = [("run", {"text": "a"}), ("add", {"a": 1}), ("leave", {}), ("calculator", {"expression": "1+1"})]
        return play(*[plan] * count, tools=(server, "calculator"))

    def settled(measure: Any, most: int) -> bool:
        until = time.monotonic() + 10
        while measure() > most and time.monotonic() < until:
            gc.collect()
            time.sleep(0.05)
        return measure() <= most

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def children() -> int:
        return len(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    once(2)  # what is made once in a process is there now
    settled(threading.active_count, 1)
    before = threading.active_count(), descriptors(), children()
    played = once(200)
    assert [t.outcome for t in played] == [1.0] * 200
    assert {json.dumps(t.info["faults"]) for t in played} == {'{"raised": 1}'}
    assert settled(threading.active_count, before[0])
    assert settled(descriptors, before[1])
    assert settled(children, before[2])
