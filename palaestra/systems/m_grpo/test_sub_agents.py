"""The program `sub_agents`:

1. Requests of a message are made at once; reports come back in the order of the requests; then the main agent acts.
2. A call reads its request and nothing else; it has its own number, parent and sequence of tokens.
3. The order in which calls finish changes nothing: the tables are the same, and so are the advantages of `m_grpo` in
   both alignments.
4. `m_grpo` compares main with main, and calls with calls; a rollout with two calls counts as much as one with one.
5. At most `calls` requests of a message are made, in at most `rounds` messages; a message that still asks then is
   malformed.
6. Demonstrations add sums column by column, and answer other questions without a call; they call the roles of the
   recipe in turn, and no more at once or in a row than it allows.
7. A call that fails ends its episode, whose error names the role; other episodes go on.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from palaestra.data import Action, Iteration, Observation, StepTable, Trajectory
from palaestra.data.protocols import Policy, Response, Session
from palaestra.envs.probes.sums import Sums
from palaestra.registry.bound import BoundPart, bind
from palaestra.rollout.roles import Role
from palaestra.systems.m_grpo.advantage import m_grpo as m_grpo_part
from palaestra.systems.m_grpo.hierarchical import hierarchical
from palaestra.systems.m_grpo.sub_agents import columns_of, demonstrate, requests_of, sub_agents
from palaestra.testing import TinyModel
from tests.teams.playing import acts, demonstrated, play, shown_to, told_word


def m_grpo(table: StepTable, *, seed: int = 0, **options: Any) -> torch.Tensor:
    """The part in an iteration of this seed."""
    return m_grpo_part(table, Iteration(seed=seed), **options)


ADD = functools.partial(Sums, digits=2)


def lead(turn: int, seen: Observation) -> str:
    """Asks for both columns at once, and combines the reports."""
    question, *reports = (seen.text or "").split("\n")
    if not reports:
        return f"ask {'; '.join(columns_of(question))}"
    low, high = (int("".join(report.rsplit(": ", 1)[1].split())) for report in reports)
    return " ".join(f"{low + 10 * high:03}")


def add(turn: int, seen: Observation) -> str:
    return " ".join(str(sum(int(digit) for digit in (seen.text or "").split(" + "))))


@dataclass
class Late(Policy):
    """Answers as another function does, after a delay that depends on what it reads."""

    answers: Any
    seconds: Any
    name: str = "late"
    trainable: bool = False
    version: int = 0

    def session(self, *, context: Any, sampling: Any, key: Any) -> _Late:
        return _Late(self)


@dataclass
class _Late(Session):
    policy: Late
    said: list[str] = field(default_factory=list)

    async def act(self, observation: Observation, *, seed: int) -> Response:
        await asyncio.sleep(self.policy.seconds(observation))
        self.said.append(self.policy.answers(len(self.said), observation))
        return Response(action=Action(text=self.said[-1]))

    def end(self, observation: Observation | None) -> None:
        return None


def test_1_calls_at_once() -> None:
    (played,) = play(sub_agents, {"main": lead, "sub": add}, environment=ADD)
    asked, answer = (said for name, said in acts(played) if name == "main")
    assert [name for name, _ in acts(played)] == ["main", "sub", "sub", "main"]
    assert [what for _, what in requests_of(asked)] == [s.observation.text for s in played.steps[1:3]]
    assert shown_to(played, "main")[1] == [f"{s.observation.text}: {s.action.text}" for s in played.steps[1:3]]
    assert (played.outcome, played.returns, played.info["calls"]) == (1.0, {"main": 1.0}, 2)
    assert len(answer.split()) == 3
    two = play(sub_agents, {"main": ["ask adder: 1 + 1; 2 + 2", "0 0 4"], "sub": add, "adder": add}, environment=ADD,
               options={"subs": ("sub", "adder")})[0]  # fmt: skip
    assert acts(two)[1:3] == [("adder", "2"), ("sub", "4")]


def test_2_calls_are_sequences_of_their_own() -> None:
    model = TinyModel(texts=["3 + 8", "1 + 2"])
    context = bind("context", BoundPart(name="full_history"))()
    roles, says = {"sub": Role(policy=model, context=context)}, ["ask 3 + 8; 1 + 2", "ask 3 + 8", "0 0 0"]
    (played,) = play(sub_agents, {"main": says}, roles=roles, environment=ADD, response_tokens=3)
    subs = [step for step in played.steps if step.agent == "sub"]
    assert [(s.invocation, s.parent, s.segment) for s in subs] == [(1, 0, 4096), (2, 0, 8192), (3, 3, 12288)]
    assert [s.observation.text for s in subs] == ["3 + 8", "1 + 2", "3 + 8"]
    assert subs[0].prompt.tolist() == subs[2].prompt.tolist()  # a later call does not read an earlier one
    assert all(step.terminated for step in subs)
    assert [s.parent for s in played.steps if s.agent == "main"] == [None] * 3


def group(first: float, second: float) -> list[Trajectory]:
    """Four rollouts of one task; calls whose request is longer take `first` seconds, others `second`."""

    def late(seen: Observation) -> float:
        return first if len(seen.text or "") > 5 else second

    played = []
    for number, asked in enumerate(["ask 3 + 8; 12 + 24; 1 + 1", "ask 3 + 8", "0 1 1", "ask 1 + 1; 10 + 10"]):
        answers = {"main": [asked, "0 1 1"], "sub": Late(add, late)}
        (one,) = play(sub_agents, answers, environment=ADD)
        one.group, one.sample = "g", number
        one.returns["main"] = one.steps[-1].reward = float(number % 2)
        for step in one.steps:
            if step.agent == "sub":
                step.reward = float(len(step.action.text or ""))
        played.append(one)
    return played


def test_3_order_of_arrival() -> None:
    one, other = (StepTable.from_trajectories(group(*seconds)) for seconds in ((0.01, 0.0), (0.0, 0.01)))
    for name in ("agent", "turn", "invocation", "parent", "reward", "trajectory", "segment"):
        assert one[name].tolist() == other[name].tolist(), name
    for options in ({}, {"align": "duplicate", "calls": 4}, {"align": "duplicate", "calls": 2}):
        found = m_grpo(one, main="main", **options)
        assert found.tolist() == m_grpo(other, main="main", **options).tolist()
        assert found.abs().max() > 0.5


def test_4_advantages() -> None:
    table = StepTable.from_trajectories(group(0.0, 0.0))
    agents = [table.labels("agent")[int(code)] for code in table["agent"]]
    advantage = m_grpo(table, main="main").tolist()
    main = {
        (int(t), round(a, 4)) for t, a, n in zip(table["trajectory"], advantage, agents, strict=True) if n == "main"
    }
    assert main == {(0, -1.0), (1, 1.0), (2, -1.0), (3, 1.0)}
    rewards = [r for r, n in zip(table["reward"].tolist(), agents, strict=True) if n == "sub"]
    assert rewards == [3.0, 3.0, 1.0, 3.0, 1.0, 3.0]  # 1 1, 3 6, 2 | 1 1 | 2, 2 0
    share = [1 / 3, 1 / 3, 1 / 3, 1.0, 0.5, 0.5]
    mean = sum(w * r for w, r in zip(share, rewards, strict=True)) / 3
    sigma = (sum(w * (r - mean) ** 2 for w, r in zip(share, rewards, strict=True)) / 3) ** 0.5
    calls = [a for a, n in zip(advantage, agents, strict=True) if n == "sub"]
    assert calls == pytest.approx([(r - mean) / sigma for r in rewards], abs=1e-4)
    paid = hierarchical(table, main="main", sub_expert=0.0).tolist()
    assert [p for p, n in zip(paid, agents, strict=True) if n == "sub"] == pytest.approx([0.1 + 0.4 * 0] * 6)


def test_5_limits() -> None:
    (played,) = play(sub_agents, {"main": ["ask 1 + 1; 2 + 2; 3 + 3"], "sub": add}, environment=ADD,
                     options={"calls": 2, "rounds": 2})  # fmt: skip
    assert [name for name, _ in acts(played)] == ["main", "sub", "sub", "main", "sub", "sub", "main"]
    assert [s.info["format"] for s in played.steps if s.agent == "main"] == [1.0, 1.0, 0.0]
    assert played.outcome == 0.0
    (silent,) = play(sub_agents, {"main": ["ask 1 + 1", "0 0 2"], "sub": [""]}, environment=ADD)
    assert [s.info["format"] for s in silent.steps] == [1.0, 0.0, 1.0]
    assert requests_of("ask ;  ") == requests_of("asked 1") == []


def test_6_demonstrations() -> None:
    (summed,) = play(demonstrate, {"main": lead, "sub": add}, environment=ADD)
    (rolled,) = play(sub_agents, {"main": lead, "sub": add}, environment=ADD)
    assert acts(summed) == acts(rolled)
    assert [s.observation.text for s in summed.steps] == [s.observation.text for s in rolled.steps]
    (echoed,) = play(demonstrate, {"main": lead, "sub": add})
    assert acts(echoed) == [("main", told_word(echoed.steps[0].observation))]


def test_6_of_other_names() -> None:
    silent = {"main": ["x"], "finder": ["x"], "adder": ["x"]}
    (played,) = demonstrated(sub_agents, silent, options={"subs": ["finder", "adder"]}, environment=ADD)
    assert played.error is None and played.outcome == 1.0
    asked = requests_of(acts(played)[0][1], ("finder", "adder"))
    assert [name for name, _ in asked] == ["finder", "adder"] == [name for name, _ in acts(played)[1:3]]
    assert [what for _, what in asked] == [s.observation.text for s in played.steps[1:3]]


@pytest.mark.parametrize(
    ("options", "order"), [({"calls": 2}, "mssmsm"), ({"calls": 2, "rounds": 1}, "mssm"), ({"calls": 3}, "msssm")]
)
def test_6_no_more_than_allowed(options: dict[str, int], order: str) -> None:
    env = functools.partial(Sums, digits=3)
    (played,) = demonstrated(sub_agents, {"main": ["x"], "sub": ["x"]}, options=options, environment=env)
    assert "".join(name[0] for name, _ in acts(played)) == order and played.outcome == 1.0
    assert len(shown_to(played, "main")[-1]) == order.count("s")


def test_7_a_call_that_fails() -> None:
    def weak(turn: int, seen: Observation) -> str:
        if "9" in (seen.text or ""):
            raise RuntimeError("too large")
        return add(turn, seen)

    played = play(sub_agents, {"main": lead, "sub": weak}, environment=ADD, count=12)
    failed = [one for one in played if one.error is not None]
    assert 0 < len(failed) < 12
    assert all("agent sub" in one.error.message for one in failed if one.error)
    assert all(one.outcome == 1.0 for one in played if one.error is None)
