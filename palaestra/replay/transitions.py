"""Cut episodes into transitions (observation, action, reward, next observation), and make episodes from transitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palaestra.data import Action, Observation, Step, Task, Trajectory
from palaestra.errors import InvalidData

Rewards = Mapping[tuple[str, str, int], float]  # by trajectory id, agent and turn

NO_TASK = Task(env="replay", seed=0)


@dataclass(slots=True, kw_only=True, eq=False)
class Transition:
    """One act of one agent, and what followed it.

    Attributes:
        observation: what the policy read: float32 (size,), a vector, or int32 (m,), the ids of the whole prompt.
        utterance: int32 (n,), the response tokens, or the index of a network policy's action. float32 (n,), if the
            action is a vector.
        reward: reward until the agent's next act.
        following: what the agent saw next, in the form of `observation`. None if the episode ended for the agent.
        done: whether the episode ended for the agent by the rules of the task.
        legal: int64 (k,), indices of the legal actions. None: all.
        agent, policy: names.
    """

    observation: np.ndarray
    utterance: np.ndarray
    reward: float
    following: np.ndarray | None
    done: bool
    legal: np.ndarray | None = None
    agent: str
    policy: str


def transitions(trajectories: Sequence[Trajectory], *, policy: str, rewards: Rewards | None = None) -> list[Transition]:
    """The acts of `policy`, in the order of the trajectories, then agent by agent, then in time.

    An act that a limit cut off, without a next observation, is left out: its target would need the value of a state
    that nobody knows. Its prompt shows no end, so the value is not 0 either.

    Args:
        rewards: rewards of the acts, such as those of a table. Acts without one are left out. None: all acts, with the
            rewards of their steps.

    Raises: InvalidData, for an act without tokens that is not a vector, or for an agent whose last act is neither
        terminated nor truncated.
    """
    return [found for trajectory in trajectories for found in _of(trajectory, policy, rewards)]


def _of(trajectory: Trajectory, policy: str, rewards: Rewards | None) -> Iterator[Transition]:
    for agent in dict.fromkeys(step.agent for step in trajectory.steps):
        own = [step for step in sorted(trajectory.steps, key=lambda s: s.turn) if step.agent == agent]
        for step, after in zip(own, [*own[1:], None], strict=True):
            act = (trajectory.id, agent, step.turn)
            if step.policy != policy or (rewards is not None and act not in rewards):
                continue
            following = _following(trajectory, step, after)
            if following is None and not step.terminated:
                continue
            yield Transition(
                observation=seen_before(trajectory, step),
                utterance=_utterance(trajectory, step),
                reward=float(step.reward if rewards is None else rewards[act]),
                following=following,
                done=after is None and step.terminated,
                legal=_indices(step.observation),
                agent=agent,
                policy=policy,
            )


def _utterance(trajectory: Trajectory, step: Step) -> np.ndarray:
    if len(step.action.tokens):
        return np.asarray(step.action.tokens, np.int32)
    if isinstance(step.action.value, np.ndarray):
        return np.asarray(step.action.value, np.float32).reshape(-1)
    raise InvalidData(
        where=_place(trajectory, step),
        what="its utterance is empty: the action has no token.",
        remedy="Play or record the acts with the policy that learns from them.",
    )


def seen_before(trajectory: Trajectory, step: Step) -> np.ndarray:
    """What the policy read before a step: the int32 ids of the whole prompt, or the float32 vector.

    Raises: InvalidData, if there is neither.
    """
    if any(one.pictures for one in trajectory.steps if one.agent == step.agent):
        raise InvalidData(
            where=_place(trajectory, step),
            what="the prompt shows images, and transitions keep ids alone.",
            remedy="Set `policies.….policy.language.pictures: false`, or use a method that learns from whole episodes.",
        )
    if len(step.prompt):  # a policy that reads ids adds some with every step
        return trajectory.prompt_of(step).astype(np.int32)
    return _vector(step.observation, _place(trajectory, step))


def _following(trajectory: Trajectory, step: Step, after: Step | None) -> np.ndarray | None:
    """What the agent saw next; None, if its episode ended, or was cut off without a next observation."""
    if after is not None:
        return seen_before(trajectory, after)
    if step.terminated:
        return None
    where = _place(trajectory, step)
    if not step.truncated:
        raise InvalidData(
            where=where,
            what="it is the agent's last act and neither terminated nor truncated, so it is not known what follows.",
            remedy="Let the environment name the agent in `terminated` or `truncated` when its episode ends.",
        )
    prompt, last = trajectory.next_prompts.get(step.agent), trajectory.last.get(step.agent)
    if prompt is not None:
        before = trajectory.sequence(step.agent, prompt.segment)
        return np.concatenate([before, prompt.ids]).astype(np.int32)
    if last is not None and not len(step.prompt):
        return _vector(last, where)
    return None


def _vector(observation: Observation, where: str) -> np.ndarray:
    if observation.vector is None:
        remedy = "Let the environment fill `Observation.vector`, or use a language policy."
        raise InvalidData(where=where, what="the observation has neither prompt ids nor a vector.", remedy=remedy)
    return np.asarray(observation.vector, np.float32).reshape(-1)


def _indices(observation: Observation) -> np.ndarray | None:
    legal = observation.legal
    return np.array(legal, np.int64) if legal and isinstance(legal[0], int | np.integer) else None


def _place(trajectory: Trajectory, step: Step) -> str:
    return f"trajectory {trajectory.id}, turn {step.turn}, agent {step.agent}"


# ---- back to episodes -------------------------------------------------------------------------------------
def one_step(transition: Transition, action: Action | None, *, number: int) -> Trajectory:
    """An episode of one act, with the observation of a transition. Without `action`, the act is the recorded one.

    The episode is a group of its own, named by `number`, and has no reward.
    """
    reads_ids = transition.observation.dtype == np.int32
    given = transition.utterance
    recorded = Action(value=int(given[0]), tokens=given) if given.dtype == np.int32 else Action(value=given)
    step = Step(
        agent=transition.agent,
        turn=0,
        action=action or recorded,
        observation=Observation(
            vector=None if reads_ids else transition.observation,
            legal=None if transition.legal is None else transition.legal.tolist(),
        ),
        policy=transition.policy,
        terminated=True,
    )
    if reads_ids:
        step.prompt = transition.observation
    return Trajectory(task=NO_TASK, group=f"replay-{number:06d}", steps=[step])
