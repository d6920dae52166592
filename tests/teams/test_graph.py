"""Graphs of roles, each rule pinned by a test of the same number.

1.  Each role reads what its topology grants, and nothing else.
2.  Roles of a layer, the spokes and a mesh speak at once: who answers first changes nothing.
3.  A vote takes what most mean; who said it first acts and earns; weights, concatenation and the last count as told.
4.  Rounds end early where enough agree.
5.  Renaming roles renames what is recorded, and changes nothing else.
6.  Roles that do not read each other may change places: each says and reads the same as before.
7.  A role that fails ends its own episode, which says who it was; other episodes go on.
8.  Roles that wait for each other end as a failed episode.
9.  The tokens of the roles add up to those of the team.
10. A pipeline of m roles that each err with probability 1 − p is right with p^m.
11. A demonstration is the program itself with the expert for everybody; what is spoiled is not learned.
12. Roles that could not speak are refused: the same name twice at once, a hub that is a spoke, no role at all; so are
    weights where nobody votes.
"""

from __future__ import annotations

import asyncio
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Observation, Play, RunSetup, Trajectory
from palaestra.data.protocols import Policy, Response, Session
from palaestra.errors import RecipeError
from palaestra.registry.bound import BoundPart, bind
from palaestra.rollout.programs import demonstration_of, roles_of
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.systems.debate.program import debate
from palaestra.teams.graph import chain, independent, layers, mesh, speak, star
from palaestra.testing import EchoEnvironment, TinyModel
from tests.teams.playing import acts, play, right, shown_to, told_word

GRAPHS = {
    "chain": (chain, {"roles": ("a", "b", "c")}),
    "star": (star, {"hub": "a", "spokes": ("b", "c")}),
    "mesh": (mesh, {"roles": ("a", "b", "c"), "rounds": 2}),
    "layers": (layers, {"layers": (("a", "b"), ("c",))}),
    "independent": (independent, {"roles": ("a", "b", "c")}),
}
READ = {  # role → what it reads, act by act
    "chain": {"a": [[]], "b": [["a: A0"]], "c": [["b: B0"]]},
    "star": {"a": [[], ["b: B0", "c: C0"]], "b": [["a: A0"]], "c": [["a: A0"]]},
    "mesh": {
        "a": [[], ["you: A0", "b: B0", "c: C0"]],
        "b": [[], ["a: A0", "you: B0", "c: C0"]],
        "c": [[], ["a: A0", "b: B0", "you: C0"]],
    },
    "layers": {"a": [[]], "b": [[]], "c": [["a: A0", "b: B0"]]},
    "independent": {"a": [[]], "b": [[]], "c": [[]]},
}


def counting(letter: str) -> Any:
    return lambda turn, seen: f"{letter}{turn}"


def speaking(*roles: str) -> dict[str, Any]:
    return {role: counting(role.upper()) for role in roles}


@dataclass
class Late(Policy):
    """Says a letter and a count, after a while."""

    letter: str
    seconds: float
    name: str = "late"
    trainable: bool = False
    version: int = 0

    def session(self, *, context: Any, sampling: Any, key: Any) -> _Late:
        return _Late(self)


@dataclass
class _Late(Session):
    policy: Late
    acts: int = 0

    async def act(self, observation: Observation, *, seed: int) -> Response:
        text = f"{self.policy.letter}{self.acts}"
        self.acts += 1
        await asyncio.sleep(self.policy.seconds)
        if self.policy.letter == "!":
            raise ValueError("no idea")
        return Response(action=Action(text=text))

    def end(self, observation: Observation | None) -> None:
        return None


@pytest.mark.parametrize("name", GRAPHS)
def test_1_who_reads_what(name: str) -> None:
    program, options = GRAPHS[name]
    (played,) = play(program, speaking("a", "b", "c"), options=options)
    assert {role: shown_to(played, role) for role in "abc"} == READ[name]
    said = {f"{s.agent}: {s.action.text}": s.turn for s in played.steps}
    for step in played.steps:
        lines = (step.observation.text or "").split("\n")[1:]
        assert step.info["reads"] == tuple(said[line.replace("you:", f"{step.agent}:")] for line in lines)


