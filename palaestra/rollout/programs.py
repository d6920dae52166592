"""Programs for environments: who acts when. Knows episodes and agents; knows no policy and no environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from palaestra.data import Action, derive
from palaestra.registry import register

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode


@register("program", "play")
async def play(episode: Episode) -> None:
    """Whoever the environment names acts, until it names nobody."""
    result = await episode.reset()
    while result.observations:
        actions = {name: await episode.agents[name].act(seen) for name, seen in result.observations.items()}
        result = await episode.step(actions)


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """The environment's expert acts in everybody's name; a share `noise` of the acts is random instead.

    Random acts are recorded too (so that histories are what really happened) with `info["noise"] = 1`:
    behavior cloning reads past them and learns the expert's answer to where they led.
    """
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    result = await episode.reset()
    while result.observations:
        actions: dict[str, Action] = {}
        for name, seen in result.observations.items():
            wild = noise > 0 and seen.legal is not None and len(seen.legal) > 0 and draw.random() < noise
            if wild and seen.legal is not None:
                choice = seen.legal[int(draw.integers(len(seen.legal)))]
                chosen = Action(text=str(choice), value=choice)
            else:
                chosen = await episode.expert(name)
            actions[name] = episode.agents[name].record(seen, chosen, noise=float(wild))
        result = await episode.step(actions)
