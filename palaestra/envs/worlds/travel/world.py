"""The environment `travel`: an agent plans a trip with tools, and two verifiers judge the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, ToolCall, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.leniency import stripped
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.travel import advice, episode
from palaestra.envs.worlds.travel.country import Country
from palaestra.envs.worlds.travel.letters import HowAsked, Wordings, describe
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
TOWNS = ("town", "start", "end")  # arguments that hold a town, except in `route`, where two of them hold places
Stops = Annotated[int, pydantic.Field(ge=1, le=3)]
Wishes = Annotated[int, pydantic.Field(ge=0, le=len(WISHES))]


@register("environment", "travel", ignores_if={"request=names": ("wordings",)})
class Travel(KeepsState[episode.State]):
    """Plan a trip that fulfills a request: look up trains, flights, hotels and sights, book them, hand in the plan.

    `trains oslo bern 2` and `flights oslo bern 2` list the rides of day 2, `hotels bern 2` the hotels for an arrival on
    day 2, and `pois bern` the sights. `route bern station museum` gives the minutes between two places of a town.
    `book train 2 40` books the second train of the last list and states its price, 40. `visit 1 3 12 8` books the first
    sight of the last list for day 3 at 12 o'clock and states its price, 8. `undo` removes the last booking. `done`
    hands in the plan.

    Args:
        towns: number of towns in the country, 4–12. Higher: more words. Usual: 8.
        stops: fewest and most towns on the way, 1–3. Higher: longer plans. Usual: 1 to 2.
        nights: most nights at each stop, 1–3.
        back: whether the trip leads back to its first town. False: one leg less.
        wishes: fewest and most wishes of a request, 0–6, mixed evenly. Higher: fewer plans are right. Usual: 2 to 5.
        kinds: the wishes that a request may have: "budget", "trains" (no flights), "stars" (a minimum for hotels),
            "sight" (one that must be visited), "leave" (not before an hour), "arrive" (by an hour).
        slack: the budget is (1 + slack) times the cost of a plan that fulfills all other wishes. Lower: tighter
            budgets. Usual: 0 to 0.3.
        tickets: number of trains, and of flights, in each list, 2–6. Higher: more to compare. Usual: 4.
        hotels: number of hotels in each town, 2–5. Higher: more to compare. Usual: 3.
        sights: number of sights in each town, 1–6. Higher: more to compare. Usual: 3.
        countries: 0: a new country for every seed. k > 0: all trips are in k fixed countries.
        style: "lines" books one thing after another. "whole" has the tool `plan` instead, which hands in everything at
            once. Offers then have codes: `plan [{"id": "tob2-1", "price": 40}, …]`. A sight also has `day` and `hour`.
        format: how calls are written: "words", "json", "tagged" or "code".
        manual: whether an instruction before the first observation explains the tools and how to call them.
        prices: whether bookings state the price, which the second verifier compares with the one that was shown.
        vocabulary: "plain", or "renamed", which has other words for all towns, tools and things.
        request: "names" tells the trip and the wishes in two short lines, in the words of the tools. "described" tells
            them as a letter in everyday English, with numbers in words. It is meant for pretrained models.
        wordings: "held_out": the split "train" has half of all sentences, and the others have the other half. "shared":
            all splits have all of them. Only with `request: described`.
        noise: probability that a query fails. The same query may work in a later turn.
        stale: probability that a query shows the prices of another day, the same ones each time. The budget is compared
            with the true prices, which are shown after the booking.
        reward: the reward at the end. "product": 1 if both verifiers accept, else 0. "plan": only the first verifier
            counts. "share": the share of the six checks that the plan passes, or 0 if the second verifier rejects.
        max_turns: turns until the episode is cut off. The expert needs up to 20 with two stops. Usual: 30.

    The first verifier tells whether the whole plan passes six checks: everything is covered, nothing overlaps,
    all transfers are possible, sights are open, and the budget and the other wishes are fulfilled. The second verifier
    tells for each act whether a tool had shown all that the act states, such as the price of a booking. `success`: both
    accept, whatever `reward` is.

    A step's `info` has `consistent`, 0 if the act stated something that no tool had shown; `executable`, 0 if the act
    could not be read or a call failed; `feasible`, 1 if the act handed in a plan that passes all checks; `tool_call`
    and `tool_error`, the number of calls and how many of them failed. The `info` of the last step has `failed`, the
    checks that the plan fails, and `judged`, the number of acts that the second verifier judged, 0 if a check failed.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
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
        request: HowAsked = "names",
        wordings: Wordings = "shared",
        noise: Fraction = 0.0,
        stale: Fraction = 0.0,
        reward: Literal["product", "plan", "share"] = "product",
        max_turns: PositiveInt = 30,
    ) -> None:
        _refuse_impossible(stops, wishes, kinds, noise)
        Refusals(NAME).when(
            request == "described" and vocabulary != "plain",
            "a described request has the plain names of towns, and `vocabulary: renamed` gives them others.",
            "Leave `vocabulary` out, or set `request: names`.",
        )
        self._described, self._wordings = request == "described", wordings
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
    def instruction(self, agent: str) -> str:
        """What a plan must have, and how it is made. With `manual`, the observation itself lists the tools."""
        hand = self._words.say("plan" if self._whole else "done")
        stated = " State each price exactly as a tool showed it." * self._prices
        return write_manual(
            "You plan a trip. Every message shows the legs of the trip, the wishes, and the plan so far. Look up "
            "trains, flights, hotels and sights, and book a ride for each leg and a hotel for each stop. Nothing "
            "may overlap, "
            "there must be time for every way between two places, sights must be open, and the budget must hold."
            f"{stated} `{hand}` hands the plan in.",
            ending=f"Handing in ends the episode. It succeeds if the plan has everything and fulfills all wishes, and "
            f"if you stated only what a tool had shown.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` requests. Other splits never have the seeds of "train"."""
        return seeded_tasks("travel", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The numbers that the country is drawn from, and the request."""
        return as_json(self._drawn(task))

    def difficulty(self, task: Task) -> float:
        """The number of wishes of the request."""
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
                what="no request was found that a plan can fulfill.",
                remedy="Raise `tickets`, `hotels` or `nights`, or take fewer `kinds` of wishes.",
            )
        self._lines = {}
        self.state = state = episode.State(
            country=country, request=request, seed=task.seed, noise=world["noise"], stale=world["stale"]
        )
        return single(AGENT, self._observe(state), info={"success": False})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        self.state = replace(before, turn=before.turn + 1, said="")
        parsed = self._read(actions[AGENT])
        results: list[ToolResult] = []
        for call in parsed.calls:
            if not self.state.done:  # calls after the plan was handed in are ignored
                results.append(self._box.call(call))
        faults = [result.fault for result in results if result.fault is not None]
        unread = parsed.fault is not None or not {"unknown", "arguments"}.isdisjoint(faults)
        said = [f"error: {parsed.fault}"] if parsed.fault else [result.text for result in results if not result.ok]
        self.state = replace(self.state, said="\n".join(said))
        return self._judged(before, unread=unread, calls=len(results) or 1, failed=len(said))

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next act towards the cheapest plan. The expert knows all offers, but looks up what it books."""
        act = advice.next_act(self.state, self._letters, whole=self._whole, priced=self._prices)
        return Action(text=self._write(act))

    # ---- acting -------------------------------------------------------------------------------------------
    def _read(self, action: Action) -> Parsed:
        """The calls of an act, at least one; otherwise a fault."""
        if action.tool_calls:
            return Parsed(tuple(action.tool_calls))
        text = action.value if isinstance(action.value, str) else ""
        text = text.rstrip(" .\n") if self._box.format.name == "words" else text
        parsed = self._box.read(text)
        if not (parsed.fault or parsed.calls):
            parsed = self._box.read(stripped(text))
        return parsed if parsed.fault or parsed.calls else Parsed(fault="nothing was called")

    def _do(self, name: str, **given: Any) -> None:
        """Apply a call to the state. Raises: ToolError, if it cannot be done."""
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
        """A call as text. It is kept, since most calls occur in each turn of an episode."""
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
    def _judged(self, before: episode.State, *, unread: bool, calls: int, failed: int) -> StepResult:
        """The result of an act, judged by both verifiers."""
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

    def _observe(self, state: episode.State) -> Observation:
        half = None if self._wordings == "shared" else state.seed % 2
        letter = describe(state.request, seed=state.seed, half=half) if self._described else None
        text = tell(state, self._words, coded=self._whole, letter=letter)
        acts = advice.sensible(state, self._letters, whole=self._whole, priced=self._prices)
        content = repr((state.plan, state.shown, state.untrue > 0))
        return Observation(
            text=text,
            legal=list(dict.fromkeys(self._write(act) for act in acts)),
            state_key=f"{state.seed}/{hashlib.sha256(content.encode()).hexdigest()[:16]}",
            instruction=self._manual,
            tools=self._box.declarations,
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
        f"`wishes` goes up to {wishes[1]}, and `kinds` names only {different}.",
        f"Set its second number to {different} or less, or name more `kinds`.",
    )
    refuse.when_repeated(kinds=kinds)
    refuse.when_certain("no query would ever work", noise=noise)