@pytest.mark.parametrize("name", GRAPHS)
def test_2_who_answers_first(name: str) -> None:
    program, options = GRAPHS[name]
    told = []
    for seconds in ({"a": 0.0, "b": 0.002, "c": 0.001}, {"a": 0.002, "b": 0.0, "c": 0.0}):
        (played,) = play(program, {role: Late(role.upper(), seconds[role]) for role in "abc"}, options=options)
        told.append([(s.agent, s.turn, s.action.text, s.reward, s.info["reads"]) for s in played.steps])
    assert told[0] == told[1]


def test_3_one_action_of_several() -> None:
    says: dict[str, Any] = {"a": ["mud"], "b": right, "c": right}
    options = {"roles": ("a", "b", "c")}
    (voted,) = play(independent, says, options=options)
    assert (voted.outcome, voted.returns, voted.info["agreement"]) == (1.0, {"b": 1.0}, pytest.approx(2 / 3))
    (heavy,) = play(independent, says, options=options | {"weights": (3.0, 1.0, 1.0)})
    assert (heavy.outcome, heavy.returns) == (0.0, {"a": 0.0})
    (latest,) = play(independent, says | {"c": ["mud"]}, options=options | {"how": "last"})
    assert latest.returns == {"c": 0.0}
    (single,) = play(independent, {"a": ["  "], "b": right}, options={"roles": ("a", "b"), "how": "concat"})
    assert single.returns == {"b": 1.0}  # what means nothing is not part of it
    assert single.steps[0].info["invalid"] == 1.0
    (joined,) = play(independent, {"a": right, "b": right}, options={"roles": ("a", "b"), "how": "concat"})
    assert joined.outcome == 0.0
    (silent,) = play(independent, {"a": [""], "b": [""]}, options={"roles": ("a", "b")})
    assert silent.returns == {"a": 0.0}


def test_4_agreement_ends_rounds() -> None:
    def yields(turn: int, seen: Observation) -> str:
        return "mud" if turn == 0 else told_word(seen)

    for agree, rounds in ((None, 4), (1.0, 2), (0.5, 1)):
        options = {"roles": ("a", "b"), "rounds": 4, "agree": agree}
        (played,) = play(mesh, {"a": right, "b": yields}, options=options)
        assert len(played.steps) == 2 * rounds


@pytest.mark.parametrize("name", GRAPHS)
def test_5_renaming(name: str) -> None:
    program, options = GRAPHS[name]
    new = {"a": "z", "b": "y", "c": "x"}
    renamed = {key: _renamed(value, new) for key, value in options.items()}
    says = {"a": right, "b": ["mud"], "c": right}
    (before,) = play(program, says, options=options)
    (after,) = play(program, {new[role]: answers for role, answers in says.items()}, options=renamed)
    assert [(new[s.agent], s.turn, s.action.text, s.reward) for s in before.steps] == [
        (s.agent, s.turn, s.action.text, s.reward) for s in after.steps
    ]
    assert {new[role]: amount for role, amount in before.returns.items()} == after.returns


