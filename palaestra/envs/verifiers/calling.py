"""Call reward functions: verifiers, a user's functions for one reply, and functions written for TRL or verl.

The parameters of a function say how it is called:

    def correct(completion, answer)                     one reply and columns of its row; returns a number
    def correct(completions, answer, **columns)         TRL: lists with an entry for each reply; returns a list. The
                                                        part `group_function` calls it with a whole group
    def compute_score(data_source, solution_str, ground_truth, extra_info)      verl: returns a number

Each may be `async`. None means that the function does not apply to the row.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pydantic

from palaestra.errors import EpisodeFailure, InvalidData, MissingExtra, PalaestraError, RecipeError, nearest
from palaestra.registry import Part, part
from palaestra.registry.options import check_options

SLOT = "verifier"
LIBRARY = Path(__file__).parents[2]
RESERVED = ("success", "score", "stop", "invalid", "return")  # names that mean something else in an environment's info
THRESHOLD = re.compile(r"(?:(\w+)\s*(>=|>)\s*)?(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
TRAINER = ("trainer_state", "log_extra", "log_metric")  # what TRL gives beside the columns
Written = str | Mapping[str, Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a reward function judges.

    Attributes:
        text: the last reply.
        messages: all that was said after the prompt, the last reply included.
        prompt: of the row: a text or messages.
        tokens: ids of the replies.
        columns: of the row.
        place: of the row, for messages.
    """

    text: str
    messages: Sequence[Mapping[str, Any]]
    prompt: str | Sequence[Mapping[str, Any]]
    tokens: Sequence[int]
    columns: Mapping[str, Any]
    place: str

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls of tools in the last reply, each with `name` and `arguments`."""
        calls = self.messages[-1].get("tool_calls", ()) if self.messages else ()
        return [dict(call["function"]) for call in calls]

    @property
    def completion(self) -> Any:
        """The reply as TRL gives it: messages, if the prompt is a list of messages, else a text."""
        return self.text if isinstance(self.prompt, str) else [dict(message) for message in self.messages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward function with its options and its weight."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    weight: float
    convention: Literal["reply", "trl", "verl"]
    takes: tuple[str, ...]  # names of the parameters that get data
    needs: tuple[str, ...]  # those without a default
    takes_all: bool  # it has `**columns`
    skips: bool  # it is a verifier of the library that needs `answer`: it does not apply to a row without one

    async def __call__(self, reply: Reply) -> tuple[float | None, dict[str, float]]:
        """The reward, or None if the function does not apply; and further numbers that the function logged.

        Raises: EpisodeFailure, if the function fails or returns no number; it names the row.
        """
        logged: dict[str, float] = {}
        given = self._arguments(reply, lambda name, value: logged.__setitem__(str(name), float(value)))
        if self.skips and given.get("answer") is None:
            return None, {}
        try:
            value = self.function(**given, **self.options)
            value = await value if inspect.isawaitable(value) else value
            if self.convention == "trl":
                (value,) = _list_of(value, 1)
        except (EpisodeFailure, MissingExtra):
            raise
        except _NoList as fault:
            raise self._failed(reply, f"the function returned {fault}") from None
        except Exception as error:
            what = f"the function raised {type(error).__name__}: {error}"
            if isinstance(error, PalaestraError):
                what = error.what.rstrip(".")
            raise self._failed(reply, what, error) from error
        try:
            if isinstance(value, Mapping):  # verl's functions may return a dict with a score
                if "score" not in value:
                    raise ValueError(f"{value!r}, which has no `score`")
                further = {name: n for name, n in value.items() if isinstance(n, int | float) and name != "score"}
                logged |= {name: float(n) for name, n in further.items()}
                value = value["score"]
            return number_of(value), logged
        except ValueError as fault:
            raise self._failed(reply, f"the function returned {fault}") from None

    async def of_group(
        self, replies: Sequence[Reply], trainer_state: Any = None
    ) -> tuple[list[float | None], dict[str, float]]:
        """The rewards of all replies to one prompt, by one call of a function with TRL's signature; None where it does
        not apply.

        Args:
            trainer_state: what the function gets under this name, if it takes it.

        Raises: InvalidData, if the function fails, or does not return a number for each reply; it names the row.
        """
        logged: dict[str, float] = {}
        given = self._lists(replies, lambda name, value: logged.__setitem__(str(name), float(value)), trainer_state)
        place = f"reward {self.name}, {replies[0].place}"
        try:
            values = self.function(**given, **self.options)
            values = await values if inspect.isawaitable(values) else values
            values = _list_of(values, len(replies))
        except _NoList as fault:
            what = f"the function returned {fault}{line_of(self.function)}."
            raise InvalidData(where=place, what=what, remedy="Return a number or None for each completion.") from None
        except Exception as error:
            what = f"the function raised {type(error).__name__}: {error}{line_of(self.function, error)}."
            raise InvalidData(where=place, what=what, remedy="Correct the function, or the row.") from error
        try:
            return [number_of(value) for value in values], logged
        except ValueError as fault:
            what = f"the function returned {fault}{line_of(self.function)}."
            raise InvalidData(where=place, what=what, remedy="Return a number or None for each completion.") from None

    def _lists(
        self, replies: Sequence[Reply], log: Callable[[str, float], None], trainer_state: Any = None
    ) -> dict[str, Any]:
        """The arguments of a function with TRL's signature: lists with an entry for each reply."""
        names = dict.fromkeys(name for reply in replies for name in reply.columns)
        lists = {name: [reply.columns.get(name) for reply in replies] for name in names}
        ids = [list(reply.tokens) for reply in replies]
        lists |= {"completions": [reply.completion for reply in replies], "prompts": [one.prompt for one in replies]}
        lists |= {"completion_ids": ids, "completions_ids": ids}
        given = {name: v for name, v in lists.items() if name in self.takes}
        given |= {name: v for name, v in lists.items() if self.takes_all and name not in self.options}
        extra = {"log_metric": log, "log_extra": lambda name, values: None, "trainer_state": trainer_state}
        wanted = {name for name in extra if self.takes_all or name in self.takes}
        return given | {name: extra[name] for name in wanted if extra[name] is not None}

    def _arguments(self, reply: Reply, log: Callable[[str, float], None]) -> dict[str, Any]:
        if self.convention == "trl":
            return self._lists([reply], log)
        one = {
            "completion": reply.text,
            "solution_str": reply.text,
            "prompt": reply.prompt,
            "messages": list(reply.messages),
            "completion_ids": list(reply.tokens),
            "columns": dict(reply.columns),
            "place": reply.place,
        }
        one = {"tool_calls": reply.tool_calls, **reply.columns, **one}
        known = one if self.convention == "reply" else {**one, **reply.columns}
        if self.convention == "verl":
            model = reply.columns.get("reward_model")
            truth = model.get("ground_truth") if isinstance(model, Mapping) else None
            known.setdefault("ground_truth", reply.columns.get("answer") if truth is None else truth)
            known.setdefault("data_source", "")
            known.setdefault("extra_info", {})
        given = {name: known[name] for name in self.takes if name in known}
        others = {name: v for name, v in reply.columns.items() if name not in given and name not in self.options}
        return given | (others if self.takes_all else {})

    def _failed(self, reply: Reply, what: str, error: Exception | None = None) -> EpisodeFailure:
        return EpisodeFailure(
            boundary="environment",
            where=f"reward {self.name}, {reply.place}",
            what=f"{what}{line_of(self.function, error)}.",
            remedy="Correct the function, or the row. A failed episode is kept out of the update and counted.",
        )


