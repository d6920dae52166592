"""Every benchmark runs, at a size that measures nothing: (1) from its arguments to the file that it writes; (2) no
script is left out; (3) `make bench` calls those that run without arguments; (4) parts of studies do what they say.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from palaestra.commands.launch.arms import ArmRun
from palaestra.data import Batch, StepTable
from palaestra.errors import InvalidData
from palaestra.models.causal_lm import make_causal_lm
from palaestra.recipe import load, split_arguments
from palaestra.testing import TinyModel
from palaestra.training.start import train
from tests.chat.conversations import policy_of
from tests.extras import skip_without

pytestmark = pytest.mark.smoke
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
TINY = ["training.iterations=1", "rollout.tasks=2", "evaluation.tasks=2"]
SHORT = ["warm_start.episodes=16", "warm_start.epochs=1"]
PARTS = {"machine", "arrivals", "credit_probe", "reading"}  # imported by others; nothing of them runs
OF_GPU = {"gpu"}  # `make test-gpu` runs them


class Folder:
    """A benchmark whose results go to a folder of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
        self.out, self.patch = out, monkeypatch
        monkeypatch.syspath_prepend(str(FOLDER))

    def module(self, name: str, **replaced: Any) -> ModuleType:
        """It, with some of its names replaced, for this test only."""
        module = importlib.import_module(name)
        for key, value in replaced.items():
            self.patch.setattr(module, key, value)
        return module

    def run(self, module: ModuleType, *options: str) -> None:
        """`python benchmarks/<name>.py *options`; an option may hold several words."""
        self.patch.setattr(sys, "argv", [module.__name__, *(word for option in options for word in option.split(" "))])
        module.main()

    def read(self, path: str) -> Any:
        """What it wrote."""
        return json.loads((self.out / path).read_text(encoding="utf-8"))


@pytest.fixture
def smoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Folder:
    return Folder(monkeypatch, tmp_path)


def tiny_runs(*more: str) -> Callable[..., None]:
    """In place of `run_all`: the same runs in this process, with overrides that make them tiny."""

    def run_all(runs: Sequence[ArmRun], **_: Any) -> None:
        for run in runs:
            files, overrides = split_arguments([*run.arguments, *TINY, *more, *run.overrides])
            if load(files, overrides).settings.warm_start is not None:
                overrides += [one for one in SHORT if one.partition("=")[0] not in "".join(more)]
            recipe = load(files, overrides)
            train(recipe.settings, recipe=recipe.to_json(), quiet=True)

    return run_all


# ---- (1) machines and engines --------------------------------------------------------------------------------
def test_1_estimators(smoke: Folder) -> None:
    options = ("--sizes", "1000", "2000", "--repeats", "1", "--out", str(smoke.out / "out.json"))
    smoke.run(smoke.module("estimators"), *options)
    found = smoke.read("out.json")
    assert {"table itself", "grpo", "gigpo"} <= set(found["seconds"]) and found["slowest"] > 0


