"""What an environment class for TRL is made from: the rows of the data, the classes, and the reward functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palaestra.envs.kit.images import is_content, with_images
from palaestra.errors import ContractError, InvalidData, RecipeError
from palaestra.registry import part
from palaestra.tools import Tool, tool
from palaestra.tools.calls import DECODER, Unreadable

COLUMN = "environment"  # of a row: which of several environments it uses
OWN = ("reset", "get_reward")  # methods that TRL calls itself
Row = dict[str, Any]


# ---- classes --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Kind:
    """One environment of the mapping `environment_factory`, with an object of it, which every episode resets.

    Attributes:
        names: of the methods that are tools. scores: whether the object has `get_reward`.
    """

    made: Any
    names: tuple[str, ...]
    scores: bool

    def tools(self, made: Any, keep: Callable[[str, list[Any]], str]) -> list[Tool]:
        """The methods of an object of this kind, as tools.

        Args:
            keep: gets the name of the tool and each list of content parts that a method returns, and returns its text.
        """
        return [_answering(tool(getattr(made, name)), keep) for name in self.names]


def kinds_of(env: str | Mapping[str, str], *, judged: bool, where: str) -> dict[str | None, Kind]:
    """The environments by name; a single one has the name None.

    Args:
        env: the class or the function that makes an object, or one for each name.
        judged: there is a reward function.

    Raises: UnknownName; RecipeError, if no object can be made; ContractError, for one that breaks TRL's contract.
    """
    if isinstance(env, str):
        return {None: _kind(env, judged, where)}
    if not env:
        remedy = "Write `env: {name: file.py:Class}`, with a name for each value of the column `environment`."
        raise RecipeError(where=where, what="`env` names no environment.", remedy=remedy)
    return {name: _kind(one, judged, f"{where}, {name}") for name, one in env.items()}


def _kind(env: str, judged: bool, where: str) -> Kind:
    factory = part("environment", env, where=where).target
    try:
        made = factory()
    except TypeError as error:
        remedy = "If the class needs arguments, name a function without arguments that makes the object."
        raise RecipeError(where=where, what=f"no object of it can be made: {error}.", remedy=remedy) from error
    methods = [name for name, _ in inspect.getmembers(type(made), inspect.isfunction)]
    if "reset" not in methods:
        raise ContractError(where=where, what="it has no method `reset`.", remedy="Write `def reset(self, **kwargs)`.")
    names = tuple(name for name in methods if name not in OWN and not name.startswith("_"))
    if not names and not judged:
        remedy = (
            "Give it at least one public method besides `reset` and `get_reward`, with type hints and a docstring. "
            "Or name a function in `reward`, which judges the reply."
        )
        raise ContractError(where=where, what="it has no public method to use as a tool.", remedy=remedy)
    for name in names:
        tool(getattr(made, name))  # raises for a method without type hints or docstring
    return Kind(made, names, "get_reward" in methods)


def _answering(made: Tool, keep: Callable[[str, list[Any]], str]) -> Tool:
    """The tool, whose lists of content parts become texts."""

    def shown(value: Any) -> Any:
        return keep(made.name, value) if is_content(value) else value

    if inspect.iscoroutinefunction(made.call):

        @functools.wraps(made.call)
        async def call(**arguments: Any) -> Any:
            return shown(await made.call(**arguments))

    else:

        @functools.wraps(made.call)
        def call(**arguments: Any) -> Any:
            return shown(made.call(**arguments))

    return replace(made, call=call, timeout_s=None)  # TRL gives no method a time limit


# ---- rows -----------------------------------------------------------------------------------------------------
def rows_of(data: str | list[Row] | None, kinds: Iterable[str | None], where: str) -> list[Row]:
    """The rows: of a list, a file of JSON or JSON lines, or a function without arguments.

    Raises: InvalidData, without rows, or for a row that names no environment of several; UnknownName.
    """
    names = [name for name in kinds if name is not None]
    if isinstance(data, str) and data.endswith((".jsonl", ".json")):
        rows = _read(Path(data), where)
    elif isinstance(data, str):
        rows = list(part("environment", data, where=where).target())
    elif data is None and names:
        remedy = f"Give rows in `data`. The column `{COLUMN}` of a row says which environment it uses."
        raise InvalidData(where=where, what="`env` names several environments, and there is no data.", remedy=remedy)
    else:
        rows = [{}] if data is None else list(data)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        remedy = "Give a list of at least one row. Each row is a mapping from column names to values."
        raise InvalidData(where=where, what="the data is no list of rows.", remedy=remedy)
    for number, row in enumerate(rows, start=1) if names else ():
        if row.get(COLUMN) not in names:
            raise InvalidData(
                where=f"{where}, row {number}",
                what=f"its column `{COLUMN}` is {row.get(COLUMN)!r}.",
                options=names,
                remedy="Name one of the environments of `env`.",
            )
    return [dict(row) for row in rows]


def _read(path: Path, where: str) -> list[Any]:
    if not path.is_file():
        remedy = "A relative path begins at the folder of the recipe, or at the working folder."
        raise InvalidData(where=where, what=f"there is no file {path}.", remedy=remedy)
    written = path.read_bytes()
    if path.suffix == ".json":
        rows = _parsed(written, f"{where}, {path}", "Write a list of rows.")
        return rows if isinstance(rows, list) else []
    lines = enumerate(written.split(b"\n"), start=1)  # a text may hold other marks of a line's end
    return [
        _parsed(line, f"{where}, {path}, line {n}", "Write one row on each line.") for n, line in lines if line.strip()
    ]


def _parsed(written: bytes, where: str, remedy: str) -> Any:
    try:
        return DECODER.decode(written.decode("utf-8-sig"))
    except Unreadable as error:
        raise InvalidData(where=where, what=f"{error}.", remedy="Correct it.") from None
    except RecursionError:
        raise InvalidData(where=where, what="it is nested too deeply.", remedy=remedy) from None
    except ValueError as error:  # also bytes that are no UTF-8
        raise InvalidData(where=where, what=f"it is not JSON: {error}.", remedy=remedy) from None


def prompt_of(row: Row, shown: Any, where: str) -> tuple[dict[str, Any], ...]:
    """The messages of an episode's prompt: those of the row, with what `reset` returned at the end of the last one.

    Args:
        shown: None, a text, or a list of content parts.

    Raises: ContractError, for another result of `reset`; InvalidData, for images that cannot be read.
    """
    prompt = row.get("prompt")
    messages = [{"role": "user", "content": prompt or ""}] if prompt is None or isinstance(prompt, str) else prompt
    *head, last = messages
    content = last.get("content") or ""
    if isinstance(shown, str) and isinstance(content, str):
        content += shown
    elif isinstance(shown, str) or is_content(shown):
        content = [*_parts(content), *_parts(shown)]
    elif shown is not None:
        remedy = "Return None, a text, or a list of content parts of the types `text` and `image`."
        raise ContractError(where=where, what=f"`reset` returned {str(shown)[:80]!r}.", remedy=remedy)
    images = row.get("images") or ([row["image"]] if row.get("image") is not None else [])
    return with_images([*head, {**last, "content": content}], images, where=where)


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


# ---- rewards --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Rewards:
    """TRL's reward functions with their weights. The reward of an object's `get_reward` is added with weight 1."""

    functions: tuple[Callable[..., Any], ...]
    weights: tuple[float, ...]
    where: str

    async def of(
        self, made: Any, *, scores: bool, lent: Callable[[], Any], columns: Mapping[str, Any], **told: Any
    ) -> dict[str, float]:
        """The weighted rewards of an episode by name. A function that returns None, does not apply and is left out.

        Args:
            made: the object. scores: whether its `get_reward` counts. columns: of the row.
            lent: a context in which the global random generators are those of the episode.
            told: further arguments of the functions, each about this one episode: prompts, completions, completion_ids.

        Raises: ContractError, if there is no reward function, no `get_reward` and no attribute `reward`.
        """
        found: dict[str, float] = {}
        lists: dict[str, Any] = {name: [value] for name, value in {**columns, **told}.items()}
        lists |= {"environments": [made], "trainer_state": None, "log_extra": _ignore, "log_metric": _ignore}
        for function, weight in zip(self.functions, self.weights, strict=True):
            _add(found, function.__name__, (await _called(lent, function, **lists))[0], weight)
        if scores:
            _add(found, type(made).__name__, await _called(lent, made.get_reward), 1.0)
        elif not self.functions:
            if not hasattr(made, "reward"):
                remedy = "Give the class a method `get_reward`, or name a function in `reward`."
                raise ContractError(where=self.where, what="nothing gives a reward.", remedy=remedy)
            _add(found, "reward", made.reward, 1.0)
        return found


def rewards_of(reward: str | Sequence[str] | None, weights: Sequence[float] | None, where: str) -> Rewards:
    """The reward functions. Raises: UnknownName; RecipeError, if the weights are not as many as the functions."""
    names = () if reward is None else (reward,) if isinstance(reward, str) else tuple(reward)
    given = tuple(weights) if weights is not None else (1.0,) * len(names)
    if len(given) != len(names):
        remedy = "Give one weight for each function of `reward`. `get_reward` has the weight 1."
        what = f"`weights` has {len(given)} numbers for {len(names)} functions."
        raise RecipeError(where=where, what=what, remedy=remedy)
    return Rewards(tuple(part("environment", name, where=where).target for name in names), given, where)


async def _called(lent: Callable[[], Any], function: Callable[..., Any], **arguments: Any) -> Any:
    with lent():
        value = function(**arguments)
    return await value if inspect.isawaitable(value) else value


def _add(found: dict[str, float], name: str, value: Any, weight: float) -> None:
    if value is not None:
        found[name] = found.get(name, 0.0) + weight * float(value)


def _ignore(*_: Any, **__: Any) -> None:
    """In place of TRL's functions that log what a reward function tells."""
