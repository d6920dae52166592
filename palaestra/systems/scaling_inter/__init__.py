"""AgentGym-RL (arXiv 2509.08755) trains agents in long tasks without supervised tuning first. Long episodes from the
start make learning slow or unstable, and short ones cannot solve long tasks. ScalingInter-RL raises the limit of turns
in stages: the policy first learns to use what it can do and then explores longer. Here a cut at this limit is a
truncation, so a critic's value of the next observation counts, and an episode that was not judged in time has no
outcome. The default limits are those of BabyAI. The paper's environment servers are not here; adapters to some of its
environments are in `palaestra/envs/adapters`. This file is the sampler `growing_horizon`.
"""

from __future__ import annotations

from palaestra.boundary.tasks import tasks_of
from palaestra.data import Play, derive
from palaestra.data.abilities import HasTasks
from palaestra.errors import RecipeError
from palaestra.registry import PositiveInt, register

WHERE = "sampler: growing_horizon"


@register("sampler", "growing_horizon", source="arXiv 2509.08755")
def growing_horizon(
    source: HasTasks,
    iteration: int,
    count: int,
    seed: int,
    *,
    rounds: tuple[int, ...] = (6, 13, 20),
    every: PositiveInt = 100,
) -> list[Play]:
    """Play the tasks of `uniform` for at most h turns, where h grows every so many iterations.

        stage = min(iteration // every, k − 1)        h = rounds[stage]        of k rounds

    A cut at h is a truncation: the value of the next observation counts. Its stop reason is `max_turns`. An episode
    that the environment had no time to judge has no outcome; put the reward `cut_outcome` before parts that read
    outcomes. `rollout.max_turns` stays the limit of evaluations, and the environment's own limit cuts first where it is
    lower.

    Args:
        source: the environment.
        iteration, count, seed: of the run.
        rounds: turns of each stage, each ≥ 1, not decreasing. A higher first number: more exploration from the start,
            and fewer episodes for the same number of environment steps. Usual: about 1/3, 2/3 and all of the turns that
            long tasks take. One number, or equal ones, is a fixed limit; with `rollout.max_turns` in it the sampler is
            `uniform`.
        every: > 0, iterations of a stage. Usual: 100 of 300.

    Returns: `count` plays; `horizon` in the info of their trajectories is h.
    Raises: RecipeError, if `rounds` is empty, decreases or has a number below 1.
    """
    turns = horizon(iteration, rounds, every)
    tasks = tasks_of(source, "train", count, derive(seed, "tasks", iteration))
    return [Play(task=task, turns=turns, info={"horizon": turns}) for task in tasks]


def horizon(iteration: int, rounds: tuple[int, ...], every: int) -> int:
    """The limit of turns in this iteration.

    Raises: RecipeError, as `growing_horizon`.
    """
    fault = None
    if not rounds:
        fault = "`rounds` is empty"
    elif min(rounds) < 1:
        fault = f"`rounds` has {min(rounds)}, but an episode has at least 1 turn"
    elif list(rounds) != sorted(rounds):
        fault = f"`rounds` {list(rounds)} decreases, but stages must not become shorter"
    elif every < 1:
        fault = f"`every` is {every}, but a stage has at least 1 iteration"
    if fault:
        raise RecipeError(where=WHERE, what=f"{fault}.", remedy="Give growing limits such as [6, 13, 20], every 100.")
    return rounds[min(iteration // every, len(rounds) - 1)]
