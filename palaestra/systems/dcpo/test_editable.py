"""Rules of the editable context and of the program that uses it:

1. Outputs are shown with ids, and the task stays without one.
2. Pruning removes records and changes no other token; a new segment starts.
3. The summary of a memory action stays in memory and can be pruned later.
4. Ids that are not in memory are refused: an error in direct calls, an observation and `invalid` in an episode.
5. A memory action never reaches the environment; it is a step of reward 0 and counts against the turn limit.
6. Before any update the policy gives every token the log-probability it was sampled with, in every segment; under the
   final context it does not.
7. Without memory actions an episode is one segment, token by token that of the full history except for the ids.
8. Demonstrations prune when memory is full, keep the summary, and solve tasks that do not fit the context otherwise.
9. An agent without such a memory is refused.
"""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch

from palaestra.chat import FullHistory
from palaestra.data import Observation, Play, RunSetup, StepTable, StopReason, Trajectory, rows_of
from palaestra.data.batches import token_index
from palaestra.data.protocols import Policy, Session
from palaestra.envs.probes.hopsearch import HopSearch
from palaestra.errors import InvalidData
from palaestra.rollout.programs import demonstrate, demonstration_of, play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.systems.dcpo.curating import curate, demonstrate_curating
from palaestra.systems.dcpo.editable import Edit, Editable, read_edit, write_edit
from palaestra.systems.dcpo.resource_penalty import resource_penalty
from palaestra.testing import EchoEnvironment, ScriptedPolicy, TinyModel, check_context

OPTIONS = {"entities": 8, "hops": (1, 2), "questions": (3, 3), "noise": 0.0, "max_turns": 20}


class Spelled:
    """A renderer whose ids are letters, so that prompts can be read."""

    stop = (0,)

    def observation(self, observation, *, first):
        return np.array([ord(letter) for letter in f"<{observation.text}>"], np.int32)

    def action(self, text):
        return np.array([ord(letter) for letter in f"{text};"], np.int32)


def talk(*calls, **options):
    """A conversation with these calls, each answered by `out`."""
    memory = Editable(**options).start(Spelled())
    prompts = [memory.observe(Observation(text="task"))]
    for call in calls:
        memory.respond(Spelled().action(call))
        prompts.append(memory.observe(Observation(text="out")))
    return memory, prompts


def read(prompt):
    return "".join(chr(i) for i in prompt.ids)


# ---- the context ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("notice", [False, True])
def test_it_is_a_context(notice):
    check_context(Editable(full=3, notice=notice))


def test_outputs_have_ids():  # rule 1
    memory, prompts = talk("a", "b")
    assert [read(prompt) for prompt in prompts] == ["<task>", "<1) out>", "<2) out>"]
    assert [(prompt.segment, prompt.fresh) for prompt in prompts] == [(0, True), (0, False), (0, False)]
    assert memory.ids == (1, 2)
    assert memory.coming == 3


def test_pruning_keeps_the_rest_as_it_was():  # rules 2 and 3
    memory, _ = talk("a", "b", "c")
    memory.respond(Spelled().action("prune 1 3: so"))
    memory.prune([1, 3])
    assert memory.ids == (2,)
    prompt = memory.observe(Observation(text="pruned."))
    assert read(prompt) == "<task>b;<2) out>prune 1 3: so;<4) pruned.>"
    assert (prompt.segment, prompt.fresh) == (1, True)
    assert memory.length == len(prompt.ids)
    memory.respond(Spelled().action("d"))
    later = memory.observe(Observation(text="out"))
    assert (read(later), later.segment, later.fresh) == ("<5) out>", 1, False)
    memory.respond(Spelled().action("prune 2 4 5: no"))
    memory.prune([2, 4, 5])
    assert read(memory.observe(Observation(text="pruned."))) == "<task>prune 2 4 5: no;<6) pruned.>"


def test_two_edits_in_a_row_are_two_segments():  # rule 2
    memory, _ = talk("a", "b")
    for number in (1, 2):
        memory.respond(Spelled().action(f"prune {number}:"))
        memory.prune([number])
        assert memory.observe(Observation(text="pruned.")).segment == number


@pytest.mark.parametrize(
    ("ids", "what"), [([7], "memory has no 7"), ([1, 0, 9], "no 0 9"), ([], "no output without an id")]
)
def test_unknown_ids_are_refused(ids, what):  # rule 4
    memory, _ = talk("a", "b")
    with pytest.raises(InvalidData, match=what) as caught:
        memory.prune(ids)
    assert "In memory: 1 2." in caught.value.remedy
    assert memory.ids == (1, 2)
    memory.respond(Spelled().action("c"))
    assert not memory.observe(Observation(text="out")).fresh


