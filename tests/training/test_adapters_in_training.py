"""Adapters in runs: (1) each learns with its own optimizer, the base and the others stay as they are, and another
policy may train all its weights beside them; (2) a run that is stopped and resumed is the same byte for byte, and
checkpoints hold adapters alone; (3) a base that is cloned learns from the demonstrations of all adapters above it,
which start as it is; without `frozen` each adapter is cloned by itself; (4) a reference keeps the adapter's start, so
divergence begins at 0; (5) episodes may be played beside the updates; (6) an exported adapter is a model of its own,
and is loaded again; (7) what cannot stand is refused; (8) an update leaves no gradients behind, and they change no
number; (9) earlier selves of an adapter play against it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from palaestra.commands import export
from palaestra.data import RunSetup
from palaestra.errors import RecipeError
from palaestra.parts.optimizers import AdamW
from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.training import warm_start
from palaestra.training.setup import build_setup
from palaestra.training.start import train
from palaestra.training.updates import Updater
from tests.messages import told
from tests.training.conftest import stopped_before

TINY = {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}
TEAM: dict[str, Any] = {
    "name": "team",
    "seed": 2,
    "environment": {"echo": {"turns": 2, "agents": ["a", "b"]}},
    "policies": {
        "one": {"policy": {"adapter": {"of": "base", "rank": 2}}},  # before its base: the order is no matter
        "base": {"policy": TINY, "trainable": False},
        "two": {"policy": {"adapter": {"of": "base", "rank": 2, "targets": ["q_proj", "v_proj"]}}},
    },
    "agents": {"a": {"policy": "one", "context": "latest_only"}, "b": {"policy": "two", "context": "latest_only"}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 2, "response_tokens": 3},
    "advantage": {"grpo": {"by": ["group", "agent"]}},
    "regularizers": [{"entropy": {"coefficient": 0.1}}],  # untrained policies earn nothing to learn from
    "optimizer": {"adamw": {"lr": 0.01}},
    "training": {"iterations": 3, "checkpoint_every": 1, "keep_checkpoints": 9, "threads": 1, "max_empty": 99},
    "evaluation": {"tasks": 4},
}
CLONED = {"warm_start": {"episodes": 24, "epochs": 6, "batch_tokens": 128, "optimizer": {"adamw": {"lr": 1e-2}}}}
Run = Callable[..., Path]


@pytest.fixture
def team(tmp_path: Path) -> Run:
    """Trains the team with changes to the recipe, returns the folder."""

    def start(name: str, *overrides: str, layer: Any = None, **options: bool) -> Path:
        recipe = load([TEAM, *([layer] if layer else [])], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return start


def weights(folder: Path, step: int, policy: str) -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / f"{policy}.safetensors")


def changed(folder: Path, policy: str, *, first: int = 0, last: int = 3) -> bool:
    before, after = weights(folder, first, policy), weights(folder, last, policy)
    return any(not bool((before[name] == after[name]).all()) for name in before)


def lines(folder: Path) -> list[dict[str, Any]]:
    return MetricsLog(folder).metrics.read()


def test_1_each_learns(team: Run) -> None:
    full = {"policies": {"own": {"policy": TINY}}, "agents": {"c": {"policy": "own", "context": "latest_only"}}}
    folder = team("run", "policies.two.optimizer.adamw.lr=0.02", "environment.echo.agents=[a, b, c]", layer=full)
    assert not changed(folder, "base")
    assert changed(folder, "one") and changed(folder, "two") and changed(folder, "own")
    for line in lines(folder):
        assert [line[f"policy/{name}/lr"] for name in ("one", "two", "own")] == [0.01, 0.02, 0.01]
        assert not any(key.startswith("policy/base/") for key in line)


def test_1_one_alone_learns(team: Run) -> None:
    folder = team("run", "policies.two.trainable=false")
    assert changed(folder, "one") and not changed(folder, "two") and not changed(folder, "base")


def test_2_resume(team: Run) -> None:
    extra = ["reference=start", "regularizers=[{entropy: {coefficient: 0.1}}, {kl: {coefficient: 0.1}}]"]
    whole = team("whole", *extra)
    with stopped_before(2):
        team("parts", *extra)
    parts = team("parts", *extra, resume=True)
    files = ["base", "one", "two", "one.reference", "two.reference"]
    names = ["metrics.jsonl", *(f"checkpoints/step-000003/{file}.safetensors" for file in files)]
    for name in names:
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    sizes = {file: (whole / "checkpoints/step-000003" / f"{file}.safetensors").stat().st_size for file in files}
    assert max(sizes[file] for file in files[1:]) < sizes["base"] / 3


def cloned(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> tuple[RunSetup, dict[str, set[str]]]:
    """The setup after its warm start, and from which roles' demonstrations each policy learned."""
    learned: dict[str, set[str]] = {}
    plain = warm_start._clone

    def watched(policy: Any, rows: list[Any], *rest: Any, **options: Any) -> dict[str, float]:
        learned[policy.name] = {row.step.agent for row in rows}
        return plain(policy, rows, *rest, **options)

    monkeypatch.setattr(warm_start, "_clone", watched)
    settings = load([TEAM, CLONED], list(overrides)).settings
    setup = build_setup(settings)
    assert settings.warm_start is not None
    warm_start.warm_start(setup, settings, say=lambda *_: None)
    return setup, learned


