"""Pictures: the places in a prompt whose ids stand for an image."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(slots=True, kw_only=True, eq=False, frozen=True)
class Picture:
    """An image, and where it stands among the ids of a prompt or a sequence.

    Attributes:
        image: uint8 (height, width, channels), as the environment gave it.
        start: the place of the first id that stands for the image; stop: the place after the last one. Ids of other
            tokens may stand between them, such as marks of rows.
        count: how many of these ids stand for the image.
        inputs: what the model reads in their place, as its processor makes it of the image. Requests to an engine and
            training batches have it; steps leave it out.
    """

    image: np.ndarray
    start: int
    stop: int
    count: int
    inputs: Mapping[str, Any] | None = None

    @property
    def digest(self) -> bytes:
        """A hash of the image: equal images have equal ones."""
        return digest_of(self.image)

    def moved(self, by: int) -> Picture:
        """The same picture, so many ids later."""
        return replace(self, start=self.start + by, stop=self.stop + by)

    def bare(self) -> Picture:
        """The same picture without `inputs`."""
        return replace(self, inputs=None)


def digest_of(image: np.ndarray) -> bytes:
    """A hash of an image with its shape."""
    hashed = hashlib.blake2b(repr((image.shape, str(image.dtype))).encode(), digest_size=16)
    hashed.update(np.ascontiguousarray(image).tobytes())
    return hashed.digest()


def moved(pictures: Iterable[Picture], by: int) -> Iterator[Picture]:
    """Pictures of ids that stand so many places later in a longer sequence."""
    return (picture.moved(by) for picture in pictures)
