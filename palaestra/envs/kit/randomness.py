"""Give each episode its own state of the global random generators of Python and NumPy.

Adapters need it for packages that draw from these generators.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

LOCK = threading.RLock()  # the global generators serve one call at a time
GLOBAL: Any = np.random.mtrand._rand  # the generator behind np.random.seed and np.random.rand


class Randomness:
    """The state of both generators in one episode. Other episodes that are played meanwhile do not change it."""

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """A context in which the global generators have this episode's state. Later they get their old one back."""
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