def test_3_pooled_demonstrations(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, learned = cloned(monkeypatch, "warm_start.frozen=true")
    assert learned == {"base": {"a", "b"}}
    base, ids = setup.policies["base"], torch.arange(40)[None]
    for name in ("one", "two"):
        policy = setup.policies[name]
        assert torch.equal(policy.model(ids).logits, base.model(ids).logits) and policy.version == base.version == 1
    fresh = build_setup(load([TEAM, CLONED], []).settings).policies["base"]
    assert not torch.equal(fresh.model(ids).logits, base.model(ids).logits)


def test_3_cloned_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, learned = cloned(monkeypatch)
    assert learned == {"one": {"a"}, "two": {"b"}}
    ids = torch.arange(40)[None]
    said = [setup.policies[name].model(ids).logits for name in ("base", "one", "two")]
    assert not torch.equal(said[0], said[1]) and not torch.equal(said[1], said[2])
    assert [setup.policies[name].version for name in ("base", "one", "two")] == [0, 1, 1]


def test_4_a_reference_is_the_start(team: Run) -> None:
    extra = "regularizers=[{entropy: {coefficient: 0.1}}, {kl: {coefficient: 0.01}}]"
    folder = team("run", "reference=start", "warm_start.epochs=2", extra, layer=CLONED)
    first, *others = lines(folder)
    for name in ("one", "two"):
        assert first[f"policy/{name}/kl_reference"] == 0.0, "before the first update nothing differs"
        assert others[-1][f"policy/{name}/kl_reference"] > 0.0 and changed(folder, name)
        assert not changed(folder, f"{name}.reference")
        start, reference = weights(folder, 0, name), weights(folder, 3, f"{name}.reference")
        assert all(torch.equal(start[key], reference[key]) for key in start)


def test_5_beside_the_updates(team: Run) -> None:
    folder = team("run", "training.max_staleness=1", "training.iterations=4")
    assert changed(folder, "one") and changed(folder, "two") and not changed(folder, "base")
    assert max(line["staleness/mean"] for line in lines(folder)) > 0


def test_6_export_and_load(team: Run, tmp_path: Path) -> None:
    folder, out = team("run"), str(tmp_path / "exported")
    export.run(folder=str(folder), out=out, policy="one", checkpoint=None)
    learned = weights(folder, 3, "one")
    again = build_setup(load([TEAM], [f"policies.one.load={out}"]).settings).policies["one"]
    assert all(torch.equal(tensor, learned[name]) for name, tensor in again.module.state_dict().items())
    whole = {"policies": {"base": {"policy": {"language": {"model": out}}}}}
    merged = build_setup(load([TEAM, whole], []).settings).policies["base"]
    ids = torch.arange(40)[None]
    torch.testing.assert_close(merged.model(ids).logits, again.model(ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("override", "place", "fault"),
    [
        ("policies.one.policy.adapter.of=bass", "policies.one.policy.adapter.of", "does not exist"),
        ("policies.one.policy.adapter.of=two", "policies.one.policy.adapter.of", "the base `base` itself"),
        ("policies.one.policy.adapter.of=one", "policies.one.policy.adapter.of", "the base `one` itself"),
        ("policies.base.trainable=true", "policies.base.trainable", "each of its updates would change"),
        ("policies.base.policy=random", "policies.one.policy.adapter.of", "not a language policy"),
    ],
)
def test_7_refused(override: str, place: str, fault: str) -> None:
    with pytest.raises(RecipeError) as refused:
        build_setup(load([TEAM], [override]).settings)
    assert refused.value.where == place and fault in refused.value.what and refused.value.remedy


def test_7_a_base_without_adapters_and_roles() -> None:
    with told(RecipeError, "plays no role"):
        build_setup(load([TEAM, {"policies": {"spare": {"policy": TINY}}}], []).settings)


def test_8_gradients_are_freed(team: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain, keep = Updater.update, AdamW.zero

    def watched(self: Updater, *data: Any, **options: Any) -> dict[str, float]:
        found = plain(self, *data, **options)
        seen.append(self.made > 0 and all(p.grad is None for p in self.policy.module.parameters()))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Updater, "update", watched)
        freed = team("freed")
    assert seen == [True] * 6
    with monkeypatch.context() as patched:
        patched.setattr(AdamW, "zero", lambda self: self.inner.zero_grad(set_to_none=False))
        kept = team("kept")
    monkeypatch.setattr(AdamW, "zero", keep)
    assert (freed / "metrics.jsonl").read_bytes() == (kept / "metrics.jsonl").read_bytes()
    for name in ("one", "two"):
        left, right = weights(freed, 3, name), weights(kept, 3, name)
        assert all(torch.equal(left[key], right[key]) for key in left)


def test_9_earlier_selves(team: Run) -> None:
    pool = "strategy=[{self_play: {policy: one, every: 1, size: 2, self_share: 0.0}}]"
    folder = team("run", pool, "environment.echo.agents=[a, b]", "training.iterations=2")
    assert lines(folder)[-1]["self_play/one/pool"] == 2
    assert changed(folder, "two", last=2)
