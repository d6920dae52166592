"""Training samples of network policies: vectors and actions as flat arrays, cut by sample.

Knows rows and their observations. Knows no module and no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Observation, Row, Step
from palaestra.errors import EpisodeFailure, InvalidData
from palaestra.policies.drawing import stack_legal


class Reader(Protocol):
    """How a policy reads observations."""

    name: str
    actions: int

    def vector(self, observation: Observation) -> np.ndarray: ...
    def legal(self, observation: Observation) -> np.ndarray | None: ...


class NetworkInputs(NamedTuple):
    """Some samples, one after another.

    vectors: float32 (inputs, size); lengths: int64 (samples,), inputs of each.
    taken: int64 (tokens,), the input each action answered; actions: int64 (tokens,).
    legal: bool (tokens, actions) or None. has_next: bool (samples,), whether the last input is only looked at.
    """

    vectors: Tensor
    lengths: Tensor
    taken: Tensor
    actions: Tensor
    legal: Tensor | None
    has_next: Tensor


@dataclass(slots=True, kw_only=True, eq=False)
class NetworkSamples:
    """What `Samples` asks for, and beside it the inputs.

    Attributes:
        cost, token_index, token_start, end_row: see `Samples`; cost counts inputs, the one after the last act included.
        vectors: float32 (inputs, size), sample after sample, in time.
        offset: int64 (tokens,), place of the token's input inside its sample.
        actions: int64 (tokens,). legal: bool (tokens, actions), None if nothing is forbidden.
        temperature: of the rollout.
    """

    cost: np.ndarray
    token_index: np.ndarray
    token_start: np.ndarray
    end_row: np.ndarray
    vectors: Tensor
    offset: np.ndarray
    actions: np.ndarray
    legal: np.ndarray | None
    temperature: float
    _input_start: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._input_start = np.cumsum([0, *self.cost])

    def batch(self, which: Sequence[int], *, device: str | torch.device = "cpu") -> NetworkInputs:
        """These samples, in this order, on a device."""
        chosen = np.asarray(which, np.int64)
        lengths = self.cost[chosen]
        counts = np.diff(self.token_start)[chosen]
        inputs = _ranges(self._input_start[chosen], lengths)
        tokens = _ranges(self.token_start[chosen], counts)
        taken = self.offset[tokens] + np.repeat(np.cumsum(lengths) - lengths, counts)
        return NetworkInputs(
            self.vectors[torch.from_numpy(inputs)].to(device),
            torch.from_numpy(lengths).to(device),
            torch.from_numpy(taken).to(device),
            torch.from_numpy(self.actions[tokens]).to(device),
            None if self.legal is None else torch.from_numpy(self.legal[tokens]).to(device),
            torch.from_numpy(self.end_row[chosen] >= 0).to(device),
        )


def collate(reader: Reader, rows: Sequence[Row], *, temperature: float, chained: bool) -> NetworkSamples:
    """Rows as samples: each by itself, or (`chained`) all of one agent in one episode in time.

    A chain holds the agent's earlier steps even where their rows were dropped: memory has seen them. Where an
    agent was cut off, the observation after its last step follows as an input without action.

    Raises: InvalidData, if a step's action has no index.
    """
    samples = _chains(rows) if chained else [([row], [row.step]) for row in rows]
    inputs: list[np.ndarray] = []
    cost, offset, end_row = [], [], []
    for kept, steps in samples:
        place = {step.turn: i for i, step in enumerate(steps)}
        following = _next_observation(kept[-1])
        seen = [step.observation for step in steps] + ([] if following is None else [following])
        inputs += [reader.vector(observation) for observation in seen]
        cost.append(len(seen))
        offset += [place[row.step.turn] for row in kept]
        end_row.append(-1 if following is None else kept[-1].index)
    taken = [row for kept, _ in samples for row in kept]
    return NetworkSamples(
        cost=np.array(cost, np.int64),
        token_index=np.array([row.start for row in taken], np.int64),
        token_start=np.cumsum([0, *(len(kept) for kept, _ in samples)]),
        end_row=np.array(end_row, np.int64),
        vectors=torch.from_numpy(np.stack(inputs)) if inputs else torch.zeros(0, 0),
        offset=np.array(offset, np.int64),
        actions=np.array([_index(row.step, reader.name) for row in taken], np.int64),
        legal=stack_legal([reader.legal(row.step.observation) for row in taken], reader.actions),
        temperature=temperature,
    )


def _chains(rows: Sequence[Row]) -> list[tuple[list[Row], list[Step]]]:
    """Kept rows and all steps up to the last of them, per agent and episode."""
    kept: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kept.setdefault((row.trajectory.id, row.step.agent), []).append(row)
    return [(chain, _history(chain[-1])) for chain in kept.values()]


def _history(last: Row) -> list[Step]:
    return [s for s in last.trajectory.steps if s.agent == last.step.agent and s.turn <= last.step.turn]


def _next_observation(last: Row) -> Observation | None:
    return last.trajectory.last.get(last.step.agent) if last.step.truncated else None


def _index(step: Step, policy: str) -> int:
    if len(step.action.tokens):
        return int(step.action.tokens[0])
    if isinstance(step.action.value, int | np.integer):
        return int(step.action.value)
    raise InvalidData(
        where=f"policy {policy}, turn {step.turn}",
        what=f"the action {step.action.value!r} has no index.",
        remedy="Train a network policy on acts of network policies, or on demonstrations recorded through it.",
    )


def _ranges(start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """start[i], start[i] + 1, … count[i] of them, for each i in turn."""
    begins = np.cumsum(count) - count
    return np.arange(int(count.sum())) + np.repeat(start - begins, count)


def refuse_instruction(observation: Observation, policy: str) -> None:
    """Raises: EpisodeFailure, if the observation comes with an instruction, which no vector holds."""
    if observation.instruction:
        raise EpisodeFailure(
            boundary="engine",
            where=f"policy {policy}",
            what="the episode has an instruction, which a network policy cannot read.",
            remedy="Use the policy `language`, or leave out what gives instructions (sampler, strategy).",
        )
