"""Rewards of other packages as one number: environments of several objectives reward with a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.errors import ContractError, PalaestraError, RecipeError

USE = "Set `objectives` to {0} weights, such as `objectives: [{1}]`. The reward is then the weighted sum."


class Weights:
    """Weighs the objectives of an environment.

    Args:
        objectives: the weights; None: the reward is one number.
        declared: the environment's reward spaces, as far as it has some.
        where: first line of errors.

    Raises: RecipeError, if the weights do not fit the reward that the environment declares.
    """

    def __init__(self, objectives: Sequence[float] | None, declared: Sequence[Any], *, where: str) -> None:
        self._weights = None if objectives is None else np.array(objectives, np.float64)
        self._where = where
        for space in declared:
            if getattr(space, "shape", None) is not None:
                self._refuse(space.shape, RecipeError)

    def weigh(self, reward: Any) -> tuple[float, list[float]]:
        """The reward as one number, and the numbers of its objectives, which are none without weights.

        Raises: ContractError, for a reward that is no number or has another shape than the weights.
        """
        if type(reward) is float and self._weights is None:
            return reward, []
        try:
            numbers = np.asarray(reward, np.float64)
        except (TypeError, ValueError):
            what = f"its reward is a {type(reward).__name__}, which is no number."
            raise ContractError(where=self._where, what=what, remedy="Give a float.") from None
        self._refuse(numbers.shape, ContractError)
        if self._weights is None:
            return float(numbers.item()), []
        return float(numbers.reshape(-1) @ self._weights), numbers.reshape(-1).tolist()

    def _refuse(self, shape: tuple[int, ...], kind: type[PalaestraError]) -> None:
        count = int(np.prod(shape))
        if self._weights is None and count != 1:
            remedy = USE.format(count, ", ".join([f"{1 / max(count, 1):.3g}"] * count))
            what = f"its reward has the shape {tuple(shape)}: one number for each of {count} objectives."
            raise kind(where=self._where, what=what, remedy=remedy)
        if self._weights is not None and count != len(self._weights):
            what = f"the length of `objectives` is {len(self._weights)}, and that of its reward {count}."
            raise kind(where=self._where, what=what, remedy="Give a weight for each, or leave `objectives` out.")
