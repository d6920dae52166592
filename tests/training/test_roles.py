"""Roles of a recipe: (1) a policy that no role has, a role without a policy and a role that nobody knows are refused by
name; (2) a program's declared roles are what counts, and an undeclared program takes any name of the recipe; (3) roles
that share a trained policy act at one temperature, at which its probabilities are taken, and who never acts has none;
(4) a frozen role's rows are kept out of the update, of a shared critic's too, and its policy does not change;
(5) `every`, `epochs` and `minibatches` are a policy's own; (6) a role that falls silent is named, and one that never
acts ends the run; (7) metrics count every role in every episode.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import equal

from palaestra.data import Action, Observation, Step, Task, Trajectory
from palaestra.data.trajectory import noted
from palaestra.errors import NoSignal, RecipeError
from palaestra.recipe import load
from palaestra.rollout.programs import acted_by, play, roles_of
from palaestra.store.metrics import MetricsLog
from palaestra.training.monitor.guards import Teamwork
from palaestra.training.monitor.metrics import team_metrics
from palaestra.training.setup import build_setup
from palaestra.training.start import train
from palaestra.training.updates import Updater
from tests.messages import told

TINY = {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}
NETWORK = {"network": {"hidden": [8]}}
PAIR: dict[str, Any] = {
    "name": "pair",
    "seed": 1,
    "environment": {"echo": {"turns": 2, "agents": ["a", "b"]}},
    "policies": {"one": {"policy": NETWORK}, "two": {"policy": NETWORK}},
    "agents": {"a": {"policy": "one"}, "b": {"policy": "two"}},
    "rollout": {"tasks": 2, "group": 4, "max_turns": 4, "response_tokens": 2},
    "training": {"iterations": 3, "checkpoint_every": 1, "keep_checkpoints": 9},
    "evaluation": {"tasks": 2},
}
COACHED = """
from palaestra.rollout.programs import acted_by

async def open_team(episode):
    result = await episode.reset()
    while result.observations:
        await episode.agents["coach"].act(result.observations["a"])
        result = await episode.step({n: await episode.agents[n].act(o) for n, o in result.observations.items()})

@acted_by("a", "b", "coach")
async def named_team(episode):
    await open_team(episode)
