"""Rules of the replay buffer:

1. An episode becomes one transition for each act of the policy, agent by agent: what was seen, done, rewarded, and
   seen next by the same agent; nothing follows where the agent's episode ended.
2. Prompts are whole, also where a context started a new segment; after a cut the next prompt follows.
3. The buffer is a ring: the newest stay. Draws are by seed, without repetition, and equally likely.
4. What was saved and loaded draws the same.
5. A transition becomes an episode of one act again, which policies can collate.
6. Refused: an empty utterance, an end that nobody named, drawing more than is held, vectors mixed with ids, another
   capacity.
7. Rewards may be given from outside, such as those of a table; acts without one are left out.
8. Where actions are vectors, the utterance is the vector, in the buffer and in a checkpoint of it.
9. The last act of an episode that was cut without a next observation is left out and counted; the others stay.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory
from palaestra.data.trajectory import NextPrompt
from palaestra.errors import CheckpointError, InvalidData
from palaestra.replay.buffer import ReplayBuffer
from palaestra.replay.transitions import one_step, transitions
from tests.messages import told

TASK = Task(env="toy", seed=0)


def ids(*values):
    return np.array(values, np.int32)


def acted(number, *, agent="x", turn=None, policy="main", **more):
    """A step with the vector [number] and the action of the same number."""
    seen = Observation(vector=np.array([number], np.float32))
    action = Action(value=number, tokens=ids(number))
    turn = number if turn is None else turn
    return Step(agent=agent, turn=turn, action=action, observation=seen, policy=policy, reward=float(number), **more)


def episode(*steps, name="e", **more):
    return Trajectory(task=TASK, group=name, steps=list(steps), **more)


def chain(length=3, *, start=0, name="e"):
    steps = [acted(start + i, turn=i) for i in range(length)]
    steps[-1].terminated = True
    return episode(*steps, name=name)


def read(turn, prompt, response, *, segment=0, **more):
    """A step of a policy that reads ids."""
    action = Action(text="a", tokens=ids(*response))
    seen = Observation(text="seen")
    return Step(
        agent="x",
        turn=turn,
        action=action,
        observation=seen,
        policy="main",
        prompt=ids(*prompt),
        segment=segment,
        **more,
    )


def held(trajectory):
    return transitions([trajectory], policy="main")


def test_1_what_follows():
    found = held(chain())
    assert [one.observation.tolist() for one in found] == [[0.0], [1.0], [2.0]]
    assert [one.utterance.tolist() for one in found] == [[0], [1], [2]]
    assert [one.following and one.following.tolist() for one in found] == [[1.0], [2.0], None]
    assert [one.done for one in found] == [False, False, True]
    assert [one.reward for one in found] == [0.0, 1.0, 2.0]
    assert {one.observation.dtype for one in found} == {np.dtype(np.float32)}


def test_1_agents_follow_themselves():
    steps = [acted(0), acted(1, agent="y", terminated=True), acted(2, terminated=True)]
    found = held(episode(*steps))
    assert [(one.agent, one.done) for one in found] == [("x", False), ("x", True), ("y", True)]
    assert found[0].following.tolist() == [2.0]


def test_1_others_are_left_out():
    steps = [acted(0, policy="other"), acted(1), acted(2, policy="other", terminated=True)]
    (only,) = held(episode(*steps))
    assert (only.observation.tolist(), only.following.tolist(), only.done) == ([1.0], [2.0], False)
    assert transitions([episode(*steps)], policy="nobody") == []


def test_1_legal_actions_are_kept():
    step = acted(0, terminated=True)
    step.observation.legal = [0, 2]
    assert held(episode(step))[0].legal.tolist() == [0, 2]
    step.observation.legal = ["words"]
    assert held(episode(step))[0].legal is None


def test_2_prompts_are_whole():
    steps = [read(0, [1, 2], [3]), read(1, [4], [5, 6]), read(2, [7, 8], [9], segment=1, terminated=True)]
    found = held(episode(*steps))
    assert [one.observation.tolist() for one in found] == [[1, 2], [1, 2, 3, 4], [7, 8]]
    assert [one.following is None or one.following.tolist() for one in found] == [[1, 2, 3, 4], [7, 8], True]
    assert [one.utterance.tolist() for one in found] == [[3], [5, 6], [9]]
    assert {one.observation.dtype for one in found} == {np.dtype(np.int32)}


@pytest.mark.parametrize(("segment", "expected"), [(0, [1, 2, 3, 4]), (1, [4])])
def test_2_next_prompts_follow_a_cut(segment, expected):
    cut = episode(read(0, [1, 2], [3], truncated=True), next_prompts={"x": NextPrompt(ids(4), segment)})
    (only,) = held(cut)
    assert (only.following.tolist(), only.done) == (expected, False)


def test_2_vectors_follow_a_cut():
    last = {"x": Observation(vector=np.array([7.0], np.float32))}
    (only,) = held(episode(acted(0, truncated=True), last=last))
    assert (only.following.tolist(), only.done) == ([7.0], False)


def seen(buffer, n, seed=0):
    return [one.utterance.item() for one in buffer.sample(n, seed=seed)]


def test_3_the_newest_stay():
    buffer = ReplayBuffer(capacity=4, policy="main")
    assert buffer.add([chain(3), chain(3, start=3, name="f")]) == 6
    assert len(buffer) == 4
    assert sorted(seen(buffer, 4)) == [2, 3, 4, 5]
    buffer.add([chain(1, start=6, name="g")])
    assert sorted(seen(buffer, 4)) == [3, 4, 5, 6]


def test_3_draws_come_from_the_seed():
    buffer = ReplayBuffer(capacity=10, policy="main")
    buffer.add([chain(8)])
    assert seen(buffer, 5, seed=3) == seen(buffer, 5, seed=3) != seen(buffer, 5, seed=4)
    assert all(len(set(seen(buffer, 5, seed=s))) == 5 for s in range(50))
    counts = np.bincount([value for s in range(2000) for value in seen(buffer, 2, seed=s)], minlength=8)
    assert counts.min() > 400 and counts.max() < 600  # 500 each; six deviations


def test_4_saved_and_loaded():
    buffer = ReplayBuffer(capacity=5, policy="main")
    steps = [acted(9), acted(10, agent="y", terminated=True), acted(11, terminated=True)]
    steps[0].observation.legal = [9, 11]
    buffer.add([chain(4), episode(*steps, name="f")])
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    again = ReplayBuffer(capacity=5, policy="main")
    again.load_state_dict(torch.load(file, weights_only=True))
    for one, other in zip(buffer.sample(5, seed=1), again.sample(5, seed=1), strict=True):
        assert (one.reward, one.done, one.agent) == (other.reward, other.done, other.agent)
        for name in ("observation", "utterance", "following", "legal"):
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None) == (right is None)
            assert left is None or (left.dtype == right.dtype and left.tolist() == right.tolist())
    for both in (buffer, again):
        both.add([chain(2, start=20, name="g")])
    assert seen(buffer, 5) == seen(again, 5)
    assert again.longest == 1


def test_4_an_empty_buffer_is_saved_too():
    again = ReplayBuffer(capacity=5, policy="main")
    again.load_state_dict(ReplayBuffer(capacity=5, policy="main").state_dict())
    assert len(again) == 0


def test_5_back_to_episodes():
    first, *_ = held(episode(read(0, [1, 2], [3]), read(1, [4], [5], terminated=True)))
    made = one_step(first, Action(text="b", tokens=ids(6, 7), logprobs=np.zeros(2, np.float32)), number=3)
    table = StepTable.from_trajectories([made])
    assert table["token_count"].tolist() == [2]
    assert table["terminated"].tolist() == [True]
    assert made.prompt_of(made.steps[0]).tolist() == [1, 2]
    assert made.id == "replay-000003/0"
    vector = one_step(held(chain())[0], None, number=0).steps[0]
    assert (vector.observation.vector.tolist(), vector.action.value, len(vector.prompt)) == ([0.0], 0, 0)


def test_6_empty_utterances_are_refused():
    step = acted(0, terminated=True)
    step.action = Action(text="")
    with pytest.raises(InvalidData, match="utterance is empty"):
        held(episode(step))


def test_6_open_ends_are_refused():
    with pytest.raises(InvalidData, match="neither terminated nor truncated"):
        held(episode(acted(0)))


def test_6_observations_that_show_nothing_are_refused():
    step = acted(0, terminated=True)
    step.observation = Observation(text="only words")
    with told(InvalidData, "nor a vector"):
        held(episode(step))


def test_6_drawing_too_many_is_refused():
    buffer = ReplayBuffer(capacity=10, policy="main")
    buffer.add([chain(3)])
    with told(InvalidData, "4 transitions were"):
        buffer.sample(4, seed=0)


def test_6_kinds_are_not_mixed():
    buffer = ReplayBuffer(capacity=10, policy="main")
    buffer.add([chain(1)])
    with pytest.raises(InvalidData, match="have different kinds: \\['float32', 'int32'\\]"):
        buffer.add([episode(read(0, [1], [2], terminated=True))])


def test_6_another_capacity_is_refused():
    buffer = ReplayBuffer(capacity=3, policy="main")
    buffer.add([chain(4)])
    for capacity in (2, 5):
        with pytest.raises(CheckpointError, match=f"capacity is {capacity} now"):
            ReplayBuffer(capacity=capacity, policy="main").load_state_dict(buffer.state_dict())


def test_7_rewards_from_outside():
    found = transitions([chain()], policy="main", rewards={("e/0", "x", 0): 5.0, ("e/0", "x", 2): 7.0})
    assert [(one.utterance.tolist(), one.reward, one.done) for one in found] == [([0], 5.0, False), ([2], 7.0, True)]
    assert found[0].following.tolist() == [1.0], "what is left out is still what follows"


def test_8_vectors_as_actions():
    whole = chain(2)
    for step in whole.steps:
        step.action = Action(value=np.float32([0.5, step.turn]))
    buffer = ReplayBuffer(capacity=4, policy="main")
    buffer.add([whole])
    again = ReplayBuffer(capacity=4, policy="main")
    again.load_state_dict(buffer.state_dict())
    for one in (*buffer.sample(2, seed=1), *again.sample(2, seed=1)):
        assert one.utterance.dtype == np.float32 and one.utterance.tolist() == [0.5, one.observation[0]]
        assert one_step(one, None, number=0).steps[0].action.value is one.utterance


@pytest.mark.parametrize("last", [acted(1, truncated=True), read(1, [1], [2], truncated=True)], ids=["vector", "ids"])
def test_9_cuts_without_next_observation_are_left_out(last):
    first = acted(0) if not len(last.prompt) else read(0, [3], [4])
    buffer = ReplayBuffer(capacity=4, policy="main")
    assert buffer.add([episode(first, last)]) == 1 and (len(buffer), buffer.left_out) == (1, 1)
    (kept,) = held(episode(first, last))
    assert not kept.done and kept.following is not None
    named = {("e/0", "x", 0): 1.0}  # an act without a reward was not wanted: it is not counted as left out
    assert buffer.add([episode(first, last)], rewards=named) == 1 and buffer.left_out == 0