@pytest.mark.slow
def test_1_two_trees(smoke: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    module = smoke.module("two_trees")
    small = replace(module.BENCHMARKS["estimators"], words=("--sizes", "1000", "--repeats", "1"))
    monkeypatch.setitem(module.BENCHMARKS, "estimators", small)
    out = smoke.out / "out.json"
    smoke.run(module, "--other", str(ROOT), "--only", "estimators", "--repeats", "1", "--out", str(out))
    found = json.loads(out.read_text())["benchmarks"]["estimators"]
    assert found["here"][0] > 0 and found["ratio"] == found["here"][0] / found["there"][0]


def test_1_table_time(smoke: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    smoke.run(smoke.module("table_time"), "--smoke", "--other", str(ROOT), "--out", str(smoke.out / "out.json"))
    found = smoke.read("out.json")
    assert found["rows"] >= 1000 and found["ratio"] > 0 and found["commits"]["here"] == found["commits"]["other"]
    work = ["build", "replace", "advantage", "all"]
    assert [*found["seconds"]["here"]["processor"]] == [*found["seconds"]["other"]["wall"]] == work
    smoke.run(smoke.module("table_time"), "--smoke")  # nothing to compare with: it prints
    assert '"replace": ' in capsys.readouterr().out.splitlines()[-1]


def test_1_engine_profile(smoke: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    smoke.run(smoke.module("engine_profile"), "--sessions 2 --turns 2 --hidden 16 --layers 1 --repeats 1")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["forward"] for line in lines] == ["llama", "transformers"]
    assert all(line["tokens_per_second"] > 0 for line in lines)


def test_1_generation(smoke: Folder) -> None:
    folder, out = smoke.out / "model", smoke.out / "out.json"
    make_causal_lm(vocabulary=64, hidden=16, layers=1, heads=2).save_pretrained(folder)
    options = ("--sessions", "2", "--prompt", "5", "--tokens", "3", "--rounds", "1", "--model", str(folder))
    smoke.run(smoke.module("generation"), *options, "--out", str(out))
    rows = smoke.read("out.json")["rows"]
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    assert all(row[side][kind] > 0 for row in rows for side in ("ours", "generate") for kind in ("prefill", "decode"))


def test_1_gateway_load(smoke: Folder) -> None:
    folder, out = smoke.out / "model", smoke.out / "out.json"
    policy_of("qwen2_5", folder)
    options = ("--servers", "palaestra", "plain", "--streams", "3", "--seconds", "2", "--tokens", "4")
    smoke.run(smoke.module("gateway_load"), *options, "--model", str(folder), "--out", str(out))
    rows = smoke.read("out.json")["rows"]
    assert [row["server"] for row in rows] == ["palaestra", "plain"] and not any(row["errors"] for row in rows)
    assert all(row["chats"] > 0 and row["whole_s"]["p99"] > 0 and row["memory_mb"]["most"] > 50 for row in rows)


def test_1_recipe_runs(smoke: Folder) -> None:
    options = ("quickstart.yaml", "--runs", str(smoke.out), "--out", str(smoke.out), "--set")
    smoke.run(smoke.module("recipe_runs"), *options, *TINY)
    found = smoke.read("quickstart.json")
    assert found["command"] == " ".join(["palaestra train quickstart.yaml", *TINY])
    assert [line["step"] for line in found["evaluations"]] == [0, 1] and found["line"].endswith("held-out tasks")
    assert found["seconds"] > 1 and 0.1 < found["peak_gb"] < 10
    assert found["models"] == [] and found["environment"] == "babyai" and "commit" in found


def test_1_sandbox(smoke: Folder) -> None:
    skip_without("bubblewrap")
    module = smoke.module("sandbox", RESULT=smoke.out / "out.json")
    smoke.run(module, "--rounds 1 --warm-calls 2 --cold-calls 1")
    assert smoke.read("out.json")["ratios"]["bubblewrap: session over cold"] > 0


def test_1_durations(smoke: Folder) -> None:
    smoke.run(smoke.module("durations"), "--seeds", "1", "--updates", "5", "--out", str(smoke.out / "out.json"))
    assert len(smoke.read("out.json")["probability of B at the end"]) == 8


@pytest.mark.slow
def test_1_asynchrony(smoke: Folder) -> None:
    network = {"network": {"network": {"hidden": [8]}}}
    smoke.run(smoke.module("asynchrony", RESULT=smoke.out / "out.json", POLICIES=network), "--iterations 6")
    assert set(smoke.read("out.json")["network"]["arms"]) == {"lock step", "synchronous", "wait", "drop"}


@pytest.mark.slow
def test_1_browsers(smoke: Folder) -> None:
    skip_without("miniwob", "browser")
    smoke.run(smoke.module("browsers", RESULT=smoke.out / "out.json"), "--episodes", "2", "--browsers", "1")
    assert [row["policy"] for row in smoke.read("out.json")["rows"]] == [
        "expert",
        "random",
        "expert, click-option alone",
    ]


# ---- (1) worlds ----------------------------------------------------------------------------------------------
def test_1_worlds(smoke: Folder) -> None:
    (smoke.out / "panels.json").write_text("{}", encoding="utf-8")
    module = smoke.module("worlds", RESULTS=smoke.out, FILE=smoke.out / "panels.json")
    smoke.run(module, "toolcalc --name tiny --option failure=0 --tasks 4 --panel 4")
    found = smoke.read("tiny.json")
    assert found["expert"]["success"][0] == 1.0 and found["random"]["tasks"] == 4
    assert smoke.read("panels.json")["tiny"]["n"] == 4


def test_1_held_out(smoke: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["worlds/puzzles.yaml", "teams/chain.yaml"]
    module = smoke.module("held_out", RESULT=smoke.out / "out.json", complete=lambda: small)
    smoke.run(module)
    assert [row["said"] for row in smoke.read("out.json").values()] == [
        "256 held-out tasks",
        "256 tasks, 256 of them also trained on",
    ]
    assert capsys.readouterr().out.startswith("worlds/puzzles.yaml")


@pytest.mark.slow
def test_1_text_games(smoke: Folder) -> None:
    skip_without("textarena")
    chosen = lambda: ["Nim-v0", "TicTacToe-v0"]  # noqa: E731
    module = smoke.module("text_games", RESULT=smoke.out / "out.json", names=chosen)
    smoke.run(module)
    found = smoke.read("out.json")
    assert len(found) == 2 and all(game["same"] for game in found.values())


def test_1_curves(smoke: Folder) -> None:
    module = smoke.module("curves", RESULTS=smoke.out, run_all=tiny_runs())
    smoke.run(module, "shop", "--seeds", "2", "--runs", str(smoke.out / "runs"))
    assert len(smoke.read("shop.json")["curves"]) == 2


# ---- (1) studies, teams and self-play ------------------------------------------------------------------------
STUDY = """
title: Row against trajectory
method: grpo
expected: no difference
claims: [row level with plain]
setup: setup.yaml
reference: plain
arms: {plain: [grpo/method.yaml], row: [grpo/method.yaml, advantage.grpo.unit=row]}
"""
SETUP = """
environment: {echo: {turns: 1}}
policies: {main: {policy: {network: {hidden: [8]}}}}
rollout: {tasks: 2, group: 4, max_turns: 2}
training: {iterations: 2, max_empty: 5}
evaluation: {tasks: 8}
"""


@pytest.mark.slow
def test_1_studies_and_spikes(smoke: Folder) -> None:
    (smoke.out / "benchmarks" / "studies").mkdir(parents=True)
    (smoke.out / "benchmarks" / "studies" / "tiny.yaml").write_text(STUDY, encoding="utf-8")
    (smoke.out / "setup.yaml").write_text(SETUP, encoding="utf-8")
    runs = ("tiny", "--runs", str(smoke.out / "runs"))
    smoke.patch.setattr(
        smoke.module("studies").run, "__kwdefaults__", {"root": smoke.out, "parallel": 1, "seeds": None}
    )
    smoke.run(smoke.module("studies", ROOT=smoke.out), *runs, "--seeds", "1")
    assert set(smoke.read("benchmarks/results/tiny/comparison.json")["arms"]) == {"plain", "row"}
    smoke.run(smoke.module("spikes", ROOT=smoke.out), *runs)
    assert set(smoke.read("benchmarks/results/tiny/spikes.json")["norms"]["policy/grad_norm"]["largest"]) == {
        "plain",
        "row",
    }


def test_1_teams(smoke: Folder) -> None:
    arms = {"chain": {"recipe": [], "longer": ["rollout.tasks=3"]}}
    module = smoke.module("teams", ARMS=arms, RESULTS=smoke.out, run_all=tiny_runs())
    smoke.run(module, "chain", "--seeds", "1", "2", "--runs", str(smoke.out / "runs"))
    assert set(smoke.read("chain.json")["seeds"]) == {"recipe", "longer"}


@pytest.mark.parametrize("game", ["kuhn", "tictactoe", pytest.param("connect_four", marks=pytest.mark.slow)])
def test_1_self_play(smoke: Folder, game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("pyspiel")
    monkeypatch.chdir(ROOT)
    module = smoke.module("self_play", RESULTS=smoke.out)
    tiny = ["training.iterations=8", "rollout.tasks=4", "strategy.self_play.every=1", "evaluation.tasks=2"]
    folder = ("--folder", str(smoke.out / "runs"))
    smoke.run(module, game, "--seeds", "1", "2", "--games", "4", *folder, "--override", *tiny)
    found = smoke.read(f"{game}.json")
    assert set(found["seeds"]) == {"1", "2"}
    assert "mean" in found if game == "kuhn" else found["seeds"]["1"]["temperature_1"]["games"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "file"),
    [
        ("kuhn", "language_self_play/kuhn"),
        ("tictactoe", "language_self_play/tictactoe"),
        ("textarena", "language_self_play/textarena_nim"),
        ("suite", "mars_transfer/transfer"),
    ],
)
def test_1_transfer(smoke: Folder, subject: str, file: str) -> None:
    skip_without("textarena" if subject == "textarena" else "pyspiel")
    more = ("training.checkpoint_every=1", "training.keep_checkpoints=5")
    module = smoke.module("transfer", RUNS=smoke.out / "runs", RESULTS=smoke.out, run_all=tiny_runs(*more))
    smoke.run(module, subject, "--seeds", "2", "--games", "2")
    found = smoke.read(f"{file}.json")
    assert load([found["recipe"]]).settings.agents and found["machine"]  # the name of a recipe that is there


def test_1_update_speed(smoke: Folder) -> None:
    policy = TinyModel()
    policy.model.save_pretrained(smoke.out / "model")
    policy.tokenizer.save_pretrained(smoke.out / "model")
    module = smoke.module("update_speed", RESULT=smoke.out / "update_speed.json")
    smoke.run(module, "--model", str(smoke.out / "model"), "--groups", "1", "--rounds", "1", "--threads", "1")
    rows = smoke.read("update_speed.json")["rows"]
    assert len(rows) == 8 and all(row["seconds"] > 0 for row in rows)


def test_1_gpu(smoke: Folder, smollm2: str) -> None:
    smoke.run(smoke.module("gpu"), f"--device cpu --small --out {smoke.out / 'out.json'}")
    found = smoke.read("out.json")
    assert [row["way"] for row in found["rows"]] == [
        *("engine", "engine, no graphs", "generate"),
        *("plain loop", "padded", "packed"),
        "palaestra train",
    ]
    assert all(row["mfu"] > 0 for row in found["rows"][:-1])  # sizes are too small to find the peak that it divides by
    trained = found["rows"][-1]
    assert trained["seconds_per_iteration"] > 0 and trained["updates"] == 1 and trained["grad_norm"] > 0


@pytest.mark.parametrize(
    ("name", "samples", "more"), [("words", 2, []), ("tools", 1, ["warm_start={episodes: 48, epochs: 1}"])]
)
def test_1_exported(smoke: Folder, smollm2: str, name: str, samples: int, more: list[str]) -> None:
    run = smoke.out / "run"
    changes = [*TINY, *more, "rollout.group=2", "dtype=float32", "training.threads=1", f"run={run}"]
    recipe = load([f"models/smollm2-{name}.yaml"], changes)
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    asked = f"{run} --tasks 16 --samples {samples} --temperature 0 --out {smoke.out / 'out.json'}"
    smoke.run(smoke.module("exported"), asked)
    right, difference, failed = (smoke.read("out.json")[key] for key in ("right", "difference", "failed"))
    assert right["palaestra eval"] == right["transformers"] > 0 and not any(failed.values())
    assert difference == [0.0, 0.0, 0.0], "of each task"
    smoke.run(smoke.module("exported"), f"{run} --tasks 16 --only-read --out {smoke.out / 'read.json'}")
    read = smoke.read("read.json")["read"]
    assert 0 < read["apart"] < 1e-4 and read["effective"] == pytest.approx(16, abs=0.01)
    assert read["difference"]["value"] == pytest.approx(0, abs=1e-3)
    with pytest.raises(SystemExit):
        smoke.run(smoke.module("exported"), f"{run} --temperature 0 --only-read")


def test_1_logit_memory(smoke: Folder) -> None:
    out = str(smoke.out / "out.json")
    small = "--tokens 1024 --naive-tokens 128 256 --vocabulary 40000 --chunk 2000000"
    smoke.run(smoke.module("logit_memory"), small, f"--out {out}")
    small_size = smoke.read("out.json")
    assert (
        small_size["naive_expected"] > 0.9 * 2 * 4 * 1024 * 40_000
    )  # logits and log-probabilities; memory comes in pages
    assert small_size["share"] > 0  # at so small a size, it is mostly chance
    assert 0 < json.loads((FOLDER / "results" / "logit_memory.json").read_text())["share"] < 0.25


CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize(
    "side",
    [
        side if side == "ours float32" else pytest.param(side, marks=pytest.mark.slow)
        for side in ("ours float32", "ours bfloat16", "trl float32", "trl bfloat16", "plain float32", "plain bfloat16")
    ],
)
def test_1_whole_training(smoke: Folder, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if side.startswith("trl"):
        skip_without("trl")
    policy = TinyModel(context=512)
    policy.tokenizer.chat_template = CHAT
    policy.model.save_pretrained(smoke.out / "model")
    policy.tokenizer.save_pretrained(smoke.out / "model")
    folders = ("--model", str(smoke.out / "model"), "--out", str(smoke.out / "whole_training.json"))
    monkeypatch.setattr(
        sys, "argv", ["whole_training", *folders, "--iterations", "2", "--threads", "1", "--sides", side]
    )
    smoke.module("whole_training").main()
    assert smoke.read("whole_training.json")["rows"][side]["seconds_per_iteration"] > 0


# ---- (2) to (4) ----------------------------------------------------------------------------------------------
SCRIPTS = {path.stem for path in FOLDER.glob("*.py")}


def test_2_every_script_is_run_by_a_test() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert not [name for name in SCRIPTS if not re.search(rf'"{name}"|benchmarks\.{name}\b', tests)]


@pytest.mark.parametrize("name", sorted(SCRIPTS - PARTS))
def test_3_make_bench(smoke: Folder, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^NOT_ALONE := (.*)$", makefile, re.MULTILINE)
    assert set(listed.split()) >= PARTS | OF_GPU
    plain = argparse.ArgumentParser.parse_args

    class Parsed(Exception):
        pass

    def parses(self: argparse.ArgumentParser, *args: Any) -> Any:
        plain(self, *args)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parses)
    with pytest.raises(SystemExit if name in {*listed.split()} - OF_GPU else Parsed):
        smoke.run(smoke.module(name))


def test_4_arrivals() -> None:
    from benchmarks.arrivals import Arrivals

    rows = 4000
    names = {"group": ["g"] * rows, "trajectory": list(range(rows)), "agent": ["x"] * rows, "turn": [0] * rows}
    took = torch.tensor([1.0, 4.0]).repeat(rows // 2)

    class Drawn:
        seed = 1

    look: Any = Drawn()
    arrivals = Arrivals()
    kept = arrivals(StepTable(**names, reward=[0.0] * rows, duration=took), look)
    assert bool(kept[::2].all()) and float(kept[1::2].float().mean()) == pytest.approx(0.25, abs=0.03)
    assert arrivals.update(Batch.of((), None), look)["arrivals/slow_played"] == 0.5  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match="less than `shortest`"):
        Arrivals(shortest=2.0)(StepTable(**names, reward=[0.0] * rows, duration=took), look)
