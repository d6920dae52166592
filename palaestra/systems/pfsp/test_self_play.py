"""Self-play against a pool.

1. Win rates, chances and ratings have the numbers of golden.yaml.
2. A member plays all agents but the learner's, which moves with the sample; a group has one opponent.
3. A member's rows weigh 0 and carry its own policy's name; it plays with the weights of its snapshot, under every
   runner.
4. Results are recorded: illegal moves lose, equal returns are a draw, and failed games do not count.
5. The pool grows every so many iterations; the oldest member is replaced and leaves the run, but not while it plays.
6. A policy for each agent has a pool for each.
7. State is saved and restored; a member of another architecture is refused, and so are policies that cannot play
   against themselves.
8. Language snapshots are served by the same engine, and dismissed when they leave.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Play, RunSetup, StepResult, StepTable, Task, Trajectory
from palaestra.engines import InProcessEngine
from palaestra.errors import CheckpointError, ContractError, InvalidData, RecipeError
from palaestra.policies.network import NetworkPolicy
from palaestra.rollout.programs import play as playing
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext
from palaestra.rollout.vector import VectorRunner
from palaestra.systems.pfsp.opponents import Pool, chances, elo, win_rate
from palaestra.systems.pfsp.self_play import SelfPlay, score
from palaestra.testing import TinyModel
from tests.golden_cases import Golden


class Higher:
    """Both name a number, one after the other, and the higher one wins. `rigged`: the agent that always wins."""

    def __init__(self, *, count: int = 2, rigged: int | None = None) -> None:
        self.agents = tuple(f"agent_{i}" for i in range(count))
        self.rigged, self.vector_size, self.action_count = rigged, 2, 3

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        return [Task(env="higher", params={"n": i}, seed=seed + i) for i in range(n)]

    def reset(self, task: Task) -> StepResult:
        self.said: list[int] = []
        return StepResult(observations=self.seen())

    def seen(self) -> dict[str, Observation]:
        place = len(self.said)
        vector = np.array([place, 1.0], np.float32)
        return {self.agents[place]: Observation(text=f"number {place}", vector=vector, state_key=str(place))}

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        value = next(iter(actions.values())).value
        self.said.append(int(value) if value is not None and str(value).isdigit() else 0)
        if len(self.said) < len(self.agents):
            return StepResult(observations=self.seen())
        best = max(self.said) if self.rigged is None else None
        won = [said == best if best is not None else i == self.rigged for i, said in enumerate(self.said)]
        if all(won):
            won = [False] * len(won)
        rewards = {
            name: float(good) - float(any(won) and not good) for name, good in zip(self.agents, won, strict=True)
        }
        return StepResult(observations={}, rewards=rewards, terminated=frozenset(self.agents))

    def close(self) -> None:
        pass


def network(name: str = "main", seed: int = 3, **options: Any) -> NetworkPolicy:
    return NetworkPolicy(name, RunSetup(seed=seed, vector_size=2, action_count=3), **{"hidden": (4,), **options})


class Arena:
    """Runs strategies on the game `Higher`."""

    def __init__(self, policy: Any, *, roles: Mapping[str, Any] | None = None, runner: Any = None, **game: Any) -> None:
        self.source = Higher(**game)
        given = roles or {"*": policy}
        self.policies = {one.name: one for one in given.values()}
        self.setup = RunSetup(
            environment_name="higher",
            make_environment=functools.partial(Higher, **game),
            roles={name: Role(policy=one) for name, one in given.items()},
            program=playing,
            environment_options={},
            policies=self.policies,
            source=self.source,
        )
        self.settings = RolloutSettings(max_turns=4, response_tokens=2, in_flight=8)
        self.runner = (runner or VectorRunner)(self.setup, self.settings)

    def plays(self, groups: int = 4, samples: int = 4) -> list[Play]:
        return [
            Play(task=task, group=f"g{i}", sample=sample, seed=100 * i + sample)
            for i, task in enumerate(self.source.tasks("train", groups, 0))
            for sample in range(samples)
        ]

    def run(
        self, strategy: Any, step: int = 0, plays: Sequence[Play] | None = None
    ) -> tuple[list[Trajectory], RolloutContext]:
        rollout = RolloutContext(
            more=lambda groups: self.plays(groups),
            settings=self.settings,
            sampling=self.runner.sampling(),
            step=step,
            seed=7 + step,
            setup=self.setup,
        )
        strategies = strategy if isinstance(strategy, list) else [strategy]
        given = self.plays() if plays is None else plays
        return self.runner.perform(given, strategies, rollout), rollout


def rig(policy: NetworkPolicy, choice: int) -> None:
    """Make the policy always name this number."""
    with torch.no_grad():
        policy.module.actor.weight.zero_()
        policy.module.actor.bias.copy_(50.0 * torch.nn.functional.one_hot(torch.tensor(choice), 3))


def test_1_numbers(golden: Golden) -> None:
    for case in golden.cases("win_rate"):
        assert [win_rate(*results) for results in case.extra["results"]] == pytest.approx(case.expected)
    for case in golden.cases("chances"):
        assert chances(case.extra["rates"], **case.options) == pytest.approx(case.expected, abs=5e-5)
    for case in golden.cases("elo"):
        assert elo(*case.extra["game"]) == pytest.approx(case.expected, abs=5e-5)
    assert len(golden.cases(file="pfsp")) == 6
    with pytest.raises(InvalidData, match="impossible"):
        win_rate(3, 2, 4)


def test_2_agents() -> None:
    played, rollout = Arena(network()).run(SelfPlay(self_share=0.5, every=1))
    met = {one.group: {other.info["opponent"] for other in played if other.group == one.group} for one in played}
    assert all(len(names) == 1 for names in met.values())
    assert {name for names in met.values() for name in names} == {"self", "main@0"}
    places: dict[str, list[int]] = {}
    for one in sorted(played, key=lambda t: (t.group, t.sample)):
        names = [step.policy for step in one.steps]
        if one.info["opponent"] == "self":
            assert names == ["main", "main"]
        else:
            assert sorted(names) == ["main", "main@0"]
            places.setdefault(one.group, []).append(names.index("main"))
    assert {tuple(taken) for taken in places.values()} <= {(0, 1, 0, 1), (1, 0, 1, 0)}
    against = sum(one.info["opponent"] != "self" for one in played)
    assert rollout.metrics["self_play/share"] == against / len(played)


def test_2_further_groups() -> None:
    class New:
        async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            def more(groups: int) -> list[Play]:
                return [replace(play, group=f"further-{play.group}") for play in rollout.more(groups)]

            return await replace(rollout, more=more).collect(plays)

    class Asks:
        async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            return [*await rollout.collect(plays), *await rollout.collect(rollout.more(1))]

    played, rollout = Arena(network()).run([New(), SelfPlay(self_share=0.0, every=1), Asks()])
    assert any(one.group.startswith("further") for one in played)
    assert {one.info["opponent"] for one in played} == {"main@0"} and rollout.metrics["self_play/share"] == 1.0


def test_2_groups_of_one() -> None:
    arena = Arena(network())
    played, _ = arena.run(SelfPlay(self_share=0.0), plays=arena.plays(groups=40, samples=1))
    taken = Counter([step.policy for step in one.steps].index("main") for one in played)
    assert min(taken[0], taken[1]) > 10


@pytest.mark.parametrize(("self_share", "against"), [(1.0, 0), (0.0, 16)])
def test_2_shares(self_share: float, against: int) -> None:
    played, _ = Arena(network()).run(SelfPlay(self_share=self_share))
    assert sum("main@0" in {step.policy for step in one.steps} for one in played) == against


def test_2_more_agents() -> None:
    played, _ = Arena(network(), count=3).run(SelfPlay(self_share=0.0))
    places = [[step.policy for step in one.steps].index("main") for one in played if one.group == "g0"]
    assert [(place - places[0]) % 3 for place in places] == [0, 1, 2, 0]
    assert {Counter(step.policy for step in one.steps)["main@0"] for one in played} == {2}


@pytest.mark.parametrize("runner", [VectorRunner, EpisodeRunner])
def test_3_rows_and_weights(runner: Any) -> None:
    policy = network()
    arena, strategy = Arena(policy, runner=runner), SelfPlay(self_share=0.0, every=5)
    rig(policy, 0)
    arena.run(strategy, 0)
    rig(policy, 2)
    played, _ = arena.run(strategy, 1)
    table = StepTable.from_trajectories(played)
    steps = [step for one in sorted(played, key=lambda t: (t.group, t.sample)) for step in one.steps]
    assert table.row_weight.tolist() == [float(step.policy == "main") for step in steps]
    assert {(step.policy, step.action.value) for step in steps} == {("main", 2), ("main@0", 0)}


def test_4_results() -> None:
    policy = network()
    arena, strategy = Arena(policy), SelfPlay(self_share=0.0, every=5)
    rig(policy, 1)
    _, rollout = arena.run(strategy, 0)  # it plays against its own copy: draws
    (member,) = strategy.pool.members
    assert (member.wins, member.draws, member.games) == (0, 16, 16)
    assert (member.rate, member.rating, rollout.metrics["self_play/score"]) == (0.5, 1000.0, 0.5)
    rig(policy, 2)
    _, rollout = arena.run(strategy, 1)
    assert (member.wins, member.draws, member.games) == (16, 16, 32)
    assert rollout.metrics["self_play/winrate/lowest"] == member.rate == (16 + 8 + 1) / 34
    assert rollout.metrics["self_play/score"] == 1.0
    assert strategy.pool.rating > 1000 > member.rating
    assert strategy.pool.rating + member.rating == pytest.approx(2000)


def test_4_scores() -> None:
    def told(**returns: float) -> Trajectory:
        return Trajectory(task=Task(env="x", params={}, seed=0), group="g", returns=dict(returns))

    assert score(told(a=-1.0), ["a"], ["b"]) == 0.0  # after an illegal move the others get no reward
    assert score(told(a=-1.0), ["b"], ["a"]) == 1.0
    assert score(told(a=0.1 + 0.2, b=0.3), ["a"], ["b"]) == 0.5
    assert score(told(a=1.0, b=0.0, c=1.5), ["a"], ["b", "c"]) == 1.0  # more than the others' mean


def test_4_failed_games_do_not_count() -> None:
    arena, strategy = Arena(network()), SelfPlay(self_share=0.0)
    make = arena.setup.make_environment
    arena.setup.make_environment = functools.partial(_failing, make)
    arena.runner = EpisodeRunner(arena.setup, arena.settings)
    played, rollout = arena.run(strategy)
    assert all(one.error is not None for one in played)
    assert strategy.pool.members[0].games == 0
    assert "self_play/score" not in rollout.metrics


def _failing(make: Callable[[], Higher]) -> Higher:
    environment = make()
    environment.step = lambda actions: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    return environment


def test_5_the_pool_has_a_clock_and_a_size() -> None:
    arena, strategy = Arena(network()), SelfPlay(self_share=0.0, every=2, size=2, choose="uniform")
    numbers = []
    for step in range(7):
        arena.run(strategy, step)
        numbers.append([member.number for member in strategy.pool.members])
    assert numbers == [[0], [0], [0, 2], [0, 2], [2, 4], [2, 4], [4, 6]]
    opponents = {role.policy.name for role in arena.setup.roles.values() if role.opponent}
    assert opponents <= {"main@4", "main@6"}


def test_5_draws() -> None:
    pool = Pool(size=3)
    for number in range(3):
        pool.add(network(), number)
    for _ in range(96):
        pool.note(pool.members[0], 1.0)  # a member that always loses is hardly ever sampled
    rng = np.random.default_rng(0)

    def drawn(**how: Any) -> list[int]:
        return [pool.draw(rng, **how).number for _ in range(600)]

    assert set(drawn(choose="latest", weighting="hard")) == {2}
    assert Counter(drawn(choose="uniform", weighting="hard"))[0] == pytest.approx(200, abs=40)
    assert Counter(drawn(choose="prioritized", weighting="hard"))[0] < 5
    assert 5 < Counter(drawn(choose="prioritized", weighting="variance"))[0] < 30


def test_5_who_still_plays_stays() -> None:
    arena, strategy = Arena(network()), SelfPlay(self_share=0.0, every=1, size=1)
    arena.run(strategy, 0)
    (member,) = strategy.pool.members
    member.playing = 1  # an episode of another group is under way
    arena.run(strategy, 1)
    assert strategy.pool.left == [member]
    assert any(role.policy is member.policy for role in arena.setup.roles.values())
    member.playing = 0
    arena.run(strategy, 2)
    assert not any(role.policy is member.policy for role in arena.setup.roles.values())


def test_6_a_pool_for_each_agent() -> None:
    one, two = network("one"), network("two", seed=4)
    arena = Arena(None, roles={"agent_0": one, "agent_1": two})
    both = [SelfPlay(policy="one", self_share=0.5), SelfPlay(policy="two", self_share=0.0)]
    played, _ = arena.run(both, plays=arena.plays(groups=8))
    found = {tuple(step.policy for step in trajectory.steps) for trajectory in played}
    assert found == {("one@0", "two"), ("one", "two@0")}  # there is only one opponent per game
    games = [strategy.pool.members[0].games for strategy in both]
    assert min(games) > 0 and sum(games) == len(played)


def test_7_state() -> None:
    arena, strategy = Arena(network()), SelfPlay(self_share=0.0, every=1, size=3)
    for step in range(3):
        rig(arena.policies["main"], step)
        arena.run(strategy, step)
    state = strategy.state_dict()
    other, again = Arena(network(seed=9)), SelfPlay(self_share=0.0, every=1, size=3)
    again.load_state_dict(state)
    assert again.state_dict() == state  # before the first play
    rig(other.policies["main"], 2)
    again_played, _ = other.run(again, 3)
    played, _ = arena.run(strategy, 3)
    assert [[s.action.value for s in t.steps] for t in again_played] == [
        [s.action.value for s in t.steps] for t in played
    ]
    assert [(m.number, m.games, m.rating) for m in again.pool.members] == [
        (m.number, m.games, m.rating) for m in strategy.pool.members
    ]


def test_7_another_architecture_is_refused() -> None:
    arena, strategy = Arena(network()), SelfPlay()
    arena.run(strategy)
    again = SelfPlay()
    again.load_state_dict(strategy.state_dict())
    with pytest.raises(CheckpointError, match="what differs: hidden"):
        Arena(network(hidden=(8,))).run(again, 1)


def test_7_who_cannot_meet_itself_is_refused() -> None:
    with pytest.raises(RecipeError, match="no policy of this run that has weights") as caught:
        Arena(network()).run(SelfPlay(policy="mian"))
    assert "main" in str(caught.value.render())
    with pytest.raises(RecipeError, match="1 of 1 agents"):
        Arena(network(), count=1).run(SelfPlay())


def test_8_language(tiny: Any) -> None:
    policy = TinyModel()
    policy.name = "main"
    policy.engine = InProcessEngine(models={"main": policy.model})
    arena, strategy = Arena(policy, runner=EpisodeRunner), SelfPlay(self_share=0.0, every=1, size=1)
    for step in range(2):
        played, _ = arena.run(strategy, step, arena.plays(groups=1))
        assert not [one.error for one in played if one.error]
    assert {step.policy for one in played for step in one.steps} == {"main", "main@1"}
    with pytest.raises(ContractError, match="is served"):
        policy.engine.serve("main@1", policy.model)
    policy.engine.serve("main@0", policy.model)  # it was dismissed


def test_8_a_snapshot_keeps_its_weights() -> None:
    policy = TinyModel()
    policy.name = "main"
    policy.engine = InProcessEngine(models={"main": policy.model})
    member = Pool(size=2).add(policy, 0)
    before = {name: tensor.clone() for name, tensor in member.policy.module.state_dict().items()}
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.add_(1.0)
    assert all(bool((before[name] == tensor).all()) for name, tensor in member.policy.module.state_dict().items())
    assert not any(parameter.requires_grad for parameter in member.policy.module.parameters())
    assert any(parameter.requires_grad for parameter in policy.module.parameters())
