"""The global random generators of Python and NumPy, lent to one episode for the time of a call.

It is for packages that draw from them.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

LOCK = threading.RLock()  # the global generators serve one call at a time
GLOBAL: Any = np.random.mtrand._rand  # the generator behind np.random.seed and its relatives


class Randomness:
    """The state of both generators in one episode, so that episodes played by turns do not disturb each other."""

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Within it the global generators are this episode's; after it they are as they were."""
        with LOCK:
            python, numpy = random.getstate(), GLOBAL.get_state()
            random.setstate(self._python)
            GLOBAL.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), GLOBAL.get_state()
                random.setstate(python)
                GLOBAL.set_state(numpy)
