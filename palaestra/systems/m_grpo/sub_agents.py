"""Hierarchy: a main agent that calls sub-agents, several at once, each call a conversation of its own.

Knows episodes, who calls whom and how a request is written. Knows no policy, no method and no environment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import pydantic

from palaestra.registry import PositiveInt, register
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
    """Whom a message calls for what; empty for one that calls nobody.

    `ask this; that` calls the first sub-agent twice, `ask finder: this; adder: that` those that it names.

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
    """Sums are added column by column, each by a call; any other question the expert answers without a call.

    Sub-agents are called in turn. Columns for which the options leave no call are added by the expert alone.
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
    """The report of a sub-agent that adds a column."""
    digits = " ".join(str(sum(int(digit) for digit in request.split(" + "))))
    episode.invoke(name, parent=main).record(request, digits, format=1.0)
    return f"{request}: {digits}"


def columns_of(text: str) -> list[str]:
    """The columns of a sum of numbers whose digits stand apart, from the right.

    >>> columns_of("2 3 + 4 8"), columns_of("go north")
    (['3 + 8', '2 + 4'], [])
    """
    found = SUM.search(text)
    if found is None:
        return []
    return [f"{one} + {other}" for one, other in zip(found[1].split()[::-1], found[2].split()[::-1], strict=False)]


def _telling(program: Any) -> Any:
    program.provides = frozenset({"format"})  # columns that tables have with it
    return program


@register("program", "sub_agents", source="arXiv 2511.13288")
@_telling
@acted_by(lambda options: (MAIN, *options.get("subs", (SUB,))))
@demonstrated_by(demonstrate)
async def sub_agents(
    episode: Episode, *, subs: Subs = (SUB,), calls: PositiveInt = CALLS, rounds: PositiveInt = ROUNDS
) -> None:
    """The main agent asks sub-agents, all requests of a message at once, reads their reports, and acts.

    For environments with one agent; calls before each of its acts. A message that begins with `ask` calls: its requests
    stand between semicolons, with the name of a role and a colon before them where there are several. A sub-agent reads
    the request and nothing else; what it says is its report, after whatever tools its role has. Each call is an
    invocation: a conversation, a sequence of tokens and a number of its own, and `parent` is the turn that called.

    Args:
        subs: the roles that may be called.
        calls: most calls of one message; further ones are not made. Higher: more can be asked, more tokens. Usual: 4.
        rounds: messages that call, for each act; what the main agent says after them is its act. Higher: more can be
            asked, more tokens. Usual: 2.

    Steps tell `format`: of the main agent, 0 for an act that still asks, of a sub-agent, 0 for an empty report; so the
    rewards of `hierarchical` (with `sub_expert: 0`) can be paid, and `m_grpo` compares calls with calls. `info` tells
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
    """What those say who are called at once, in the order of the requests, whoever is done first."""
    called = [episode.invoke(name, parent=main) for name, _ in asked]  # numbered before anybody speaks

    async def report(sub: Agent, request: str) -> str:
        said = await sub.act(request)
        has_read(sub, main)
        _tell(sub, well=bool((said.text or "").strip()))
        return f"{request}: {said.text or ''}"

    return list(await asyncio.gather(*(report(sub, what) for sub, (_, what) in zip(called, asked, strict=True))))


def _tell(agent: Agent, *, well: bool) -> None:
    """Whether the agent's last act was well-formed; calls of tools before it were acts too."""
    for step in agent.episode.trajectory.steps:
        if (step.agent, step.invocation) == (agent.name, agent.invocation):
            step.info.setdefault("format", float(well) if step is agent.last else 1.0)
