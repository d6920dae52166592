"""Write the pages and commands of the shop as text, in two styles and two vocabularies, and read commands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from palaestra.envs.kit.leniency import read_leniently
from palaestra.envs.kit.words import Vocabulary
from palaestra.envs.worlds.shop.catalogue import Choice, Goal, Product
from palaestra.envs.worlds.shop.visit import (
    BACK,
    BUY,
    NOTHING,
    Command,
    State,
    Store,
    all_queries,
    pages,
    queries,
    shown,
)

Style = Literal["page", "words"]
NEXT, PREVIOUS = Command("turn", number=1), Command("turn", number=-1)
SPOKEN = re.compile(r"\s*+([a-z]++)\s*+(?:\[([^\[\]]*+)\]\s*+|([^\[\]]*+))")
LONGEST_SEARCH = 12  # words


@dataclass(frozen=True, slots=True)
class Wording:
    """Writes pages and commands, and reads commands.

    The style "page" names products by number, `p017`, and writes `click[red]`. The style "words" is shorter: it names
    products by their place in the list and writes `click red`.
    """

    style: Style
    words: Vocabulary

    # ---- commands -----------------------------------------------------------------------------------------
    def write(self, store: Store, state: State, command: Command) -> str:
        """A command as text. It must be possible in this state."""
        say = self.words.say
        match command.kind:
            case "search":
                return self._call("search", say(*command.words))
            case "open" | "choose" | "turn":
                return self._call("click", next(text for text, one in self._links(store, state) if one == command))
        return say(command.kind)

    def read(self, store: Store, state: State, text: str) -> Command | None:
        """The command that a text means; NOTHING for a click on what is not on the page; None if it cannot be read."""
        return read_leniently(text, lambda one: self._understood(store, state, one))

    def _understood(self, store: Store, state: State, text: str) -> Command | None:
        found = SPOKEN.fullmatch(text.lower().rstrip(" ."))
        if found is None:
            return None
        verb, words = self.words.hear(found[1]), (found[2] or found[3] or "").split()
        match verb:
            case "search" if 0 < len(words) <= LONGEST_SEARCH:
                return Command("search", words=tuple(map(self.words.hear, words)))
            case "click" if words:
                return dict(self._links(store, state)).get(" ".join(words), NOTHING)
            case "back" if not words:
                return BACK
            case "buy" if not words:
                return BUY
        return None

    def legal(self, store: Store, state: State) -> list[str]:
        """The commands that are possible here, as texts. Of the searches, those of `queries` are among them, or with a
        described request those of `all_queries`."""
        clicks = [self._call("click", text) for text, _ in self._links(store, state)]
        back, buy = self.words.say("back"), self.words.say("buy")
        match state.page:
            case "search":
                useful = all_queries(store.catalogue) if store.request else queries(store.goal)
                return [self._call("search", self.words.say(*query)) for query in useful]
            case "results":
                return [*clicks, back]
        return [*clicks, back, buy]

    def _call(self, verb: str, text: str) -> str:
        verb = self.words.say(verb)
        return f"{verb}[{text}]" if self.style == "page" else f"{verb} {text}"

    def _links(self, store: Store, state: State) -> list[tuple[str, Command]]:
        """The texts that can be clicked here, each with its command."""
        found: list[tuple[str, Command]] = []
        if state.page == "results":
            for place, number in enumerate(shown(store, state), start=1):
                found.append((self._name(number, place), Command("open", number=number)))
            if state.place + 1 < pages(store, state):
                found.append((self.words.say("next"), NEXT))
            if state.place:
                found.append((self.words.say("previous"), PREVIOUS))
        if state.page == "item":
            for option, values in store.catalogue.products[state.item].options.items():
                found += [(self.words.say(value), Command("choose", choice=(option, value))) for value in values]
        return found

    def _name(self, number: int, place: int) -> str:
        return f"p{number:03d}" if self.style == "page" else str(place)

    # ---- pages --------------------------------------------------------------------------------------------
    def show(self, store: Store, state: State) -> str:
        """The text of the buyer's page, after the instruction."""
        said = ["nothing happens."] if state.failed else []
        page = {"search": self._search, "results": self._results, "item": self._item, "cart": self._cart}[state.page]
        return ("\n" if self.style == "page" else " ").join(
            [*said, store.request or self._ask(store.goal), *page(store, state)]
        )

    def _ask(self, goal: Goal) -> str:
        say = self.words.say
        options = [say(*choice) for choice in goal.options]
        if self.style == "words":
            bound = [f"at most {goal.most}"] if goal.most is not None else []
            return f"want {', '.join([say(*goal.attributes, goal.type), *options, *bound])}."
        bound = [f"at most {goal.most} dollars"] if goal.most is not None else []
        return f"find a {', '.join([say(*goal.attributes, goal.type), *options, *bound])}."

    def _search(self, store: Store, state: State) -> list[str]:
        return [f"{self.words.say('search')} page."]

    def _results(self, store: Store, state: State) -> list[str]:
        products = store.catalogue.products
        lines = [
            f"{self._name(number, place)} {self._title(products[number])}{' seen' * (number in state.seen)}"
            for place, number in enumerate(shown(store, state), start=1)
        ]
        page = f"page {state.place + 1} of {pages(store, state)}"
        if self.style == "words":
            return [f"{page}: {', '.join(lines) or 'nothing found'}."]
        return [f"results, {page}", *(lines or ["nothing found"])]

    def _item(self, store: Store, state: State) -> list[str]:
        product, chosen = store.catalogue.products[state.item], dict(state.chosen)
        details = self.words.say(*product.attributes)
        if self.style == "words":
            options = [self.words.say(name, *values) for name, values in product.options.items()]
            return [f"item {self._title(product)}: {details}.", *(f"{o}." for o in options), self._chosen(state.chosen)]
        options = [
            f"{self.words.say(name)}: {', '.join(self._marked(value, chosen.get(name)) for value in values)}"
            for name, values in product.options.items()
        ]
        return [f"item {self._name(state.item, 0)}: {self._title(product)}", f"details: {details}", *options]

    def _cart(self, store: Store, state: State) -> list[str]:
        product = store.catalogue.products[state.item]
        return [f"cart: {self._title(product)}.", self._chosen(state.chosen)]

    def _title(self, product: Product) -> str:
        return f"{self.words.say(*product.title)} {product.price}{' dollars' * (self.style == 'page')}"

    def _marked(self, value: str, chosen: str | None) -> str:
        word = self.words.say(value)
        return f"[{word}]" if value == chosen else word

    def _chosen(self, chosen: Iterable[Choice]) -> str:
        return f"chosen {', '.join(self.words.say(value) for _, value in chosen) or 'nothing'}."
