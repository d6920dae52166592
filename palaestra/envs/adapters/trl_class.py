"""Play environment classes written for TRL's GRPOTrainer. They have `reset(**row)`, and public methods as tools.

`palaestra.tools` reads and runs the calls of tools.
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
        data: the rows whose columns `reset` gets: a list, a file of JSON (.json) or of JSON lines (.jsonl), or a
            function without arguments that returns rows: `path/to/file.py:function`. None: one row without columns.
        seed_column: a column of the row that is set to the task's seed, below 2³¹, for classes that make their own
            tasks. None: there is none.
        held_out: share of the rows that is never trained on. If no row or all rows would be held out, tasks differ in
            their seeds only. Usual: 0.2.
        reward: a reward function of TRL, `path/to/file.py:function`. It is called with `environments`, `prompts`,
            `completions` and the row's columns, each a list of one element. None: the object's attribute `reward`.
        success_at: the least reward of a success.
        format: how calls are written: json, tagged, code or words (palaestra.tools.formats).
        remind: True: the prompt is repeated before each result, for contexts that show only the latest observation.
        max_turns: answers until the episode is cut off.
        expert: your own function, `path/to/file.py:function`, which is called with the object and returns a ToolCall or
            the text of the final answer. None: there is no expert.

    Supported: `__init__` without arguments; `reset(**columns)`, whose text is appended to the prompt; the column
    `prompt`, a text or chat messages; public methods, async ones too, with type hints and a docstring with `Args:`;
    errors of methods, which are shown as results; the attributes `reward` and `done`.
    Not supported: images in messages; `tools` and `rollout_func` besides the class.
    Differs from TRL: the episode also ends when `done` is true; several calls in one answer run one after another; the
    result of a method is cut at 4000 characters.
    `Observation.instruction` tells the agent the tools and how to call them. An answer without a call ends the episode.
    The reward is given at the end. Python's and NumPy's global random generators are seeded from the task.
    Info: `score`, the reward; `success`; `calls`, how many were made; `invalid` for an answer that cannot be read, and
    for a final answer without any call before it.
    Raises: ContractError, for a class without `reset` or tools; RecipeError; InvalidData, for data that has no rows;
    UnknownName.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "tools")
    provides = frozenset({"outcome"})  # columns of a table of its episodes

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
        """`n` tasks. Each is a row of the split with a seed. Splits share no seed."""
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
        """The row, and the seed if the class gets it."""
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
        written = str(self._box.spelled(actions[AGENT]) or "")
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
        """The action that the function `expert` gives for the object."""
        assert self._advise is not None  # without a function, `abilities` has no `expert`
        advice = self._advise(self._object)
        return Action(text=self._box.write(advice) if isinstance(advice, ToolCall) else str(advice))

    def tools(self) -> Sequence[Any]:
        """The methods of the class, as tools."""
        return list(self._box.tools.values())

    def snapshot(self) -> Any:
        """A deep copy of the object and of the state of the episode. Raises: ContractError, if it cannot be copied."""
        kept = self._object, self._chance, self._row, self._prompt, self._turn, self._said
        return _copied(kept, self._where), self._box.snapshot()

    def restore(self, state: Any) -> None:
        kept, totals = state
        self._object, self._chance, self._row, self._prompt, self._turn, self._said = _copied(kept, self._where)
        self._box, self._started = self._toolbox(), True
        self._box.restore(totals)

    # ---- play ---------------------------------------------------------------------------------------------
    def _toolbox(self) -> Toolbox:
        """The tools of the present object. Its methods are bound to it, so another object needs another toolbox."""
        names = [
            name
            for name, member in inspect.getmembers(self._object, inspect.ismethod)
            if not name.startswith("_") and name != "reset"
        ]
        if not names:
            remedy = "Give it at least one public method besides `reset`, with type hints and a docstring."
            raise ContractError(where=self._where, what="it has no public method to use as a tool.", remedy=remedy)
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
        return Observation(text=text, legal=legal, instruction=box.explain(), tools=box.declarations)


# ---- rows and functions ---------------------------------------------------------------------------------------
def _rows(data: str | list[Row] | None, where: str) -> list[Row]:
    if isinstance(data, str) and data.endswith((".jsonl", ".json")):
        path = Path(data)
        if not path.is_file():
            raise InvalidData(
                where=where, what=f"there is no file {path}.", remedy="Paths are relative to the working folder."
            )
        written = path.read_text(encoding="utf-8")
        try:
            rows = (
                json.loads(written) if path.suffix == ".json" else [json.loads(line) for line in written.splitlines()]
            )
        except json.JSONDecodeError as error:
            remedy = "Write a list of rows." if path.suffix == ".json" else "Write one row on each line."
            raise InvalidData(where=f"{where}, {path}", what=f"it is not JSON: {error}.", remedy=remedy) from None
    elif isinstance(data, str):
        rows = list(part("environment", data, where=where).target())
    else:
        rows = [{}] if data is None else list(data)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        remedy = "Give a list of at least one row. Each row is a mapping from column names to values."
        raise InvalidData(where=where, what="the data is no list of rows.", remedy=remedy)
    return [dict(row) for row in rows]


def _made(env: str, where: str) -> Any:
    factory = part("environment", env, where=where).target
    try:
        made = factory()
    except TypeError as error:
        remedy = "If the class needs arguments, name a function without arguments that makes the object."
        raise RecipeError(where=where, what=f"no object of it can be made: {error}.", remedy=remedy) from error
    if not callable(getattr(made, "reset", None)):
        raise ContractError(where=where, what="it has no method `reset`.", remedy="Write `def reset(self, **kwargs)`.")
    return made


def _function(name: str | None, where: str) -> Callable[..., Any] | None:
    return None if name is None else part("environment", name, where=where).target


def _copied(kept: Any, where: str) -> Any:
    try:
        return copy.deepcopy(kept)
    except Exception as error:
        remedy = "Choose a training method that does not branch, or give the class a `__deepcopy__`."
        raise ContractError(where=where, what=f"its object cannot be copied: {error}.", remedy=remedy) from error


def _text(prompt: Any) -> str:
    """A prompt as text. Chat messages are joined, one per line, without their roles."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(str(message["content"]) for message in prompt)
