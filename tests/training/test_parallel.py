"""Several processes: (1) two ranks give the weights and metrics of one process, within 1e-5 in float64 over 20 updates
and with curves within 1 % in float32, for a language recipe with a critic, a team with adapters, a critic over vectors,
and losses that take two passes; (2) the episodes of one group are on both ranks; (3) one rank alone writes the run
folder, and a killed run goes on with both; (4) ranks that begin with other weights are refused; (5) what one process
must do alone is refused by one line; (6) sums: gradients that one rank lacks, parameters without any gradient, several
buckets and kinds; (7) the command of docs/processes.md; (8) a run of one process goes on with two; (9) with weights
spread over ranks (`training.shard`) the weights are the same again, with whole and low-rank training, in one pass and
in two, with an engine in the process and one beside it; a run goes on between one process and two that spread; each
rank holds its slice only; and what does not go with it is refused; (10) if one process fails, its message is the only
one, and no traceback of ours follows.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from safetensors.torch import load_file

from palaestra.data.ranks import OneProcess
from palaestra.errors import RankError, RecipeError
from palaestra.recipe import load
from palaestra.training import parallel
from tests.chat_server import ChatServer
from tests.extras import needs
from tests.messages import told
from tests.training.conftest import ECHO
from tests.training.devices import log, newest, played

ROOT = Path(__file__).resolve().parents[2]
TWENTY = ("training.iterations=10", "training.epochs=2", "training.minibatches=1")
ADDITIONS = ("policies.main.policy.language.lora={rank: 4}", "policies.main.policy.language.packing=true")
WHOLE_GROUPS = ("loss=gspo", "advantage=grpo", "regularizers=[]", "training.token_budget=40")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def with_two_ranks(code: str, folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run Python code in two processes that know of each other, as torchrun starts them."""
    shared = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [(process, *process.communicate(timeout=300)) for process in started]
    return [subprocess.CompletedProcess([], p.returncode, out, error) for p, out, error in ended]


def play_by_two(name: str, folder: Path, *overrides: str, resume: bool = False) -> Path:
    """The small run of this name, by two ranks."""
    call = f"played({name!r}, Path({str(folder)!r}), *{overrides!r}, resume={resume})"
    ended = with_two_ranks(
        f"from pathlib import Path\nfrom tests.training.devices import played\n{call}", folder.parent
    )
    assert [one.returncode for one in ended] == [0, 0], "\n".join(one.stderr[-2000:] for one in ended)
    return folder


def largest_difference(one: Path, other: Path) -> float:
    """Over all weights of the last checkpoints."""
    differences = [0.0]
    for file in newest(one).glob("*.safetensors"):
        mine, theirs = load_file(file), load_file(newest(other) / file.name)
        differences += [float((mine[key] - theirs[key]).abs().max()) for key in mine]
    return max(differences)


def assert_alike(name: str, given: tuple[str, ...], folder: Path, *, weights: bool) -> None:
    """Twenty updates by one process and by two give the same curves, and the same weights where these are compared."""
    one, two = played(name, folder / "one", *given), play_by_two(name, folder / "two", *given)
    assert log(one)[-1]["updates"] >= 18
    assert not weights or largest_difference(one, two) < 1e-5
    for key in ("policy/loss", "reward/mean", "policy/grad_norm"):
        mine, theirs = ([line[key] for line in log(run) if key in line] for run in (one, two))
        assert theirs == pytest.approx(mine, rel=1e-2, abs=1e-3)


def test_1_two_ranks_are_one(tmp_path: Path) -> None:
    small = ("dtype=float64", "training.iterations=2", "warm_start.epochs=2")
    one = played("language", tmp_path / "one", *small)
    two = play_by_two("language", tmp_path / "two", *small)
    assert largest_difference(one, two) < 1e-12
    assert sorted(path.name for path in newest(two).iterdir()) == sorted(path.name for path in newest(one).iterdir())
    for mine, theirs in zip(log(one), log(two), strict=True):
        assert mine.keys() == theirs.keys()
        assert [theirs[key] for key in mine] == pytest.approx(list(mine.values()), rel=1e-5, abs=1e-6)


