"""Critics of situations and utterances: twin Q and twin V heads over an encoder of vectors or of token ids.

A situation is one array: a vector (float32), or the ids of a prompt (int32). An utterance is an int32 array of response
ids; where situations are vectors it holds the index of one action.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from palaestra.errors import InvalidData

TWINS = 2
Values = Float[Tensor, "heads rows"]
Read = tuple[Float[Tensor, "rows situation"], Float[Tensor, "rows pair"] | None]  # without and with utterances


class VectorEncoder(nn.Module):
    """Vectors as they are, with one-hot actions; all layers are in the heads.

    Args:
        size: length of a vector.
        actions: number of actions.
    """

    place: Tensor  # an empty buffer that moves with the module, so that its device is known

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.actions, self.situation_width, self.pair_width = actions, size, size + actions
        self.register_buffer("place", torch.zeros(()), persistent=False)

    def forward(self, situations: Sequence[np.ndarray], utterances: Sequence[np.ndarray] | None) -> Read:
        """The vectors, and the vectors with one-hot actions."""
        seen = torch.from_numpy(np.stack(situations)).float().to(self.place.device)
        if utterances is None:
            return seen, None
        index = torch.tensor([int(array[0]) for array in utterances], device=self.place.device)
        return seen, torch.cat([seen, nn.functional.one_hot(index, self.actions).float()], 1)


class TokenEncoder(nn.Module):
    """States of a causal model after the last id of the prompt and after the last id of the response.

    Args:
        trunk: maps ids (rows, length) to states (rows, length, width); a state depends on its own and earlier ids only.
        width: width of the states.
    """

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.trunk, self.situation_width, self.pair_width = trunk, width, width

    def forward(self, situations: Sequence[np.ndarray], utterances: Sequence[np.ndarray] | None) -> Read:
        """Both states in one pass; padding is behind the last id, so it changes no state that is read."""
        pieces = [situations] if utterances is None else [situations, utterances]
        rows = [np.concatenate(row) for row in zip(*pieces, strict=True)]
        ids = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        device = next(self.trunk.parameters()).device
        states = self.trunk(torch.from_numpy(ids).to(device))
        every = torch.arange(len(rows), device=device)
        before, after = (torch.tensor([len(own) - 1 for own in some], device=device) for some in (situations, rows))
        return states[every, before], None if utterances is None else states[every, after]


class Recurrence(nn.Module):
    """A GRU over embedded ids, trained from scratch.

    Args:
        vocabulary: number of ids.
        width: width of embeddings and states. Higher: more capacity, slower. Usual: 64.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)

    def forward(self, ids: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length width"]:
        """h_t = GRU(embedding(id_t), h_{t−1}), h_0 = 0."""
        return self.memory(self.embedding(ids))[0]  # type: ignore[no-any-return]


class Trunk(nn.Module):
    """A trainable copy of a causal language model without its output layer.

    Args:
        model: a transformer that gives `last_hidden_state`; it does not change.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(True)

    def forward(self, ids: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length width"]:
        """States of the last layer."""
        return self.model(input_ids=ids, use_cache=False).last_hidden_state.float()  # type: ignore[no-any-return]


class Heads(nn.Module):
    """Two networks of two hidden layers over one input, computed together.

    Initial weights and biases of a layer are uniform in ±1/√(its inputs).

    Args:
        inputs: width of the input.
        hidden: width of both hidden layers.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        widths = (inputs, hidden, hidden, 1)
        self.weights = nn.ParameterList(_uniform((TWINS, a, b), a) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(_uniform((TWINS, 1, b), a) for a, b in pairwise(widths))

    def forward(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "heads rows"]:
        """One number per head and row."""
        seen = rows.expand(TWINS, -1, -1)
        *layers, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for weights, biases in layers:
            seen = torch.baddbmm(biases, seen, weights).relu()
        return torch.baddbmm(bias, seen, weight)[:, :, 0]


def _uniform(shape: tuple[int, ...], inputs: int) -> nn.Parameter:
    bound = inputs**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class TwinCritic(nn.Module):
    """Two Q heads on situation and utterance, and two V heads on the situation; callers take the smaller value.

        Q_h(o, u) = head_h(encoding(o, u))        V_h(o) = head_h(encoding(o)),  h = 1, 2

    Each head has two hidden layers. Initial weights depend on `seed` and `model` only: the global random state is
    neither read nor changed.

    Args:
        architecture: what the policy's `architecture()` returns: {"size", "actions"} for a policy that reads vectors,
            {"vocabulary"} for one that reads ids.
        model: for ids, a transformer whose copy reads them; None: a GRU from scratch.
        hidden: width of the heads' layers and of the GRU. Higher: more capacity. Usual: 64.
        seed: seed of the initial weights.

    Raises: InvalidData, for an architecture with neither.
    """

    def __init__(
        self, architecture: Mapping[str, Any], *, model: nn.Module | None = None, hidden: int = 64, seed: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = _encoder(architecture, model, hidden)
            self.q_heads = Heads(self.encoder.pair_width, hidden)
            self.v_heads = Heads(self.encoder.situation_width, hidden)

    def v(self, situations: Sequence[np.ndarray]) -> Values:
        """V of both heads.

        Raises: InvalidData, for an empty situation.
        """
        _refuse_empty(situations, "a situation")
        return self.v_heads(self.encoder(situations, None)[0])  # type: ignore[no-any-return]

    def q(self, situations: Sequence[np.ndarray], utterances: Sequence[np.ndarray]) -> Values:
        """Q of both heads.

        Raises: InvalidData, for an empty situation or utterance.
        """
        return self.both(situations, utterances)[0]

    def both(self, situations: Sequence[np.ndarray], utterances: Sequence[np.ndarray]) -> tuple[Values, Values]:
        """Q and V of both heads, from one pass of the encoder.

        Raises: InvalidData, for an empty situation or utterance.
        """
        _refuse_empty(situations, "a situation")
        _refuse_empty(utterances, "an utterance")
        seen, pair = self.encoder(situations, utterances)
        return self.q_heads(pair), self.v_heads(seen)


def frozen_copy(module: nn.Module) -> Any:
    """A copy of the module with the same weights and without gradients."""
    return copy.deepcopy(module).requires_grad_(False)


def move_towards(target: nn.Module, online: nn.Module, *, tau: float) -> None:
    """target ← (1 − tau) · target + tau · online, weight by weight; tau = 1 copies."""
    with torch.no_grad():
        slow: list[Tensor] = list(target.parameters())
        fast: list[Tensor] = list(online.parameters())
        torch._foreach_lerp_(slow, fast, tau) if tau < 1 else torch._foreach_copy_(slow, fast)


def _encoder(architecture: Mapping[str, Any], model: nn.Module | None, hidden: int) -> VectorEncoder | TokenEncoder:
    if {"size", "actions"} <= architecture.keys():
        return VectorEncoder(int(architecture["size"]), int(architecture["actions"]))
    if "vocabulary" in architecture:
        if model is not None:
            return TokenEncoder(Trunk(model), int(architecture["hidden"]))
        return TokenEncoder(Recurrence(int(architecture["vocabulary"]), hidden), hidden)
    raise InvalidData(
        where="TwinCritic(…)",
        what=f"a policy of kind `{architecture.get('kind')}` reads neither vectors nor token ids.",
        remedy="Give its `architecture()` the keys `size` and `actions`, or `vocabulary`.",
    )


def _refuse_empty(arrays: Sequence[np.ndarray], what: str) -> None:
    if not arrays or min(len(array) for array in arrays) == 0:
        raise InvalidData(
            where="TwinCritic",
            what=f"{what} is empty." if arrays else "no situation is given.",
            remedy="Give at least one situation, and a non-empty array for each situation and utterance.",
        )
