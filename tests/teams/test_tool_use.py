"""What must hold of demonstrations by roles that have tools:

(1) an expression is found where there is one, the first of several, with its brackets;
(2) who can calculate does so before it answers, and reads what it will read when it acts;
(3) who cannot, and where there is nothing to work out, is shown what it was shown;
(4) in a loop of solver and verifier both calculate, and only what is meant to be learned is taught.
"""

from __future__ import annotations

import functools

import pytest

from palaestra.data import Observation, Trajectory
from palaestra.rollout.episode import Episode
from palaestra.rollout.roles import Role, RoleTools
from palaestra.teams.loop import demonstrate
from palaestra.teams.tool_use import expression_in, worked_out
from palaestra.testing import EchoEnvironment, ScriptedPolicy
from palaestra.tools.calculator import calculator
from palaestra.tools.python import fresh_python
from tests.teams.playing import acts, play, shown_to


class Sums(EchoEnvironment):
    """The echo, with a sum in what it shows."""

    def reset(self, task):  # type: ignore[no-untyped-def]
        result = super().reset(task)
        for seen in result.observations.values():
            object.__setattr__(seen, "text", f"{seen.text} 12 + 5 - 40 =")
        return result


def role(*tools: object, **options: object) -> Role:
    equipped = RoleTools(tools=tools, format="words", repeat=True, **options) if tools else None  # type: ignore[arg-type]
    return Role(policy=ScriptedPolicy(["x"]), tools=equipped)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("work out: 12 + 5 - 40 =", "12 + 5 - 40"),
        ("Calculate ( 87 / 3 + -10 ).", "( 87 / 3 + -10 )"),
        ("1.5*2 and 3 + 4", "1.5*2"),
        ("room 7, then room 8", None),
        ("", None),
    ],
)
def test_expressions(text: str, found: str | None) -> None:  # rule 1
    assert expression_in(text) == found


@pytest.mark.parametrize(
    ("own", "call"), [(calculator(), "calculator 12 + 5"), (fresh_python(backend="subprocess"), "python 12 + 5")]
)
def test_who_can_calculate(own: object, call: str) -> None:  # rule 2
    async def program(episode: Episode) -> None:
        agent = episode.agents["solver"]
        agent.record(await worked_out(agent, Observation(text="12 + 5 =")), "17")

    (played,) = play(program, {}, roles={"solver": role(own)})
    assert acts(played) == [("solver", call), ("solver", "17")]
    assert played.steps[1].observation.text == f"12 + 5 =\n{call}\ntool: 17"


def test_who_cannot() -> None:  # rule 3
    async def program(episode: Episode) -> None:
        for name, text in (("solver", "12 + 5 ="), ("verifier", "room 7")):
            seen = Observation(text=text)
            assert await worked_out(episode.agents[name], seen) is seen
            episode.agents[name].record(seen, "x")

    (played,) = play(program, {}, roles={"solver": role(), "verifier": role(calculator())})
    assert len(played.steps) == 2 and played.error is None


def demonstrated(noise: float) -> Trajectory:
    program = functools.partial(demonstrate, noise=noise)
    roles = {"solver": role(calculator()), "verifier": role(calculator())}
    (played,) = play(program, {}, roles=roles, environment=functools.partial(Sums, turns=1))
    assert played.error is None, played.error
    return played


def test_a_loop() -> None:  # rule 4
    call = "calculator 12 + 5 - 40"
    plain = demonstrated(0.0)
    assert [name for name, _ in acts(plain)] == ["solver", "solver", "verifier", "verifier"]
    assert [said for _, said in acts(plain)][::2] == [call, call]
    wrong = demonstrated(1.0)
    assert [(step.agent, (step.marks.noise or 0.0)) for step in wrong.steps] == [
        ("solver", 1.0),  # the wrong proposal, without a calculation
        *[("verifier", 0.0)] * 2,
        *[("solver", 0.0)] * 2,
        *[("verifier", 0.0)] * 2,
    ]
    assert shown_to(wrong, "verifier")[1][-1] == "tool: -23" and acts(wrong)[2] == ("verifier", "reject")