@needs("openai")
def test_2_a_teacher_answers_each_play_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank clones the episodes of both, so that the ranks begin with the same weights. The run refuses others."""
    taught = {"teacher": {"endpoint": {"model": "m"}}, "least": 0.0, "episodes": 12, "epochs": 2}
    recipe = ECHO | {"environment": {"echo": {"turns": 1}}, "warm_start": taught}
    code = (
        "from palaestra.recipe import load\nfrom palaestra.training.start import train\n"
        f"found = load([{recipe!r}], ['run={tmp_path / 'run'}', 'training.iterations=1'])\n"
        "train(found.settings, recipe=found.to_json(), quiet=True)"
    )
    with ChatServer("red", "gold", "blue", "red", "green", "red", "no", "gold", "blue", "red", "red", "gold") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        ended = with_two_ranks(code, tmp_path)
    assert [one.returncode for one in ended] == [0, 0], "\n".join(one.stderr[-2000:] for one in ended)
    assert len(server.requests) == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("language", ()),
        ("language", WHOLE_GROUPS),
        ("language", ADDITIONS),
        ("adapters", ()),
        ("mlp", ("rollout.runner=episodes",)),
        ("gru", ("rollout.runner=episodes",)),
        ("preferred", ("rollout.runner=episodes", "training.token_budget=16")),
        ("archer", ("rollout.runner=episodes",)),
    ],
    ids=["language", "two passes", "additions", "adapters", "critic", "critic with memory", "groups", "own critic"],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_1_over_twenty_updates(name: str, options: tuple[str, ...], dtype: str, tmp_path: Path) -> None:
    given = (*options, *TWENTY, f"dtype={dtype}")
    assert_alike(name, given, tmp_path, weights=dtype == "float64")


def test_2_groups_are_on_both_ranks() -> None:
    group = ["a"] * 4 + ["b"] * 3
    ranks = [OneProcess(), OneProcess()]
    for number, rank in enumerate(ranks):
        rank.rank, rank.world = number, 2
    assert [rank.own(group) for rank in ranks] == [["a", "a", "b", "b"], ["a", "a", "b"]]


@pytest.mark.slow
def test_3_a_stopped_run_goes_on(tmp_path: Path) -> None:
    every = ("training.checkpoint_every=1", "dtype=float64")
    whole = play_by_two("language", tmp_path / "whole", *every, "training.iterations=4")
    play_by_two("language", tmp_path / "parts", *every, "training.iterations=2")
    parts = play_by_two("language", tmp_path / "parts", *every, "training.iterations=4", resume=True)
    assert log(parts) == log(whole)
    assert (newest(parts) / "main.safetensors").read_bytes() == (newest(whole) / "main.safetensors").read_bytes()


OTHER_WEIGHTS = """
import os, torch
from palaestra.training import parallel
from palaestra.recipe import load
from palaestra.errors import PalaestraError
recipe = load([{}], [])
with parallel.joined(recipe.settings) as ranks:
    layer = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(layer.weight, float(os.environ["RANK"]))
    torch.nn.init.zeros_(layer.bias)
    try:
        parallel.refuse_different({{"main": layer}}, ranks)
    except PalaestraError as error:
        print(error.what)