"""


def recipe(**changes: Any) -> Any:
    return load([PAIR | changes], [])


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"agents": {"a": {"policy": "one"}, "b": {"policy": "one"}}}, "policies.two"),
        ({"agents": {"a": {"policy": "one"}, "c": {"policy": "two"}}}, "agents.c"),
        ({"agents": {"a": {"policy": "one"}}}, "agents.b.policy"),
        ({"agents": {"a": {"policy": "one", "acts_for": "nobody"}, "b": {"policy": "two"}}}, "agents.a.acts_for"),
    ],
)
def test_1_refused(changes: Any, place: str) -> None:
    with told(RecipeError, place):
        build_setup(recipe(**changes).settings)


@pytest.mark.parametrize(("program", "known"), [("open_team", True), ("named_team", False)])
def test_2_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, known: bool) -> None:
    (tmp_path / "coached.py").write_text(COACHED)
    monkeypatch.chdir(tmp_path)
    agents = PAIR["agents"] | {"coach": {"policy": "one"}, "critic": {"policy": "two"}}
    changed = recipe(agents=agents, program={f"coached.py:{program}": {}})
    if known:
        assert {"coach", "critic"} <= set(build_setup(changed.settings).roles)
    else:
        with pytest.raises(RecipeError, match="critic"):
            build_setup(changed.settings)


def test_2_functions_of_options() -> None:
    @acted_by("hub", lambda options: [f"spoke_{i}" for i in range(options["spokes"])])
    async def star(episode: Any, *, spokes: int = 2) -> None: ...

    class Options:
        options = {"spokes": 3}
        part = type("P", (), {"target": star})

    assert roles_of(Options()) == ("hub", "spoke_0", "spoke_1", "spoke_2")
    assert roles_of(play) == ()
    assert roles_of(lambda episode: None) is None


def test_3_one_temperature() -> None:
    shared = {"a": {"policy": "one", "temperature": 0.5}, "b": {"policy": "one"}}
    with told(RecipeError, "a 0.5, b 1"):
        build_setup(recipe(agents=shared, policies={"one": {"policy": NETWORK}}).settings)
    apart = {"a": {"policy": "one", "temperature": 0.5}, "b": {"policy": "two"}}
    assert build_setup(recipe(agents=apart).settings).temperatures == {"one": 0.5, "two": 1.0}


@pytest.mark.parametrize("agent", [{}, {"player": {"policy": "one"}}])
def test_3_who_never_acts(agent: dict[str, Any]) -> None:
    team = {name: {"policy": "one", "temperature": 0.7} for name in ("solver", "verifier")}
    changes = {
        "environment": {"echo": {"turns": 1}},
        "program": "solver_verifier",
        "policies": {"one": {"policy": NETWORK}},
    }
    every = {"*": {"policy": "one"}}
    assert build_setup(recipe(agents=every | agent | team, **changes).settings).temperatures == {"one": 0.7}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    def start(name: str, **changes: Any) -> Path:
        made = load([PAIR | changes], [f"run={tmp_path / name}"])
        train(made.settings, recipe=made.to_json(), quiet=True)
        return tmp_path / name

    return start


def weights(folder: Path, step: int, policy: str) -> Any:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / f"{policy}.safetensors")


def same(folder: Path, policy: str, first: int, last: int) -> bool:
    one, other = weights(folder, first, policy), weights(folder, last, policy)
    return all(equal(one[name], other[name]) for name in one)


def test_3_probabilities_at_the_own_temperature(run: Callable[..., Path]) -> None:
    agents = {"a": {"policy": "one", "temperature": 0.5}, "b": {"policy": "two"}}
    policies = {"one": {"policy": TINY}, "two": {"policy": TINY}}
    folder = run("own", agents=agents, policies=policies)
    for line in MetricsLog(folder).metrics.read():  # what was sampled is what the trainer computes
        assert line.get("policy/one/mismatch/kl", line.get("mismatch/kl", 0.0)) < 1e-6


def test_4_frozen(run: Callable[..., Path]) -> None:
    folder = run("frozen", agents={"a": {"policy": "one"}, "b": {"policy": "two", "frozen": True}})
    assert same(folder, "two", 0, 3)
    assert not same(folder, "one", 0, 3)


CRITIC: dict[str, Any] = {"advantage": "ppo", "regularizers": [{"value": {}}], "policies": {"one": {"policy": NETWORK}}}


def test_4_frozen_beside_a_critic(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    batches, plain = [], Updater._token_batch

    def batch(self: Updater, table: Any) -> Any:
        batches.append(plain(self, table))
        return batches[-1]

    monkeypatch.setattr(Updater, "_token_batch", batch)
    run("shared", agents={"a": {"policy": "one"}, "b": {"policy": "one", "frozen": True}}, **CRITIC)
    for own in batches:
        judged = own["value_weight"] > 0
        assert judged[own.agent == 0].any() and not judged[own.agent == 1].any()
    both = {name: {"policy": "one", "frozen": True} for name in "ab"}
    assert same(run("nobody", agents=both, **CRITIC), "one", 0, 3)


def test_5_own_updates(run: Callable[..., Path]) -> None:
    own = {"policy": NETWORK, "every": 2, "epochs": 3, "minibatches": 2}
    folder = run("every", policies={"one": {"policy": NETWORK}, "two": own})
    assert [same(folder, "two", step, step + 1) for step in range(3)] == [True, False, True]
    assert [same(folder, "one", step, step + 1) for step in range(3)] == [False, False, False]
    lines = MetricsLog(folder).metrics.read()
    assert ["policy/two/lr" in line for line in lines] == [False, True, False]


def act(agent: str, turn: int, tokens: int = 1, **info: float) -> Step:
    action = Action(text="x", tokens=[0] * tokens)
    return noted(Step(agent=agent, turn=turn, action=action, observation=Observation(text="o")), **info)


def test_6_silence() -> None:
    teamwork = Teamwork(("a", "b"), 3)
    assert teamwork.check({"agent/a/active": 1.0, "agent/b/active": 0.5}) == []
    assert teamwork.check({"agent/a/active": 1.0, "agent/b/active": 0.0}) == [
        "role b has fallen silent: it acted in none of the iteration's episodes"
    ]
    assert teamwork.check({"agent/a/active": 1.0, "agent/b/active": 0.0}) == []
    assert teamwork.check({"agent/a/active": 1.0, "agent/b/active": 0.1}) == ["role b acts again"]
    loud = {"agent/a/active": 1.0, "agent/b/active": 1.0, "agent/a/tokens/share": 0.99, "agent/b/tokens/share": 0.01}
    assert teamwork.check(loud) == ["role a takes 99% of the team's tokens"]
    assert teamwork.check(loud) == []
    never = Teamwork(("a", "b"), 2)
    never.check({"agent/a/active": 1.0, "agent/b/active": 0.0})
    with pytest.raises(NoSignal, match="role b, 2 iterations"):
        never.check({"agent/a/active": 1.0, "agent/b/active": 0.0})
    resumed = Teamwork(("a", "b"), 2)
    resumed.recall([{"agent/a/active": 1.0, "agent/b/active": 1.0}, {"agent/a/active": 1.0, "agent/b/active": 0.0}])
    assert resumed.check({"agent/a/active": 1.0, "agent/b/active": 0.1}) == ["role b acts again"]


def test_7_metrics() -> None:
    task = Task(env="echo", seed=0)
    one = Trajectory(task=task, group="g", steps=[act("a", 0, 2), act("a", 1, 1, invalid=1.0), act("b", 2)])
    two = Trajectory(task=task, group="g", sample=1, steps=[act("a", 0), act("old", 1, 5, row_weight=0.0)])
    one.returns, two.returns = {"a": 1.0, "b": 0.5}, {"a": 0.0}
    found = team_metrics([one, two], ("c",))
    assert {name: found[f"agent/a/{name}"] for name in ("calls/mean", "active", "tokens/mean", "reward/mean")} == {
        "calls/mean": 1.5,
        "active": 1.0,
        "tokens/mean": 2.0,
        "reward/mean": 0.5,
    }
    assert found["agent/a/invalid/mean"] == pytest.approx(1 / 3)
    assert (found["agent/b/active"], found["agent/b/turns/mean"], found["agent/b/calls/mean"]) == (0.5, 1.0, 0.5)
    assert (found["agent/c/active"], found["agent/c/calls/mean"]) == (0.0, 0.0)
    assert not [name for name in found if name.startswith("agent/old")]
    assert sum(found[f"agent/{role}/tokens/share"] for role in "abc") == pytest.approx(1.0)
