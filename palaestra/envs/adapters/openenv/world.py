"""OpenEnv environments (https://github.com/huggingface/OpenEnv): answers become actions, observations become texts.

`links.py` runs the environment in this process or talks to its server. `results.py` reads what its tools answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from palaestra.data import Action, Observation, StepResult, Task, ToolCall
from palaestra.data.abilities import without
from palaestra.envs.adapters.infos import kept, succeeded
from palaestra.envs.adapters.openenv.links import Link, Refused, Shown, call_of, connect
from palaestra.envs.adapters.openenv.results import answer_of, rewarding, tools_of
from palaestra.envs.kit.calls import results_of
from palaestra.envs.kit.images import Message, observation_of
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import started
from palaestra.errors import RecipeError, nearest
from palaestra.registry import Positive, PositiveInt, part, register
from palaestra.registry.options import Files
from palaestra.tools import Tool, Toolbox

AGENT = "player"
SEEDS = 1 << 31
MOST = 64  # a range of more numbers is not listed as legal
TOOL = "act"


@register(
    "environment", "openenv", source="https://github.com/huggingface/OpenEnv", extra="openenv", modules=("openenv",)
)
class OpenEnv:
    """Play an OpenEnv environment: a class in this process, or the environment of a running server.

    Args:
        env: a class that inherits from OpenEnv's Environment, or a function without arguments that makes such an
            object: `path/to/file.py:Class`. The type of its actions is the class in `Environment[MyAction, …]`, or the
            one in the signature of `step`.
        url: instead of `env`, the address of an OpenEnv server, such as http://127.0.0.1:8000. Each episode needs a
            session, so the server must allow as many sessions as episodes run at once.
        options: keyword arguments of `reset` besides `seed`. A server does not say which ones it ignores.
        field: the field of the action that an answer fills: a text, a number or a choice. Other fields keep their
            defaults. None: the only field; if there are several, an answer is a call with all fields.
        format: how calls are written: json, tagged, code or words. A call is one of a tool of the environment, or of
            the tool `act` with the fields of an action.
        show: fields of the observation that are shown, in this order. None: all.
        legal: the field of the observation that lists the legal values, for actions of one field. None: there is none.
        reward: your own function, `path/to/file.py:function`, for environments that give no reward. It is called after
            each step with `fields` (the observation's), `reward` (the environment's) and `done`, or with those of the
            three that it names, and returns a number. None: the environment's reward.
        expert: your own function, `path/to/file.py:function`, which is called with the fields of the latest observation
            and returns a ToolCall or the text of an answer. None: there is no expert.
        success_at: the least sum of rewards of a success. None: an episode is a success if the metadata of its last
            observation tells `success` or `is_success`; otherwise it has a score only.
        max_turns: turns until the episode is cut off. Unreadable actions count.
        timeout_s: seconds to wait for a server's answer.

    Supported, as in OpenEnv 0.10: `reset(seed, …)`, `step` and their async forms, rewards and `done`, in process and
    over WebSocket; MCP environments, whose tools are listed after each reset. Each call of a tool is a step of the
    environment, several calls of an answer are made one after another, and an answer without a call ends the episode.
    Texts and images of a result are shown, and the tool's error if it fails.
    Not supported: actions with tensors; the production mode of servers, which has no rewards.
    If the environment ignores `seed`, a task does not determine its episode.
    Info: `score`, the sum of rewards; `success`; `calls` of tools; `invalid` for an answer that is no action. Such an
    answer changes nothing but takes a turn. Metadata beside other fields is kept.
    Raises: RecipeError; ContractError; InvalidData, if no server answers; MissingExtra, if openenv is not installed.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "expert")
    provides = frozenset({"outcome"})  # columns of a table of its episodes

    def __init__(
        self,
        *,
        env: Annotated[str | None, Files(functions=True)] = None,
        url: str | None = None,
        options: dict[str, Any] | None = None,
        field: str | None = None,
        format: Literal["json", "tagged", "code", "words"] = "json",
        show: tuple[str, ...] | None = None,
        legal: str | None = None,
        reward: Annotated[str | None, Files(functions=True)] = None,
        expert: Annotated[str | None, Files(functions=True)] = None,
        success_at: float | None = None,
        max_turns: PositiveInt = 30,
        timeout_s: Positive = 60.0,
    ) -> None:
        self._where = f"environment openenv, {'env' if env else 'url'}: {env or url}"
        self._params = {"env": env or url, "options": options or {}}
        self._link: Link = connect(env, url, options or {}, timeout_s=timeout_s, where=self._where)
        self._show, self._legal, self._success_at, self._max_turns = show, legal, success_at, max_turns
        self._measure = rewarding(reward, f"{self._where}, reward")
        self._advise = None if expert is None else part("environment", expert, where=f"{self._where}, expert").target
        if self._advise is None:
            self.abilities = without(self.abilities, "expert")
        self._fields_now: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}
        self._known: set[str] = set()  # fields that observations have had
        refuse = Refusals(self._where)
        refuse.when(
            self._link.calls_tools and (field or legal),
            f"`{'field' if field else 'legal'}` is set, and the actions of this environment are calls of tools.",
            "Leave it out.",
        )
        self._field = None if self._link.calls_tools else _only_field(self._link.schema, field, self._where)
        refuse.when(
            legal is not None and self._field is None,
            f"`legal` is set to `{legal}`, and the action has several fields.",
            "Set `field` to the one whose values it lists.",
        )
        self._format = format
        self._box = Toolbox([] if self._link.calls_tools else [_act(self._link.schema)], format=format)
        self._turn, self._score, self._calls = 0, 0.0, 0
        self._last: Observation | None = None

    # ---- the protocol -------------------------------------------------------------------------------------
    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks that differ in their seeds. Splits share no seed."""
        return seeded_tasks("openenv", self._params, split, n, seed)

    async def reset(self, task: Task) -> StepResult:
        shown = await self._link.reset(task.seed % SEEDS, self._params["options"])  # type: ignore[arg-type]
        self._know(shown)
        if self._link.calls_tools:
            self._box = Toolbox(tools_of(await self._link.tools(), self._where), format=self._format)
        self._turn, self._score, self._calls = 0, 0.0, 0
        self._last = self._observe(shown)
        return single(AGENT, self._last)

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        last = started(self._last, self)
        self._turn += 1
        reward, over, fault = 0.0, False, None
        try:
            act = self._call if self._link.calls_tools else self._act
            seen, reward, over = await act(actions[AGENT])
            self._last = seen
        except Refused as refused:
            fault = str(refused)
            seen = _told(last, f"error: {fault}")
        self._score += reward
        readable = fault is None and not (self._link.calls_tools and over and not self._calls)
        cut = not over and self._turn >= self._max_turns
        info = kept("openenv", self._metadata) | {"score": self._score}
        if self._link.calls_tools:
            info["calls"] = self._calls
        if over or cut:
            declared = succeeded(self._metadata)
            success = declared if self._success_at is None else self._score >= self._success_at
            info |= {} if success is None else {"success": success}
        return single(AGENT, seen, reward=reward, over=over, cut=cut, readable=readable, info=info)

    def close(self) -> None:
        self._last = None
        self._link.close()

    def expert(self, agent: str) -> Action:
        """The action that the function `expert` gives for the latest observation."""
        assert self._advise is not None  # without a function, `abilities` has no `expert`
        advice = self._advise(self._fields_now)
        return Action(text=self._box.write(advice) if isinstance(advice, ToolCall) else str(advice))

    # ---- acts ---------------------------------------------------------------------------------------------
    async def _act(self, action: Action) -> tuple[Observation, float, bool]:
        """Make one step of the environment. Raises: Refused."""
        shown = await self._link.step(self._fields(action))
        self._know(shown)
        self._refuse_unknown_fields()
        return self._observe(shown), await self._measure(shown), shown.done

    async def _call(self, action: Action) -> tuple[Observation, float, bool]:
        """Call the tools that an answer names, each as a step, until the episode is over. Raises: Refused."""
        parsed = self._box.read(str(self._box.spelled(action) or ""))
        if parsed.fault is not None:
            raise Refused(parsed.fault)
        total, done, texts, pictures = 0.0, not parsed.calls, list[str](), list[Any]()
        for call in parsed.calls:
            checked = self._box.call(call)
            if not checked.ok:
                texts.append(checked.text)
                continue
            self._calls += 1
            name = self._box.tools[call.name].call()  # the name that the environment knows it by
            shown = await self._link.step(call_of(name, call.arguments))
            self._know(shown)
            answer = answer_of(shown.fields, where=f"{self._where}, tool {name}")
            texts.append(answer["content"])
            pictures += answer.get("pictures", ())
            total += await self._measure(shown)
            if shown.done:
                done = True
                break
        messages = results_of(parsed.calls, texts, pictures, apart=bool(action.tool_calls))
        return self._seen(tuple(messages)), total, done

    # ---- actions and observations -------------------------------------------------------------------------
    def _fields(self, action: Action) -> dict[str, Any]:
        """The fields of the action that an answer means. Raises: Refused."""
        if self._field is not None:
            return {self._field: _read(action.value, self._link.schema["properties"][self._field])}
        parsed = self._box.read(str(self._box.spelled(action) or ""))
        if parsed.fault is not None or len(parsed.calls) != 1:
            raise Refused(parsed.fault or "write exactly one call of `act`")
        result = self._box.call(parsed.calls[0])
        if not result.ok:
            raise Refused(result.text.removeprefix("error: "))
        return dict(parsed.calls[0].arguments)

    def _seen(self, messages: tuple[Message, ...], legal: list[str] | None = None) -> Observation:
        if self._link.calls_tools:
            legal = [self._box.write(one.sample()) for one in self._box.tools.values()]
        told = self._manual()
        declared = {"tools": self._box.declarations, "manual": told} if self._field is None else {}
        return observation_of(messages, legal=legal, instruction=told, **declared)

    def _know(self, shown: Shown) -> None:
        self._fields_now, self._metadata = shown.fields, shown.metadata
        self._known |= shown.fields.keys()

    def _refuse_unknown_fields(self) -> None:
        """Refuse names in `show` and `legal` that neither a reset nor a step has given. Raises: RecipeError."""
        for name in (*(self._show or ()), *([] if self._legal is None else [self._legal])):
            if name not in self._known:
                what = f"its observations have no field `{name}`."
                options = nearest(name, self._known) or sorted(self._known)
                raise RecipeError(where=self._where, what=what, options=options, remedy="Correct `show` or `legal`.")

    def _observe(self, shown: Shown) -> Observation:
        fields = {name: value for name, value in shown.fields.items() if name != self._legal}
        if self._show is not None:
            fields = {name: fields[name] for name in self._show if name in fields}
        if len(fields) == 1:
            text = _written(next(iter(fields.values())))
        else:
            text = "\n".join(f"{name}: {_written(value)}" for name, value in fields.items())
        legal = None if self._link.calls_tools else self._choices(shown)
        return self._seen(({"role": "user", "content": text or "begin"},), legal)

    def _choices(self, shown: Shown) -> list[str] | None:
        if self._field is None:
            return [self._box.write(self._box.tools[TOOL].sample())]
        if self._legal is not None:
            return [str(choice) for choice in shown.fields.get(self._legal) or ()]
        return _listed(self._link.schema["properties"][self._field])

    def _manual(self) -> str | None:
        """What the agent is told about actions. None if a single field has no description."""
        if self._field is None:
            return self._box.explain()
        told = self._link.schema["properties"][self._field].get("description")
        return None if told is None else f"Answer with {self._field}: {told}"


def _told(last: Observation, line: str) -> Observation:
    """The last observation again, after a line."""
    text = line if last.text is None else f"{line}\n{last.text}"
    return Observation(text=text, legal=last.legal, instruction=last.instruction, tools=last.tools, manual=last.manual)


def _act(schema: Mapping[str, Any]) -> Tool:
    """The tool `act`, whose arguments are the fields of an action."""
    return Tool(name=TOOL, description=schema.get("description", ""), parameters=schema, call=dict)


# ---- single fields --------------------------------------------------------------------------------------------
def _only_field(schema: Mapping[str, Any], chosen: str | None, where: str) -> str | None:
    """The field that an answer fills, or None if an answer is a call with all fields."""
    names = [chosen] if chosen is not None else list(schema["properties"])
    if len(names) == 1 and names[0] in schema["properties"]:
        field = schema["properties"][names[0]]
        if "enum" in field or field.get("type") in ("string", "integer", "number", "boolean"):
            return names[0]
    if chosen is None:
        return None
    raise RecipeError(
        where=where,
        what=f"the action has no field `{chosen}` that is a text, a number or a choice.",
        options=schema["properties"],
        remedy="Name a field that it has, or leave `field` out: then an answer is a call with all fields.",
    )


def _read(value: Any, field: Mapping[str, Any]) -> Any:
    """An answer as a value of the field's type. Raises: Refused."""
    text = str(value if value is not None else "").strip()
    try:
        if "enum" in field:
            return {str(choice): choice for choice in field["enum"]}[text]
        if field["type"] == "boolean":
            return {"true": True, "false": False}[text.lower()]
        return {"integer": int, "number": float, "string": str}[field["type"]](text)
    except (KeyError, ValueError):
        choices = _listed(field)
        raise Refused(
            f"{text[:40]!r} is no {field.get('type', 'choice')}{f'; write one of: {choices}' if choices else ''}"
        ) from None


def _listed(field: Mapping[str, Any]) -> list[str] | None:
    """All values of a field if they are few, else None."""
    if "enum" in field:
        return [str(choice) for choice in field["enum"]]
    if field["type"] == "boolean":
        return ["true", "false"]
    low, high = field.get("minimum"), field.get("maximum", field.get("exclusiveMaximum", 0.5) - 1)
    if field["type"] == "integer" and low is not None and high != -0.5 and 0 <= high - low < MOST:
        return [str(number) for number in range(int(low), int(high) + 1)]
    return None


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
