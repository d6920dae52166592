"""Plays the transcripts that a tokenizer is trained on once in a process for each environment with its options.

Each run of a language policy without a model plays them: 96 episodes, in hundreds of tests always the same ones. What
comes from files, or from code of a test, is played each time.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


def play_transcripts_once() -> None:
    """From now on in this process. It imports nothing: where nobody has imported training, nobody plays transcripts."""
    setup = sys.modules.get("palaestra.training.setup")
    if setup is not None and not hasattr(setup.transcripts, "__wrapped__"):
        setup.transcripts = once(setup.transcripts)


def once(play: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """`transcripts` of palaestra.training.setup, which remembers."""
    known: dict[Any, list[str]] = {}

    @functools.wraps(play)
    def remembering(settings: Any, make: Any, source: Any) -> list[str]:
        key = _key(settings, make)
        if key is None:
            return play(settings, make, source)
        if key not in known:
            known[key] = play(settings, make, source)
        return list(known[key])

    return remembering


def _key(settings: Any, make: Any) -> Any:
    """All that transcripts depend on; None, if they may depend on more."""
    environment = settings.environment
    try:
        options = json.dumps(environment.options, sort_keys=True)
    except TypeError:
        return None
    if ":" in environment.name or any(os.path.exists(text) for text in _texts(environment.options)):
        return None
    rollout = settings.rollout.model_dump_json(include={"workers", "worker_kind", "step_seconds", "in_flight"})
    methods = tuple(vars(make.func).items())  # tests replace some
    return environment.name, options, rollout, settings.seed, tuple((name, id(one)) for name, one in methods)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value
