"""Planner, executor, verifier, generator; each rule pinned by a test of the same number.

1. The executor acts on each sub-goal; once the verifier says stop, only the generator acts; its answer ends the
   episode.
2. All roles read the question and the latest lines of the memory, which is the same for the same acts; the executor
   also reads the sub-goal. No other role reads it before it is in the memory.
3. After `steps` sub-goals the generator answers, whatever the verifier says; an unreadable verdict is `continue`.
4. `flow_grpo` gives every planner turn the standardized return of the trajectory, and 0 to the other modules.
5. Demonstrations follow the expert; the executor follows a sub-goal that is not the expert's, and the planner does not
   learn it.
"""

from __future__ import annotations

import functools
from typing import Any

from palaestra.data import Observation, StepTable, Trajectory
from palaestra.envs.probes.toolcalc import ToolCalc
from palaestra.systems.flow_grpo.advantage import flow_grpo
from palaestra.systems.flow_grpo.agentflow import agentflow, demonstrate
from tests.teams.playing import acts, play, shown_to

CALC = functools.partial(ToolCalc, operations=(2, 2), families=("large",), failure=0.0)


def last_line(seen: Observation) -> str:
    lines = [line for line in (seen.text or "").split("\n") if not line.startswith("sub-goal")]
    return lines[-1]


def execute(turn: int, seen: Observation) -> str:
    """Does the next operation in the way that the sub-goal names."""
    goal = (seen.text or "").rsplit("sub-goal: ", 1)[1]
    words = last_line(seen).rsplit(". ", 1)[-1].split()
    return f"{goal} {words[1]}"


def check(turn: int, seen: Observation) -> str:
    rest = last_line(seen).rsplit(". ", 1)[-1]
    return "continue" if " " in rest else "stop"


def team(**others: Any) -> dict[str, Any]:
    return {"planner": ["calc"], "executor": execute, "verifier": check, "generator": ["answer"]} | others


def run(options: dict[str, Any] | None = None, **others: Any) -> Trajectory:
    return play(agentflow, team(**others), environment=CALC, options=options)[0]


def test_1_until_the_verifier_stops() -> None:
    played = run()
    assert "".join(name[0] for name, _ in acts(played)) == "pevpevg"
    assert (played.outcome, played.returns, played.info["steps"]) == (1.0, {"executor": 0.0, "generator": 1.0}, 2)
    assert played.steps[-1].info["reads"] == (3, 4)


def test_2_the_memory() -> None:
    first, second = run(), run()
    memory = shown_to(first, "generator")[0]
    assert [line.split(" | ")[:2] for line in memory] == [["calc", s] for n, s in acts(first) if n == "executor"]
    assert shown_to(first, "planner") == [[], memory[:1]]
    assert shown_to(first, "executor") == [["sub-goal: calc"], [memory[0], "sub-goal: calc"]]
    assert shown_to(first, "verifier") == [memory[:1], memory]
    assert [s.observation.text for s in first.steps] == [s.observation.text for s in second.steps]
    short = run({"memory": 1})
    assert shown_to(short, "generator") == [memory[1:]]
    assert len({(s.observation.text or "").split("\n")[0] for s in short.steps}) == 1  # the question


def test_3_at_most_so_many_steps() -> None:
    played = run({"steps": 1}, verifier=["hm"])
    assert "".join(name[0] for name, _ in acts(played)) == "pevg"
    assert [step.info.get("invalid", 0.0) for step in played.steps] == [0.0, 0.0, 1.0, 0.0]
    assert played.outcome == 0.0


def test_4_credit() -> None:
    good, bad = run(), run(planner=["head"])
    assert (good.outcome, bad.outcome) == (1.0, 0.0)
    bad.sample = 1
    table = StepTable.from_trajectories([good, bad])
    advantage = flow_grpo(table, planner="planner").tolist()
    agents = [table.labels("agent")[int(code)] for code in table["agent"]]
    found: dict[Any, set[float]] = {}
    for agent, trajectory, value in zip(agents, table["trajectory"].tolist(), advantage, strict=True):
        found.setdefault((agent, trajectory), set()).add(round(value, 4))
    assert (found["planner", 0], found["planner", 1]) == ({0.7071}, {-0.7071})
    assert {v for (agent, _), values in found.items() if agent != "planner" for v in values} == {0.0}


def test_5_demonstrations() -> None:
    clean = play(demonstrate, team(), environment=CALC)[0]
    assert (clean.outcome, len(clean.steps)) == (1.0, 7)
    assert [said for name, said in acts(clean) if name == "verifier"] == ["continue", "stop"]
    wild = play(demonstrate, team(), environment=CALC, count=20, options={"noise": 1.0})
    planned = [(s.action.text, (s.marks.noise or 0.0)) for one in wild for s in one.steps if s.agent == "planner"]
    assert {said for said, _ in planned} == {"calc", "head"}
    assert {noise for _, noise in planned} == {1.0}
    for one in wild:
        pairs = [(n, s) for n, s in acts(one) if n in ("planner", "executor")]
        assert all(e.startswith(p) for (_, p), (_, e) in zip(pairs[::2], pairs[1::2], strict=True))
        assert all(not s.marks.noise for s in one.steps if s.agent != "planner")
