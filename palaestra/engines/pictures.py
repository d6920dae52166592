"""Pictures in the in-process engine: the states that the model reads in place of the ids that stand for an image."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.data.trajectory import Picture, digest_of
from palaestra.engines.attention import Inserted
from palaestra.engines.session import SessionState
from palaestra.models.pictures import picture_states, places_of, positions_of, turns_positions

KEPT_BYTES = 256 * 2**20  # of states; those used longest ago are forgotten first


class Pictures:
    """Computes the states of pictures with the model's own vision tower, each picture alone and once.

    Args:
        model: of the policy. Its weights may change; then `forget` must be called.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._turns = turns_positions(model)
        self._known: OrderedDict[bytes, Tensor] = OrderedDict()
        self._size = 0

    def forget(self) -> None:
        """Drop all states, since the weights have changed or memory is needed."""
        self._known.clear()
        self._size = 0

    def inserted(self, session: SessionState) -> Inserted | None:
        """What the session reads in place of embeddings from its first id that is not cached; None: nothing."""
        if not session.pictures:
            return None
        new = [picture for picture in session.pictures if picture.stop > session.cached]
        token = self._model.config.image_token_id
        places = [places_of(picture, session.ids, token) for picture in new]
        states = [self._states(picture)[: len(at)] for picture, at in zip(new, places, strict=True)]
        positions = self._positions(session) if self._turns else None
        if positions is None and not new:
            return None
        return Inserted(np.concatenate([np.zeros(0, np.int64), *places]), torch.cat(states) if new else None, positions)

    def _states(self, picture: Picture) -> Tensor:
        key = digest_of(picture.image)
        if key not in self._known:
            states = picture_states(self._model, picture.inputs or {})
            self._size += states.nbytes
            while self._known and self._size > KEPT_BYTES:
                self._size -= self._known.popitem(last=False)[1].nbytes
            self._known[key] = states
        self._known.move_to_end(key)
        return self._known[key]

    def _positions(self, session: SessionState) -> np.ndarray:
        """int64 (3, ids): time, height and width of each id of a session."""
        last = session.pictures[-1].stop
        if session.axes is None:
            session.axes = positions_of(self._model, session.ids[:last], session.pictures).numpy()
        # After a picture, all three go on from the largest of them.
        follows = session.axes.max() + 1 + np.arange(len(session.ids) - last)
        return np.concatenate([session.axes, np.broadcast_to(follows, (3, len(follows)))], 1)