def _renamed(value: Any, new: dict[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_renamed(one, new) for one in value)
    return new.get(value, value) if isinstance(value, str) else value


def test_6_exchange() -> None:
    def whole(options: dict[str, Any]) -> dict[str, Any]:
        (played,) = play(layers, speaking("a", "b", "c"), options=options)
        return {role: [sorted(lines) for lines in shown_to(played, role)] for role in "abc"} | {
            "said": sorted(acts(played)),
            "returns": played.returns,
        }

    assert whole({"layers": (("a", "b"), ("c",))}) == whole({"layers": (("b", "a"), ("c",))})


def test_7_a_role_that_fails() -> None:
    def half(turn: int, seen: Observation) -> str:
        if told_word(seen) in ("red", "blue"):
            raise RuntimeError("out of ideas")
        return told_word(seen)

    played = play(mesh, {"a": right, "b": half}, count=12, options={"roles": ("a", "b")})
    failed = [one for one in played if one.error is not None]
    assert 0 < len(failed) < 12
    assert all("agent b" in one.error.message for one in failed if one.error)
    assert all(one.outcome == 1.0 for one in played if one.error is None)


def test_8_waiting_for_each_other() -> None:
    async def shy(episode: Any) -> None:
        spoken = {role: asyncio.Event() for role in "ab"}

        async def after(role: str, other: str) -> None:
            await spoken[other].wait()
            await speak(episode, Observation(text="say it"), {role: (other,)})
            spoken[role].set()

        await asyncio.gather(after("a", "b"), after("b", "a"))

    (played,) = play(shy, speaking("a", "b"), stuck_seconds=0.2)
    assert played.error is not None
    assert "stands still" in played.error.message


def test_9_tokens() -> None:
    model = TinyModel()
    roles = {name: Role(policy=model, context=bind("context", BoundPart(name="latest_only"))()) for name in "abc"}
    (played,) = play(mesh, {}, roles=roles, options={"roles": ("a", "b", "c")}, response_tokens=4)
    tokens = {role: sum(len(s.action.tokens) for s in played.steps if s.agent == role) for role in "abc"}
    assert min(tokens.values()) > 0
    assert sum(tokens.values()) == sum(len(step.action.tokens) for step in played.steps)
    assert len({(step.agent, step.segment) for step in played.steps}) == len(played.steps)


@pytest.mark.slow
def test_10_pipeline() -> None:
    p, n, draw = 0.8, 4000, np.random.default_rng(3)

    def speak(turn: int, seen: Observation) -> str:
        before = (seen.text or "").split("\n")[1:]
        good = draw.random() < p and not any(line.endswith("mud") for line in before)
        return told_word(seen) if good else "mud"

    played = play(chain, dict.fromkeys("abc", speak), count=n, options={"roles": ("a", "b", "c")})
    best = p**3
    assert abs(sum(one.outcome or 0.0 for one in played) / n - best) <= 3 * math.sqrt(best * (1 - best) / n)


def test_11_demonstrations() -> None:
    for noise in (0.0, 1.0):
        played = demonstrated(mesh, {"roles": ("a", "b"), "rounds": 2}, noise=noise)
        assert [step.agent for step in played.steps] == ["a", "b", "a", "b"]
        assert [step.marks.noise or 0.0 for step in played.steps] == [noise] * 4
        assert played.outcome == 1.0 - noise
        word = told_word(played.steps[0].observation)
        assert shown_to(played, "a")[1] == [f"you: {word if noise == 0 else '?'}", f"b: {word if noise == 0 else '?'}"]


def demonstrated(program: Any, options: dict[str, Any], *, noise: float) -> Trajectory:
    bound = bind("program", BoundPart(name=program.part.name, options=options))
    setup = RunSetup(
        environment_name="echo",
        make_environment=functools.partial(EchoEnvironment, turns=1),
        roles={"*": Role(policy=TinyModel(), context=bind("context", BoundPart(name="latest_only"))())},
        program=bound,
        environment_options={},
    )
    task = EchoEnvironment().tasks("train", 1, 0)[0]
    runner = EpisodeRunner(setup, RolloutSettings())
    play = Play(task=task, group="g", sample=0, seed=0)
    return runner.collect([play], program=functools.partial(demonstration_of(bound), noise=noise))[0]


def test_12_refused() -> None:
    with pytest.raises(RecipeError, match="one role cannot speak twice at once"):
        bind("program", BoundPart(name="mesh", options={"roles": ["a", "a"]}))
    with pytest.raises(RecipeError, match="roles"):
        bind("program", BoundPart(name="chain", options={"roles": []}))
    for how in ("last", "concat"):
        with pytest.raises(RecipeError, match=rf"weights(.|\n)*`how` is {how}"):
            bind(
                "program",
                BoundPart(name="independent", options={"roles": ["a", "b"], "how": how, "weights": [5.0, 1.0]}),
            )
        with pytest.raises(RecipeError, match="only votes are weighed"):
            bind("program", BoundPart(name="layers", options={"layers": [["a"]], "weights": [1.0], "how": how}))
        bind("program", BoundPart(name="layers", options={"layers": [["a"]], "weights": [], "how": how}))
    (played,) = play(star, speaking("a", "b"), options={"hub": "a", "spokes": ("a", "b")})
    assert "the hub and also a spoke" in (played.error.message if played.error else "")
    assert roles_of(bind("program", BoundPart(name="debate", options={"debaters": 2}))) == ("debater_1", "debater_2")
    assert roles_of(bind("program", BoundPart(name="layers", options={"layers": [["a", "b"], ["c"]]}))) == (
        "a",
        "b",
        "c",
    )
    assert debate.__name__ == "debate"
