"""What holds for every team, whatever its method:

(1) with one role, per-agent statistics are those of the group, bit for bit, for every estimator that can take them;
(2) and a whole run under Dr. MAS is the run under GRPO; (3) other names for roles change whose numbers they are and no
number; (4) a frozen role's own policy has no gradient at all and keeps its weights; (5) under a shared policy the
gradient is that of the other role's rows alone; (6) the tokens of the roles add up to the team's; (7) the order in
which acts arrive, and the order among acts of one moment, move no advantage.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from palaestra.algebra import Credit
from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory
from palaestra.parts.estimators import dr_mas, grpo, rloo
from palaestra.parts.optimizers import AdamW
from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.systems.loop import loop
from palaestra.training.monitor.metrics import signal_metrics
from palaestra.training.stages import assign_credit
from palaestra.training.start import train
from tests.parts.tables import NEEDED, tables
from tests.registered import targets

few = settings(max_examples=6, deadline=None, derandomize=True)  # of each estimator
ESTIMATORS = [
    o for o in targets("advantage") if not (o.part.takes_iteration or o.part.holds_state) and len(o.part.data) == 1
]
KEYED = [o for o in ESTIMATORS if "by" in o.part.options.model_fields and "by" not in NEEDED.get(o.part.name, {})]
UNDRAWN = {"srgpo": {"block_size": None}}  # its blocks are drawn by who acted: other names, another draw
NAMES = {"M": "zoe", "S": "abel"}
NETWORK = {"network": {"hidden": [8]}}
TINY = {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}
PAIR: dict[str, Any] = {
    "name": "pair",
    "seed": 1,
    "environment": {"echo": {"turns": 2, "agents": ["a", "b"]}},
    "policies": {"one": {"policy": NETWORK}},
    "agents": {"a": {"policy": "one"}, "b": {"policy": "one"}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 4, "response_tokens": 2},
    "advantage": {"dr_mas": {}},
    "reward": "paid.py:by_words",
    "training": {"iterations": 1, "minibatches": 2, "checkpoint_every": 1, "keep_checkpoints": 9, "threads": 1},
    "evaluation": {"tasks": 2},
}
# Language policies that have learned nothing never say the word; this pays for what they do say.
PAID = """
def by_words(table):
    return table["reward"] + (table["action_key"] % 3).float()
