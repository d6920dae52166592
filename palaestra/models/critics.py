"""Critics of situations and utterances: twin Q and twin V heads over an encoder of vectors or of token ids.

Knows arrays and layers. Knows nothing of rewards, buffers or what the values are good for.

A situation is one array: a vector (float32), or the ids of a prompt (int32). An utterance is an int32 array of
response ids; where situations are vectors it is the index of one action.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from palaestra.errors import InvalidData

TWINS = 2


class VectorEncoder(nn.Module):
    """Vectors as they are, actions one-hot: the layers stand in the heads.

    Args:
        size: length of a vector. actions: number of actions.
    """

    place: Tensor  # says on which device the module is

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.situation_width, self.utterance_width = size, actions
        self.register_buffer("place", torch.zeros(()), persistent=False)

    def situations(self, arrays: Sequence[np.ndarray]) -> Float[Tensor, "rows size"]:
        """Vectors stacked."""
        return torch.from_numpy(np.stack(arrays)).float().to(self.place.device)

    def utterances(self, arrays: Sequence[np.ndarray]) -> Float[Tensor, "rows actions"]:
        """One-hot actions."""
        index = torch.tensor([int(array[0]) for array in arrays], device=self.place.device)
        return nn.functional.one_hot(index, self.utterance_width).float()


class TokenEncoder(nn.Module):
    """The last state of a GRU over embedded ids; prompts and responses share it.

        h_t = GRU(embedding(id_t), h_{t−1}),  h_0 = 0        encoding = h at the last id

    Args:
        vocabulary: number of ids.
        width: of embeddings and state. Higher: more capacity, slower. Usual: 64 for tiny policies.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.situation_width = self.utterance_width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)

    def situations(self, arrays: Sequence[np.ndarray]) -> Float[Tensor, "rows width"]:
        """Encodings of prompts; padding stands behind the last id, where it is not read."""
        lengths = torch.tensor([len(array) for array in arrays], device=self.embedding.weight.device)
        ids = np.zeros((len(arrays), int(lengths.max())), np.int64)
        for row, array in enumerate(arrays):
            ids[row, : len(array)] = array
        states, _ = self.memory(self.embedding(torch.from_numpy(ids).to(lengths.device)))
        return states[torch.arange(len(arrays), device=lengths.device), lengths - 1]

    def utterances(self, arrays: Sequence[np.ndarray]) -> Float[Tensor, "rows width"]:
        """Encodings of responses."""
        return self.situations(arrays)


class Heads(nn.Module):
    """Two networks of two hidden layers over one input, computed together.

    Weights of a layer are uniform in ±1/√(its inputs), biases too.

    Args:
        inputs: width of the input. hidden: of both layers.
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
    """Two Q heads on situation and utterance, two V heads on the situation; whoever reads them takes the smaller.

        Q_h(o, u) = head_h([encoding(o), encoding(u)])        V_h(o) = head_h(encoding(o)),  h = 1, 2

    Each head has two hidden layers. Weights depend on `seed` alone: the global random state is neither read nor moved.

    Args:
        architecture: of the policy, as its `architecture()` says: {"size", "actions"} of one that reads vectors,
            {"vocabulary"} of one that reads ids.
        hidden: width of the heads' layers and, for ids, of the encoder. Higher: more capacity. Usual: 64.
        seed: for the initial weights.

    Raises: InvalidData, for an architecture with neither.
    """

    def __init__(self, architecture: dict[str, Any], *, hidden: int = 64, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = _encoder(architecture, hidden)
            seen, both = self.encoder.situation_width, self.encoder.situation_width + self.encoder.utterance_width
            self.q_heads, self.v_heads = Heads(both, hidden), Heads(seen, hidden)

    def encode(self, situations: Sequence[np.ndarray]) -> Float[Tensor, "rows width"]:
        """Situations encoded once, for several heads.

        Raises: InvalidData, for an empty situation.
        """
        _refuse_empty(situations, "a situation")
        return self.encoder.situations(situations)  # type: ignore[no-any-return]

    def q(self, seen: Float[Tensor, "rows width"], utterances: Sequence[np.ndarray]) -> Float[Tensor, "heads rows"]:
        """Q of both heads.

        Raises: InvalidData, for an empty utterance.
        """
        _refuse_empty(utterances, "an utterance")
        both = torch.cat([seen, self.encoder.utterances(utterances)], 1)
        return self.q_heads(both)  # type: ignore[no-any-return]

    def v(self, seen: Float[Tensor, "rows width"]) -> Float[Tensor, "heads rows"]:
        """V of both heads."""
        return self.v_heads(seen)  # type: ignore[no-any-return]


def frozen_copy(module: nn.Module) -> Any:
    """A second module with the same weights, which no gradient reaches."""
    return copy.deepcopy(module).requires_grad_(False)


def move_towards(target: nn.Module, online: nn.Module, *, tau: float) -> None:
    """target ← (1 − tau) · target + tau · online, weight by weight; tau = 1 copies."""
    with torch.no_grad():
        slow: list[Tensor] = list(target.parameters())
        fast: list[Tensor] = list(online.parameters())
        torch._foreach_lerp_(slow, fast, tau) if tau < 1 else torch._foreach_copy_(slow, fast)


def _encoder(architecture: dict[str, Any], hidden: int) -> Any:
    if {"size", "actions"} <= architecture.keys():
        return VectorEncoder(int(architecture["size"]), int(architecture["actions"]))
    if "vocabulary" in architecture:
        return TokenEncoder(int(architecture["vocabulary"]), hidden)
    raise InvalidData(
        where="TwinCritic(…)",
        what=f"a policy of kind `{architecture.get('kind')}` reads neither vectors nor token ids.",
        remedy="Give its `architecture()` the keys `size` and `actions`, or `vocabulary`.",
    )


def _refuse_empty(arrays: Sequence[np.ndarray], what: str) -> None:
    if not arrays or min(len(array) for array in arrays) == 0:
        raise InvalidData(where="TwinCritic", what=f"{what} is empty." if arrays else "there is nothing to judge.")
