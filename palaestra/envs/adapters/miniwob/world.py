"""MiniWoB++ (arXiv 1802.08802): over a hundred kinds of small web pages, played in a real Chromium.

This file makes tasks, observations and rewards. `visit` plays a page, `pool` shares the browsers among episodes, and
`experts` holds the rules of the expert.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from PIL import Image

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.adapters.miniwob.experts import RULES
from palaestra.envs.adapters.miniwob.pool import BROWSERS
from palaestra.envs.adapters.miniwob.reading import Part, Reading
from palaestra.envs.adapters.miniwob.visit import Visit, pages
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.elements import FOCUS, Gesture, describe, read
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import started
from palaestra.errors import EpisodeFailure, RecipeError, nearest
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "user"
SIZE = (160, 210)  # pixels of the part of the window that shows the task; the picture has the same size
REACH = (160, 440)  # a click at a point further right or further down does nothing
TYPED = ("field", "area", "list")
Browsers = Annotated[int, pydantic.Field(ge=1, le=16)]


@register("environment", "miniwob", source="arXiv 1802.08802", extra="web", modules=("miniwob", "selenium"))
class MiniWoB:
    """Do what a small web page asks, in a real browser: click, choose, type, submit.

    An episode is one page, made from the task's seed. The same seed shows the same page in every browser of the same
    version. Clicks and keys are those of a mouse and a keyboard. The page itself decides whether it is solved, in most
    cases at the first click that submits something. There is no time limit, and rewards do not shrink with time.

    Args:
        tasks: names of pages of the package, drawn with equal probability. The default is the 40 pages that have an
            expert.
        observation: "elements" lists the visible elements with numbers, and acts name these numbers. "coordinates"
            lists them without numbers, and clicks name points. "screenshot" shows a picture (uint8, 210 × 160 × 3) and
            the instruction only.
        boxes: with "elements", each line also gives the position and size of its element. Without them a line takes
            half as many tokens.
        calls: the expert and `legal` write `click(3)` in place of `click 3`. Both forms are always understood.
        noise: probability that an act is lost, so that nothing happens. Higher: longer episodes.
        max_turns: turns until the episode is cut off. Usual: 16; the expert takes up to 13.
        browsers: the most browsers that run in this process, for all episodes together; each takes 320 MB. Higher:
            faster, up to the number of cores. Usual: as many as `rollout.workers` and `rollout.in_flight`. If more
            episodes run at a time, they share the browsers, and an episode plays its page again from the start each
            time it gets a browser back.

    Acts: `click 3`; `click 80 120`; `type 3 some words`, which replaces the text of a field or chooses an entry of a
    list, and with the number 0 types into the element that has the focus; `key enter` (or tab, space, backspace,
    escape, up, down, left, right); `scroll down`; `scroll up`; `stop`, which gives up.
    Reward: the page's own, from -1 to 1, when the page ends the episode; else 0. `success` is a reward above 0.

    The `info` of a step has `executable` (0 if the element does not exist or the act was lost) and `stratum`, the name
    of the page. It has `restarts` if browsers were lost: each is replaced, and the page is played again up to where it
    was.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "executable", "stratum"})

    def __init__(
        self,
        *,
        tasks: tuple[str, ...] = tuple(RULES),
        observation: Literal["elements", "coordinates", "screenshot"] = "elements",
        boxes: bool = True,
        calls: bool = False,
        noise: Fraction = 0.0,
        max_turns: PositiveInt = 16,
        browsers: Browsers = 2,
    ) -> None:
        note_version("miniwob")
        _refuse_unknown(tasks, noise)
        self._params = {"tasks": list(tasks), "noise": noise}
        self._observation, self._boxes, self._calls = observation, boxes, calls
        self._max_turns, self._browsers, self._noise = max_turns, browsers, noise
        self._visit: Visit | None = None
        self._turn, self._said = 0, ""

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        pointed = self._observation != "elements"
        return write_manual(
            "You use a small web page and do what the first line says, such as clicking a button or filling in a form.",
            {
                "click X Y" if pointed else "click NUMBER": "click there" if pointed else "click an element",
                "type 0 TEXT" if pointed else "type NUMBER TEXT": "write into the field that you clicked"
                if pointed
                else "replace the text of a field, or choose an entry of a list",
                "key enter": "or tab, space, backspace, escape, up, down, left, right",
                "scroll down, scroll up": "",
                "stop": "give up",
            },
            example="click 80 120" if pointed else "click 3",
            ending=f"The page itself tells when the task is done, mostly at the first click that submits something."
            f"{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` pages; training and evaluation share no seed."""
        return seeded_tasks("miniwob", self._params, split, n, seed)

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        self.close()
        names, self._noise = world["tasks"], world["noise"]
        page = names[derive(task.seed, "page") % len(names)]
        self._visit = Visit(page=page, seed=task.seed, pool=BROWSERS, most=self._browsers)
        self._turn, self._said = 0, ""
        seen = self._visit.begin()
        return single(AGENT, self._observe(seen), info=self._told())

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        visit, now = self._playing()
        gesture = read(actions[AGENT].value)
        possible = gesture is not None and _possible(gesture, now) and not self._lost()
        self._turn += 1
        self._said = "" if possible else "not understood" if gesture is None else "nothing happens"
        if possible and gesture is not None and gesture.kind != "stop":
            now = visit.act(gesture)
        over = now.done or (possible and gesture is not None and gesture.kind == "stop")
        cut = not over and self._turn >= self._max_turns
        return single(
            AGENT,
            None if over else self._observe(now),
            reward=now.reward,
            over=over,
            cut=cut,
            act={"executable": float(possible)},
            readable=gesture is not None,
            info=self._told() | ({"success": now.reward > 0} if over or cut else {}),
        )

    def close(self) -> None:
        if self._visit is not None:
            self._visit.leave()
        self._visit = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The act that the page's rule gives; `stop` where the rule has no further act.

        Raises: EpisodeFailure, for a page without a rule.
        """
        visit, now = self._playing()
        if visit.page not in RULES:
            raise EpisodeFailure(
                boundary="environment",
                where=f"environment miniwob, page {visit.page}",
                what="the page has no expert.",
                options=nearest(visit.page, RULES),
                remedy="Leave it out of `tasks`, or train without `warm_start`.",
            )
        gesture = RULES[visit.page](now, visit.done)
        if self._observation != "elements":
            gesture = _pointed(gesture, now, visit)
        return Action(text=gesture.write(calls=self._calls))

    def snapshot(self) -> Any:
        visit, now = self._playing()
        return visit.page, visit.seed, tuple(visit.done), now, self._turn, self._said, self._noise

    def restore(self, state: Any) -> None:
        self.close()
        page, seed, done, now, self._turn, self._said, self._noise = state
        self._visit = Visit(page=page, seed=seed, pool=BROWSERS, most=self._browsers, done=[*done], last=now)

    # ---- playing ------------------------------------------------------------------------------------------
    def _playing(self) -> tuple[Visit, Reading]:
        visit = started(self._visit, self)
        return visit, started(visit.last, self)

    def _lost(self) -> bool:
        """Whether this turn's act is lost. The task's seed decides it."""
        assert self._visit is not None
        return derive(self._visit.seed, "noise", self._turn) / 2**63 < self._noise

    def _told(self) -> dict[str, Any]:
        assert self._visit is not None
        restarts = self._visit.restarts
        return {"stratum": self._visit.page, **({"restarts": restarts} if restarts else {})}

    def _observe(self, now: Reading) -> Observation:
        assert self._visit is not None
        said = [self._said] if self._said else []
        elements = self._observation == "elements"
        shown = describe(now.elements, ids=elements, boxes=self._boxes or not elements)
        image = None
        if self._observation == "screenshot":
            picture = Image.open(io.BytesIO(self._visit.picture())).convert("RGB")
            image, shown = np.asarray(picture.crop((0, 0, *SIZE)), np.uint8), ""
        text = "\n".join([*said, now.instruction, *([shown] if shown else [])])
        situation = describe(now.elements)
        return Observation(
            text=text,
            image=image,
            legal=[gesture.write(calls=self._calls) for gesture in self._sensible(now)],
            state_key=f"{self._visit.page}/{self._visit.seed}/{derive(0, now.instruction, situation):x}",
        )

    def _sensible(self, now: Reading) -> list[Gesture]:
        """A finite list of acts: a click at each element, and each likely text into each field."""
        pointed = self._observation != "elements"
        clicks = [
            Gesture(kind="click", **({"point": part.grip} if pointed else {"id": part.element.id}))
            for part in now.parts
        ]
        words = self._words(now)
        types = [
            Gesture(kind="type", id=FOCUS if pointed else part.element.id, text=text)
            for part in now.parts
            if part.element.role in TYPED
            for text in (part.options or words)
        ]
        rest = [Gesture(kind="key", text="enter"), Gesture(kind="scroll", text="down"), Gesture(kind="stop")]
        return list(dict.fromkeys([*clicks, *types, *rest]))

    def _words(self, now: Reading) -> list[str]:
        """Texts to type: the quoted ones, else the words with a capital or a digit; also the text that is right."""
        quoted = re.findall(r'"([^"]+)"', now.instruction)
        words = [word.strip(".,") for word in now.instruction.split()[1:] if re.search(r"[A-Z0-9]", word)]
        assert self._visit is not None
        rule = RULES.get(self._visit.page)
        right = rule(now, self._visit.done).text if rule is not None and not now.done else ""
        return [*(quoted or words), *([right] if right else [])]


def _possible(gesture: Gesture, now: Reading) -> bool:
    if gesture.point is not None:
        return gesture.point[0] < REACH[0] and gesture.point[1] < REACH[1]
    if gesture.id is None:
        return True
    if gesture.id == FOCUS:
        return gesture.kind == "type"
    part = next((part for part in now.parts if part.element.id == gesture.id), None)
    return part is not None and (gesture.kind == "click" or part.element.role in TYPED)


def _pointed(gesture: Gesture, now: Reading, visit: Visit) -> Gesture:
    """The same gesture without element numbers: a click at a point; typing follows a click and goes to the focus."""
    part: Part | None = next((part for part in now.parts if part.element.id == gesture.id), None)
    if part is None:
        return gesture
    click = Gesture(kind="click", point=part.grip)
    last = visit.done[-1][0] if visit.done else None
    return Gesture(kind="type", id=FOCUS, text=gesture.text) if gesture.kind == "type" and last == click else click


def _refuse_unknown(names: tuple[str, ...], noise: float) -> None:
    refuse = Refusals("environment: miniwob")
    refuse.when_empty(("click-test", "login-user", "…"), tasks=names)
    for name in names:
        if name not in pages():
            raise RecipeError(
                where="environment: miniwob",
                what=f"`tasks` names `{name}`, and the package has no such page.",
                options=nearest(name, pages()),
                remedy=f"Name some of its {len(pages())} pages; the documentation lists those with an expert.",
            )
    refuse.when_certain("nothing would ever happen", noise=noise)
