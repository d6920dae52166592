"""Branching.

1.  The probability of a branch, and the division of a group, by hand-derived numbers.
2.  Without branches a group is the plain one, bit for bit; also with as many initial trajectories as the group has.
3.  A branch shares the earlier steps of its parent, bit for bit: acts, tokens, rewards, columns; then it differs. Its
    outcome is that of the same actions played from the start.
4.  Shared steps are spent once: environment steps and tokens; the engine computes none of them again.
5.  A tree depends neither on how many episodes are in flight nor on where environments run; a run repeats itself.
6.  There are as many trajectories as plays, in their order; a failed one is kept and fails no other.
7.  Limits also count shared steps.
8.  Beam, penalty and balance have their documented effects.
9.  Refusals: too many initial trajectories, a group of one, environments, sessions, programs and runners that cannot
    branch.
10. Branches of a conversation with thousands of segments keep its numbers of segments.
11. A pause is not part of an act's time; shared steps keep the time of the first play; calls of sub-agents are refused,
    and sessions that a branch does not need are closed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, NextPrompt, Observation, Play, RunSetup, Step, StopReason, Trajectory, derive
from palaestra.data.protocols import Policy, Response, Sampling, Session
from palaestra.envs.probes.hopsearch import HopSearch
from palaestra.errors import RecipeError
from palaestra.policies.network import NetworkPolicy
from palaestra.rollout.branches import Branch, BranchingEpisode
from palaestra.rollout.episode import conversation_of
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext
from palaestra.rollout.vector import VectorRunner
from palaestra.systems.arpo.branching import Branching
from palaestra.testing import EchoEnvironment, ScriptedPolicy, TinyModel
from palaestra.training.monitor.metrics import spent
from tests.messages import told

GROUP = 8
ENVIRONMENT = HopSearch(entities=8, relations=2, hops=(2, 3), noise=0.3, max_turns=6)


def network(seed: int = 0) -> NetworkPolicy:
    size, actions = ENVIRONMENT.vector_size, ENVIRONMENT.action_count
    return NetworkPolicy("main", RunSetup(seed=seed, vector_size=size, action_count=actions), hidden=(16,), body="gru")


def language() -> Any:
    texts = ["search follow answer repeat restart question owner maker not understood back to"]
    return TinyModel(texts=texts, context=400)


def plays(groups: int = 3, size: int = GROUP, environment: Any = ENVIRONMENT) -> list[Play]:
    tasks = environment.tasks("train", groups, seed=4)
    return [
        Play(task=task, group=f"{g:03d}", sample=sample, seed=derive(g, sample))
        for g, task in enumerate(tasks)
        for sample in range(size)
    ]


def make_setup(policy: Any, environment: Any = None, program: Any = play) -> RunSetup:
    options: dict[str, Any] = {"entities": 8, "relations": 2, "hops": (2, 3), "noise": 0.3, "max_turns": 6}
    return RunSetup(
        environment_name="hopsearch",
        make_environment=environment or functools.partial(HopSearch, **options),
        roles={"*": Role(policy=policy)},
        program=program,
        environment_options={},
    )


def grow(
    policy: Any,
    strategy: Branching | None,
    *,
    on: RunSetup | None = None,
    given: list[Play] | None = None,
    **settings: Any,
) -> tuple[list[Trajectory], RolloutContext]:
    """The trajectories of a strategy (None: plain groups), and the rollout context that it used."""
    setup = on or make_setup(policy)
    setup.policies = {"main": policy}
    runner = EpisodeRunner(setup, RolloutSettings(**{"group": GROUP, "response_tokens": 6, **settings}))
    rollout = RolloutContext(
        more=lambda groups: [],
        settings=runner._settings,
        sampling=runner.sampling(),
        step=0,
        seed=9,
        setup=setup,
    )
    strategies = [] if strategy is None else [strategy]
    try:
        given = plays() if given is None else given
        return runner.perform(given, strategies, rollout), rollout
    finally:
        runner.close()


def acts(trajectory: Trajectory) -> list[tuple[Any, ...]]:
    return [
        (s.agent, s.turn, s.action.value, s.action.tokens.tolist(), s.action.logprobs, s.prompt.tolist(), s.segment)
        for s in trajectory.steps
    ]


def same(one: Trajectory, other: Trajectory, *, until: int | None = None) -> bool:
    left, right = acts(one)[:until], acts(other)[:until]
    return all(
        a[:4] == b[:4] and a[5:] == b[5:] and np.array_equal(a[4], b[4]) for a, b in zip(left, right, strict=True)
    ) and (until is not None or (one.returns, one.outcome, one.stop) == (other.returns, other.outcome, other.stop))


BUSY = {"initial": 3, "base": 0.4, "weight": 0.5}


def test_numbers() -> None:  # rule 1
    arpo = Branching()
    assert arpo.probability(0.3) == pytest.approx(0.56)
    assert arpo.probability(-0.1) == pytest.approx(0.48)
    assert arpo.probability(9.0) == 1.0 and arpo.probability(-9.0) == 0.0
    assert Branching(base=-0.1).probability(99.0) == 0.0
    patient = Branching(patience=4)
    found = [patient.probability(rise, streak) for rise, streak in [(0.6, 0), (0.6, 1), (0.6, 2), (-0.5, 0), (0.6, 5)]]
    assert found == pytest.approx([0.62, 0.465, 0.31, 0.40, 0.0])
    balanced = Branching(balance=1.0)
    assert 16 / (1 + math.exp(-0.3)) == pytest.approx(9.1911, abs=1e-4)
    assert 16 / (1 + math.exp(0.5)) == pytest.approx(6.0407, abs=1e-4)
    assert [balanced.at_the_root(16, *pair) for pair in [(0.8, 0.5), (0.4, 0.9)]] == [9, 6]
    assert [balanced.at_the_root(16, *pair) for pair in [(0, 1e6), (1e6, 0)]] == [1, 16]
    assert arpo.at_the_root(16, 0.4, 0.9) == 8
    step = Step(agent="a", turn=0, observation=None, policy="main", action=Action(entropy=np.full(30, 0.5, np.float32)))  # type: ignore[arg-type]
    policies = {"main": type("P", (), {"choices": 100})()}
    assert arpo.uncertainty([step], policies) == pytest.approx(20 * 0.5 / math.log(100))
    assert Branching(probe=2).uncertainty([step, step], policies) == pytest.approx(1.0 / math.log(100))
    assert arpo.uncertainty([], policies) == 0.0


@pytest.mark.parametrize("make", [network, language])
@pytest.mark.parametrize(
    "options",
    [{"base": -1.0, "initial": 2}, {"beam": 1, "initial": 1}, {"initial": GROUP}, {"base": -1.0, "balance": 1.0}],
)
def test_neutral(make: Any, options: dict[str, Any]) -> None:  # rule 2
    policy = make()
    plain, _ = grow(policy, None)
    found, rollout = grow(policy, Branching(**options))
    assert len(plain) == len(found) == 3 * GROUP
    assert all(same(one, other) for one, other in zip(plain, found, strict=True))
    assert spent(rollout.played) == spent(plain)
    assert rollout.metrics["branching/branches"] == 0 and "branching/top3" not in rollout.metrics
    for trajectory in found:
        assert [s.marks.node for s in trajectory.steps] == [f"{trajectory.id}:{s.turn}" for s in trajectory.steps]


@pytest.mark.parametrize("make", [network, language])
def test_branches(make: Any) -> None:  # rules 3, 6
    found, rollout = grow(make(), Branching(**BUSY))
    assert [(t.group, t.sample) for t in found] == [(p.group, p.sample) for p in plays()]
    by_id = {t.id: t for t in found}
    branches = [t for t in found if "parent" in t.info]
    assert len(branches) > 5 and rollout.metrics["branching/branches"] == len(branches) / 3
    ways = set()
    for branch in branches:
        parent, turn = by_id[branch.info["parent"]], branch.info["fork"]
        assert turn > 0 and branch.group == parent.group
        assert same(branch, parent, until=turn)
        for k, step in enumerate(branch.steps):
            assert (step.marks.copied or 0.0) == float(k < turn)
            shared = parent.steps[k].marks.node if k < turn else f"{branch.id}:{k}"
            assert step.marks.node == shared
        for k in range(turn - 1):  # the reward of the last shared step may come later
            assert (branch.steps[k].reward, branch.steps[k].observation.text) == (
                parent.steps[k].reward,
                parent.steps[k].observation.text,
            )
            assert branch.steps[k].info["calls"] == parent.steps[k].info["calls"]
        if turn < len(branch.steps):
            ways.add(branch.steps[turn].action.value)
    assert len(ways) > 1, "they do not all go the same way"
    for trajectory in found:
        replayed(trajectory)


def replayed(trajectory: Trajectory) -> None:
    """The same actions in a fresh environment lead to the same observations, rewards and outcome."""
    environment = HopSearch(entities=8, relations=2, hops=(2, 3), noise=0.3, max_turns=6)
    result, earned = environment.reset(trajectory.task), 0.0
    for step in trajectory.steps:
        assert result.observations["player"].text == step.observation.text
        result = environment.step({"player": step.action})
        earned += result.rewards.get("player", 0.0)
    assert trajectory.returns.get("player", 0.0) == earned
    assert trajectory.outcome == float(result.info["success"])


def test_spent_once() -> None:  # rule 4
    policy = language()
    found, rollout = grow(policy, Branching(**BUSY))
    nodes = {step.marks.node: step for t in found for step in t.steps}
    steps, tokens = spent(rollout.played)
    assert steps == len(nodes) < sum(len(t.steps) for t in found)
    assert tokens == sum(len(step.action.tokens) for step in nodes.values())
    copied = [step.marks.copied or 0.0 for t in found for step in t.steps]
    assert rollout.metrics["branching/copied"] == pytest.approx(np.mean(copied))
    # What the engine computed: the union of all paths, each id once, but for each trajectory's last one.
    computed = policy.engine.statistics
    union: dict[str, int] = defaultdict(int)
    for t in found:
        for k, step in enumerate(t.steps):
            known = k < t.info.get("fork", 0)
            # A branch's first prompt was also read by its parent, if the parent acted on it.
            shared = k == t.info.get("fork", 0) and k > 0
            union[t.id] += 0 if known else (0 if shared else len(step.prompt) + (k > 0)) + len(step.action.tokens) - 1
    roots = {t.group: len(t.steps[0].prompt) for t in found}
    root_count = defaultdict(int)
    for t in found:
        root_count[t.group] += "parent" not in t.info
    expected = sum(union.values()) - sum((root_count[g] - 1) * length for g, length in roots.items())
    assert computed.recomputed_tokens == 0
    assert computed.computed_tokens == expected


@pytest.mark.parametrize(
    "settings",
    [{"in_flight": 1}, {"in_flight": 3}, {"workers": 2}, {"workers": 2, "worker_kind": "process", "in_flight": 5}],
)
def test_trees_do_not_depend_on_the_machine(settings: dict[str, Any]) -> None:  # rule 5
    policy = network()
    first, _ = grow(policy, Branching(**BUSY))
    found, _ = grow(policy, Branching(**BUSY), **settings)
    assert all(same(one, other) and one.info == other.info for one, other in zip(first, found, strict=True))


class Fragile(HopSearch):
    """Raises an error in the third turn of every third task."""

    def step(self, actions: Any) -> Any:
        if self.state.turn == 2 and self.state.seed // 2 % 3 == 0:
            raise ValueError("it broke")
        return super().step(actions)


def test_failures_stay_alone() -> None:  # rule 6
    make = functools.partial(Fragile, entities=8, relations=2, hops=(2, 3), noise=0.3, max_turns=6)
    policy = network()
    found, _ = grow(policy, Branching(**BUSY), on=make_setup(policy, make), given=plays(groups=8))
    assert len(found) == 8 * GROUP
    failed = [t for t in found if t.stop is StopReason.ERROR]
    assert 0 < len(failed) < len(found)
    assert all("it broke" in t.error.message for t in failed if t.error)


@pytest.mark.parametrize("limit", [{"max_turns": 2}, {"max_tokens": 9}])
def test_limits(limit: dict[str, int]) -> None:  # rule 7
    found, _ = grow(language(), Branching(initial=3, base=1.0), **limit)
    branches = [t for t in found if "parent" in t.info]
    assert branches
    for t in branches:
        if "max_turns" in limit:
            assert len(t.steps) <= 2 and t.stop in (StopReason.MAX_TURNS, StopReason.COMPLETED)
        else:
            assert sum(len(s.action.tokens) for s in t.steps[:-1]) < 9


def leavers(found: list[Trajectory]) -> dict[tuple[str, int], int]:
    """How many branches start from each trajectory at each turn."""
    count: dict[tuple[str, int], int] = defaultdict(int)
    for t in found:
        if "parent" in t.info:
            count[t.info["parent"], t.info["fork"]] += 1
    return count


def test_beam_penalty_and_balance() -> None:  # rule 8
    policy = network()
    for beam in (2, 4):
        found, _ = grow(policy, Branching(initial=2, base=1.0, beam=beam))
        assert max(leavers(found).values()) == beam - 1
    found, rollout = grow(policy, Branching(initial=2, base=1.0, patience=1))
    left = leavers(found)
    assert left and not any((parent, fork + 1) in left for parent, fork in left), "never twice in a row"
    _, rollout = grow(policy, Branching(balance=0.0))
    assert rollout.metrics["branching/initial"] == GROUP / 2
    found, rollout = grow(policy, Branching(balance=0.0, base=1.0))
    assert not any(t.info.get("parent", "").endswith("/0") for t in found), "nobody leaves the probe"
    assert 0 < rollout.metrics["branching/top3"] <= 1


class Rigid(Policy):
    """A policy whose sessions cannot be copied."""

    name, trainable, version = "rigid", False, 0

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> Any:
        class Stiff(Session):
            async def act(self, observation: Any, *, seed: int) -> Response:
                return Response(action=Action(text="search amber owner"))

            def end(self, observation: Any) -> None:
                return None

        return Stiff()


async def prying(episode: Any) -> None:
    """A program that calls a method of its agent's session."""
    result = await episode.reset()
    while result.observations:
        agent = episode.agents["player"]
        action = await agent.act(result.observations["player"])
        assert agent.session.remembers()
        result = await episode.step({"player": action})