def test_memory_says_when_it_is_full():
    memory, prompts = talk("a", "b", "c", full=3, notice=True)
    assert [read(prompt) for prompt in prompts[1:]] == ["<1) out>", "<2) out>", "<memory full. 3) out>"]
    assert memory.full
    assert not talk("a", full=3)[0].full
    assert not Editable(full=1).start(Spelled()).full  # the task is not a record
    assert any("memory full." in text for text in Editable().phrases)


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("prune 1 2: amber is old", Edit(ids=(1, 2), summary="amber is old")),
        (" prune 12:", Edit(ids=(12,), summary="")),
        ("prune 3", Edit(ids=(3,), summary="")),
        ("prune : so", Edit(ids=(), summary="so")),
        ("prune", Edit(ids=(), summary="")),
        ("prune the roses", Edit(ids=(), summary="")),
        ("search amber owner", None),
        ("prunes 1: x", None),
        ("", None),
    ],
)
def test_memory_actions_are_read(text, edit):
    assert read_edit(text) == edit


def test_memory_actions_are_written():
    edit = Edit(ids=(4, 5), summary="1: birch.")
    assert write_edit(edit) == "prune 4 5: 1: birch."
    assert read_edit(write_edit(edit)) == edit


# ---- episodes ---------------------------------------------------------------------------------------------
def make_setup(policy, program=curate, *, context=None, make=None):
    return RunSetup(
        environment_name="hopsearch",
        make_environment=make or functools.partial(HopSearch, **OPTIONS),
        roles={"*": Role(policy=policy, context=context or Editable(full=3))},
        program=program,
        environment_options={},
    )


def run(on, count=1, **settings):
    tasks = HopSearch(**OPTIONS).tasks("train", count, seed=1)
    plays = [Play(task=task, group=f"{i:03d}", sample=0, seed=i) for i, task in enumerate(tasks)]
    return EpisodeRunner(on, RolloutSettings(**{"max_turns": 20, **settings})).collect(plays)


@functools.cache
def tiny():
    """A language policy that knows the words, with large logits, so that another context gives other probabilities."""
    policy = TinyModel(context=400)
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.mul_(3.0)
    return policy


class Told(Policy):
    """A language policy that gives prescribed answers in order."""

    def __init__(self, *texts):
        self._texts, self.name, self.trainable, self.version = texts, "told", False, 0

    def session(self, **given):
        session = tiny().session(**given)
        texts = iter(self._texts)

        async def act(observation, *, seed):
            from palaestra.data import Action

            return session.record(observation, Action(text=next(texts)))

        return _Answering(session, act)


class _Answering(Session):
    def __init__(self, session, act):
        self.history, self.act, self.end = session.history, act, session.end


def test_memory_actions_do_not_reach_the_environment():  # rule 5
    texts = ("search amber owner", "search birch owner", "prune 1 2: both known", "search cedar owner", "answer")
    (trajectory,) = run(make_setup(Told(*texts)), max_turns=5)
    steps = trajectory.steps
    assert [step.action.text for step in steps] == list(texts)
    assert [step.segment for step in steps] == [0, 0, 0, 1, 1]
    assert [step.info.get("calls") for step in steps] == [1.0, 2.0, None, 3.0, 3.0]
    assert steps[2].info["edit"] == {"ids": [1, 2], "summary": "both known"}
    assert [step.info.get("pruned", 0.0) for step in steps] == [0, 0, 2, 0, 0]
    assert steps[2].reward == 0
    assert steps[3].observation.text == "pruned."
    assert steps[3].observation.state_key == steps[2].observation.state_key
    assert trajectory.stop is StopReason.MAX_TURNS  # five acts, four of them in the environment


def test_refused_edits_are_answered():  # rule 4
    told = Told("prune 1: x", "search amber owner", "prune 2 3: x", "prune 1 2: x", "hm")
    (trajectory,) = run(make_setup(told), max_turns=5)
    assert [step.info.get("invalid", 0.0) for step in trajectory.steps] == [1, 0, 1, 0, 1]
    shown = [step.observation.text for step in trajectory.steps]
    assert shown[1] == "memory has no 1."  # this refusal is itself output 1
    assert shown[3] == "memory has no 3."
    assert [step.segment for step in trajectory.steps] == [0, 0, 0, 0, 1]


