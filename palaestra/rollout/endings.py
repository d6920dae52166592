"""How episodes end: what a program raised, as a reason or a failure, and an episode that is closed in any case."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from palaestra.data import Failure, StopReason, Trajectory
from palaestra.errors import ContractError, EpisodeFailure, MissingExtra, PalaestraError
from palaestra.rollout.episode import Episode
from palaestra.rollout.limits import LimitReached

PACKAGE = Path(__file__).parents[1]


def verdict(error: Exception, where: str) -> tuple[StopReason, EpisodeFailure | None]:
    """How an episode ends whose program raised this. Of several errors at once, a failure counts more than a limit.

    Raises: MissingExtra, if it is among them: no other episode would do without the package.
    """
    errors = _single_errors(error)
    for single in errors:
        if isinstance(single, MissingExtra):
            raise single
    faults = [single for single in errors if not isinstance(single, LimitReached)]
    limits = [single for single in errors if isinstance(single, LimitReached)]
    return (StopReason.ERROR, _fault(faults[0], where)) if faults else (limits[0].reason, None)


def let_out(where: str) -> EpisodeFailure:
    """The failure of an episode whose program raised CancelledError though nobody had canceled the episode."""
    return EpisodeFailure(
        boundary="part",
        where=where,
        what="it let a CancelledError out, and nobody had canceled the episode.",
        remedy="Where it cancels a task of its own and awaits it, catch the error: "
        "`with contextlib.suppress(asyncio.CancelledError): await task`.",
    )


def _single_errors(error: Exception) -> list[Exception]:
    """The errors that an `asyncio.TaskGroup` of the program has gathered, or the one."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [single for inner in error.exceptions for single in _single_errors(inner)]


def _fault(error: Exception, where: str) -> EpisodeFailure:
    """What a program raised, as the failure that the episode is recorded with."""
    if isinstance(error, EpisodeFailure):
        return error
    if isinstance(error, PalaestraError):
        return EpisodeFailure(boundary="part", where=where, what=error.what, options=error.options, remedy=error.remedy)
    return EpisodeFailure(boundary="part", where=where, what=f"{type(error).__name__}: {error}{_line(error)}")


def _line(error: Exception) -> str:
    """` (pair.py, line 12)`: where the user's own code was when it raised; empty, if none of it was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE) and not _installed(frame.filename)
    ]
    return f" ({Path(user_frames[-1].filename).name}, line {user_frames[-1].lineno})" if user_frames else ""


def _installed(file: str) -> bool:
    """Whether code belongs to Python or to a package that was installed."""
    return "site-packages" in file or file.startswith((sys.base_prefix, sys.prefix, "<"))


def finished(episode: Episode, reason: StopReason, fault: EpisodeFailure | None = None) -> Trajectory:
    """Finish an episode, with the failure that it is recorded with.

    What keeps it from being finished (info that cannot be read, a session that cannot be closed) is a failure of this
    episode only; its sessions are closed all the same.
    """
    try:
        played = episode.finish(reason)
    except Exception as error:
        fault = fault or _unfinished(episode, error)
        played = _given_up(episode)
    return played if fault is None else failed(played, fault)


def _unfinished(episode: Episode, error: Exception) -> EpisodeFailure:
    """What kept an episode from being finished."""
    where, info = f"environment {episode.setup.environment_name}, info", episode.trajectory.info
    bad = _no_numbers(info)
    if isinstance(error, EpisodeFailure):
        fault = error
    elif isinstance(error, ContractError):
        fault = EpisodeFailure(
            boundary="environment", where=error.where, what=error.what, options=error.options, remedy=error.remedy
        )
    elif bad:
        what = ", ".join(f"`{name}` is {info[name]!r}" for name in bad)
        remedy = "Tell a number, or true or false; leave it out where there is none."
        fault = EpisodeFailure(boundary="environment", where=where, what=f"{what}, no number.", remedy=remedy)
    else:
        what = f"{type(error).__name__}: {error}"
        fault = EpisodeFailure(boundary="engine", where="the end of the episode, closing its sessions", what=what)
    if fault is not error:
        fault.__cause__ = error
    return fault


def _no_numbers(info: Mapping[str, Any]) -> list[str]:
    """The names of those results that are told, and no numbers."""
    names = []
    for name in ("success", "score"):
        try:
            float(info.get(name) or 0.0)
        except (TypeError, ValueError, OverflowError):
            names.append(name)
    return names


def _given_up(episode: Episode) -> Trajectory:
    """Finish a failed episode whatever its environment told; sessions that cannot be closed are left."""
    played = episode.trajectory
    bad = _no_numbers(played.info)
    played.info = {name: value for name, value in played.info.items() if name not in bad}
    try:
        return episode.finish(StopReason.ERROR)
    except Exception:
        for agent in (*episode.agents.values(), *episode.invoked):
            with suppress(Exception):
                agent.session.end(None)
    return played


def failed(trajectory: Trajectory, error: EpisodeFailure) -> Trajectory:
    """The trajectory, recorded as one that failed."""
    trajectory.stop = StopReason.ERROR
    trajectory.error = Failure(boundary=error.boundary, message=error.render(), kind=type(error.__cause__).__name__)
    return trajectory
