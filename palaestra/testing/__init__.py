"""Checks that users run on their own parts, such as `check_environment`, and fakes for their tests.

Each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palaestra.testing.contexts import check_context
    from palaestra.testing.engines import check_engine
    from palaestra.testing.environments import check_environment
    from palaestra.testing.estimators import check_estimator
    from palaestra.testing.fakes import EchoEnvironment, ScriptedPolicy, TinyModel
    from palaestra.testing.losses import check_loss

_PLACES = {
    "check_context": "contexts",
    "check_engine": "engines",
    "check_environment": "environments",
    "check_estimator": "estimators",
    "check_loss": "losses",
    "EchoEnvironment": "fakes",
    "ScriptedPolicy": "fakes",
    "TinyModel": "fakes",
}

__all__ = [
    "EchoEnvironment",
    "ScriptedPolicy",
    "TinyModel",
    "check_context",
    "check_engine",
    "check_environment",
    "check_estimator",
    "check_loss",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
