"""The team program `sub_agents`: a main agent calls sub-agents, several at once, each call in its own conversation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import pydantic

from palaestra.registry import PositiveInt, declaring, register
from palaestra.rollout.programs import acted_by, demonstrated_by
from palaestra.teams.demonstration import option_of
from palaestra.teams.shown import has_read, noted, sole

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode

MAIN, SUB, ASK = "main", "sub", "ask"
CALLS, ROUNDS = 4, 2
SUM = re.compile(r"((?:\d )+)\+((?: \d)+)")
Subs = Annotated[tuple[str, ...], pydantic.Field(min_length=1)]


def requests_of(text: str, subs: Sequence[str] = (SUB,)) -> list[tuple[str, str]]:
    """The calls that a message makes, as pairs of sub-agent and request; empty for a message without calls.

    `ask this; that` calls the first sub-agent twice; `ask finder: this; adder: that` calls the sub-agents that it
    names.

    >>> requests_of("ask 3 + 8; sub: 2 + 4"), requests_of("7 1")
    ([('sub', '3 + 8'), ('sub', '2 + 4')], [])
    """
    word, _, rest = text.strip().partition(" ")
    found = []
    for request in rest.split(";") if word == ASK else ():
        name, colon, what = request.partition(":")
        named = bool(colon) and name.strip() in subs
        what = (what if named else request).strip()
        if what:
            found.append((name.strip() if named else subs[0], what))
    return found


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """Demonstrate the program: a sum is added column by column, each by a call; other questions need no call.

    Sub-agents are called in turn. Where the options allow no further call, the expert adds the remaining columns alone.
    """
    subs, calls = option_of(episode, "subs", (SUB,)), option_of(episode, "calls", CALLS)
    most = calls * option_of(episode, "rounds", ROUNDS)
    result = await episode.reset()
    while result.observations:
        name, seen = sole(result, program="sub_agents")
        main, right = episode.agents[MAIN], await episode.expert(name)
        reports: list[str] = []
        asked = [(subs[place % len(subs)], what) for place, what in enumerate(columns_of(seen.text or "")[:most])]
        for first in range(0, len(asked), calls):
            message = asked[first : first + calls]
            requests = [what if len(subs) == 1 else f"{sub}: {what}" for sub, what in message]
            main.record(noted(seen, *reports), f"{ASK} {'; '.join(requests)}", format=1.0)
            reports += [_demonstrated_call(episode, main, sub, what) for sub, what in message]
        result = await episode.step({MAIN: main.record(noted(seen, *reports), right, format=1.0)})


def _demonstrated_call(episode: Episode, main: Agent, name: str, request: str) -> str:
    """Record the call of a sub-agent that adds a column, and return its report."""
    digits = " ".join(str(sum(int(digit) for digit in request.split(" + "))))
    episode.invoke(name, parent=main).record(request, digits, format=1.0)
    return f"{request}: {digits}"


def columns_of(text: str) -> list[str]:
    """The columns of a sum of two numbers written digit by digit, from the right.

    >>> columns_of("2 3 + 4 8"), columns_of("go north")
    (['3 + 8', '2 + 4'], [])
    """
    found = SUM.search(text)
    if found is None:
        return []
    return [f"{one} + {other}" for one, other in zip(found[1].split()[::-1], found[2].split()[::-1], strict=False)]


@register("program", "sub_agents", uses=("one_agent",), source="arXiv 2511.13288")
@declaring(provides=frozenset({"format"}), waits=True)
@acted_by(lambda options: (MAIN, *options.get("subs", (SUB,))))
@demonstrated_by(demonstrate)
async def sub_agents(
    episode: Episode, *, subs: Subs = (SUB,), calls: PositiveInt = CALLS, rounds: PositiveInt = ROUNDS
) -> None:
    """The main agent asks sub-agents, all requests of a message at once, reads their reports, and acts.

    For environments with one agent; the calls come before each of its acts. A message that begins with `ask` calls: its
    requests are separated by semicolons, and where there are several sub-agents, a role's name and a colon come before
    each. A sub-agent reads the request and nothing else. What it says, after the tools that its role has, is its
    report. Each call is an invocation, with its own conversation, token sequence and number; `parent` is the turn that
    called.

    Args:
        subs: the agents that may be called.
        calls: most calls of one message; requests beyond it are dropped. Higher: more can be asked, more tokens. Usual:
            4.
        rounds: messages that may call before each act; the next message of the main agent is its act. Higher: more can
            be asked, more tokens. Usual: 2.

    Steps carry `format`: 0 for an act of the main agent that still asks and for an empty report, else 1. So the reward
    `hierarchical` (with `sub_expert: 0`) applies, and `m_grpo` compares calls with calls. `info` has the number of
    `calls`.
    """
    main, made = episode.agents[MAIN], 0
    result = await episode.reset()
    while result.observations:
        _, seen = sole(result, program="sub_agents")
        reports: list[str] = []
        for left in range(rounds, -1, -1):
            said = await main.act(noted(seen, *reports))
            asked = requests_of(said.text or "", subs)[:calls] if left else []
            _tell(main, well=not requests_of(said.text or "", subs) or bool(asked))
            if not asked:
                break
            made += len(asked)
            reports += await _reports(episode, main, asked)
        episode.trajectory.info = {**episode.trajectory.info, "calls": made}
        result = await episode.step({MAIN: said})


async def _reports(episode: Episode, main: Agent, asked: Sequence[tuple[str, str]]) -> list[str]:
    """The reports of sub-agents that are called at once, in the order of the requests."""
    called = [episode.invoke(name, parent=main) for name, _ in asked]  # numbered before any of them acts

    async def report(sub: Agent, request: str) -> str:
        said = await sub.act(request)
        has_read(sub, main)
        _tell(sub, well=bool((said.text or "").strip()))
        return f"{request}: {said.text or ''}"

    return list(await asyncio.gather(*(report(sub, what) for sub, (_, what) in zip(called, asked, strict=True))))


def _tell(agent: Agent, *, well: bool) -> None:
    """Write `format` on the agent's steps: `well` on its last act, 1 on the tool calls before it."""
    for step in agent.episode.trajectory.steps:
        if (step.agent, step.invocation) == (agent.name, agent.invocation):
            step.info.setdefault("format", float(well) if step is agent.last else 1.0)