"""
Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "paid.py").write_text(PAID)
    monkeypatch.chdir(tmp_path)

    def start(name: str, *overrides: str, **changes: Any) -> Path:
        recipe = load([PAIR | changes], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True)
        return tmp_path / name

    return start


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """The gradients of each optimizer step of the runs that follow, as they are before any bound."""
    seen: list[list[Tensor]] = []
    plain = AdamW.step

    def step(self: AdamW) -> float:
        seen.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters])
        return plain(self)

    monkeypatch.setattr(AdamW, "step", step)
    return seen


def numbers(found: Tensor | Credit) -> Tensor:
    return found.advantage if isinstance(found, Credit) else found


def weights(folder: Path, step: int, policy: str) -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / f"{policy}.safetensors")


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---- one role ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("estimator", KEYED, ids=lambda o: o.part.name)
@few
@given(table=tables(agents=("M",)))
def test_1_one_role(estimator: Any, table: StepTable) -> None:
    options = dict(NEEDED.get(estimator.part.name, {}))
    by = [name for name in estimator.part.options.model_fields["by"].default if name != "agent"]
    single = numbers(estimator(table, **options, by=tuple(by)))
    assert torch.equal(numbers(estimator(table, **options, by=(*by, "agent"))), single)


def test_1_estimators_are_found() -> None:
    assert {o.part.name for o in KEYED} >= {"dr_mas", "grpo", "rloo", "loop", "gigpo", "reinforce_plus_plus_baseline"}


def test_2_a_whole_run(run: Run) -> None:
    own = {"environment": {"echo": {"turns": 1}}, "agents": {"*": {"policy": "one"}}}
    own["training"] = PAIR["training"] | {"iterations": 3}
    single = run("single", **own, advantage={"grpo": {}})
    team = run("team", **own)
    assert (single / "metrics.jsonl").read_bytes() == (team / "metrics.jsonl").read_bytes()
    assert same(weights(single, 3, "one"), weights(team, 3, "one"))
    assert not same(weights(single, 0, "one"), weights(single, 3, "one")), "nothing was learned"


def _given(advantage: Tensor, table: StepTable) -> Tensor:
    """An estimator whose advantages are known."""
    return advantage


# ---- names ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda o: o.part.name)
@few
@given(table=tables())
def test_3_names(estimator: Any, table: StepTable) -> None:
    options = {**NEEDED.get(estimator.part.name, {}), **UNDRAWN.get(estimator.part.name, {})}
    other = {name: NAMES.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    labels = table.labels("agent")
    named = table.replace(agent=[NAMES[labels[code]] for code in table["agent"].tolist()])
    before, after = numbers(estimator(table, **options)), numbers(estimator(named, **other))
    assert torch.equal(before, after)
    old, new = (
        signal_metrics(assign_credit([functools.partial(_given, a)], t)) for a, t in ((before, table), (after, named))
    )
    assert {re.sub(r"(?<=^agent/)[^/]+", lambda m: NAMES[m[0]], key): value for key, value in old.items()} == new


# ---- frozen roles -----------------------------------------------------------------------------------------
FROZEN = {"a": {"policy": "one"}, "b": {"policy": "two", "frozen": True}}
SHARED = {"a": {"policy": "one"}, "b": {"policy": "one", "frozen": True}}


@pytest.mark.parametrize("policy", [NETWORK, TINY], ids=["network", "language"])
def test_4_a_frozen_role_of_its_own(run: Run, gradients: list[list[Tensor]], policy: Any) -> None:
    folder = run("frozen", policies={"one": {"policy": policy}, "two": {"policy": policy}}, agents=FROZEN)
    assert same(weights(folder, 0, "two"), weights(folder, 1, "two"))
    assert not same(weights(folder, 0, "one"), weights(folder, 1, "one"))
    moved = len(gradients)
    gradients.clear()
    run("alone", policies={"one": {"policy": policy}, "two": {"policy": policy, "trainable": False}}, agents=FROZEN)
    assert moved == len(gradients) > 0, "the frozen role's policy was stepped"


@pytest.mark.parametrize("penalty", [0.0, 0.1], ids=["plain", "regularized"])
@pytest.mark.parametrize("policy", [NETWORK, TINY], ids=["network", "language"])
def test_5_a_frozen_role_of_a_shared_policy(
    run: Run, gradients: list[list[Tensor]], policy: Any, penalty: float
) -> None:
    more = {"regularizers": [{"entropy": {"coefficient": penalty}}]} if penalty else {}
    run("shared", policies={"one": {"policy": policy}}, agents=SHARED, **more)
    shared = [list(step) for step in gradients]
    gradients.clear()
    # The same weights act for b, and nothing of b is in the batch.
    apart = {"one": {"policy": policy}, "two": {"policy": policy, "trainable": False}}
    run("apart", policies=apart, agents={"a": {"policy": "one"}, "b": {"policy": "two"}}, **more)
    assert len(shared) == len(gradients) == 2
    assert any(bool(one.any()) for one in shared[0])
    for found, expected in zip(shared, gradients, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


# ---- the team ---------------------------------------------------------------------------------------------
def test_6_tokens(run: Run) -> None:
    folder = run("tokens", policies={"one": {"policy": TINY}})
    (line,) = MetricsLog(folder).metrics.read()
    own = [line[f"agent/{role}/tokens/mean"] for role in "ab"]
    assert all(count > 0 for count in own)
    assert sum(own) == line["tokens/mean"]
    assert line["agent/a/tokens/share"] + line["agent/b/tokens/share"] == pytest.approx(1.0, abs=1e-12)


def parallel(seed: int, *, moment: Mapping[str, int]) -> list[Trajectory]:
    """Two groups of three episodes of three rounds, in which all roles act at one moment: `moment` is their order."""
    dice = random.Random(seed)
    played = []
    for place in range(6):
        task = Task(env="echo", seed=place // 3)
        steps = [
            Step(
                agent=role,
                turn=3 * round_ + moment[role],
                action=Action(text=role, value=role),
                observation=Observation(text=f"{round_}"),
                reward=dice.randrange(-8, 9) / 4,
            )
            for round_ in range(3)
            for role in ("M", "S", "T")
        ]
        played.append(Trajectory(task=task, group=f"g{place // 3}", sample=place % 3, steps=steps))
    return played


@pytest.mark.parametrize("estimator", [dr_mas, grpo, rloo, loop], ids=lambda o: o.part.name)
@few
@given(seed=st.integers(0, 10**6))
def test_7_order(estimator: Any, seed: int) -> None:
    def credit(played: list[Trajectory]) -> dict[tuple[str, str, str], float]:
        table = StepTable.from_trajectories(played)
        found = assign_credit([estimator], table)["advantage"].tolist()
        rows = zip(table["trajectory"].tolist(), table["agent"].tolist(), table["turn"].tolist(), found, strict=True)
        names = table.labels("trajectory"), table.labels("agent")
        return {(names[0][t], names[1][a], str(turn // 3)): value for t, a, turn, value in rows}

    first = credit(parallel(seed, moment={"M": 0, "S": 1, "T": 2}))
    arrived = parallel(seed, moment={"M": 0, "S": 1, "T": 2})
    dice = random.Random(seed)
    dice.shuffle(arrived)
    for one in arrived:
        dice.shuffle(one.steps)
    assert credit(arrived) == first
    assert credit(parallel(seed, moment={"M": 2, "S": 0, "T": 1})) == first
    assert len(first) == 54
