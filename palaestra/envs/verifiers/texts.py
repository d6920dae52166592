"""Verifiers of the form of a reply: a pattern, a JSON schema, tags, and a length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
import regex

from palaestra.envs.verifiers.answers import right_answers
from palaestra.errors import RecipeError
from palaestra.registry import PositiveInt, register
from palaestra.tools.schema import UnusableSchema, check, first_fault

Name = Annotated[str, pydantic.Field(pattern=r"^[^<>/\s]+$")]
Names = Annotated[tuple[Name, ...], pydantic.Field(min_length=1)]  # of tags
SECONDS = 1.0  # longest search for a pattern in one reply
FENCE = regex.compile(r"```(?:json)?\s*\n(.*?)```", regex.DOTALL)


@register("verifier", "regex")
class Regex:
    """1 if a pattern is found in the reply, else 0. A search that takes longer than a second counts as not found.

    Args:
        pattern: of the package `regex`. `(?P<answer>…)` reads a part of the reply, which must then be the row's answer.
        whole: True: the whole reply must match, apart from spaces around it.
        ignore_case: whether case makes no difference, also in the answer.

    Raises: RecipeError, for a pattern that is not one.

    >>> Regex(pattern=r"yes|no", whole=True)("yes"), Regex(pattern=r"= (?P<answer>\\d+)")("2 + 2 = 4", "4")
    (1.0, 1.0)
    """

    def __init__(self, *, pattern: str, whole: bool = False, ignore_case: bool = False) -> None:
        flags = regex.DOTALL | (regex.IGNORECASE if ignore_case else 0)
        try:
            self._pattern = regex.compile(pattern, flags)
        except regex.error as error:
            raise RecipeError(
                where="verifier regex, pattern", what=f"`{pattern}` is no pattern: {error}.", remedy="Correct it."
            ) from None
        self._whole, self._ignore_case = whole, ignore_case

    def __call__(self, completion: str, answer: Any = None) -> float | None:
        reads = "answer" in self._pattern.groupindex
        if reads and answer is None:
            return None
        search = self._pattern.fullmatch if self._whole else self._pattern.search
        try:
            found = search(completion.strip(), timeout=SECONDS)
        except TimeoutError:
            return 0.0
        if found is None or not reads:
            return float(found is not None)
        said, wanted = (found["answer"] or "").strip(), [one.strip() for one in right_answers(answer)]
        if self._ignore_case:
            said, wanted = said.casefold(), [one.casefold() for one in wanted]
        return float(said in wanted)


@register("verifier", "json_schema")
class JsonSchema:
    """1 if the reply is JSON that fits a schema, else 0.

    Args:
        fits: a JSON schema. null: that of the row, in `column`.
        column: column of the row's own schema, as an object or as JSON text.
        fenced: whether JSON may stand in a Markdown block with three backticks, with text around it.

    Raises: RecipeError, for a schema that is not one.

    >>> JsonSchema(fits={"type": "object", "required": ["city"]})('{"city": "Rome"}', {})
    1.0
    """

    def __init__(self, *, fits: dict[str, Any] | None = None, column: str = "schema", fenced: bool = True) -> None:
        if fits is not None:
            try:
                check(fits)
            except UnusableSchema as error:
                raise RecipeError(
                    where="verifier json_schema, fits", what=f"it cannot be used: {error}.", remedy="Correct it."
                ) from None
        self._schema, self._column, self._fenced = fits, column, fenced

    def __call__(self, completion: str, columns: Mapping[str, Any]) -> float | None:
        schema: Mapping[str, Any] | None = self._schema
        if schema is None:
            given = columns.get(self._column)
            if given is None and self._column in columns:
                return None
            schema = self._of_row(given)
        fence = FENCE.search(completion) if self._fenced else None
        try:
            value = json.loads(fence[1] if fence else completion)
        except (ValueError, RecursionError):
            return 0.0
        whole = {"type": "object", "properties": {"reply": schema}}  # a reply need not be an object
        return float(first_fault(whole, {"reply": value}) is None)

    def _of_row(self, given: Any) -> Mapping[str, Any]:
        """The schema of a row. Raises: ValueError, for one that cannot be used."""
        if given is None:
            raise ValueError(f"the row has no column `{self._column}`, and the option `fits` is not set")
        try:
            schema = json.loads(given) if isinstance(given, str) else given
        except ValueError as error:
            raise ValueError(f"the column `{self._column}` is not JSON: {error}") from None
        if not isinstance(schema, Mapping):
            raise ValueError(f"the column `{self._column}` holds {schema!r}, which is no JSON schema")
        check(schema)
        return schema


@register("verifier", "tags")
def tags(completion: str, *, names: Names = ("think", "answer"), only: bool = True) -> float:
    """1 if the reply consists of these tags in their order, each once and not empty, else 0.

    Args:
        completion: the reply.
        names: of the tags: `<think>…</think><answer>…</answer>`.
        only: whether nothing but spaces may stand outside of the tags.

    >>> tags("<think>2 and 2</think> <answer>4</answer>"), tags("<answer>4</answer>"), tags("4")
    (1.0, 0.0, 0.0)
    """
    position = 0
    for name in names:
        start, end = f"<{name}>", f"</{name}>"
        if completion.count(start) != 1 or completion.count(end) != 1:
            return 0.0
        begin, stop = completion.index(start), completion.index(end)
        outside, inside = completion[position:begin], completion[begin + len(start) : stop]
        if begin < position or stop < begin or not inside.strip() or (only and outside.strip()):
            return 0.0
        position = stop + len(end)
    return float(not only or not completion[position:].strip())


@register("verifier", "length")
def length(
    completion: str,
    completion_ids: list[int],
    *,
    most: PositiveInt,
    over: PositiveInt = 1,
    unit: Literal["tokens", "words", "letters"] = "tokens",
) -> float:
    """0 for a reply of at most `most` units, then falling to −1 at `most` + `over` units.

    Args:
        completion: the reply. completion_ids: its tokens.
        most: number of units without a penalty.
        over: number of units beyond `most` at which the penalty is whole. Higher: it grows more slowly.
        unit: what is counted. "tokens": those that the policy generated, the end of the turn included.

    >>> length("one two three", [], most=2, over=2, unit="words")
    -0.5
    """
    size = {"tokens": len(completion_ids), "words": len(completion.split()), "letters": len(completion)}[unit]
    return -min(max(size - most, 0) / over, 1.0)
