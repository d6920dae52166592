"""Clones that runs share: (1) a run that takes kept clones is the same bit for bit as one that clones by itself;
(2) methods share them, and another seed, model or warm start does not; (3) a file that cannot be read is named;
(4) neither does another content of a file of one's own, of a data file or of a model folder that the recipe names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import palaestra.training.start as start
from palaestra.errors import CheckpointError
from palaestra.models import pretrained
from palaestra.recipe import load
from palaestra.registry.bound import BoundPart
from palaestra.training.warm_start import Clones
from tests.training.conftest import ECHO, final_weights

Run = Callable[..., Path]
SHORT = "training.iterations=1"


def test_1_the_same_as_cloned_anew(echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = f"warm_start.keep={tmp_path / 'clones'}"
    alone, first = echo("alone", SHORT), echo("first", SHORT, keep)
    assert len(list((tmp_path / "clones").iterdir())) == 1
    monkeypatch.setattr(start, "warm_start", None)  # a second run has no need of it
    second = echo("second", SHORT, keep)
    assert final_weights(alone) == final_weights(first) == final_weights(second)


@pytest.mark.parametrize(
    ("override", "shared"),
    [
        ("advantage=rloo", True),
        ("rollout.group=8", True),
        ("training.iterations=9", True),
        ("seed=4", False),
        ("warm_start.epochs=9", False),
        ("policies.main.policy.language.hidden=64", False),
        ("environment.echo.turns=3", False),
        ("strategy=dynamic_sampling", False),
    ],
)
def test_2_what_begins_alike(override: str, shared: bool, tmp_path: Path) -> None:
    paths = [Clones(str(tmp_path), load([ECHO], overrides).settings).path for overrides in ([], [override])]
    assert (paths[0] == paths[1]) is shared


def test_3_a_damaged_file_is_named(echo: Run, tmp_path: Path) -> None:
    settings = load([ECHO], []).settings
    path = Clones(str(tmp_path / "clones"), settings).path
    path.parent.mkdir()
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"(?s)warm start.*Remove the file"):
        echo("run", SHORT, f"warm_start.keep={tmp_path / 'clones'}")


OWN = """
from palaestra.testing import EchoEnvironment


class World(EchoEnvironment):
    pass
"""


def test_4_a_changed_file_is_cloned_anew(echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, kept = tmp_path / "own.py", tmp_path / "clones"
    file.write_text(OWN)
    arguments = SHORT, f"warm_start.keep={kept}", "warm_start.epochs=1", f"environment={file}:World"
    echo("first", *arguments)
    with monkeypatch.context() as without:
        without.setattr(start, "warm_start", None)  # an unchanged file: there is no need of it
        echo("second", *arguments)
    assert len(list(kept.iterdir())) == 1
    file.write_text(OWN + "# changed\n")
    echo("third", *arguments)
    assert len(list(kept.iterdir())) == 2


def test_4_whatever_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "model" / "below").mkdir(parents=True)
    named = {
        "context.py": "agents.*.context=context.py:Own",
        "own_module.py": "agents.*.context=own_module:Own",
        "data.json": "environment.echo.turns=2",
        "model/config.json": "policies.main.policy.language.model=model",
        "model/below/weights.bin": "policies.main.load=model",
    }
    own = "from palaestra.chat import LatestOnly\nclass Own(LatestOnly): ...\n"
    for name in named:
        Path(name).write_text(own)
    for name, override in named.items():
        settings = load([ECHO], [override]).settings
        if name == "data.json":
            settings = settings.model_copy(update={"environment": BoundPart(name="echo", options={"file": name})})
        former = Clones("clones", settings).path
        assert Clones("clones", settings).path == former
        Path(name).write_text(own.replace("Own", "Now"))  # of the same size
        assert Clones("clones", settings).path != former, name


def test_4_a_model_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name in the folder of models, or by its id in the cache of the hub."""
    settings = {
        name: load([ECHO], [f"policies.main.policy.language.model={name}"]).settings for name in ("mine", "a/b")
    }
    monkeypatch.setenv("PALAESTRA_MODELS", str(tmp_path))
    snapshot = tmp_path / "snapshot"
    monkeypatch.setattr(
        pretrained, "try_to_load_from_cache", lambda name, file: str(snapshot / file) if name == "a/b" else None
    )
    for name, folder in {"mine": tmp_path / "mine", "a/b": snapshot}.items():
        folder.mkdir()
        for file in ("config.json", "model.safetensors"):
            (folder / file).write_text("{}")
        former = Clones("clones", settings[name]).path
        assert Clones("clones", settings[name]).path == former
        (folder / "model.safetensors").write_text("[]")
        assert Clones("clones", settings[name]).path != former, name
