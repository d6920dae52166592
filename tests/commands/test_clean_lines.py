"""What a user gets wrong gives a few lines and exit code 2, never a traceback: (1) a run folder that holds something
else; (2) a place that cannot be written; (3) names of parts that are no parts; (4) a fault in a file of one's own, with
its line, unless the traceback is asked for; (5) quotations without their end. (6) A mistake of our own is never hidden.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Command

OWN = """from palaestra.errors import nearest


class Unmade:
    def __init__(self):
        raise ValueError("it cannot be made")


class Positional:
    agents = ("a",)

    def __init__(self, path): ...


def unknown(table, *, x: "Foo" = 1): ...


def raising(table):
    return {}[1]


def inside(table):
    return nearest(table, 5)


def nothing(): ...


number = 3
"""


@pytest.mark.parametrize(
    "text", ["[1]", '{"a": 1}', '{"seed": {"value": 1}}', '{"seed": {"value": 1, "origin": 2}}', "5"]
)
@pytest.mark.parametrize("command", ["eval", "export", "play", "explain"])
def test_1_run_folders(recipe: Path, palaestra: Command, command: str, text: str) -> None:
    Path("run").mkdir()
    Path("run/recipe.json").write_text(text)
    done = palaestra(command, "run", *(["out"] if command == "export" else []))
    assert done.code == 2 and "not a resolved recipe" in done.err


def test_2_places(folder: Path, palaestra: Command) -> None:
    done = palaestra("export", folder, "small.yaml")
    assert done.code == 2 and done.err.startswith("\nsmall.yaml\n\n  it cannot be written: File exists.")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward=own.py:number", "`own.py:number` must be a function or a class, and it is of type int."),
        ("environment=os:path", "`os:path` must be a function or a class, and it is of type module."),
        (
            "reward=own.py:unknown",
            "its options cannot be read from its signature: NameError: name 'Foo' is not defined.",
        ),
        ("advantage=:f", "Empty module name"),
    ],
)
def test_3_no_parts(recipe: Path, palaestra: Command, override: str, message: str) -> None:
    Path("own.py").write_text(OWN)
    done = palaestra("explain", recipe, override, "--trust")  # without it nothing is imported
    assert done.code == 2 and message in done.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("environment=own.py:Unmade", "own.py, line 6\n\n  ValueError: it cannot be made\n\n  Correct the file."),
        ("environment=own.py:Positional", "own.py\n\n  TypeError: Positional.__init__() missing 1 required positional"),
        ("reward=own.py:raising", "own.py, line 19\n\n  KeyError: 1\n\n  Correct the file."),
        ("sampler=own.py:nothing", "own.py\n\n  TypeError: nothing() takes 0 positional arguments but 4 were given"),
    ],
)
def test_4_own_files(
    recipe: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch, override: str, message: str
) -> None:
    Path("own.py").write_text(OWN)
    done = palaestra("train", recipe, override, "--quiet")
    assert done.code == 2 and message in done.err and "Traceback" not in done.err
    monkeypatch.setenv("PALAESTRA_TRACEBACK", "1")
    with pytest.raises((ValueError, TypeError, KeyError)):
        palaestra("train", recipe, override, "--quiet", "--overwrite")


def test_4_two_files_with_one_function(recipe: Path, palaestra: Command) -> None:
    for name in ("before.py", "own.py"):
        Path(name).write_text(OWN)
        done = palaestra("train", recipe, f"sampler={name}:nothing", "--quiet", "--overwrite")
        assert done.code == 2 and done.err.startswith(f"\n{name}\n\n  TypeError: nothing()")  # the newest of both


def test_4_checking_an_environment(recipe: Path, palaestra: Command) -> None:
    Path("own.py").write_text(OWN)
    done = palaestra("envs", "--check", "own.py:Unmade")
    assert done.code == 2 and "own.py, line 6\n\n  ValueError: it cannot be made" in done.err


def test_5_quotations(recipe: Path, palaestra: Command) -> None:
    done = palaestra("compare", recipe, "--arm", "x: 'm.yaml")
    assert done.code == 2 and "an arm needs a name and at least one method file" in done.err


def test_6_our_own_mistakes(recipe: Path, palaestra: Command) -> None:
    Path("own.py").write_text(OWN)
    with pytest.raises(TypeError):  # below the frame of the file stands one of ours
        palaestra("train", recipe, "reward=own.py:inside", "--quiet")
