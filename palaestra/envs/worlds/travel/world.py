"""The environment `travel`: tasks, calls of tools, the two verifiers' reward.

Knows turns and rewards. Requests come from `requests`, what acts do from `episode`, texts from `telling`, the
verifier of plans is `verifier`, and the expert's acts are in `advice`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, ToolCall, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.travel import advice, episode
from palaestra.envs.worlds.travel.country import Country
from palaestra.envs.worlds.travel.episode import State
from palaestra.envs.worlds.travel.requests import Dials, count_of, draw_request
from palaestra.envs.worlds.travel.telling import tell
from palaestra.envs.worlds.travel.toolset import LINES, WHOLE, tools_of
from palaestra.envs.worlds.travel.trip import WISHES, Request, Wish
from palaestra.envs.worlds.travel.verifier import checks
from palaestra.envs.worlds.travel.words import VOCABULARIES, VocabularyName, town_names
from palaestra.errors import RecipeError
from palaestra.registry import Fraction, NonNegative, PositiveInt, register
from palaestra.tools import Parsed, Toolbox, ToolError, ToolResult

AGENT = "planner"
NAME = "environment: travel"
TOWNS = ("town", "start", "end")  # arguments that are towns, except for the places of `route`
Stops = Annotated[int, pydantic.Field(ge=1, le=3)]
Wishes = Annotated[int, pydantic.Field(ge=0, le=len(WISHES))]


@register("environment", "travel")
class Travel(KeepsState[State]):
    """Plan a trip that keeps to a request: look up trains, flights, hotels and sights, book, hand the plan in.

    `trains oslo bern 2` and `flights oslo bern 2` list what goes on a day, `hotels bern 2` what there is for who
    arrives then, `pois bern` the sights, `route bern station museum` tells the minutes between two places of a town.
    `book train 2 40` puts the second train of the last list into the plan and states its price, `visit 1 3 12 8` the
    first sight, on day 3 at 12 o'clock. `undo` takes the last booking back, `done` hands the plan in.

    Args:
        towns: of the country, 4–12. Higher: more words. Usual: 8.
        stops: towns on the way, fewest and most, 1–3. Higher: longer plans. Usual: 1 to 2.
        nights: at each stop, at most, 1–3.
        back: whether the trip leads back to where it began. False: one leg less.
        wishes: fewest and most of them, 0–6, mixed evenly. Higher: fewer plans are right. Usual: 2 to 5.
        kinds: of wishes: "budget", "trains" (no flights), "stars" (of hotels), "sight" (to be seen), "leave" (not
            before an hour), "arrive" (by an hour).
        slack: of the budget: it is (1 + slack) times what a plan costs that was made before the request. Lower:
            tighter. Usual: 0 to 0.3.
        tickets: trains and flights in each list, 2–6. Higher: more to compare. Usual: 4.
        hotels: in each town, 2–5. Higher: more to compare. Usual: 3.
        sights: in each town, 1–6. Higher: more to compare. Usual: 3.
        countries: 0 makes a new one for every seed; k > 0 has all trips in k fixed ones.
        style: "lines" books one thing after another; "whole" has `plan`, which hands in all at once: offers have
            codes, `plan [{"id": "tob2-1", "price": 40}, …]`, a sight also `day` and `hour`.
        format: how calls are written: "words", "json", "tagged" or "code".
        manual: tell the tools and how to call them at the head of what is read.
        prices: bookings state the price, which the second verifier compares with what was shown.
        vocabulary: "plain"; "renamed" has other words for all towns, tools and things.
        noise: probability that a query fails; the same query, a turn later, may work.
        stale: probability that an answer tells the prices of another day, and always the same ones. The budget is
            compared with the true ones, which the plan so far shows.
        reward: "product" of both verifiers; "plan", the first one alone; "share" of the six checks that hold, times
            the second verifier. At the end.
        max_turns: turns until the episode is cut off. The expert needs up to 20 with two stops. Usual: 30.

    Two verifiers judge. The first tells whether the whole plan keeps six checks: everything is covered, nothing
    overlaps, transfers can be reached, sights are open, the budget and the wishes are kept to. The second asks of
    each act whether every number it put into the plan is one that a tool had told; it is asked only if the first is
    content. `success`: both are, whatever `reward` says.

    A step's `info` tells `consistent`, 0 for an act that stated what no tool had told; `executable`, 0 for what cannot
    be done or read; `feasible`, 1 when a plan was handed in that keeps all checks; `tool_call` and `tool_error`, the
    calls and how many of them failed. The last one tells `failed`, the checks that do not hold, and `judged`, the acts
    that the second verifier was asked of.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "difficulty", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "consistent", "executable", "feasible", "tool_call", "tool_error"})

    def __init__(
        self,
        *,
        towns: Annotated[int, pydantic.Field(ge=4, le=12)] = 8,
        stops: tuple[Stops, Stops] = (1, 2),
        nights: Annotated[int, pydantic.Field(ge=1, le=3)] = 2,
        back: bool = True,
        wishes: tuple[Wishes, Wishes] = (2, 5),
        kinds: tuple[Wish, ...] = WISHES,
        slack: NonNegative = 0.1,
        tickets: Annotated[int, pydantic.Field(ge=2, le=6)] = 4,
        hotels: Annotated[int, pydantic.Field(ge=2, le=5)] = 3,
        sights: Annotated[int, pydantic.Field(ge=1, le=6)] = 3,
        countries: Annotated[int, pydantic.Field(ge=0)] = 0,
        style: Literal["lines", "whole"] = "lines",
        format: Literal["words", "json", "tagged", "code"] = "words",
        manual: bool = True,
        prices: bool = True,
        vocabulary: VocabularyName = "plain",
        noise: Fraction = 0.0,
        stale: Fraction = 0.0,
        reward: Literal["product", "plan", "share"] = "product",
        max_turns: PositiveInt = 30,
    ) -> None:
        _refuse_impossible(stops, wishes, kinds, noise)
        self._params: dict[str, Any] = {
            "towns": towns,
            "stops": list(stops),
            "nights": nights,
            "back": back,
            "wishes": list(wishes),
            "kinds": list(kinds),
            "slack": slack,
            "tickets": tickets,
            "hotels": hotels,
            "sights": sights,
            "countries": countries,
            "noise": noise,
            "stale": stale,
        }
        self._whole, self._prices, self._reward, self._max_turns = style == "whole", prices, reward, max_turns
        self._words = VOCABULARIES[vocabulary]
        self._towns = town_names(self._words)
        self._letters = tuple(town[0] for town in self._towns)
        names = WHOLE if self._whole else LINES
        tools = tools_of(names, self._words, towns, priced=prices, call=self._do)
        self._box = Toolbox(tools, format=format)
        self._manual = self._box.explain() if manual else None
        self._lines: dict[str, str] = {}

    # ---- the protocol -------------------------------------------------------------------------------------
    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` requests; splits never share a seed."""
        return seeded_tasks("travel", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The country, by what it is drawn from, and the request."""
        return as_json(self._drawn(task))

    def difficulty(self, task: Task) -> float:
        """Wishes of the request."""
        return float(count_of(_dials({**self._params, **task.params}), task.seed))

    def _drawn(self, task: Task) -> tuple[Country, Request | None]:
        world = {**self._params, **task.params}
        number = task.seed if not world["countries"] else derive(task.seed, "country") % world["countries"]
        sizes = {name: world[name] for name in ("towns", "tickets", "hotels", "sights")}
        country = Country(derive(0, "travel", number), **sizes)
        return country, draw_request(country, _dials(world), task.seed)

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        country, request = self._drawn(task)
        if request is None:
            raise RecipeError(
                where=NAME,
                what="no trip was found for which any plan is right.",
                remedy="Raise `tickets`, `hotels` or `nights`, or take fewer `kinds` of wishes.",
            )
        self._lines = {}
        self.state = state = State(
            country=country, request=request, seed=task.seed, noise=world["noise"], stale=world["stale"]
        )
        return single(AGENT, self._observe(state), info={"success": False})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        self.state = replace(before, turn=before.turn + 1, said="")
        parsed = self._read(actions[AGENT])
        results: list[ToolResult] = []
        for call in parsed.calls:
            if not self.state.done:  # what is called after the plan was handed in is not heard
                results.append(self._box.call(call))
        faults = [result.fault for result in results if result.fault is not None]
        unread = parsed.fault is not None or not {"unknown", "arguments"}.isdisjoint(faults)
        said = [f"error: {parsed.fault}"] if parsed.fault else [result.text for result in results if not result.ok]
        self.state = replace(self.state, said="\n".join(said))
        return self._judged(before, unread=unread, calls=len(results) or 1, failed=len(said))

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next act towards the cheapest plan. It knows all timetables, but looks up what it books."""
        act = advice.next_act(self.state, self._letters, whole=self._whole, priced=self._prices)
        return Action(text=self._write(act))

    # ---- acting -------------------------------------------------------------------------------------------
    def _read(self, action: Action) -> Parsed:
        """The calls of an act, of which there is one at least; else a fault."""
        if action.tool_calls:
            return Parsed(tuple(action.tool_calls))
        parsed = self._box.read(action.value if isinstance(action.value, str) else "")
        return parsed if parsed.fault or parsed.calls else Parsed(fault="nothing was called")

    def _do(self, name: str, **given: Any) -> None:
        """What a call does to the state. Raises: ToolError."""
        state = self.state
        match name:
            case "book":
                kind = self._words.hear(given["kind"])
                self.state = episode.book(state, kind, given["number"], given.get("price"))
            case "visit":
                self.state = episode.visit(state, given["number"], given["day"], given["hour"], given.get("price"))
            case "undo":
                self.state = episode.undo(state)
            case "done":
                self.state = replace(state, done=True)
            case "plan":
                codes = {letter: town for town, letter in enumerate(self._letters[: state.country.towns])}
                self.state = episode.submit(state, given["items"], codes, priced=self._prices)
            case _:
                query = self._query(name, given)
                if state.noise and derive(state.seed, "noise", state.turn, *query) / 2**63 < state.noise:
                    raise ToolError("busy, call again")
                self.state = episode.ask(state, query, keep=self._whole)

    def _query(self, name: str, given: Mapping[str, Any]) -> episode.Query:
        places = given if name != "route" else {"town": given["town"]}
        found = {key: self._towns.index(value) for key, value in places.items() if key in TOWNS}
        ways = {} if name != "route" else {key: self._words.hear(given[key]) for key in ("start", "end")}
        known = {**given, **found, **ways}
        return (name, *(known[key] for key in advice.NAMES[name]))

    def _write(self, act: advice.Act) -> str:
        """A call with the words and in the format of this world. Most are written again and again in an episode."""
        key = repr(act)
        if key not in self._lines:
            self._lines[key] = self._spell(*act)
        return self._lines[key]

    def _spell(self, name: str, given: Mapping[str, Any]) -> str:
        said = dict(given)
        for key, value in given.items():
            if key in TOWNS and isinstance(value, int):
                said[key] = self._towns[value]
            elif isinstance(value, str):
                said[key] = self._words.say(value)
        return self._box.write(ToolCall(name=self._words.say(name), arguments=said))

    # ---- judging ------------------------------------------------------------------------------------------
    def _judged(self, before: State, *, unread: bool, calls: int, failed: int) -> StepResult:
        """The answer to an act. The second verifier is asked only of plans with which the first is content."""
        state = self.state
        kept = checks(state.country, state.request, state.plan) if state.done else {}
        feasible = state.done and all(kept.values())
        true = state.untrue == 0
        worth = {
            "product": float(feasible and true),
            "plan": float(feasible),
            "share": sum(kept.values()) / len(kept) * true if kept else 0.0,
        }[self._reward]
        told = {
            "consistent": float(state.untrue == before.untrue),
            "executable": float(not failed),
            "feasible": float(feasible),
            "tool_call": float(calls),
            "tool_error": float(failed),
        }
        info: dict[str, Any] = {"success": feasible and true}
        cut = state.turn >= self._max_turns
        if state.done or cut:
            info["failed"] = [name for name, holds in kept.items() if not holds]
            info["judged"] = state.turn if feasible else 0
        return single(
            AGENT,
            self._observe(state),
            reward=worth,
            over=state.done,
            cut=cut,
            act=told,
            readable=not unread,
            info=info,
        )

    def _observe(self, state: State) -> Observation:
        text = tell(state, self._words, coded=self._whole)
        acts = advice.sensible(state, self._letters, whole=self._whole, priced=self._prices)
        content = repr((state.plan, state.shown, state.untrue > 0))
        return Observation(
            text=text,
            legal=list(dict.fromkeys(self._write(act) for act in acts)),
            state_key=f"{state.seed}/{hashlib.sha256(content.encode()).hexdigest()[:16]}",
            instruction=self._manual,
        )


def _dials(world: Mapping[str, Any]) -> Dials:
    return Dials(
        stops=tuple(world["stops"]),
        nights=world["nights"],
        back=world["back"],
        wishes=tuple(world["wishes"]),
        kinds=tuple(world["kinds"]),
        slack=world["slack"],
    )


def _refuse_impossible(stops: tuple[int, int], wishes: tuple[int, int], kinds: tuple[Wish, ...], noise: float) -> None:
    refuse, different = Refusals(NAME), len(set(kinds))
    refuse.when_reversed(stops=stops, wishes=wishes)
    refuse.when(
        wishes[1] > different,
        f"{wishes[1]} wishes are asked for, and `kinds` has {different}.",
        f"Ask for at most {different}, or give more `kinds`.",
    )
    refuse.when_repeated(kinds=kinds)
    refuse.when_certain("no query would ever work", noise=noise)
