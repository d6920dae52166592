"""Environments of the verifiers library (https://github.com/PrimeIntellect-ai/verifiers), version 0.4.

This file turns its tasksets into tasks, its conversations into observations and its scores into rewards. `machine` runs
its episodes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, ToolCall, derive
from palaestra.envs.adapters.rows import division
from palaestra.envs.adapters.verifiers.machine import HARNESS, Ask, Play, machine, package
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import started
from palaestra.errors import EpisodeFailure, RecipeError, UnknownName
from palaestra.registry import PositiveInt, register
from palaestra.tools import Tool, Toolbox


@register(
    "environment",
    "verifiers",
    source="https://github.com/PrimeIntellect-ai/verifiers",
    extra="adapters",
    modules=("verifiers",),
)
class Verifiers:
    """Play an environment of the verifiers library. Each call of its model is a turn of one of our agents.

    Args:
        taskset: an importable module that exports a Taskset, by the name that verifiers uses; or the file of such a
            module, `path/to/file.py`. The file's folder is added to the Python path of this process and of tool
            servers.
        env: the id of an Env with several seats, such as user-sim or best-of-n, or a file with an Env of yours. "": the
            taskset's own Env, else one seat `agent`.
        config: of the environment, as in verifiers' `env` block: `taskset: {…}`, seats and further keys.
        rows: the most tasks that are taken from the taskset. Higher: slower start.
        held_out: share of the tasks that is never trained on. Usual: 0.2.
        success_at: the score from which an episode is a success.
        format: how calls of tools are written: json, tagged, code or words (palaestra.tools.formats).
        whole: show the whole conversation in every turn, for contexts that keep only the latest observation. Else a
            turn shows what is new since the seat's last answer.
        max_turns: answers of all seats together until the episode is cut off, without rewards.

    The agents are the seats. verifiers asks them one at a time. Supported: prompts and system prompts, tools of the
    task and of the taskset (as MCP servers on this machine), conversations that the Env leads with a seat, @stop,
    limits of a seat's turns, setup, finalize, rewards, metrics and scores of the Env. Not supported: tasks that need a
    container; other harnesses, since every seat runs a chat loop in this process; judges that call a model; images.
    Environments of verifiers before 0.4 (SingleTurnEnv, MultiTurnEnv, ToolEnv) must be ported first.
    Observation: `text`; `instruction`, the system prompt and the tools; `legal`, an example call of each tool.
    Info: `score`, the mean reward of the trainable seats' runs; `success`; `metric/<name>`, or `metric/<seat>/<name>`
    if several seats have it; `invalid` for a call that cannot be read, after which the seat is asked again.
    Raises: UnknownName, RecipeError, MissingExtra; EpisodeFailure with the error that verifiers reports.
    """

    abilities: tuple[str, ...] = (
        "tasks",
        "content",
    )

    provides = frozenset({"outcome"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        taskset: str,
        env: str = "",
        config: dict[str, Any] | None = None,
        rows: PositiveInt = 1000,
        held_out: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.2,
        success_at: float = 1.0,
        format: Literal["json", "tagged", "code", "words"] = "json",
        whole: bool = False,
        max_turns: PositiveInt = 16,
    ) -> None:
        self._where = f"environment verifiers, taskset: {taskset}"
        self._params = {"taskset": taskset, "env": env}
        inner = _made(taskset, env, config or {}, self._where)
        self.agents: tuple[str, ...] = tuple(_seats(inner.config))
        self._rows = list(itertools.islice(iter(inner.taskset), rows))
        Refusals(self._where).when(not self._rows, "the taskset gave no tasks.", "Check `taskset` in `config`.")
        self._train, self._held = division([row.key for row in self._rows], held_out)
        self._play = Play(inner)
        self._success_at, self._format, self._whole, self._max_turns = success_at, format, whole, max_turns
        self._ask: Ask | None = None
        self._box = Toolbox([], format=format)
        self._fault, self._turn, self._calls = "", 0, 0
        self._acted: set[str] = set()

    # ---- the protocol -------------------------------------------------------------------------------------
    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` rows of the split, drawn with repetition. The seed only tells tasks of the same row apart."""
        rows = self._train if split == "train" else self._held
        return [
            Task(
                env="verifiers",
                params=self._params | {"row": rows[derive(task.seed, "row") % len(rows)]},
                seed=task.seed,
                split=split,
            )
            for task in seeded_tasks("verifiers", self._params, split, n, seed)
        ]

    def content(self, task: Task) -> Any:
        """The key of the row, which verifiers makes of its data, or the taskset by itself."""
        return self._rows[int(task.params.get("row", self._train[0]))].key

    async def reset(self, task: Task) -> StepResult:
        row = self._rows[int(task.params.get("row", self._train[0]))]
        self._turn, self._calls, self._acted = 0, 0, set()
        return self._result(await machine().do(self._play.begin(row)), {})

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        ask = started(self._ask, self)
        written = str(self._box.spelled(actions[ask.agent]) or "")
        self._turn += 1
        self._acted.add(ask.agent)
        parsed = self._box.read(written) if ask.tools else None
        if parsed is not None and parsed.fault is not None:
            info = act_info(ask.agent, {}, readable=False)
            if self._turn >= self._max_turns:
                return await self._cut(info)
            return several({ask.agent: self._observe(ask, parsed.fault)}, info=info)
        calls = parsed.calls if parsed is not None else ()
        event = await machine().do(self._play.reply(self._message(parsed.said if parsed else written, calls)))
        if isinstance(event, Ask) and self._turn >= self._max_turns:
            self._ask = event
            return await self._cut({})
        return self._result(event, {})

    async def close(self) -> None:
        self._ask = None
        await machine().do(self._play.close())

    # ---- answers and observations -------------------------------------------------------------------------
    def _message(self, said: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        if not calls:
            return {"content": said}
        written = []
        for call in calls:
            self._calls += 1
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            written.append({"id": call.id or f"call_{self._calls}", "type": "function", "function": function})
        return {"content": said, "tool_calls": written}

    def _observe(self, ask: Ask, fault: str = "") -> Observation:
        _refuse_images(ask.messages, self._where)
        said = [message for message in ask.messages if message["role"] != "system"]
        whole = self._whole or ask.agent not in self._acted  # a first prompt may hold examples of answers
        if not whole:
            own = [place for place, message in enumerate(said) if message["role"] == "assistant"]
            said = said[own[-1] + 1 :] if own else said
        named = len(said) > 1 and (self._whole or any(message["role"] == "assistant" for message in said))
        lines = [_line(message, named=named) for message in said]
        told = [_line(message) for message in ask.messages if message["role"] == "system"]
        tools = [_tool(one["function"]) for one in ask.tools]
        self._box = Toolbox(tools, format=self._format)
        manual = self._box.explain() if tools else None
        return Observation(
            text="\n".join([*lines, f"error: {fault}"] if fault else lines) or "begin",
            legal=[self._box.write(one.sample()) for one in tools] or None,
            instruction="\n".join([*told, *([manual] if manual else [])]) or None,
            manual=manual,
            tools=self._box.declarations or None,
        )

    def _result(self, event: Any, info: dict[str, Any]) -> StepResult:
        """The step result of an event: a seat is asked, or the episode is over and has its scores.

        Raises: EpisodeFailure, if verifiers reports an error.
        """
        if isinstance(event, Ask):
            self._ask = event
            return several({event.agent: self._observe(event)}, info=info)
        self._ask = None
        errors = (
            [event] if isinstance(event, Exception) else [*event.errors, *(e for t in event.traces for e in t.errors)]
        )
        if errors:
            last = errors[-1]
            kind, message = getattr(last, "type", type(last).__name__), getattr(last, "message", last)
            raise EpisodeFailure(
                boundary="environment",
                where=self._where,
                what=f"verifiers reports {kind}: {message}",
                remedy="Check the taskset with verifiers' command `vf-validate`, which needs no model.",
            )
        rewards = dict.fromkeys(sorted(self._acted), 0.0)
        for trace in event.traces:
            name = self._seat(trace)
            rewards[name] = rewards.get(name, 0.0) + float(trace.reward)
        scored = [float(trace.reward) for trace in event.traces if trace.agent.trainable] or [0.0]
        score = sum(scored) / len(scored)
        metrics = _metrics([(self._seat(trace), trace.metrics) for trace in event.traces])
        limited = frozenset(self._seat(t) for t in event.traces if t.is_truncated) & self._acted
        return several(
            {},
            rewards=rewards,
            over=self._acted - limited,
            cut=limited,
            info=info | {"score": score, "success": score >= self._success_at, **metrics},
        )

    async def _cut(self, info: dict[str, Any]) -> StepResult:
        """The step result at the limit of turns. The episode is cut off without scores."""
        ask, self._ask = self._ask, None
        last = {} if ask is None or ask.agent not in self._acted else {ask.agent: self._observe(ask)}
        await machine().do(self._play.abandon())
        return several(last, cut=self._acted, info=info | {"score": 0.0, "success": False})

    def _seat(self, trace: Any) -> str:
        return str(trace.agent.name or self.agents[0])


# ---- making ---------------------------------------------------------------------------------------------------
def _made(taskset: str, env: str, config: Mapping[str, Any], where: str) -> Any:
    """The environment, with our chat loop on this machine for every seat.

    Raises: UnknownName, for modules that cannot be loaded; RecipeError, for a configuration that verifiers refuses.
    """
    vf = package()
    data: dict[str, Any] = dict(config)
    data["taskset"] = {**data.get("taskset", {}), "id": _importable(taskset, where)}
    data["id"] = _importable(env, where) if env else ""
    data["interception"] = {"type": "server"}
    try:
        seats = _seats(vf.resolve_env_config(data))
        ours = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
        return vf.load_environment(
            vf.resolve_env_config(data | {seat: {**data.get(seat, {}), **ours} for seat in seats})
        )
    except (ModuleNotFoundError, AttributeError, TypeError) as error:
        remedy = "Name a module that exports a Taskset (or an Env) in `__all__`."
        raise UnknownName(where=where, what=f"verifiers cannot load it: {error}", remedy=remedy) from error
    except ValueError as error:
        what = f"verifiers refused the configuration: {error}"
        raise RecipeError(where=where, what=what, remedy="Correct `config`; it is verifiers' `env` block.") from error


def _seats(config: Any) -> list[str]:
    vf = package()
    return [name for name, value in config if isinstance(value, vf.AgentConfig)]


def _importable(name: str, where: str) -> str:
    """The id under which verifiers imports a module. Adds the folder of a file to Python's path.

    Raises: UnknownName, if the file does not exist, or Python finds another module under its name.
    """
    if not name.endswith(".py"):
        return name
    path = Path(name).resolve()
    if not path.is_file():
        remedy = "Correct the path; it is relative to the working directory."
        raise UnknownName(where=where, what=f"there is no file {path}.", remedy=remedy)
    try:
        found = importlib.util.find_spec(path.stem)
    except ValueError:  # a module that was not imported in the usual way, such as `__main__`
        found = importlib.machinery.ModuleSpec(path.stem, None)
    if found is not None and (found.origin is None or Path(found.origin).resolve() != path):
        what = f"Python imports {found.origin} under the name {path.stem!r}, and not {path}."
        raise UnknownName(where=where, what=what, remedy="Give the file a name that no other module has.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
        known = os.environ.get("PYTHONPATH")  # tool servers are separate processes
        os.environ["PYTHONPATH"] = f"{known}{os.pathsep}{path.parent}" if known else str(path.parent)
    return path.stem


def _tool(function: Mapping[str, Any]) -> Tool:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(name=function["name"], description=function.get("description", ""), parameters=schema, call=dict)


def _refuse_images(messages: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raises: EpisodeFailure, for a part of a message that is no text."""
    contents = [message.get("content") for message in messages]
    strange = [one for content in contents if isinstance(content, list) for one in content if "text" not in one]
    if strange:
        what = f"a message has a part of the type `{strange[0].get('type')}`, and agents see only texts here."
        remedy = "Use a taskset whose prompts are texts."
        raise EpisodeFailure(boundary="environment", where=where, what=what, remedy=remedy)


def _line(message: Mapping[str, Any], *, named: bool = False) -> str:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "\n".join(str(one["text"]) for one in content)
    calls = [f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ()]
    text = "\n".join(piece for piece in (text, *calls) if piece)
    return f"{message['role']}: {text}" if named else text


def _metrics(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, float]:
    """`metric/<name>`, or `metric/<seat>/<name>` for each seat if several seats have it; means over a seat's runs."""
    values: dict[str, dict[str, list[float]]] = {}
    for seat, metrics in runs:
        for name, value in metrics.items():
            if value is not None:
                values.setdefault(name, {}).setdefault(seat, []).append(float(value))
    return {
        f"metric/{seat}/{name}" if len(seats) > 1 else f"metric/{name}": sum(found) / len(found)
        for name, seats in values.items()
        for seat, found in seats.items()
    }
