"""Protocols of what users can write: engines, contexts, policies, optimizers, learners and other parts with state.

A protocol has defaults for the members that an implementation may leave out. Inherit from it, `class Mine(Policy)`,
and write the members that differ. `complete` refuses an object that neither inherits them nor has all of them. The
protocols of environments are in `palaestra.data.abilities`. What a part declares before it is made or called is in
`palaestra.registry.DECLARED`.

Each name is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from palaestra.data.on_use import imported_on_use

if TYPE_CHECKING:
    from palaestra.data.protocols.completion import complete
    from palaestra.data.protocols.context import Context, Conversation, Prompt
    from palaestra.data.protocols.engine import Engine, Request, Response
    from palaestra.data.protocols.learning import Experience, Learner, Optimizer, StatefulPart
    from palaestra.data.protocols.policy import (
        Oracle,
        Policy,
        PolicyOutputs,
        Samples,
        Sampling,
        Session,
        TrainablePolicy,
    )

__all__ = [
    "Context",
    "Conversation",
    "Engine",
    "Experience",
    "Learner",
    "Optimizer",
    "Oracle",
    "Policy",
    "PolicyOutputs",
    "Prompt",
    "Request",
    "Response",
    "Samples",
    "Sampling",
    "Session",
    "StatefulPart",
    "TrainablePolicy",
    "complete",
]

_PLACES = {
    "completion": ("complete",),
    "context": (
        "Context",
        "Conversation",
        "Prompt",
    ),
    "engine": (
        "Engine",
        "Request",
        "Response",
    ),
    "learning": (
        "Experience",
        "Learner",
        "Optimizer",
        "StatefulPart",
    ),
    "policy": (
        "Oracle",
        "Policy",
        "PolicyOutputs",
        "Samples",
        "Sampling",
        "Session",
        "TrainablePolicy",
    ),
}

if not TYPE_CHECKING:  # a type checker finds a misspelled name
    __getattr__ = imported_on_use(__name__, _PLACES)


def __dir__() -> list[str]:
    return __all__
