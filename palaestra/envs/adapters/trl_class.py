"""Environment classes written for TRL's GRPOTrainer: `reset(**row)`, and public methods that are the tools.

Knows the class's contract and rows of data. Calls of tools are read and run by `palaestra.tools`.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, ToolCall, derive
from palaestra.data.abilities import without
from palaestra.envs.adapters.rows import division
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.randomness import Randomness
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import unstarted
from palaestra.errors import ContractError, InvalidData, RecipeError
from palaestra.registry import PositiveInt, part, register
from palaestra.tools import Toolbox, tool

AGENT = "player"
SEEDS = 1 << 31
Row = dict[str, Any]


@register(
    "environment",
    "trl_class",
    ignores_if={"data=None": ("held_out",)},
    source="https://huggingface.co/docs/trl/openenv",
)
class TrlClass:
    """Play an environment class written for TRL's GRPO trainer, by calling its methods as tools.

    Args:
        env: the class, or a function without arguments that makes an object: `path/to/file.py:Class`, `module:Class`.
        data: the rows whose columns `reset` gets: a list, a file of JSON lines, or a function without arguments that
            gives rows, `path/to/file.py:function`. None: one row without columns.
        seed_column: a column that gets the task's seed, below 2³¹, for classes that make their tasks. None: none.
        held_out: share of the rows that is never trained on. 0, or fewer than two rows: tasks differ in their seed
            only. Usual: 0.2.
        reward: a reward function of TRL, `path/to/file.py:function`, called with `environments` of one, `prompts`,
            `completions` and the row's columns as lists of one. None: the attribute `reward` of the object.
        success_at: a reward from which on the episode is a success.
        format: how calls are written: json, tagged, code or words (palaestra.tools.formats).
        remind: repeat the prompt before each result: for contexts that show the latest observation only.
        max_turns: answers until the episode is cut off.
        expert: a function of one's own, `path/to/file.py:function`, called with the object; gives a ToolCall, or the
            text of the last answer. None: there is no expert.

    What is supported: `__init__` without arguments; `reset(**columns)`, whose text is appended to the prompt; the
    column `prompt`, a text or chat messages; public methods, also async ones, with kinds and a docstring with `Args:`;
    errors of methods, shown as results; the attributes `reward` and `done`. Not supported: images in messages; `tools`
    and `rollout_func` beside the class. Differs from TRL: the episode ends as soon as `done` is true, too; several
    calls of one answer run one after the other; a method's result is cut at 4000 characters.
    The agent is told the tools and how to call them in `Observation.instruction`. An answer without a call ends the
    episode; the reward is given at the end. Python's and NumPy's global random generators derive from the seed.
    Info: `score`, the reward; `success`; `calls`; `invalid` for a call that cannot be read, and for an episode without
    any call.
    Raises: ContractError, for a class without reset or tools; RecipeError; UnknownName.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "tools")
    provides = frozenset({"outcome"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        env: str,
        data: str | list[dict[str, Any]] | None = None,
        seed_column: str | None = None,
        held_out: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.2,
        reward: str | None = None,
        success_at: float = 1.0,
        format: Literal["json", "tagged", "code", "words"] = "json",
        remind: bool = False,
        max_turns: PositiveInt = 16,
        expert: str | None = None,
    ) -> None:
        self._where = f"environment trl_class, env: {env}"
        self._params = {"env": env}
        self._rows = _rows(data, f"{self._where}, data")
        self._train, self._held = division(len(self._rows), held_out)
        self._seed_column, self._success_at, self._format = seed_column, success_at, format
        self._remind, self._max_turns = remind, max_turns
        self._measure = _function(reward, f"{self._where}, reward")
        self._advise = _function(expert, f"{self._where}, expert")
        if self._advise is None:
            self.abilities = without(self.abilities, "expert")
        self._object: Any = _made(env, self._where)
        self._box = self._toolbox()
        self._chance = Randomness(0)
        self._row: Row = {}
        self._prompt, self._turn, self._started = "", 0, False
        self._said: list[dict[str, str]] = []

    # ---- the protocol -------------------------------------------------------------------------------------
    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks: rows of the split, each with a seed; splits never share a seed."""
        rows = self._train if split == "train" else self._held
        return [
            Task(
                env="trl_class",
                params=self._params | {"row": rows[derive(task.seed, "row") % len(rows)]},
                seed=task.seed,
                split=split,
            )
            for task in seeded_tasks("trl_class", self._params, split, n, seed)
        ]

    def content(self, task: Task) -> Any:
        """The row, and the seed, where the class is given one."""
        row = self._rows[int(task.params.get("row", self._train[0]))]
        return as_json((row, task.seed % SEEDS if self._seed_column is not None else None))

    def reset(self, task: Task) -> StepResult:
        self._row = dict(self._rows[int(task.params.get("row", self._train[0]))])
        if self._seed_column is not None:
            self._row[self._seed_column] = task.seed % SEEDS
        self._chance = Randomness(task.seed)
        with self._chance.lent():
            shown = self._object.reset(**copy.deepcopy(self._row))
        asked = _text(self._row.get("prompt"))
        self._prompt = "\n".join(piece for piece in (asked, "" if shown is None else str(shown)) if piece)
        self._box, self._turn, self._said, self._started = self._toolbox(), 0, [], True
        return single(AGENT, self._observe(self._prompt or "begin"))

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        if not self._started:
            raise unstarted(self)
        written = str(actions[AGENT].text or actions[AGENT].value or "")
        parsed = self._box.read(written)
        self._turn += 1
        self._said.append({"role": "assistant", "content": written})
        results = [await self._run(call) for call in parsed.calls]
        shown = "\n".join(results) if parsed.fault is None else f"error: {parsed.fault}"
        self._said += [{"role": "tool", "content": text} for text in results]
        answered = parsed.fault is None and not parsed.calls
        over = answered or getattr(self._object, "done", False) is True
        cut = not over and self._turn >= self._max_turns
        info: dict[str, Any] = {"calls": self._box.calls}
        readable = parsed.fault is None and not (answered and not self._box.calls)
        reward = self._reward() if over or cut else 0.0
        if over or cut:
            info |= {"score": reward, "success": reward >= self._success_at}
        text = f"{self._prompt}\n{shown}" if self._remind else shown
        return single(AGENT, self._observe(text), reward=reward, over=over, cut=cut, readable=readable, info=info)

    def close(self) -> None:
        self._started = False

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """What the function named by `expert` does here."""
        assert self._advise is not None  # else `abilities` leave it out
        advice = self._advise(self._object)
        return Action(text=self._box.write(advice) if isinstance(advice, ToolCall) else str(advice))

    def tools(self) -> Sequence[Any]:
        """The class's methods as tools."""
        return list(self._box.tools.values())

    def snapshot(self) -> Any:
        """A deep copy of the object. Raises: ContractError, where it cannot be copied."""
        kept = self._object, self._chance, self._row, self._prompt, self._turn, self._said
        return _copied(kept, self._where), self._box.snapshot()

    def restore(self, state: Any) -> None:
        kept, totals = state
        self._object, self._chance, self._row, self._prompt, self._turn, self._said = _copied(kept, self._where)
        self._box, self._started = self._toolbox(), True
        self._box.restore(totals)

    # ---- play ---------------------------------------------------------------------------------------------
    def _toolbox(self) -> Toolbox:
        """The tools of the object as it is now: methods are bound to it."""
        names = [
            name
            for name, member in inspect.getmembers(self._object, inspect.ismethod)
            if not name.startswith("_") and name != "reset"
        ]
        if not names:
            remedy = "Give it at least one public method beside `reset`, with kinds and a docstring."
            raise ContractError(where=self._where, what="it has no public method to be a tool.", remedy=remedy)
        return Toolbox([tool(getattr(self._object, name)) for name in names], format=self._format)

    async def _run(self, call: ToolCall) -> str:
        known = self._box.tools.get(call.name)
        if known is not None and inspect.iscoroutinefunction(known.call):
            return (await self._box.gather([call]))[0].text
        with self._chance.lent():
            return self._box.call(call).text

    def _reward(self) -> float:
        if self._measure is None:
            found = getattr(self._object, "reward", None)
        else:
            columns = {name: [value] for name, value in self._row.items() if name != "prompt"}
            prompts = [self._row.get("prompt", self._prompt)]
            found = self._measure(
                environments=[self._object], prompts=prompts, completions=[list(self._said)], **columns
            )[0]
        return 0.0 if found is None else float(found)

    def _observe(self, text: str) -> Observation:
        box = self._box
        legal = [box.write(one.sample()) for one in box.tools.values()]
        if self._advise is not None:
            legal = list(dict.fromkeys([*legal, self.expert(AGENT).text or ""]))
        return Observation(text=text, legal=legal, instruction=box.explain())


# ---- rows and functions ---------------------------------------------------------------------------------------
def _rows(data: str | list[Row] | None, where: str) -> list[Row]:
    if isinstance(data, str) and data.endswith((".jsonl", ".json")):
        path = Path(data)
        if not path.is_file():
            raise InvalidData(
                where=where, what=f"there is no file {path}.", remedy="Paths are relative to where you are."
            )
        written = path.read_text(encoding="utf-8")
        try:
            rows = (
                json.loads(written) if path.suffix == ".json" else [json.loads(line) for line in written.splitlines()]
            )
        except json.JSONDecodeError as error:
            raise InvalidData(
                where=f"{where}, {path}", what=f"it is no JSON: {error}.", remedy="A row a line."
            ) from None
    elif isinstance(data, str):
        rows = list(part("environment", data, where=where).target())
    else:
        rows = [{}] if data is None else list(data)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        remedy = "Give at least one row, each a mapping of columns."
        raise InvalidData(where=where, what="these are no rows.", remedy=remedy)
    return [dict(row) for row in rows]


def _made(env: str, where: str) -> Any:
    factory = part("environment", env, where=where).target
    try:
        made = factory()
    except TypeError as error:
        remedy = "TRL's classes take no arguments; name a function that makes one with what it needs."
        raise RecipeError(where=where, what=f"it cannot be made: {error}.", remedy=remedy) from error
    if not callable(getattr(made, "reset", None)):
        raise ContractError(where=where, what="it has no method `reset`.", remedy="Write `def reset(self, **kwargs)`.")
    return made


def _function(name: str | None, where: str) -> Callable[..., Any] | None:
    return None if name is None else part("environment", name, where=where).target


def _copied(kept: Any, where: str) -> Any:
    try:
        return copy.deepcopy(kept)
    except Exception as error:
        remedy = "Choose a method that does not branch, or give the class a `__deepcopy__`."
        raise ContractError(where=where, what=f"its object cannot be copied: {error}.", remedy=remedy) from error


def _text(prompt: Any) -> str:
    """A prompt as text: of chat messages, what each of them says."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(str(message["content"]) for message in prompt)