class _NoList(ValueError):
    """What a function with TRL's signature returned is no list of numbers, one for each completion."""


def _list_of(values: Any, count: int) -> list[Any]:
    """What a function with TRL's signature returned, also as an array, a tensor or a generator. Raises: _NoList."""
    if isinstance(values, Iterable) and not isinstance(values, str | Mapping):
        try:
            values = list(values)
        except TypeError:  # an array or a tensor of one number has no items
            pass
    if not isinstance(values, list) or len(values) != count:
        completions, numbers = ("completion", "number") if count == 1 else ("completions", "numbers")
        raise _NoList(f"{values!r} for {count} {completions}, not a list of {count} {numbers}")
    return values


def number_of(value: Any) -> float | None:
    """A returned reward as a number; None, if the function does not apply. Raises: ValueError, for anything else."""
    try:
        if isinstance(value, str):
            raise TypeError
        number = None if value is None else float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r}, which is no number") from None
    if number is not None and not math.isfinite(number):
        raise ValueError(f"{number}")
    return number


def line_of(function: Callable[..., Any], error: Exception | None = None) -> str:
    """Where a user's function stands: ` (rewards.py, line 3)`; empty for functions of the library.

    Args:
        error: what the function raised; the line is then the last one of the function's file that was reached.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or Path(code.co_filename).is_relative_to(LIBRARY):
        return ""
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    reached = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return f" ({Path(code.co_filename).name}, line {reached[-1] if reached else code.co_firstlineno})"


def rewards_of(
    written: Written | Sequence[Written],
    weights: Sequence[float] | None,
    columns: Mapping[str, Any],
    *,
    where: str,
    further: tuple[str, ...] = (),
) -> tuple[Reward, ...]:
    """The reward functions that a recipe names.

    Args:
        written: a name of the slot `verifier`, `file.py:function` or `module:function`; a mapping of one to its
            options; or a list of those.
        weights: one for each function; None: 1 each.
        columns: of a row, to see whether the functions get what they take.
        where: for messages.
        further: what the functions get beside a reply and its columns, such as `trainer_state`.

    Raises: RecipeError; UnknownName.
    """
    entries = [written] if isinstance(written, str | Mapping) else list(written)
    if not entries:
        raise RecipeError(where=where, what="`reward` is empty.", remedy="Name at least one function.")
    if weights is not None and len(weights) != len(entries):
        raise RecipeError(
            where=where,
            what=f"`weights` has {len(weights)} numbers, and `reward` has {len(entries)} functions.",
            remedy="Give one weight for each function.",
        )
    if not all(map(math.isfinite, weights or ())):
        raise RecipeError(where=where, what=f"`weights` has {list(weights or ())}.", remedy="Give finite numbers.")
    twice = next((entry for entry in entries if entries.count(entry) > 1), None)
    if twice is not None:
        raise RecipeError(
            where=where,
            what=f"two reward functions are equal: `{twice}`.",
            remedy="Name it once, with a larger weight.",
        )
    found: list[Reward] = []
    for entry, weight in zip(entries, weights or [1.0] * len(entries), strict=True):
        made = _reward(entry, weight, columns, where)
        refuse_missing([made], columns, where=where, further=further)
        names, number = {one.name for one in found}, 2
        while f"{made.name}_{number}" in names:
            number += 1
        found.append(replace(made, name=f"{made.name}_{number}") if made.name in names else made)
    return tuple(found)


def _reward(entry: Written, weight: float, columns: Mapping[str, Any], where: str) -> Reward:
    if isinstance(entry, str):
        name, options = entry, None
    elif len(entry) == 1:
        ((name, options),) = entry.items()
    else:
        raise RecipeError(
            where=where,
            what=f"a reward function is one name with its options, found `{dict(entry)}`.",
            remedy="Write `reward: name`, `reward: {name: {option: value}}`, or a list of those.",
        )
    place = f"{where}, reward: {name}"
    found = part(SLOT, name, where=f"{where}, reward")
    by_name = () if inspect.isclass(found.target) else _columns_by_name(found, columns, options or {})
    model = _without(found.options, by_name) if by_name else found.options
    checked = check_options(model, options or {}, where=place, owner=f"`{found.name}`")
    short = name.rpartition(":")[2]
    made = inspect.isclass(found.target)  # a verifier that is a class checks its options when it is made
    function = _made(found.target, checked, where=place) if made else found.target
    parameters = _parameters(function, where=place)
    data = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD or p.name in by_name]
    takes = tuple(p.name for p in data)
    needs = tuple(p.name for p in data if p.default is inspect.Parameter.empty)
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    trl = "completions" in takes or (takes_all and not data)  # TRL calls a function with `**kwargs` alone, too
    return Reward(
        name=f"{short}_reward" if short in RESERVED else short,
        function=function,
        options={} if made else checked,
        weight=weight,
        convention="trl" if trl else "verl" if "solution_str" in takes else "reply",
        takes=takes,
        needs=needs,
        takes_all=takes_all,
        skips=":" not in name and "answer" in needs,
    )


def _columns_by_name(found: Part, columns: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Keyword-only parameters of a user's function with TRL's or verl's signature that are columns of the data."""
    parameters = inspect.signature(found.target).parameters if ":" in found.name else {}
    if not parameters.keys() & {"completions", "solution_str"}:
        return ()
    set_before = found.target.keywords.keys() if isinstance(found.target, functools.partial) else ()
    known = {*columns, "prompts", "completions", "completion_ids", *TRAINER} - options.keys() - {*set_before}
    return tuple(p.name for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name in known)