"""
PLAIN: dict[str, Any] = {"environment": "echo", "policies": {"main": {"policy": "language"}}}
NETWORK: dict[str, Any] = {"environment": "rooms", "policies": {"main": {"policy": "network"}}}


@pytest.mark.slow
def test_4_other_weights_are_refused(tmp_path: Path) -> None:
    ended = with_two_ranks(OTHER_WEIGHTS.format(json.dumps(PLAIN)), tmp_path)
    assert all("they begin with different weights" in one.stdout for one in ended), ended[0].stderr


@pytest.mark.parametrize(
    ("base", "override", "words"),
    [
        (PLAIN, "training.max_staleness=1", "training.max_staleness: 1"),
        (NETWORK, "rollout.runner=vector", "rollout.runner: vector"),
        (PLAIN, "rollout.runner=windows", "rollout.runner: windows"),
    ],
)
def test_5_what_one_must_do_alone(base: dict[str, Any], override: str, words: str) -> None:
    recipe = load([base], [override])
    with pytest.raises(RecipeError, match=words):
        parallel.refuse_alone(recipe.settings)


@pytest.mark.slow
def test_7_the_documented_command(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("$ torchrun")]
    small = ["training.iterations=1", "evaluation.tasks=2", "warm_start.episodes=16", "warm_start.epochs=1"]
    launcher, *words = line.removeprefix("$ ").split()
    program = str(Path(sys.executable).with_name(launcher))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [program, *words, *small, "--quiet"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("success ") == 3 and (tmp_path / "runs/two/metrics.jsonl").exists()


@pytest.mark.slow
def test_8_one_process_goes_on_for_two(tmp_path: Path) -> None:
    """A run of one process has no other files than one of two: it is read by both."""
    folder = played("grouped", tmp_path / "one", "training.iterations=1", "dtype=float64")
    whole = played("grouped", tmp_path / "whole", "training.iterations=2", "dtype=float64")
    play_by_two("grouped", folder, "training.iterations=2", "dtype=float64", resume=True)
    assert largest_difference(folder, whole) < 1e-12


SPREAD = ("training.shard=true", "training.agent_gradients=false")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("language", ()),
        ("language", WHOLE_GROUPS),
        ("language", ADDITIONS),
        ("adapters", ()),
        ("language", ("engine.remote.start=true",)),
        ("language", ("optimizer.muon.lr=0.01",)),
        ("mlp", ("rollout.runner=episodes",)),
    ],
    ids=["language", "two passes", "additions", "adapters", "remote engine", "muon", "no language model"],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_9_spread_weights_are_the_same(name: str, options: tuple[str, ...], dtype: str, tmp_path: Path) -> None:
    given = (*options, *TWENTY, *SPREAD, f"dtype={dtype}")
    assert_alike(name, given, tmp_path, weights=dtype == "float64")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ADDITIONS], ids=["whole", "additions"])
def test_9_spread_in_bfloat16(options: tuple[str, ...], tmp_path: Path) -> None:
    """Master weights are spread too, and weights that are rounded are rounded alike."""
    given = (*options, *SPREAD, "dtype=bfloat16", "training.iterations=2")
    one, two = played("language", tmp_path / "one", *given), play_by_two("language", tmp_path / "two", *given)
    assert largest_difference(one, two) < 2e-2  # some weights are rounded to the next number
    for mine, theirs in zip(log(one), log(two), strict=True):
        assert theirs["policy/loss"] == pytest.approx(mine["policy/loss"], rel=1e-2, abs=1e-3)


@pytest.mark.slow
def test_9_spread_and_whole_go_on_from_each_other(tmp_path: Path) -> None:
    every = ("dtype=float64", "training.agent_gradients=false", "training.checkpoint_every=1")
    whole = played("language", tmp_path / "whole", *every, "training.iterations=3")
    parts = played("language", tmp_path / "parts", *every, "training.iterations=1")
    play_by_two("language", parts, *every, *SPREAD, "training.iterations=2", resume=True)
    played("language", parts, *every, "training.iterations=3", resume=True)
    assert largest_difference(whole, parts) < 1e-12


HELD = """
import json
from pathlib import Path
from palaestra.training import start
from tests.training.devices import played
made, policies = start._start_learners, {{}}
start._start_learners = lambda trainer: (made(trainer), policies.update(trainer.setup.trained, trainer=trainer))
played("language", Path({!r}), "training.iterations=1", *{!r})
(updater,) = policies["trainer"].learners["learner.0"].updaters.values()
parameters = list(updater.policy.network.parameters())
moments = [state["exp_avg"] for state in updater.optimizer.inner.state.values()]
print(json.dumps([
    [sum(t.numel() for t in of), sum(t.to_local().numel() for t in of)] for of in (parameters, moments)
]))
"""


@pytest.mark.slow
def test_9_each_rank_holds_a_slice(tmp_path: Path) -> None:
    ended = with_two_ranks(HELD.format(str(tmp_path / "run"), SPREAD), tmp_path)
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr[-3000:]
    held = [json.loads(one.stdout.splitlines()[-1]) for one in ended]
    for whole, slices in zip(held[0], zip(*held, strict=True), strict=True):
        assert [total for total, _ in slices] == [whole[0]] * 2
        assert sum(own for _, own in slices) == whole[0] and max(own for _, own in slices) < 0.6 * whole[0]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.agent_gradients=true", "training.agent_gradients"),
        ("training.lag=1", "training.lag"),
        ("training.actor_noise=0.1", "training.actor_noise"),
    ],
)
def test_9_what_does_not_spread(override: str, words: str) -> None:
    recipe = load([PLAIN], [override, "training.shard=true"])
    with pytest.raises(RecipeError, match=words):
        parallel.refuse_alone(recipe.settings)


def test_9_learners_that_do_not_spread() -> None:
    recipe = load([str(ROOT / "palaestra/systems/sac/recipe.yaml")], ["training.shard=true", "rollout.runner=episodes"])
    with pytest.raises(RecipeError, match="learner: sac"):
        parallel.refuse_alone(recipe.settings)


def test_9_ranks_go_in_step() -> None:
    """All make the same number of passes, and each item counts once."""
    for count in range(6):
        ranks = [OneProcess(), OneProcess(), OneProcess()]
        for number, rank in enumerate(ranks):
            rank.rank, rank.world, rank.in_step = number, 3, True
        turns = [rank.turns(range(count)) for rank in ranks]
        assert len({len(own) for own in turns}) == 1
        assert sorted(item for own in turns for item, counts in own if counts) == list(range(count))


def _sums(rank: int, port: int, check: Callable[[int], None]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    check(rank)
    dist.destroy_process_group()


def check_sums(rank: int) -> None:
    ranks = parallel.ProcessGroup()
    both, one, none = (torch.nn.Parameter(torch.zeros(3)) for _ in range(3))
    double = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    both.grad, double.grad = torch.full((3,), rank + 1.0), torch.full((2, 2), 0.5, dtype=torch.float64)
    one.grad = torch.ones(3) if rank == 1 else None
    parallel.BUCKET = 4  # so that the first two stand in messages of their own
    ranks.sum_gradients([both, one, none, double])
    assert both.grad.tolist() == [3, 3, 3] and one.grad is not None and one.grad.tolist() == [1, 1, 1]
    assert none.grad is None and double.grad.tolist() == [[1, 1], [1, 1]]
    assert ranks.sum_numbers({"a": 1.0} if rank else {"b": 2.0, "a": 0.5}) == {"a": 1.5, "b": 2.0}
    assert ranks.texts("é" * rank) == ["", "é"]
    given = ranks.exchange({rank: {"x.y": torch.full((rank + 1, 2), float(rank))}} if rank else {})
    assert list(given) == [1] and given[1]["x.y"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.slow
def test_6_sums() -> None:
    processes.spawn(_sums, args=(free_port(), check_sums), nprocs=2)  # type: ignore[no-untyped-call]


def test_10_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda *_: None)
    monkeypatch.setattr(parallel, "ProcessGroup", lambda **_: None)
    settings = load([ECHO]).settings
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4."
    with told(RankError, "another process of the run has ended"), parallel.joined(settings):
        raise RuntimeError(lost)
    with pytest.raises(RankError, match="rank 1 of 2"), parallel.joined(settings):
        raise dist.DistNetworkError("no route")
    with pytest.raises(RuntimeError, match="another mistake"), parallel.joined(settings):
        raise RuntimeError("another mistake, [x/gloo/y] ")


RANK_ONE = """
import os
def broken(table):
    if os.environ["RANK"] == "1":
        raise RuntimeError("rank one")
    return table["reward"]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward=part.py:broken"], "RuntimeError: rank one"),  # only rank 1 fails
        (["run=taken"], "a run is already there"),  # only rank 0 fails
        (["rollout.group=0"], "`rollout.group`"),  # both fail
    ],
)
def test_10_one_message(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "part.py").write_text(RANK_ONE)
    (tmp_path / "echo.yaml").write_text(json.dumps({**ECHO, "training": {"iterations": 1}}))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/recipe.json").write_text("{}")
    program = str(Path(sys.executable).with_name("torchrun"))
    command = [program, "--standalone", "--nproc-per-node", "2", "-m", "palaestra", "train", "echo.yaml", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count(message) == 1, done.stderr
    assert "palaestra/commands/cli.py" not in done.stderr and "Connection closed" not in done.stderr
