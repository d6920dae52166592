"""Read what `save` of a policy with layers wrote into a folder: its architecture, as JSON, and its weights.

The folder may come from anyone. So the architecture is checked like the options of a recipe, and no layer is made
before the file of weights is large enough for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pydantic

from palaestra.errors import CheckpointError, RecipeError, shortened
from palaestra.models.pretrained import ANOTHER, description
from palaestra.registry import PositiveInt

Widths = Annotated[tuple[PositiveInt, ...], pydantic.Field(min_length=1, max_length=1000)]  # of layers


def stored_architecture(file: Path, policy: Any, *, sizes: Collection[str], options: Collection[str]) -> dict[str, Any]:
    """The values of an architecture that a policy of this class wrote.

    Args:
        file: the JSON file.
        policy: the registered class.
        sizes: the keys with a whole number.
        options: the keys with an option of the class.

    Raises: CheckpointError, for a file that cannot be read or is too large, for a key that lacks or has no meaning, and
        for a value that the class does not take.
    """

    def refused(what: str) -> CheckpointError:
        return CheckpointError(where=str(file.parent), what=f"its {file.name} cannot be read: {what}", remedy=ANOTHER)

    stored = description(file)
    keys = {"kind", *sizes, *options}
    for key in sorted(stored.keys() ^ keys):
        raise refused(f"it lacks `{key}`." if key in keys else f"its key `{shortened(key)}` has no meaning.")
    if stored["kind"] != policy.part.name:
        raise refused(f"its `kind` is {shortened(repr(stored['kind']))} instead of '{policy.part.name}'.")
    for key in sizes:
        if type(stored[key]) is not int or stored[key] < 1:
            raise refused(f"its `{key}` is {shortened(repr(stored[key]))}, and not a whole number of at least 1.")
    try:
        checked = policy.part.check({key: stored[key] for key in options}, where=str(file))
    except RecipeError as error:
        raise refused(error.what) from error
    return stored | {key: checked[key] for key in options}


def refuse_small(weights: Path, widths: Sequence[int]) -> None:
    """Refuse a file of weights that is too small for layers of these widths, from the inputs to the outputs.

    Raises: CheckpointError.
    """
    least = sum(a * b for a, b in pairwise(widths))  # bytes; a number has one at least
    size = weights.stat().st_size if weights.is_file() else 0
    if size < least:
        raise CheckpointError(
            where=str(weights.parent),
            what=f"its weights cannot be read: {weights.name} has {size:,} bytes, and its layers have at least "
            f"{least:,} weights.",
            remedy=ANOTHER,
        )
