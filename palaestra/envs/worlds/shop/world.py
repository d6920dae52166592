"""The environment `shop`: an agent searches a web shop and buys what an instruction asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.shop.catalogue import build, constraints_of, families, score
from palaestra.envs.worlds.shop.pages import Style, Wording
from palaestra.envs.worlds.shop.requests import Wordings, describe
from palaestra.envs.worlds.shop.visit import NOTHING, State, Store, act, enter, right_of, way
from palaestra.envs.worlds.shop.words import DEPARTMENTS, VOCABULARIES, VocabularyName
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "buyer"
Few = Annotated[int, pydantic.Field(ge=1, le=5)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The state of an episode: the store with its goal, and the visit to it."""

    store: Store
    visit: State


@register(
    "environment", "shop", ignores_if={"request=names": ("wordings",)}, source="modeled on WebShop, arXiv 2207.01206"
)
class Shop(KeepsState[Episode]):
    """Search a shop, look at products, choose options and buy what an instruction asks for.

    `search[soft jacket]` lists products that have some of these words in their title or details. `click[p017]` opens a
    product, `click[red]` chooses a value of an option, and `click[next]` and `click[previous]` turn the pages of a
    list. `back` leaves a page. `buy` puts the product into the cart, and in the cart it places the order. Only the page
    of a product shows all of its attributes and the values of its options. Brackets may be left out.

    Args:
        departments: 1–4, each with four types of products. Higher: more words. Usual: 4.
        products: number of products in the catalogue, up to 1000. Higher: more to look through. Usual: 200.
        constraints: fewest and most constraints of an instruction, 1–5, mixed evenly. Constraints are attributes,
            options and a price bound. Higher: a random purchase is worth less. Usual: 2 to 5.
        distractors: for each product that an instruction may ask for, the number of products of its type that miss one
            constraint. Higher: lists and titles say less. Usual: 3.
        catalogues: 0: a new catalogue for every seed. k > 0: all seeds share k fixed catalogues, and training asks for
            other products than the other splits.
        page_size: products on a page of a list. Lower: more turns. Usual: 10.
        cart: whether a second `buy`, in the cart, must confirm the order. False: the first `buy` places it.
        style: "page" names products by number and writes brackets. "words" is shorter, for small models: clicks name
            products by their place in the list, as in `click 2`.
        vocabulary: "plain", or "renamed", which has other words for all commands, products, attributes and options.
        request: "names" asks for products in the words of the shop. "described" asks in everyday English, by uses,
            comparisons and other units, also for what is not wanted, and never in the shop's words. A search needs the
            shop's words, so the buyer must understand the request. It is meant for pretrained models.
        wordings: "held_out": the split "train" has half of all descriptions and sentences, and the others have the
            other half. "shared": all splits have all of them. Only with `request: described`.
        missing: probability that a search leaves out a product. Usual: 0.
        slip: probability that the choice of an option fails and must be repeated. Usual: 0.
        max_turns: turns until the episode is cut off. The expert needs up to about 9. Usual: 15.

    Reward: f · (attributes met + options met + bound kept) / constraints for the order, in [0, 1]. f is 1 for the type
    that the instruction asks for, 0.5 for another type of its department, and else 0. `success`: the reward is 1.

    A step's `info` has `process`, 1 if the shortest way to a right order became shorter, and `executable`, 0 if the
    command could not be read or changed nothing. The `info` of the last step has `score`, the reward.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "process", "executable"})

    def __init__(
        self,
        *,
        departments: Annotated[int, pydantic.Field(ge=1, le=len(DEPARTMENTS))] = 4,
        products: Annotated[int, pydantic.Field(ge=2, le=1000)] = 200,
        constraints: tuple[Few, Few] = (2, 5),
        distractors: Annotated[int, pydantic.Field(ge=0, le=10)] = 3,
        catalogues: Annotated[int, pydantic.Field(ge=0)] = 0,
        page_size: Annotated[int, pydantic.Field(ge=1, le=20)] = 10,
        cart: bool = True,
        style: Style = "page",
        vocabulary: VocabularyName = "plain",
        request: Literal["names", "described"] = "names",
        wordings: Wordings = "shared",
        missing: Fraction = 0.0,
        slip: Fraction = 0.0,
        max_turns: PositiveInt = 15,
    ) -> None:
        _refuse_impossible(products, constraints, distractors, {"missing": missing, "slip": slip})
        Refusals("environment: shop").when(
            request == "described" and vocabulary != "plain",
            "a described request means products by their plain names, and `vocabulary: renamed` gives them others.",
            "Leave `vocabulary` out, or set `request: names`.",
        )
        self._params: dict[str, Any] = {
            "departments": departments,
            "products": products,
            "constraints": list(constraints),
            "distractors": distractors,
            "catalogues": catalogues,
            "missing": missing,
            "slip": slip,
        }
        self._page_size, self._cart, self._max_turns = page_size, cart, max_turns
        self._described, self._wordings = request == "described", wordings
        self._wording = Wording(style, VOCABULARIES[vocabulary])

    def instruction(self, agent: str) -> str:
        """The rules of the world and its commands, for an agent that has never seen it."""
        say, paged = self._wording.words.say, self._wording.style == "page"
        write = (lambda verb, text: f"{say(verb)}[{text}]") if paged else (lambda verb, text: f"{say(verb)} {text}")
        told = ""
        if self._described:
            shelves = [DEPARTMENTS[name] for name in list(DEPARTMENTS)[: self._params["departments"]]]
            kinds = ", ".join(kind for shelf in shelves for kind in shelf.types)
            told = (
                f" The shop has other words than the request, and a search needs those of the shop. It sells: {kinds}."
            )
        order = (
            f"put the open product into the cart; in the cart, {say('buy')} again places the order"
            if self._cart
            else "order the open product with the chosen options"
        )
        return write_manual(
            "You shop in an online store. The first line of every page says what to buy. Find a product that has all "
            "of it, choose the wanted options on its page, and order it. Several products look alike: only the page "
            "of a product shows all of its details." + told,
            {
                write("search", "WORDS"): "on the search page, list the products that have some of these words",
                write("click", "PRODUCT"): f"open a product of the list by its {'code' if paged else 'place, 1, 2, …'}",
                write("click", "VALUE"): "on a product's page, choose a value of an option, such as a size or a color",
                f"{write('click', say('next'))} and {write('click', say('previous'))}": "turn the pages of the list",
                say("back"): "leave a page: from a product to the list, from the list to the search page",
                say("buy"): order,
            },
            example=write("search", say("cotton", "scarf")),
            ending="The order ends the visit. It succeeds if the product is of the wanted kind, has all wanted details "
            f"and options, and does not cost too much.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` instructions. Other splits never have the seeds of "train"."""
        return seeded_tasks("shop", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The numbers that the catalogue is drawn from, and the number of the goal."""
        world = {**self._params, **task.params}
        sizes = [world[name] for name in ("departments", "products", "constraints", "distractors")]
        return [*sizes, *_asked(world, task.seed)]

    def difficulty(self, task: Task) -> float:
        """The number of constraints of the instruction."""
        world = {**self._params, **task.params}
        return float(constraints_of(*_asked(world, task.seed), tuple(world["constraints"])))

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        number, family = _asked(world, task.seed)
        constraints = tuple(world["constraints"])
        catalogue = build(world["departments"], world["products"], constraints, world["distractors"], number)
        goal, half = catalogue.goals[family], None if self._wordings == "shared" else task.seed % 2
        asked = ""
        if self._described:
            asked = describe(catalogue, goal, right_of(catalogue, goal), seed=task.seed, half=half)
        store = enter(
            catalogue,
            goal,
            request=asked,
            page_size=self._page_size,
            cart=self._cart,
            name=f"{number}.{family}",
            seed=task.seed,
            missing=world["missing"],
            slip=world["slip"],
        )
        self.state = Episode(store=store, visit=State())
        return single(AGENT, self._observe(store, State()), info={"success": False})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        store, before = self.state.store, self.state.visit
        text = actions[AGENT].value
        command = self._wording.read(store, before, text) if isinstance(text, str) else None
        after = act(store, before, command or NOTHING)
        self.state = Episode(store=store, visit=after)
        worth = 0.0
        if after.bought:
            worth = score(store.goal, store.catalogue.products[after.item], after.chosen)
        nearer = len(way(store, after)) < len(way(store, before)) and (not after.bought or worth == 1)
        cut = after.turn >= self._max_turns
        return single(
            AGENT,
            self._observe(store, after),
            reward=worth,
            over=after.bought,
            cut=cut,
            act={"process": float(nearer), "executable": float(not after.failed)},
            readable=command is not None,
            info={"success": worth == 1} | ({"score": worth} if after.bought or cut else {}),
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next command of a shortest way to a right order. The expert knows which products are right."""
        store, visit = self.state.store, self.state.visit
        return Action(text=self._wording.write(store, visit, way(store, visit)[0]))

    # ---- playing ------------------------------------------------------------------------------------------
    def _observe(self, store: Store, state: State) -> Observation:
        listed = f"{state.place} {' '.join(map(str, state.found))}"
        chosen = " ".join(value for _, value in state.chosen)
        seen = " ".join(map(str, sorted(state.seen)))
        return Observation(
            text=self._wording.show(store, state),
            legal=self._wording.legal(store, state),
            state_key=f"{store.name}/{state.page}/{listed}/{state.item} {chosen}/{seen}",
        )


def _asked(world: Mapping[str, Any], seed: int) -> tuple[int, int]:
    """The number of the catalogue, and the number of the family whose goal is the instruction.

    With fixed catalogues, training asks for families of even numbers and the other splits for odd ones, since their
    seeds are even and odd.
    """
    if not world["catalogues"]:
        return seed, 0
    draw = derive(seed, "asked")
    pairs = families(world["products"], world["distractors"]) // 2
    return draw % world["catalogues"], draw // world["catalogues"] % pairs * 2 + seed % 2


def _refuse_impossible(
    products: int, constraints: tuple[int, int], distractors: int, probabilities: Mapping[str, float]
) -> None:
    refuse = Refusals("environment: shop")
    refuse.when_reversed(constraints=constraints)
    refuse.when(
        families(products, distractors) < 2,
        f"{products} products are too few for two goals with {distractors} distractors each.",
        f"Set `products: {2 * (1 + distractors)}` or more, or fewer `distractors`.",
    )
    refuse.when_certain("some instructions could never be fulfilled", **probabilities)
