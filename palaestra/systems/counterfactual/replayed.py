"""A program that plays each episode again without one role at a time, for difference rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from palaestra.data import Action, Observation
from palaestra.errors import EpisodeFailure
from palaestra.registry import Columns, register
from palaestra.rollout.limits import LimitReached
from palaestra.rollout.programs import acted_by

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode


@register("program", "replayed", source="common practice")
@acted_by()
async def replayed(episode: Episode, *, default: int | str | None = None, roles: Columns = ()) -> None:
    """Play an episode, then play its task again for each role, with a default action in place of the role's acts.

    In a replay the other roles repeat their acts in order, whatever they would observe now; a role without acts left
    takes the default too. The sum of all rewards of the replay is `info["without"]` of the role's last step, and
    `reward: counterfactual: {against: replay}` pays the difference. The difference is right where the same task and
    acts give the same episode: environments draw from the task's seed. Replays ask no policy, but they cost environment
    steps, counted as `replayed_steps`. Turn limits count the first episode only, and no replay is longer.

    Args:
        default: action in place of the role's acts: an index or a text; None: the first legal action.
        roles: roles that are left out, one at a time; empty: every role that acted.

    Raises: EpisodeFailure, if `default` is None where the environment lists no legal actions.
    """
    played: dict[str, list[Action]] = {}
    limit: LimitReached | None = None
    result = await episode.reset()
    try:
        while result.observations:
            actions = {name: await episode.agents[name].act(seen) for name, seen in result.observations.items()}
            for name, action in actions.items():
                played.setdefault(name, []).append(action)
            result = await episode.step(actions)
    except LimitReached as error:  # an episode that a limit cut off gets replays too
        limit = error
    steps, longest = 0, episode.env_steps
    for role in roles or tuple(played):
        step = episode.latest.get(role)
        if step is not None:
            step.info["without"], made = await _without(episode, role, played, default, longest)
            steps += made
    episode.trajectory.info = {**episode.trajectory.info, "replayed_steps": steps}
    if limit is not None:
        raise limit


async def _without(
    episode: Episode, role: str, played: Mapping[str, Sequence[Action]], default: int | str | None, longest: int
) -> tuple[float, int]:
    """The sum of all rewards when `role` takes default actions only, and the number of environment steps."""
    left = {name: list(acts) for name, acts in played.items() if name != role}
    total, steps = 0.0, 0
    with episode.busy():
        result = await episode.host.reset(episode.play.task)
        while result.observations and steps < longest:
            actions = {
                name: left[name].pop(0) if left.get(name) else _default(episode, name, seen, default)
                for name, seen in result.observations.items()
            }
            result = await episode.host.step(actions)
            total, steps = total + sum(result.rewards.values()), steps + 1
    return total, steps


def _default(episode: Episode, name: str, seen: Observation, default: int | str | None) -> Action:
    if default is not None:
        return Action(text=str(default), value=default)
    if seen.legal is None or not len(seen.legal):
        raise EpisodeFailure(
            boundary="part",
            where=f"program replayed, agent {name}",
            what=f"environment {episode.setup.environment_name} lists no legal actions, and no default is given.",
            remedy="Set `program: {replayed: {default: …}}` to an action that changes nothing.",
        )
    return Action(text=str(seen.legal[0]), value=seen.legal[0])
