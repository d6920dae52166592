"""The replay buffer, which keeps the newest transitions of one policy and draws from them by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Trajectory
from palaestra.errors import CheckpointError, InvalidData
from palaestra.registry import PositiveInt
from palaestra.replay.transitions import Rewards, Transition, transitions


class ReplayBuffer:
    """A ring of transitions. When it is full, a new transition replaces the oldest one.

    Args:
        capacity: most transitions. Higher: more varied and older experience, larger checkpoints. Usual: 100000.
        policy: name of the policy whose acts it keeps.

    Attributes:
        longest: length of the longest utterance that was ever added.
        left_out: acts of the last `add` that a limit cut off without a next observation, which are not kept.
    """

    def __init__(self, *, capacity: PositiveInt, policy: str) -> None:
        self.capacity, self.policy, self.longest = capacity, policy, 0
        self.left_out = 0
        self._held: list[Transition] = []
        self._oldest = 0  # index of the oldest transition once the ring is full

    def __len__(self) -> int:
        return len(self._held)

    def add(self, trajectories: Sequence[Trajectory], *, rewards: Rewards | None = None) -> int:
        """Add the transitions of the policy's acts. Returns their number.

        Args:
            rewards: as in `transitions`.

        Raises: InvalidData, as in `transitions`, or if vectors and prompt ids are mixed.
        """
        found = transitions(trajectories, policy=self.policy, rewards=rewards)
        acts = [
            (trajectory.id, step.agent, step.turn)
            for trajectory in trajectories
            for step in trajectory.steps
            if step.policy == self.policy
        ]
        self.left_out = sum(rewards is None or act in rewards for act in acts) - len(found)
        kinds = {one.observation.dtype for one in (*self._held[:1], *found)}
        if len(kinds) > 1:
            raise InvalidData(
                where=f"replay buffer of policy {self.policy}",
                what=f"its observations have different kinds: {sorted(str(kind) for kind in kinds)}.",
                remedy="Use one buffer for vectors (float32) and another for prompt ids (int32).",
            )
        for one in found:
            self._put(one)
        return len(found)

    def _put(self, one: Transition) -> None:
        self.longest = max(self.longest, len(one.utterance))
        if len(self._held) < self.capacity:
            self._held.append(one)
            return
        self._held[self._oldest] = one
        self._oldest = (self._oldest + 1) % self.capacity

    def sample(self, n: int, *, seed: int) -> list[Transition]:
        """Draw `n` different transitions, all equally likely. The same seed and content give the same transitions.

        Raises: InvalidData, if the buffer holds fewer.
        """
        if n > len(self._held):
            raise InvalidData(
                where=f"replay buffer of policy {self.policy}",
                what=f"{n} transitions were asked for, and it holds {len(self._held)} of at most {self.capacity}.",
                remedy="Play more episodes in an iteration (rollout.tasks, rollout.group), or draw smaller batches.",
            )
        drawn = np.random.default_rng(seed).choice(len(self._held), n, replace=False)
        return [self._held[place] for place in drawn.tolist()]

    # ---- checkpoints --------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """All transitions as a few flat tensors."""
        held = self._held
        names = sorted({one.agent for one in held})
        return {
            "oldest": self._oldest,
            "longest": self.longest,
            "observation": _packed([one.observation for one in held]),
            "utterance": _packed([one.utterance for one in held]),
            "following": _packed([one.following for one in held]),
            "legal": _packed([one.legal for one in held]),
            "reward": torch.tensor([one.reward for one in held], dtype=torch.float64),
            "done": torch.tensor([one.done for one in held], dtype=torch.bool),
            "agent": torch.tensor([names.index(one.agent) for one in held], dtype=torch.int64),
            "agents": names,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the transitions that were saved.

        Raises: CheckpointError, if they do not fit the capacity.
        """
        size = len(state["reward"])
        if size > self.capacity or (size < self.capacity and state["oldest"]):
            raise CheckpointError(
                where=f"replay buffer of policy {self.policy}",
                what=f"{size} transitions were saved, and its capacity is {self.capacity} now.",
                remedy="Resume with the capacity that the buffer was saved with, or start a new run.",
            )
        columns = zip(
            *(_unpacked(state[name]) for name in ("observation", "utterance", "following", "legal")),
            state["reward"].tolist(),
            state["done"].tolist(),
            state["agent"].tolist(),
            strict=True,
        )
        self._held = [
            Transition(
                observation=observation,
                utterance=utterance,
                reward=reward,
                following=following,
                done=done,
                legal=legal,
                agent=state["agents"][agent],
                policy=self.policy,
            )
            for observation, utterance, following, legal, reward, done, agent in columns
        ]
        self._oldest, self.longest = int(state["oldest"]), int(state["longest"])


def _packed(arrays: Sequence[np.ndarray | None]) -> dict[str, Tensor]:
    """Arrays of one dtype as one flat tensor, with their lengths. The length of None is −1."""
    whole = [array for array in arrays if array is not None]
    lengths = torch.tensor([-1 if array is None else len(array) for array in arrays], dtype=torch.int64)
    return {"flat": torch.from_numpy(np.concatenate(whole)) if whole else torch.zeros(0), "lengths": lengths}


def _unpacked(packed: dict[str, Tensor]) -> list[Any]:
    flat, lengths = packed["flat"].numpy(), packed["lengths"]
    ends = lengths.clamp_min(0).cumsum(0).tolist()
    return [
        None if length < 0 else flat[end - length : end] for length, end in zip(lengths.tolist(), ends, strict=True)
    ]
