"""Makes a table of a policy: the probabilities of the legal moves at every information state of a game.

It takes network and language policies. `tables.py` computes exploitability and cross-play from the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from palaestra.data import Action, Observation, Row, Step, Task, Trajectory, rows_of
from palaestra.data.protocols import Sampling
from palaestra.envs.adapters.openspiel.tables import Game, Place, Tabular, places
from palaestra.errors import InvalidData

CHUNK = 256  # samples of a forward pass


def tabular(
    policy: Any, game: Game, *, context: Any = None, prompt: str | None = None, temperature: float = 1.0
) -> Tabular:
    """The probabilities of the legal moves at every information state.

    A network policy gets the legal moves as a mask. For a language policy, a move's probability is that of its text
    with the end token after it; the player's earlier observations and moves are in the context. The probability of all
    other texts is `outside`, and the legal moves are scaled to sum to 1. An environment may also read other texts as
    legal moves, such as other spellings; they count as `outside`.

    Args:
        policy: of a run, or a copy of it.
        game: a game string, or the environment if its options change what is shown.
        context: of a language policy, as in `Role`; None: its full history.
        prompt: text around an observation, which stands at "{text}".
        temperature: > 0, at which the policy plays. Higher: closer to uniform.

    Raises: InvalidData, for a temperature of 0 or a game with too many information states.

    >>> from palaestra.data import RunSetup
    >>> from palaestra.envs.adapters.openspiel.tables import nash_conv
    >>> from palaestra.envs.adapters.openspiel.world import OpenSpiel
    >>> from palaestra.policies.network import NetworkPolicy
    >>> kuhn = OpenSpiel(game="kuhn_poker")
    >>> setup = RunSetup(seed=0, vector_size=kuhn.vector_size, action_count=kuhn.action_count)
    >>> round(nash_conv(kuhn, tabular(NetworkPolicy("main", setup), kuhn)), 1)  # before any training
    0.9
    """
    if not temperature > 0:
        raise InvalidData(
            where="exploitability",
            what=f"`temperature` is {temperature:g}, and the probabilities need one above 0.",
            remedy="Give the temperature at which the policy is sampled.",
        )
    known = places(game)
    shares = _probabilities(policy, known, context, prompt, temperature)
    moves, outside = {}, {}
    for place, row in zip(known, shares, strict=True):
        total = sum(row)
        outside[place.key] = max(0.0, 1.0 - total)
        even = 1.0 / len(row)
        moves[place.key] = {m: p / total if total > 0 else even for m, p in zip(place.moves, row, strict=True)}
    return Tabular(moves, {place.key: place.player for place in known}, outside)


def _probabilities(
    policy: Any, known: Sequence[Place], context: Any, prompt: str | None, temperature: float
) -> list[list[float]]:
    """For each information state the probabilities of its legal moves.

    Each legal move becomes the last step of a trajectory that begins with the player's own moves on the way there.
    """
    by_key = {place.key: place for place in known}
    told = {key: _told(place.seen, prompt) for key, place in by_key.items()}
    tried: list[Trajectory] = []
    for number, place in enumerate(known):
        session = policy.session(context=context, sampling=Sampling(temperature=temperature), key=("table", number))
        before = [
            _step(session, told[key], by_key[key].moves[move], move, turn, place.player, policy.name)
            for turn, (key, move) in enumerate(place.past)
        ]
        for branch, (move, text) in enumerate(place.moves.items()):
            forked = session.fork(("table", number, branch))
            last = _step(forked, told[place.key], text, move, len(before), place.player, policy.name)
            task = Task(env="openspiel", params={}, seed=0)
            tried.append(Trajectory(task=task, group=f"{number:06d}", sample=branch, steps=[*before, last]))
    scores = [score for start in range(0, len(tried), CHUNK) for score in _scores(policy, tried, start, temperature)]
    cuts = np.cumsum([len(place.moves) for place in known])[:-1]
    return [np.exp(row).tolist() for row in np.split(np.array(scores), cuts)]


def _scores(policy: Any, tried: Sequence[Trajectory], start: int, temperature: float) -> list[float]:
    """The log-probability of the last step of each trajectory of a chunk, summed over the step's tokens."""
    rows = rows_of(tried[start : start + CHUNK])
    samples = policy.collate(rows, temperature=temperature)
    which = range(len(samples.cost))
    with torch.no_grad():
        now = policy.forward(samples, which, ("logprob",))
    flat = np.full(int(samples.token_index.max()) + 1, np.nan)
    flat[samples.token_index] = now["logprob"].double().cpu().numpy()
    lasts: dict[str, Row] = {row.trajectory.id: row for row in rows}
    return [float(flat[row.start : row.start + len(row.step.action.tokens)].sum()) for row in lasts.values()]


def _told(seen: Observation, prompt: str | None) -> Observation:
    if prompt is None:
        return seen
    return Observation(
        text=prompt.replace("{text}", seen.text or ""), vector=seen.vector, legal=seen.legal, state_key=seen.state_key
    )


def _step(session: Any, seen: Observation, text: str, move: int, turn: int, player: int, policy: str) -> Step:
    acted = session.record(seen, Action(text=text, value=move))
    return Step(
        agent=f"player_{player}",
        turn=turn,
        action=acted.action,
        observation=seen,
        policy=policy,
        prompt=acted.prompt,
        pictures=acted.pictures,
        segment=acted.segment,
    )
