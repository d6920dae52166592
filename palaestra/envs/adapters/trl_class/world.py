"""Play environment classes written for TRL's GRPOTrainer. They have `reset(**row)`, and public methods as tools.

`sources` makes rows, objects and rewards; `palaestra.tools` reads and runs the calls of tools.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, ToolCall, derive
from palaestra.data.abilities import without
from palaestra.data.task import content_digest
from palaestra.data.trajectory import digest_of
from palaestra.envs.adapters.rows import division
from palaestra.envs.adapters.trl_class.sources import COLUMN, Kind, Row, kinds_of, prompt_of, rewards_of, rows_of
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.calls import results_of
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.images import Message, as_image, observation_of, with_images, without_places
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.randomness import Randomness
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import unstarted
from palaestra.errors import ContractError
from palaestra.registry import PositiveInt, part, register
from palaestra.registry.options import Files
from palaestra.tools import Toolbox
from palaestra.tools.calls import Parsed

AGENT = "player"
NAME = "trl_class"
SEEDS = 1 << 31
Functions = Annotated[str | tuple[str, ...] | None, Files(functions=True)]


@register(
    "environment",
    "trl_class",
    ignores_if={"data=None": ("held_out",), "reward=None": ("weights",)},
    source="https://huggingface.co/docs/trl/openenv",
)
class TrlClass:
    """Play environment classes written for TRL's GRPO trainer, by calling their methods as tools.

    Args:
        env: the class, or a function without arguments that makes an object: `path/to/file.py:Class`, `module:Class`.
            A mapping from names to such classes plays several: the column `environment` of a row names the one it uses,
            as with TRL's `environment_factory={…}`.
        data: the rows whose columns `reset` gets: a list, a file of JSON (.json) or of JSON lines (.jsonl), or a
            function without arguments that returns rows: `path/to/file.py:function`. None: one row without columns.
        seed_column: a column of the row that is set to the task's seed, below 2³¹, for classes that make their own
            tasks. None: there is none.
        held_out: share of the rows that is never trained on. If no row or all rows would be held out, tasks differ in
            their seeds only. Usual: 0.2.
        reward: a reward function of TRL, or several, `path/to/file.py:function`. Each is called with `environments`,
            `prompts`, `completions`, `completion_ids` and the row's columns, each a list of one element.
        weights: a factor for each function of `reward`. None: 1 each.
        success_at: the least reward of a success.
        format: how calls are written: json, tagged, code or words (palaestra.tools.formats).
        remind: True: the prompt is repeated before each result, for contexts that show only the latest observation.
        max_turns: answers until the episode is cut off.
        expert: your own function, `path/to/file.py:function`, which is called with the object and returns a ToolCall or
            the text of the final answer. None: there is no expert.

    Supported, as in TRL 1.16: `__init__` without arguments; one object for many episodes; `reset(**columns)`, whose
    text or list of content parts is appended to the last message of the prompt; the columns `prompt`, a text or chat
    messages in their roles, and `image` or `images`; public methods, async ones too, with type hints and a docstring
    with `Args:`, which return a text, a list of content parts with images, or another value; errors of methods, which
    are shown as results; `get_reward`, async too, whose value is added to that of `reward`. Neither `reset` nor
    `get_reward` is a tool. Without both, the object's attribute `reward` is the reward.
    Not supported: `tools` and `rollout_func` besides the class.
    Differs from TRL: the episode also ends when the attribute `done` is true; several calls in one answer run one after
    another; results are cut at 4000 characters; a result that is no text is shown as JSON.
    `Observation.instruction` tells the agent the tools and how to call them, if the chat template does not declare them
    (`tools.native`). An answer without a call ends the episode.
    The reward is given at the end. Python's and NumPy's global random generators are seeded from the task.
    Info: `score`, the reward; `reward/<name>` of each function and class, if there are several; `success`; `calls`, how
    many were made; `invalid` for an answer that cannot be read, and for a final answer without any call before it.
    Raises: ContractError, for a class without `reset` or tools; RecipeError; InvalidData, for data that has no rows,
    and for rows that name no environment; UnknownName.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "tools", "judging")
    provides = frozenset({"outcome"})  # columns of a table of its episodes
    judging = True

    def __init__(
        self,
        *,
        env: Annotated[str | dict[str, str], Files(functions=True)],
        data: Annotated[str | list[dict[str, Any]] | None, Files()] = None,
        seed_column: str | None = None,
        held_out: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.2,
        reward: Functions = None,
        weights: tuple[float, ...] | None = None,
        success_at: float = 1.0,
        format: Literal["json", "tagged", "code", "words"] = "json",
        remind: bool = False,
        max_turns: PositiveInt = 16,
        expert: Annotated[str | None, Files(functions=True)] = None,
    ) -> None:
        note_version(NAME)
        self._where = f"environment trl_class, env: {env if isinstance(env, str) else ', '.join(env)}"
        self._params = {"env": env}
        self._rewards = rewards_of(reward, weights, f"{self._where}, reward")
        self._kinds = kinds_of(env, judged=reward is not None, where=self._where)
        self._rows = rows_of(data, self._kinds, f"{self._where}, data")
        contents = [content_digest(NAME, _content(row)) for row in self._rows]
        self._train, self._held = division(contents, held_out)
        self._seed_column, self._success_at, self._format = seed_column, success_at, format
        self._remind, self._max_turns = remind, max_turns
        self._advise = None if expert is None else part("environment", expert, where=f"{self._where}, expert").target
        if self._advise is None:
            self.abilities = without(self.abilities, "expert")
        self._kind: Kind = next(iter(self._kinds.values()))
        self._object: Any = self._kind.made
        self._images: list[np.ndarray] = []  # of the results of one turn
        self._box = self._toolbox()
        self._chance = Randomness(0)
        self._row: Row = {}
        self._prompt: tuple[dict[str, Any], ...] = ()
        self._turn, self._started = 0, False
        self._said: list[dict[str, Any]] = []
        self._ids: list[int] = []  # of the answers

    # ---- the protocol -------------------------------------------------------------------------------------
    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks. Each is a row of the split with a seed. Splits share no seed."""
        rows = self._train if split == "train" else self._held
        return [
            Task(
                env=NAME,
                params=self._params | {"row": rows[derive(task.seed, "row") % len(rows)]},
                seed=task.seed,
                split=split,
            )
            for task in seeded_tasks(NAME, self._params, split, n, seed)
        ]

    def content(self, task: Task) -> Any:
        """The row, and the seed if the class gets it."""
        row = self._rows[int(task.params.get("row", self._train[0]))]
        return as_json((_content(row), task.seed % SEEDS if self._seed_column is not None else None))

    def reset(self, task: Task) -> StepResult:
        self._row = dict(self._rows[int(task.params.get("row", self._train[0]))])
        if self._seed_column is not None:
            self._row[self._seed_column] = task.seed % SEEDS
        several = None not in self._kinds
        self._kind = self._kinds[self._row[COLUMN] if several else None]
        self._object = self._kind.made
        given = {name: value for name, value in self._row.items() if not (several and name == COLUMN)}
        self._chance = Randomness(task.seed)
        with self._chance.lent():
            shown = self._object.reset(**copy.deepcopy(given))
        self._prompt = prompt_of(self._row, shown, self._where)
        self._box, self._turn, self._said, self._ids = self._toolbox(), 0, [], []
        self._started = True
        return single(AGENT, self._observe(self._prompt))

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        if not self._started:
            raise unstarted(self)
        action = actions[AGENT]
        written = str(self._box.spelled(action) or "")
        parsed = self._box.read(written) if self._box.tools else Parsed(said=written)
        self._turn += 1
        self._ids += [int(token) for token in action.tokens]
        self._said.append(_reply(written, parsed))
        self._images = []
        results = [await self._run(call) for call in parsed.calls]
        self._said += [
            {"role": "tool", "name": call.name, "content": without_places(text)}
            for call, text in zip(parsed.calls, results, strict=True)
        ]
        answered = parsed.fault is None and not parsed.calls
        over = answered or getattr(self._object, "done", False) is True
        cut = not over and self._turn >= self._max_turns
        info: dict[str, Any] = {"calls": self._box.calls}
        readable = parsed.fault is None and not (answered and self._box.tools and not self._box.calls)
        reward = 0.0
        if (over or cut) and self.judging:
            reward, told = await self._judged()
            info |= told
        if parsed.fault is None:
            apart = bool(action.tool_calls) and not self._remind
            seen = self._after(results_of(parsed.calls, results, self._images, apart=apart))
        else:
            seen = self._after([{"role": "user", "content": f"error: {parsed.fault}"}])
        return single(AGENT, seen, reward=reward, over=over, cut=cut, readable=readable, info=info)

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
        kept = (self._object, self._chance, self._row, self._prompt, self._turn, self._said, self._ids)
        return _copied(kept, self._where), self._kind, self._box.snapshot()

    def restore(self, state: Any) -> None:
        kept, self._kind, totals = state
        copied = _copied(kept, self._where)
        self._object, self._chance, self._row, self._prompt, self._turn, self._said, self._ids = copied
        self._box, self._started = self._toolbox(), True
        self._box.restore(totals)

    # ---- play ---------------------------------------------------------------------------------------------
    def _toolbox(self) -> Toolbox:
        """The tools of the present object. Its methods are bound to it, so another object needs another toolbox."""
        return Toolbox(self._kind.tools(self._object, self._keep), format=self._format)

    def _keep(self, name: str, content: list[Any]) -> str:
        """The text of a result that is a list of content parts. Its images are kept for the observation."""
        where = f"{self._where}, the result of {name}"
        (message,) = with_images([{"role": "user", "content": content}], where=where)
        self._images += message.get("pictures", ())
        return str(message["content"])

    async def _run(self, call: ToolCall) -> str:
        known = self._box.tools.get(call.name)
        if known is not None and inspect.iscoroutinefunction(known.call):
            return (await self._box.gather([call]))[0].text
        with self._chance.lent():
            return self._box.call(call).text

    async def _judged(self) -> tuple[float, dict[str, Any]]:
        """The reward of the episode, and what `info` says of it."""
        told = {
            "prompts": self._row.get("prompt", list(self._prompt)),
            "completions": list(self._said),
            "completion_ids": list(self._ids),
        }
        columns = {name: value for name, value in self._row.items() if name != "prompt"}
        scores, lent = self._kind.scores, self._chance.lent
        found = await self._rewards.of(self._object, scores=scores, lent=lent, columns=columns, **told)
        score = sum(found.values())
        parts = {f"reward/{name}": value for name, value in found.items()} if len(found) > 1 else {}
        return score, parts | {"score": score, "success": score >= self._success_at}

    def _after(self, answers: list[Message]) -> Observation:
        """What the agent sees after an answer: the results, and the prompt before them if it is repeated."""
        if not self._remind:
            return self._observe(answers)
        *head, last = self._prompt
        (answer,) = answers
        pictures = (*last.get("pictures", ()), *self._images)
        joined = (
            last | {"content": f"{last['content']}\n{answer['content']}"} | ({"pictures": pictures} if pictures else {})
        )
        return self._observe((*head, joined))

    def _observe(self, messages: Sequence[dict[str, Any]]) -> Observation:
        box = self._box
        legal = [box.write(one.sample()) for one in box.tools.values()]
        if self._advise is not None:
            legal = list(dict.fromkeys([*legal, self.expert(AGENT).text or ""]))
        if [message["content"] for message in messages] == [""]:
            messages = ({**messages[0], "content": "begin"},)
        rules = box.explain() if box.tools else None
        return observation_of(
            messages, legal=legal or None, instruction=rules, manual=rules, tools=box.declarations or None
        )


def _reply(written: str, parsed: Parsed) -> dict[str, Any]:
    """An answer as a message of the assistant, as TRL's reward functions read it."""
    if not parsed.calls:
        return {"role": "assistant", "content": written}
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in parsed.calls
    ]
    return {"role": "assistant", "content": parsed.said, "tool_calls": calls}


def _content(row: Row) -> Any:
    """The row, with the hashes of its images in their place."""
    return as_json({name: _hashed(value) for name, value in row.items()})


def _hashed(value: Any) -> Any:
    if callable(getattr(value, "convert", None)):  # an image of PIL
        return digest_of(as_image(value, where="")).hex()
    if isinstance(value, Mapping):
        return {name: _hashed(one) for name, one in value.items()}
    return [_hashed(one) for one in value] if isinstance(value, list | tuple) else value


def _copied(kept: Any, where: str) -> Any:
    try:
        return copy.deepcopy(kept)
    except Exception as error:
        remedy = "Choose a training method that does not branch, or give the class a `__deepcopy__`."
        raise ContractError(where=where, what=f"its object cannot be copied: {error}.", remedy=remedy) from error
