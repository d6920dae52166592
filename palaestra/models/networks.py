"""Actor-critics for vectors and discrete actions: an MLP and a GRU with the same three methods.

`start` gives the memory of new rows, which is None for the MLP. `step` reads one vector of each row, for acting. `read`
reads whole sequences with gradient, for training.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Activation = Literal["tanh", "relu"]
Read = tuple[Float[Tensor, "inputs actions"], Float[Tensor, " inputs"] | None]

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
BODY_GAIN = math.sqrt(2)  # keeps the variance of activations through the layers
ACTOR_GAIN = 0.01  # nearly equal probabilities at the start, for any input
CRITIC_GAIN = 1.0


class ActorCritic(nn.Module):
    """Logits and values of single vectors.

        logits = actor head(body(x))        value = critic head(critic body(x))

    Weights are orthogonal with gain √2 in the bodies, 0.01 in the actor's and 1 in the critic's head; biases 0.
    They depend on `seed` alone: the global random state is neither read nor changed.

    Args:
        size, actions: length of a vector, number of actions.
        hidden: widths of the layers. Higher: more capacity. Usual: (64, 64).
        activation: "tanh" is usual for control, "relu" for large inputs.
        critic: learn values, too. shared: True: the critic reads the actor's body, which is cheaper. False: it has its
            own body, so that its loss cannot disturb the actor.
        seed: for the initial weights.
    """

    def __init__(
        self,
        size: int,
        actions: int,
        *,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        critic: bool = True,
        shared: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        width = hidden[-1] if hidden else size
        self.body = _layers((size, *hidden), activation, draw)
        self.actor = _linear(width, actions, ACTOR_GAIN, draw)
        self.critic_body = _layers((size, *hidden), activation, draw) if critic and not shared else None
        self.critic = _linear(width, 1, CRITIC_GAIN, draw) if critic else None

    def start(self, rows: int) -> None:
        """The MLP has no memory: None."""

    def step(self, vectors: Float[Tensor, "rows size"], memory: None) -> tuple[Float[Tensor, "rows actions"], None]:
        """Logits for one vector of each row."""
        return self.actor(self.body(vectors.to(self.actor.weight.dtype))), None

    def read(self, vectors: Float[Tensor, "inputs size"], lengths: Int[Tensor, " sequences"], *, values: bool) -> Read:
        """Logits, and values if asked for, of every input. `lengths` is ignored, since there is no memory."""
        vectors = vectors.to(self.actor.weight.dtype)
        seen = self.body(vectors)
        value = None
        if values and self.critic is not None:
            judged = seen if self.critic_body is None else self.critic_body(vectors)
            value = self.critic(judged)[:, 0]
        return self.actor(seen), value


class RecurrentActorCritic(nn.Module):
    """Logits and values of the vectors of a sequence: layers, a GRU over time, heads.

        h_t = GRU(layers(x_t), h_{t−1}),  h_0 = 0        logits_t = actor head(h_t)

    The last width of `hidden` is that of the memory; those before are widths of layers. The rest is as in
    `ActorCritic`. The critic's own body, if it has one, is used in training only; `step` updates the actor's memory.
    """

    def __init__(
        self,
        size: int,
        actions: int,
        *,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        critic: bool = True,
        shared: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        own = critic and not shared
        self.layers = _layers((size, *hidden[:-1]), activation, draw)
        self.memory = _gru(hidden[-2] if len(hidden) > 1 else size, hidden[-1], draw)
        self.actor = _linear(hidden[-1], actions, ACTOR_GAIN, draw)
        self.critic_layers = _layers((size, *hidden[:-1]), activation, draw) if own else None
        self.critic_memory = _gru(hidden[-2] if len(hidden) > 1 else size, hidden[-1], draw) if own else None
        self.critic = _linear(hidden[-1], 1, CRITIC_GAIN, draw) if critic else None

    def start(self, rows: int) -> Float[Tensor, "rows memory"]:
        """The initial memory h_0: zeros."""
        return self.actor.weight.new_zeros(rows, self.memory.hidden_size)

    def step(
        self, vectors: Float[Tensor, "rows size"], memory: Float[Tensor, "rows memory"]
    ) -> tuple[Float[Tensor, "rows actions"], Float[Tensor, "rows memory"]]:
        """Logits for one vector of each row, and each row's next memory."""
        vectors = vectors.to(self.actor.weight.dtype)
        _, last = self.memory(self.layers(vectors)[:, None], memory[None])
        return self.actor(last[0]), last[0]

    def read(self, vectors: Float[Tensor, "inputs size"], lengths: Int[Tensor, " sequences"], *, values: bool) -> Read:
        """Logits, and values if asked for, of every input. The inputs are sequences of these lengths, in order."""
        vectors = vectors.to(self.actor.weight.dtype)
        row = torch.repeat_interleave(torch.arange(len(lengths), device=vectors.device), lengths)
        column = torch.arange(len(vectors), device=vectors.device) - (lengths.cumsum(0) - lengths)[row]
        padded = vectors.new_zeros(len(lengths), int(lengths.max()), vectors.shape[1])
        padded[row, column] = vectors  # padding comes after the end, so that no output of the sequence depends on it
        seen = self.memory(self.layers(padded))[0][row, column]
        value = None
        if values and self.critic is not None:
            judged = seen
            if self.critic_layers is not None and self.critic_memory is not None:
                judged = self.critic_memory(self.critic_layers(padded))[0][row, column]
            value = self.critic(judged)[:, 0]
        return self.actor(seen), value


class Memory(nn.GRU):
    """A GRU that stays in training mode, since cuDNN gives gradients in that mode only. Without dropout both modes
    compute the same."""

    def train(self, mode: bool = True) -> Memory:
        """Stay in training mode."""
        return super().train(True)


# ---- layers with weights from a generator of their own ----------------------------------------------------
def _layers(widths: tuple[int, ...], activation: str, draw: torch.Generator) -> nn.Sequential:
    pairs = zip(widths, widths[1:], strict=False)
    return nn.Sequential(*(piece for a, b in pairs for piece in (_linear(a, b, BODY_GAIN, draw), _act(activation))))


def _act(activation: str) -> nn.Module:
    return ACTIVATIONS[activation]()


def _linear(inputs: int, outputs: int, gain: float, draw: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(
        device="cpu"
    )  # does not draw from the global random state
    nn.init.orthogonal_(layer.weight, gain, generator=draw)
    nn.init.zeros_(layer.bias)
    return layer


def _gru(inputs: int, outputs: int, draw: torch.Generator) -> Memory:
    layer = Memory(inputs, outputs, batch_first=True, device="meta").to_empty(device="cpu")
    for name, weight in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(weight)
            continue
        for gate in weight.data.split(outputs):  # the matrix of each gate is orthogonal
            nn.init.orthogonal_(gate, generator=draw)
    return layer
