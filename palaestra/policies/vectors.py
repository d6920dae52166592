"""Training samples of network policies. Vectors and actions are flat arrays, with the samples one after another."""

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
    """The part of a network policy that reads observations."""

    name: str
    actions: int

    def vector(self, observation: Observation) -> np.ndarray: ...
    def legal(self, observation: Observation) -> np.ndarray | None: ...


class NetworkInputs(NamedTuple):
    """A batch of samples, one after another. An input is a vector that the network reads.

    Attributes:
        vectors: float32 (inputs, size).
        lengths: int64 (samples,), number of inputs of each sample.
        taken: int64 (tokens,), the input of each action.
        actions: int64 (tokens,).
        legal: bool (tokens, actions); None: all actions are legal.
        has_next: bool (samples,), True if the last input has no action and only gives the value after a cut.
    """

    vectors: Tensor
    lengths: Tensor
    taken: Tensor
    actions: Tensor
    legal: Tensor | None
    has_next: Tensor


@dataclass(slots=True, kw_only=True, eq=False)
class NetworkSamples:
    """The fields of `Samples`, and the inputs of the network.

    Attributes:
        cost, token_index, token_start, end_row: see `Samples`. `cost` counts inputs, with the one after the last act.
        vectors: float32 (inputs, size), sample after sample, each in the order of time.
        offset: int64 (tokens,), position of the token's input inside its sample.
        actions: int64 (tokens,).
        legal: bool (tokens, actions); None: all actions are legal.
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
    beginnings: None = None
    _input_start: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._input_start = np.cumsum([0, *self.cost])

    def batch(self, which: Sequence[int], *, device: str | torch.device = "cpu") -> NetworkInputs:
        """Put these samples on a device, in this order."""
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
    """Make samples from rows.

    If an agent was cut off, the observation after its last step follows as an input without an action.

    Args:
        chained: one sample for each agent and episode, in the order of time. It also holds earlier steps whose rows
            were dropped, since the memory has seen them. False: one sample for each row.

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
    """For each agent and episode, the kept rows and all steps up to the last of them."""
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
        what=f"the action {step.action.value!r} is not an index.",
        remedy="Train a network policy on acts of network policies, or on demonstrations that it has recorded.",
    )


def _ranges(start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """For each i in turn, the `count[i]` integers from `start[i]` on."""
    begins = np.cumsum(count) - count
    return np.arange(int(count.sum())) + np.repeat(start - begins, count)


def refuse_instruction(observation: Observation, policy: str) -> None:
    """Raises: EpisodeFailure, if the observation has an instruction, since a vector cannot hold it."""
    if observation.instruction:
        raise EpisodeFailure(
            boundary="engine",
            where=f"policy {policy}",
            what="the episode has an instruction, which a network policy cannot read.",
            remedy="Use the policy `language`, or leave out the sampler or strategy that gives instructions.",
        )
