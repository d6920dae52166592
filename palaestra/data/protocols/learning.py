"""What improves policies: optimizers, parts with state, learners, and the experience that they learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from torch.nn import Module

from palaestra.data.trajectory import Trajectory

if TYPE_CHECKING:
    from palaestra.data.iteration import Batch, Iteration
    from palaestra.data.setup import RunSetup


class Optimizer(Protocol):
    """Updates parameters by their gradients: a part of the slot `optimizer`, one for each trained policy.

    It is made from the policy's parameters, or from its module if its first argument is called `module`.

    Attributes:
        lr: the learning rate of the next step.
        metrics: further numbers of the last step, by their names in the log. Default: none.
    """

    metrics: Mapping[str, float] = MappingProxyType({})

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        ...

    def zero(self) -> None:
        """Clear the gradients before a new batch."""
        ...

    def step(self) -> float:
        """Take one step. Returns the gradient's norm before clipping; if it is not finite, no parameter changes."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The whole state that a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Raises: CheckpointError, if it belongs to other parameters."""
        ...


class StatefulPart(Protocol):
    """The base class of a part with state in one of the slots reward, selection, advantage and weights.

    A part that keeps or learns something from one iteration to the next is such a class; any other part is a function.
    A run makes one object of the class and calls it in every iteration with the arguments of a function of the slot.
    So the class must define `__call__`. Each member below has a default; write those that differ.

    An iteration calls `choose` with the episodes, then the object itself in its stage, then `update`.

    Attributes:
        ready: False while the part wants no update. Such iterations do not count as iterations without signal.
            Default: True.
        made: optimizer steps of the policies in the last `update`; `updates` of the log is their sum. Default: 0.
    """

    ready: bool = True
    made: int = 0

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Prepare for a run. Called once, after the warm start and before a checkpoint is read. Default: nothing.

        Args:
            setup: the run's setup. policies: the trained policies, by name.
        """
        return

    def choose(self, trajectories: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """Choose the episodes that the update learns from, for instance from a buffer. Default: those that were played.

        Called before the table is made, for all parts in the order of the slots.
        """
        return trajectories

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Learn from the batch, whose table is complete. Called after the slot `weights`. Default: nothing.

        Returns: metrics for the log.
        """
        return {}

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether a policy can learn its task from this batch; a run stops after long without signal. Default: no."""
        return False

    def modules(self) -> Mapping[str, Module]:
        """The modules that the part trains, such as critics, and their target networks. Default: none.

        A run moves them to its device and writes their weights in checkpoints, a file for each name.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint stores beside the weights of `modules`. Default: nothing.

        It consists of tensors, numbers, texts, lists and dicts. A resumed run must be the same byte for byte.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Called after `start`. Default: nothing is read."""
        return


class Learner(StatefulPart, Protocol):
    """Updates policies: a part of the slot `learner`, a class whose options the recipe gives.

    A run makes one object of it and calls `start` once. It calls `update` at the end of each iteration, for several
    learners in the order of the recipe. A learner uses the policies themselves: `policy.module`,
    `policy.forward(iteration.samples(name), …)`. After it has changed a policy's weights it calls
    `policy.weights_changed(policy.version + 1)`.

    The columns that its registration names in `reads` are computed before it is called, such as "advantage" and outputs
    of policies like "logprob_reference". Estimators run only if a learner, or a part that it runs, reads "advantage".
    A learner that runs further parts of the recipe, such as a loss, declares a static method `runs(settings, policy)`
    that returns them, so that their columns are computed too (`palaestra.registry.DECLARED`).
    """

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether a policy can learn its task from this batch. Default: True."""
        return True


class Experience(Protocol):
    """Gives the trajectories of each iteration: a part of the slot `experience`, made from the run's setup and options.

    Attributes:
        instruction: an instruction that evaluations give to every policy, if the policies train with it. Default: None.
        notes: lines that a run prints at its start, such as what of a file is not read. Default: none.
    """

    instruction: str | None = None
    notes: Sequence[str] = ()

    def collect(self, number: int) -> Batch:
        """The trajectories of iteration `number`, from 0. They may be played, or come from files or a buffer."""
        ...

    def publish(self, batch: Batch, number: int) -> dict[str, float]:
        """Give the updated weights to copies that act. Called after the learners. Returns metrics. Default: nothing."""
        return {}

    def stateful(self) -> Mapping[str, Any]:
        """Objects with `state_dict` and `load_state_dict`, by their names in checkpoints. Default: none.

        They are loaded in this order.
        """
        return {}

    def close(self) -> None:
        """End what the experience started, at the end of a run. Default: nothing."""
        return