def test_refusals() -> None:  # rule 9
    policy = network()
    with told(RecipeError, "9 trajectories should"):
        grow(policy, Branching(initial=9))
    with told(RecipeError, "1 cannot be"):
        grow(policy, Branching(balance=1.0), given=plays(size=1))
    for wrong in ({"beam": 0}, {"initial": 0}, {"weight": -0.1}, {"patience": 0}, {"base": 1.5}, {"probe": 0}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            Branching(**wrong)  # type: ignore[arg-type]

    def faults(on: RunSetup, given: list[Play]) -> set[str]:
        found, _ = grow(policy, Branching(initial=2, base=1.0), on=on, given=given)
        return {t.error.message for t in found if t.error is not None}

    echo = functools.partial(EchoEnvironment, turns=3)
    found = faults(make_setup(ScriptedPolicy(["red"]), echo), plays(size=4, environment=EchoEnvironment()))
    assert found and all("it cannot be put back into an earlier state" in message for message in found)
    found = faults(make_setup(Rigid()), plays(size=4))
    assert found and all("a Stiff cannot be copied" in message for message in found)
    found = faults(make_setup(policy, program=prying), plays(size=8))
    assert found and all("asks its agent's session for `remembers` while its acts are repeated" in m for m in found)
    branching = [dataclasses.replace(plays()[0], branch=Branch())]
    with told(RecipeError, "in lock step"):
        VectorRunner(make_setup(policy), RolloutSettings()).collect(branching)


def test_branches_of_long_conversations(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 10
    policy, plain = language(), type(language()).session

    class Shifted(Session):
        """A session of the policy with thousands of segments behind it."""

        def __init__(self, session: Any) -> None:
            self.session = session

        async def act(self, observation: Observation, *, seed: int) -> Response:
            return self.moved(await self.session.act(observation, seed=seed))

        def record(self, observation: Observation, action: Action) -> Response:
            return self.moved(self.session.record(observation, action))

        def moved(self, response: Response) -> Response:
            return replace(response, segment=response.segment + 5000)

        def fork(self, key: Hashable) -> Any:
            return Shifted(self.session.fork(key))

        def end(self, observation: Observation | None) -> NextPrompt | None:
            prompt = self.session.end(observation)
            return None if prompt is None else prompt._replace(segment=prompt.segment + 5000)

    expected, _ = grow(policy, Branching(initial=2, base=1.0), given=plays(1))
    monkeypatch.setattr(type(policy), "session", lambda self, **given: Shifted(plain(self, **given)))
    found, _ = grow(policy, Branching(initial=2, base=1.0), given=plays(1))
    assert any("fork" in t.info for t in found)
    for t, other in zip(found, expected, strict=True):
        assert [conversation_of(s.segment) for s in t.steps] == [(0, s.segment + 5000) for s in other.steps]
        assert len(acts(t)) == len(acts(other))


def branched(policy: Any, program: Any = play) -> tuple[list[Trajectory], list[Play]]:
    """An episode with one branch at its first pause, then the branch; both pause for a while at every answer."""
    left: list[Play] = []

    async def pause(episode: BranchingEpisode) -> None:
        await asyncio.sleep(0.1)
        if not left:
            left.append(await episode.fork(plays(1)[1]))

    runner = EpisodeRunner(make_setup(policy, program=program), RolloutSettings(response_tokens=6))
    first = runner.collect([dataclasses.replace(plays(1)[0], branch=Branch(pause=pause))])
    return [*first, *runner.collect(left)], left


def test_pauses_take_no_time() -> None:  # rule 11
    (parent, branch), (play,) = branched(network())
    assert parent.error is None and branch.error is None
    assert play.info == {"parent": parent.id, "fork": 1} and branch.info["parent"] == parent.id
    assert len(parent.steps) > 1 and all(0 < step.seconds < 0.1 for step in parent.steps)
    assert branch.steps[0].seconds == parent.steps[0].seconds and branch.steps[0].marks.copied == 1.0
    assert [step.marks.node for step in parent.steps] == [f"{parent.id}:{turn}" for turn in range(len(parent.steps))]
    assert branch.steps[0].marks.node == parent.steps[0].marks.node != branch.steps[1].marks.node


async def calling(episode: Any) -> None:
    result = await episode.reset()
    await episode.invoke("sub").act(next(iter(result.observations.values())))


def test_calls_of_sub_agents_are_refused() -> None:  # rule 11
    (played,), _ = branched(network(), calling)
    assert played.error is not None and "calls of sub-agents cannot be repeated" in played.error.message


def test_sessions_that_are_not_needed_are_closed() -> None:  # rule 11
    closed: list[Any] = []

    class Counted(Rigid):
        def session(self, **given: Any) -> Any:
            return Copied(given["key"])

    class Copied(Session):
        def __init__(self, key: Any) -> None:
            self.key = key

        async def act(self, observation: Any, *, seed: int) -> Response:
            return Response(action=Action(text="search amber owner"))

        def fork(self, key: Hashable) -> Any:
            return Copied(key)

        def end(self, observation: Any) -> None:
            closed.append(self.key)

    async def failing(episode: Any) -> None:
        if episode.play.sample:
            raise ValueError("before anybody acts")
        await play(episode)

    (_, branch), _ = branched(Counted(), failing)
    assert branch.stop is StopReason.ERROR and [key[1] for key in closed] == [0, 1]