async def pruning(episode, *, every=2):
    """Acts are sampled; an edit follows every second one, whatever it says."""
    result = await episode.reset()
    agent = episode.agents["player"]
    while result.observations:
        action = await agent.act(result.observations["player"])
        memory = agent.session.conversation
        if agent.acts % every == 0 and memory.ids:
            memory.prune(memory.ids[: 1 + len(memory.ids) // 2])
            agent.episode.latest["player"].info["pruned"] = 1.0
        result = await episode.step({"player": action})


def recomputed(policy, trajectories):
    """Log-probabilities of all sampled tokens by the training pass, and those of the engine."""
    rows = rows_of(trajectories)
    samples = policy.collate(rows, temperature=1.0)
    with torch.no_grad():
        now = policy.forward(samples, range(len(samples.cost)), ("logprob",))
    index = token_index(samples, range(len(samples.cost)))
    then = np.concatenate([row.step.action.logprobs for row in rows])
    return now["logprob"].numpy(), then[index], samples


def test_ratios_are_one_under_the_own_context():  # rule 6
    played = run(make_setup(tiny(), pruning), 4, response_tokens=6, max_turns=9)
    assert {step.segment for t in played for step in t.steps} == {0, 1, 2, 3, 4}
    now, then, samples = recomputed(tiny(), played)
    assert len(samples.cost) == len({(t.id, step.segment) for t in played for step in t.steps})
    assert len(now) == sum(len(step.action.tokens) for t in played for step in t.steps)
    assert np.abs(np.exp(now - then) - 1).max() < 2e-3
    assert np.abs(under_final_context(played) - 1).max() > 0.5


def under_final_context(played: list[Trajectory]) -> np.ndarray:
    """Ratios of tokens before the last edit if the policy had the final memory as its context."""
    changed = copy.deepcopy(played)
    for trajectory in changed:
        final = trajectory.steps[-1]
        opening = next(step for step in trajectory.steps if step.segment == final.segment)
        trajectory.steps = [step for step in trajectory.steps if step.segment < final.segment]
        for step in trajectory.steps:
            step.prompt, step.segment = opening.prompt, 100 + step.turn
    now, then, _ = recomputed(tiny(), changed)
    return np.exp(now - then)


def test_without_edits_there_is_one_segment():  # rule 7
    (edited,) = run(make_setup(tiny(), play), response_tokens=4, max_turns=5)
    (plain,) = run(make_setup(tiny(), play, context=FullHistory()), response_tokens=4, max_turns=5)
    assert {step.segment for step in edited.steps} == {0}
    assert np.array_equal(edited.steps[0].prompt, plain.steps[0].prompt)
    labels = [
        len(ours.prompt) - len(theirs.prompt) for ours, theirs in zip(edited.steps[1:], plain.steps[1:], strict=False)
    ]
    assert all(extra > 0 for extra in labels[:1])
    assert "pruned" not in StepTable.from_trajectories([edited])


# ---- demonstrations ---------------------------------------------------------------------------------------
def test_a_warm_start_plays_the_programs_own_demonstration():  # rule 8
    assert demonstration_of(curate) is demonstrate_curating
    assert demonstration_of(play) is demonstrate


def test_demonstrations_prune_when_memory_is_full():  # rule 8
    played = run(make_setup(tiny(), demonstrate_curating), 10)
    assert all(t.outcome == 1.0 for t in played)
    for trajectory in played:
        held = 0
        for step in trajectory.steps:
            edit = step.info.get("edit")
            if edit:
                assert len(edit["ids"]) == 3
                assert read_edit(step.action.text) == Edit(ids=tuple(edit["ids"]), summary=edit["summary"])
                assert edit["summary"].startswith("1: ")
            held = 1 if edit else held + 1
            assert held <= 3
    assert any("edit" in step.info for t in played for step in t.steps)


def test_demonstrations_fit_where_full_history_does_not():  # rule 8
    small = TinyModel(context=330)
    demonstrated = run(make_setup(small, demonstrate_curating), 10)
    plain = run(make_setup(small, demonstrate, context=FullHistory()), 10)
    assert sum(t.stop is StopReason.CONTEXT_OVERFLOW for t in demonstrated) < sum(
        t.stop is StopReason.CONTEXT_OVERFLOW for t in plain
    )


def test_overflow_is_a_resource_violation():
    played = run(make_setup(TinyModel(context=200), demonstrate, context=FullHistory()), 4)
    table = StepTable.from_trajectories(played)
    assert {t.stop for t in played} == {StopReason.CONTEXT_OVERFLOW}
    total = torch.zeros(4).index_add_(0, table["trajectory"], resource_penalty(table))
    assert total.tolist() == pytest.approx([-0.1] * 4)


def test_agents_without_memory_are_refused():  # rule 9
    for context, policy in ((FullHistory(), tiny()), (None, ScriptedPolicy(lambda turn, seen: "x"))):
        (trajectory,) = run(make_setup(policy, context=context, make=EchoEnvironment))
        assert trajectory.stop is StopReason.ERROR
        assert "no memory that can be edited" in trajectory.error.message