def _without(model: type[pydantic.BaseModel], names: Sequence[str]) -> type[pydantic.BaseModel]:
    """The options of a model without these names."""
    kept: Any = {name: (field.annotation, field) for name, field in model.model_fields.items() if name not in names}
    return pydantic.create_model(model.__name__, __config__=model.model_config, **kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Responder:
    """A user's function that answers the agent in a conversation.

    Attributes:
        takes: the columns that it takes by name; None: all.
    """

    function: Callable[..., Any]
    takes: tuple[str, ...] | None

    async def __call__(self, messages: list[Any], columns: Mapping[str, Any]) -> Any:
        """What it returns for the messages so far and the columns of the row."""
        given = {name: v for name, v in columns.items() if name != "messages"}
        if self.takes is not None:
            given = {name: given[name] for name in self.takes if name in given}
        answer = self.function(messages, **given)
        return await answer if inspect.isawaitable(answer) else answer


def responder_of(name: str, columns: Mapping[str, Any], *, where: str) -> Responder:
    """The function `respond` of a recipe. A class is made without options.

    Args:
        columns: of a row, to see whether the function gets what it takes. where: for messages.

    Raises: RecipeError; UnknownName.
    """
    found = part(SLOT, name, where=where)
    function = _made(found.target, {}, where=where) if inspect.isclass(found.target) else found.target
    parameters = _parameters(function, where=where)
    first, others = next(iter(parameters), None), parameters[1:]
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD, first.VAR_POSITIONAL):
        raise RecipeError(
            where=where,
            what=f"`{name}` does not take the messages as its first parameter.",
            remedy="Write `def reply(messages, **columns)`.",
        )
    named = [p for p in others if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = next((p.name for p in named if p.default is p.empty and p.name not in columns), None)
    if missing is not None:
        raise RecipeError(
            where=where,
            what=f"the function takes `{missing}`, and the data have no such column. They have: {', '.join(columns)}.",
            options=nearest(missing, columns),
            remedy="Rename the parameter, or give it a default.",
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in others)
    return Responder(function=function, takes=None if takes_all else tuple(p.name for p in named))


def _made(target: Callable[..., Any], options: Mapping[str, Any], *, where: str) -> Any:
    """An object of a class that judges. Raises: RecipeError, if it cannot be made."""
    try:
        return target(**options)
    except PalaestraError:
        raise
    except Exception as error:
        raise RecipeError(
            where=where,
            what=f"the class cannot be made: {type(error).__name__}: {error}.",
            remedy="Options are its keyword-only parameters: `def __init__(self, *, scale=1.0)`.",
        ) from error


def _parameters(function: Any, *, where: str) -> list[inspect.Parameter]:
    """The parameters of a function. Raises: RecipeError, if it cannot be called, or does not show them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RecipeError(
            where=where,
            what=f"it cannot be used: {error}.",
            remedy="Write a function, or a class with `def __call__(self, completion, answer)`.",
        ) from None


def refuse_missing(
    rewards: Sequence[Reward], columns: Mapping[str, Any], *, where: str, further: tuple[str, ...] = ()
) -> None:
    """Refuse a function that takes a column which the data do not have. Raises: RecipeError."""
    probe = Reply(text="", messages=(), prompt="", tokens=(), columns=columns, place="")
    for reward in rewards:
        given = {*reward._arguments(probe, lambda name, value: None), *further}
        missing = next((name for name in reward.needs if name not in given), None)
        if missing == "trainer_state":
            raise RecipeError(
                where=f"{where}, reward: {reward.name}{line_of(reward.function)}",
                what="the function takes `trainer_state`, which an environment does not have.",
                remedy="Name it in the section `reward` of the recipe: `reward: [environment, {group_function: "
                "{function: …}}]`. Or give the parameter a default.",
            )
        if missing is not None:
            raise RecipeError(
                where=f"{where}, reward: {reward.name}{line_of(reward.function)}",
                what=f"the function takes `{missing}`, and the data have no such column. "
                f"They have: {', '.join(columns)}.",
                options=nearest(missing, columns),
                remedy="Rename the parameter, or give it a default. `answer` is the right answer, whatever its column. "
                "The reply is `completion`; `completions`, a list, as in TRL; or `solution_str`, as in verl.",
            )


# ---- success ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Success:
    """Whether a reply counts as solved: by the reward of one function, without its weight.

    Attributes:
        name: of the function. over: whether the reward must be larger than the threshold; False: or equal.
    """

    name: str
    over: bool
    threshold: float

    def of(self, values: Mapping[str, float | None]) -> bool | None:
        """Whether the reply is a success; None, if the function does not apply to the row."""
        value = values[self.name]
        if value is None:
            return None
        return value > self.threshold if self.over else value >= self.threshold


def success_of(written: str | float, rewards: Sequence[Reward], *, where: str) -> Success:
    """The rule of a text such as `correct > 0.5`, or of a number, the least reward of the first function.

    Raises: RecipeError, for any other text, or a function that is not named in `reward`.
    """
    read = THRESHOLD.fullmatch(str(written).strip())
    names = [reward.name for reward in rewards]
    if read is None or (read[1] is not None and read[1] not in names):
        raise RecipeError(
            where=where,
            what=f"`success: {written}` cannot be read.",
            remedy=f"Write a number, or a function and a number: `success: {names[0]} > 0.5`. "
            f"Functions: {', '.join(names)}.",
        )
    return Success(read[1] or names[0], read[2] == ">", float(read[3]))
