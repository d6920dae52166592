"""Listings: (1) `methods`, and one system; (2) its `--slot` and `--without`, for columns and abilities; (3) `envs`, by
kind, and one environment; (4) `envs --check`; (5) `doctor`.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from palaestra.catalogue import System, systems
from palaestra.catalogue.status import LEVELS
from palaestra.commands import doctor
from palaestra.registry import extras, names
from palaestra.tools.sandbox import Found, Guarantees, Threat
from tests.commands.conftest import Command
from tests.extras import skip_without


def parts(lines: list[str], slot: str) -> set[str]:
    return {line.split()[1] for line in lines if line.lstrip("│ ").startswith(f"{slot} ") and line[:2].strip()}


def test_1_methods(palaestra: Command) -> None:
    done = palaestra("methods")
    lines = [line for line in done.out if line.strip()]
    assert done.code == 0 and max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines[:-2]} == {each.name for each in systems()}
    assert parts(palaestra("methods", "--slot", "advantage").out, "advantage") == set(names("advantage"))


def test_1_fewer(palaestra: Command) -> None:
    assert palaestra("methods", "--find", "2508.15144").out[0].startswith("mobile_agent_v3 ")
    assert palaestra("methods", "--find", "zyxw").out[0].startswith("No system has these words")
    assert palaestra("methods", "--family", "colors").code == 2
    counts = palaestra("methods", "--status").out
    assert sum(int(line.split()[1]) for line in counts if line.split()[0] in LEVELS) == sum(
        not each.variant for each in systems()
    )


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["gigpo", "--family", "credit"], "--family"),
        (["gigpo", "--slot", "loss"], "--slot"),
        (["--slot", "loss", "--find", "clip"], "--find"),
        (["--without", "critic", "--status"], "--status"),
        (["--status", "--find", "clip"], "--find"),
    ],
)
def test_1_options_that_do_not_go_together(palaestra: Command, words: list[str], others: str) -> None:
    done = palaestra("methods", *words)
    assert done.code == 2 and others in done.err


def test_1_a_wrong_folder(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(*, faults: list[str]) -> list[System]:
        faults.append("systems/wrong is left out: why")
        return systems()[:2]

    monkeypatch.setattr("palaestra.commands.methods.systems", some)
    done = palaestra("methods")
    assert done.code == 0 and "adca_grpo" in done.out[0] and "systems/wrong is left out: why" in done.err


def test_1_one_system(palaestra: Command) -> None:
    text = "\n".join(palaestra("methods", "gigpo").out)
    assert "GiGPO (arXiv 2505.10978)" in text and "A_k = E_i" in text and "palaestra train gigpo" in text
    assert "step_weight = 1.0  ≥ 0." in text and "critic nor further episodes" in " ".join(text.split())
    assert "rooms-group16: as expected (benchmarks/results/rooms-group16)" in text and "gigpo above grpo" in text
    assert "recipes with it: models/smollm2-world.yaml" in text
    assert "related: gigpo_similar" in text
    assert "palaestra train setups/rooms-tiny.yaml gigpo/gigpo_similar.yaml" in "\n".join(
        palaestra("methods", "gigpo_similar").out
    )
    done = palaestra("methods", "gigop")
    assert done.code == 2 and "gigpo" in done.err


def test_2_without_a_column(palaestra: Command) -> None:
    done = palaestra("methods", "--slot", "advantage", "--without", "state_key")
    assert parts(done.out, "advantage") == set(names("advantage")) - {"gigpo", "salt"}


@pytest.mark.parametrize(
    ("slot", "need", "gone"),
    [("advantage", "critic", "ppo"), ("regularizer", "reference", "kl"), ("advantage", "group", "grpo")],
)
def test_2_without_an_ability(palaestra: Command, slot: str, need: str, gone: str) -> None:
    assert gone in parts(palaestra("methods", "--slot", slot).out, slot)
    found = parts(palaestra("methods", "--slot", slot, "--without", need).out, slot)
    assert found and gone not in found


def test_2_unknown_slot(palaestra: Command) -> None:
    done = palaestra("methods", "--slot", "advantages")
    assert done.code == 2 and "Candidates: advantage" in done.err


def test_3_environments(palaestra: Command) -> None:
    done = palaestra("envs")
    rows = {line.split()[0]: line.split() for line in done.out if line.strip()}
    assert set(rows) >= set(names("environment"))
    assert rows["textworld"][-1] == "envs" and rows["toolcalc"][-3:] == ["256", "tasks", "–"]
    assert rows["rooms"][1:3] == ["Find", "the"]
    skip_without("textworld", "reasoning_gym")
    sizes = next(line for line in done.out if line.startswith("extra envs: "))
    assert re.search(r"open.spiel \(\d+ MB\)", sizes) and "Install with" not in sizes


def test_3_by_kind(palaestra: Command) -> None:
    lines = [line.strip() for line in palaestra("envs").out]
    places = [lines.index(title) for title in ("Worlds, built in", "Adapters to other libraries")]
    places.append(lines.index("Probes, small worlds for studies"))
    assert places == sorted(places)
    shop, babyai, rooms = (
        next(place for place, line in enumerate(lines) if line.startswith(f"{name} "))
        for name in ("shop", "babyai", "rooms")
    )
    assert places[0] < shop < places[1] < babyai < places[2] < rooms


def test_3_one_environment(palaestra: Command) -> None:
    text = "\n".join(palaestra("envs", "shop").out)
    assert "Search a shop" in text and "panel: 256 tasks" in text and "palaestra play shop" in text
    assert "\nabilities: tasks, instruction, content, difficulty, expert, snapshot\n" in text
    assert palaestra("envs", "shpo").code == 2


def test_3_an_extra_that_is_missing(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.metadata, "requires", lambda name: ["nowhere>=1; extra == 'envs'", "numpy>=2"])
    (line,) = [line for line in palaestra("envs").out if line.startswith("extra envs: ")]
    assert line == "extra envs: nowhere (not installed). Install with: pip install 'palaestra[envs]'"


def test_4_check(palaestra: Command, tmp_path: Path) -> None:
    assert palaestra("envs", "--check", "echo", "turns=3").out == [
        "echo: every rule of the environment protocol holds",
        "echo: whether tasks of the split eval are held out is unknown: it does not tell their content",
    ]
    done = palaestra("envs", "--check", "echo", "nan_at=0")
    assert done.code == 2 and "Rewards must be finite numbers" in done.err
    assert palaestra("envs", "--check", "eco").code == 2
    told = palaestra("envs", "--check", "toolcalc").out
    assert told[1:] == [
        "toolcalc: 0 of 32 tasks of the split eval are also among 128 training tasks",
        "panel toolcalc: 256 tasks and 50 episodes as committed",
    ]


def test_5_doctor(palaestra: Command) -> None:
    text = "\n".join(palaestra("doctor").out)
    assert all(word in text for word in ("palaestra", "device: ", "sandbox: ", "torch", "lora", "bwrap", "java"))


def test_5_the_sandboxes(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    isolating = {
        name: Found(name=name, guarantees=Guarantees(backend=name, isolation="isolation", stops=frozenset(Threat)))
        for name in ("bubblewrap", "wasmtime")
    }

    def told(*names: str) -> str:
        monkeypatch.setattr(doctor, "detect", lambda: [isolating[name] for name in names])
        out = " ".join(" ".join(palaestra("doctor").out).split())
        return out[out.index("sandbox:") : out.index(" Core")]

    none = "none that isolates: code that a model wrote will not run"  # as `choose` says then
    narrow = "; wasmtime (isolation) runs WebAssembly only"
    assert told() == f"sandbox: {none}"
    assert told("wasmtime") == f"sandbox: {none}{narrow}"
    assert told("bubblewrap", "wasmtime") == f"sandbox: bubblewrap (isolation){narrow}"


def test_5_the_device(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> str:
        words = " ".join(palaestra("doctor").out).split()
        return " ".join(words[words.index("device:") : words.index("cores,") - 1])

    monkeypatch.setattr(doctor.torch.version, "cuda", None)
    assert told() == f"device: cpu (torch {doctor.torch.__version__} is built without CUDA);"
    monkeypatch.setattr(doctor.torch.version, "cuda", "12.8")
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)
    assert told().endswith("is built for CUDA 12.8, and finds no such device);")
    card = SimpleNamespace(name="H100", total_memory=80 * 2**30)
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(doctor.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(doctor.torch.cuda, "get_device_properties", lambda number: card)
    assert told().startswith("device: cuda:0 (H100, 80 GiB), cuda:1 (H100, 80 GiB), cpu; ")
    assert "a recipe computes on the cpu unless it says `device: cuda`" in told()


def test_5_what_is_missing_comes_with_its_command(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.metadata, "requires", lambda name: ["nowhere>=1; extra == 'web'"])
    monkeypatch.setenv("PATH", "/nowhere")
    lines = [line.split() for line in palaestra("doctor").out]
    (web,) = [line for line in lines if line[:1] == ["web"]]
    assert web[1:3] == ["no", "(nowhere)"] and " ".join(web[-3:]) == "pip install 'palaestra[web]'"
    assert ["apt", "install", "chromium-driver"] in [line[-3:] for line in lines]
