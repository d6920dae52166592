"""Call reward functions: verifiers, a user's functions for one reply, and functions written for TRL or verl.

The parameters of a function say how it is called:

    def correct(completion, answer)                     one reply and columns of its row; returns a number
    def correct(completions, answer, **columns)         TRL: lists with an entry for each reply; returns a list. The
                                                        part `group_function` calls it with a whole group
    def compute_score(data_source, solution_str, ground_truth, extra_info)      verl: returns a number

Each may be `async`. None means that the function does not apply to the row.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palaestra.errors import EpisodeFailure, InvalidData, MissingExtra, RecipeError, nearest
from palaestra.registry import part

SLOT = "verifier"
LIBRARY = Path(__file__).parents[2]
RESERVED = ("success", "score", "stop", "invalid", "return")  # names that mean something else in an environment's info
THRESHOLD = re.compile(r"(?:(\w+)\s*(>=|>)\s*)?(-?\d+(?:\.\d+)?)")
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
    messages: Sequence[Mapping[str, str]]
    prompt: str | Sequence[Mapping[str, str]]
    tokens: Sequence[int]
    columns: Mapping[str, Any]
    place: str

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

    async def __call__(self, reply: Reply) -> tuple[float | None, dict[str, float]]:
        """The reward, or None if the function does not apply; and further numbers that the function logged.

        Raises: EpisodeFailure, if the function fails or returns no number; it names the row.
        """
        logged: dict[str, float] = {}
        given = self._arguments(reply, lambda name, value: logged.__setitem__(str(name), float(value)))
        try:
            value = self.function(**given, **self.options)
            value = await value if inspect.isawaitable(value) else value
        except (EpisodeFailure, MissingExtra):
            raise
        except Exception as error:
            raise self._failed(reply, f"the function raised {type(error).__name__}: {error}", error) from error
        if self.convention == "trl":
            if not isinstance(value, Sequence) or len(value) != 1:
                raise self._failed(reply, f"the function returned {value!r} for 1 completion, not a list of 1 number")
            value = value[0]
        if isinstance(value, Mapping):  # verl's functions may return a dict with a score
            logged |= {name: float(n) for name, n in value.items() if isinstance(n, int | float) and name != "score"}
            value = value.get("score")
        try:
            return number_of(value), logged
        except ValueError as fault:
            raise self._failed(reply, f"the function returned {fault}") from None

    async def of_group(self, replies: Sequence[Reply]) -> tuple[list[float | None], dict[str, float]]:
        """The rewards of all replies to one prompt, by one call of a function with TRL's signature; None where it does
        not apply.

        Raises: InvalidData, if the function fails, or does not return a number for each reply; it names the row.
        """
        logged: dict[str, float] = {}
        given = self._lists(replies, lambda name, value: logged.__setitem__(str(name), float(value)))
        place = f"reward {self.name}, {replies[0].place}"
        try:
            values = self.function(**given, **self.options)
            values = await values if inspect.isawaitable(values) else values
        except Exception as error:
            what = f"the function raised {type(error).__name__}: {error}{line_of(self.function, error)}."
            raise InvalidData(where=place, what=what, remedy="Correct the function, or the row.") from error
        try:
            if not isinstance(values, Iterable) or len(values := list(values)) != len(replies):
                raise ValueError(f"{values!r} for {len(replies)} completions, not a list of {len(replies)} numbers")
            return [number_of(value) for value in values], logged
        except ValueError as fault:
            what = f"the function returned {fault}{line_of(self.function)}."
            raise InvalidData(where=place, what=what, remedy="Return a number or None for each completion.") from None

    def _lists(self, replies: Sequence[Reply], log: Callable[[str, float], None]) -> dict[str, Any]:
        """The arguments of a function with TRL's signature: lists with an entry for each reply."""
        names = dict.fromkeys(name for reply in replies for name in reply.columns)
        lists = {name: [reply.columns.get(name) for reply in replies] for name in names}
        ids = [list(reply.tokens) for reply in replies]
        lists |= {"completions": [reply.completion for reply in replies], "prompts": [one.prompt for one in replies]}
        lists |= {"completion_ids": ids, "completions_ids": ids}
        given = {name: value for name, value in lists.items() if self.takes_all or name in self.takes}
        extra = {"log_metric": log, "log_extra": lambda name, values: None}
        return given | {name: value for name, value in extra.items() if name in self.takes}

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
        known = {**reply.columns, **one} if self.convention == "reply" else {**one, **reply.columns}
        if self.convention == "verl":
            known.setdefault("ground_truth", reply.columns.get("answer"))
            known.setdefault("data_source", "")
            known.setdefault("extra_info", {})
        given = {name: known[name] for name in self.takes if name in known}
        return given | ({name: v for name, v in reply.columns.items() if name not in given} if self.takes_all else {})

    def _failed(self, reply: Reply, what: str, error: Exception | None = None) -> EpisodeFailure:
        return EpisodeFailure(
            boundary="environment",
            where=f"reward {self.name}, {reply.place}",
            what=f"{what}{line_of(self.function, error)}.",
            remedy="Correct the function, or the row. A failed episode is kept out of the update and counted.",
        )


def number_of(value: Any) -> float | None:
    """A returned reward as a number; None, if the function does not apply. Raises: ValueError, for anything else."""
    try:
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
) -> tuple[Reward, ...]:
    """The reward functions that a recipe names.

    Args:
        written: a name of the slot `verifier`, `file.py:function` or `module:function`; a mapping of one to its
            options; or a list of those.
        weights: one for each function; None: 1 each.
        columns: of a row, to see whether the functions get what they take.
        where: for messages.

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
    found = [
        _reward(entry, weight, columns, where)
        for entry, weight in zip(entries, weights or [1.0] * len(entries), strict=True)
    ]
    names = [reward.name for reward in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RecipeError(
            where=where,
            what=f"two reward functions are called `{twice}`.",
            remedy="Their means are metrics by name. Rename one, or name it once with a larger weight.",
        )
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
    found = part(SLOT, name, where=f"{where}, reward")
    checked = found.check(options or {}, where=f"{where}, reward: {name}")
    short = name.rpartition(":")[2]
    made = inspect.isclass(found.target)  # a verifier that is a class checks its options when it is made
    function = found.target(**checked) if made else found.target
    parameters = inspect.signature(function).parameters.values()
    data = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    takes = tuple(p.name for p in data)
    reward = Reward(
        name=f"{short}_reward" if short in RESERVED else short,
        function=function,
        options={} if made else checked,
        weight=weight,
        convention="trl" if "completions" in takes else "verl" if "solution_str" in takes else "reply",
        takes=takes,
        needs=tuple(p.name for p in data if p.default is inspect.Parameter.empty),
        takes_all=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
    )
    _refuse_missing(reward, columns, where=f"{where}, reward: {name}")
    return reward


def _refuse_missing(reward: Reward, columns: Mapping[str, Any], *, where: str) -> None:
    """Refuse a function that takes a column which the data do not have. Raises: RecipeError."""
    probe = Reply(text="", messages=(), prompt="", tokens=(), columns=columns, place="")
    given = reward._arguments(probe, lambda name, value: None)
    missing = next((name for name in reward.needs if name not in given), None)
    if missing is not None:
        raise RecipeError(
            where=where,
            what=f"the function takes `{missing}`, and the data have no such column. They have: {', '.join(columns)}.",
            options=nearest(missing, columns),
            remedy="Rename the parameter, or give it a default. `answer` is the right answer, whatever its column.",
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
