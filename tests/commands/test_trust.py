"""Code of others: (1) `explain` and `--dry-run` run no code of a recipe, and check the options that its text tells; (2)
`eval`, `play`, `export`, `train` and the Python interface refuse code that a run folder names, if the run was not made
here; `--trust` allows it; (3) a run that was made here needs no `--trust`, also after a resume; (4) code inside a run
folder always needs it; (5) a recipe that was changed, or signed by another account, is not one of this account; (6)
programs and modules count as code, names of parts do not; (7) without a place for the key nothing breaks.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palaestra.api import Run
from palaestra.errors import RecipeError
from palaestra.registry.options import OPEN
from palaestra.registry.signatures import read_part, signatures_only
from palaestra.registry.trust import SIGNATURE, made_here, refuse_code_of, trusting
from palaestra.store.folder import RECIPE
from tests.commands.conftest import SMALL, Command

WORLD = """
from pathlib import Path
from palaestra.testing import EchoEnvironment

Path({mark!r}).write_text("ran")


class World:
    provides = frozenset({{"outcome"}})

    def __init__(self, *, turns: int = 2, word: "str | None" = None, price=3 * 4):
        self.inner = EchoEnvironment(turns=turns)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def paid(table, *, share: float = 1.0):
    return table["reward"] * share
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that exists as soon as the code of the recipe `code/recipe.yaml` has run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "world.py").write_text(WORLD.format(mark=str(tmp_path / "mark")))
    own = {"reward": {"world.py:paid": {"share": 0.5}}}
    (tmp_path / "code" / "recipe.yaml").write_text(json.dumps(SMALL | own))
    yield tmp_path / "mark"
    forget(tmp_path)


def forget(folder: Path) -> None:
    """As in a new process, nothing of the folder is imported."""
    from palaestra.registry import user_files

    user_files.module_of_file.cache_clear()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
            user_files._FILES.pop(name, None)


@pytest.fixture
def made(mark: Path, palaestra: Command) -> Path:
    """A run of that recipe, made here, whose code has not run in this process yet."""
    assert palaestra("train", "code/recipe.yaml", "run=made", "--quiet").code == 0
    again(mark)
    return Path("made")


def again(mark: Path) -> None:
    forget(mark.parent)
    mark.unlink(missing_ok=True)


@pytest.fixture
def foreign(made: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run, for another account."""
    monkeypatch.setenv("XDG_STATE_HOME", str(mark.parent / "other"))
    return made


@pytest.mark.parametrize("arguments", [("explain",), ("train", "--dry-run")])
def test_1_explain_runs_nothing(mark: Path, palaestra: Command, arguments: tuple[str, ...]) -> None:
    done = palaestra(arguments[0], "code/recipe.yaml", *arguments[1:])
    assert done.code == 0 and not mark.exists()
    assert any("not imported: world.py:paid" in line for line in done.out)
    rows = {line.split()[0]: line.split()[1:] for line in done.out if line}
    assert rows["reward.world.py:paid.share"][0] == "0.5"
    refused = palaestra(arguments[0], "code/recipe.yaml", "reward.shre=1", *arguments[1:])
    assert refused.code == 2 and "has no option `shre`" in refused.err
    refused = palaestra(arguments[0], "code/recipe.yaml", "reward.share=much", *arguments[1:])
    assert refused.code == 2 and "cannot take `share" in refused.err and not mark.exists()
    assert palaestra(arguments[0], "code/recipe.yaml", "--trust", *arguments[1:]).code == 0 and mark.exists()


def test_1_the_text(mark: Path) -> None:
    file = Path("code/world.py")
    with signatures_only() as found:
        world, _ = read_part("world.py:World", file, "World")
        assert world.provides == frozenset({"outcome"})
        with pytest.raises(AttributeError):
            read_part("world.py:Wrold", file, "Wrold")
    assert found == {"world.py:World": "its options were read from the text"} and not mark.exists()


def test_1_what_the_text_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from elsewhere import Base, wrapped\nfrom palaestra.registry import register\n"
        "class A(Base): ...\n"
        "@wrapped\ndef b(table, *, x=1): ...\n"
        "def c(table, **given): ...\n"
        "d = wrapped(b)\n"
        "@register('reward', 'e', reads=('process',))\ndef e(table, *, x: __import__('os').getcwd() = 1): ...\n"
    )
    with signatures_only() as found:
        for name in "Abcd":
            stub, _ = read_part(name, tmp_path / "odd.py", name)
            assert stub in OPEN
        assert found == dict.fromkeys("Abcd", "its options are not known")
        stub, registered = read_part("e", tmp_path / "odd.py", "e")
    assert registered == {"reads": ("process",), "slot": "reward"} and stub not in OPEN


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "made"),
        ("play", "./made"),
        ("export", "made", "out"),
        ("train", "made", "--resume"),
        ("show", "made"),
        ("plan", "made"),
    ],
)
def test_2_a_run_of_others(foreign: Path, mark: Path, palaestra: Command, command: tuple[str, ...]) -> None:
    done = palaestra(*command)
    assert done.code == 2 and "it names code, `world.py:paid`" in done.err and not mark.exists()
    assert "--trust" in done.err and "Traceback" not in done.err
    assert palaestra("explain", "made").code == 0 and not mark.exists()
    assert palaestra(*command, "--trust").code == 0 and mark.exists()


def test_2_in_python(foreign: Path, mark: Path) -> None:
    with pytest.raises(RecipeError, match="was not made by you"):
        Run(foreign).evaluate()
    with pytest.raises(RecipeError, match="was not made by you"):
        Run(foreign).policy()
    assert not mark.exists()
    Run(foreign, trust=True).evaluate()
    assert mark.exists()


def test_3_a_run_of_ones_own(made: Path, mark: Path, palaestra: Command) -> None:
    assert made_here(made) and palaestra("eval", made).code == 0 and mark.exists()
    again(mark)
    assert palaestra("train", made, "--resume", "training.iterations=3", "--quiet").code == 0
    again(mark)
    assert made_here(made) and palaestra("eval", made).code == 0
    again(mark)
    shutil.move(made, "moved")
    assert palaestra("eval", "./moved").code == 0


def test_4_code_inside_a_run_folder(made: Path, mark: Path, palaestra: Command) -> None:
    shutil.copy("code/world.py", made / "world.py")
    entries = json.loads((made / RECIPE).read_text())
    entries["reward"]["folders"] = [str(made.resolve())]
    with pytest.raises(RecipeError):
        refuse_code_of(made, entries)
    Path("plain.yaml").write_text(json.dumps(SMALL))
    done = palaestra("train", "plain.yaml", "run=new", f"advantage={made}/world.py:paid")
    assert done.code == 2 and "lies inside the run folder made" in done.err and not mark.exists()


def test_5_changed_or_signed_by_another(made: Path, mark: Path, palaestra: Command) -> None:
    text = (made / RECIPE).read_text()
    (made / RECIPE).write_text(text.replace("0.5", "0.25"))
    assert not made_here(made) and palaestra("eval", made).code == 2
    (made / RECIPE).write_text(text)
    assert made_here(made)
    for content in ("", "[]", "{}", '{"a": 3}', "\0"):
        (made / SIGNATURE).write_text(content)
        assert not made_here(made)
    assert not mark.exists()


def test_6_what_counts_as_code() -> None:
    def names_code(value: object, key: str = "environment.x.y") -> bool:
        try:
            refuse_code_of(Path("absent"), {key: {"value": value, "origin": "default"}})
        except RecipeError:
            return True
        return False

    code = (
        "a.py:b",
        "../a/b.py:C",
        "package.module:thing",
        ["x", {"env": "a.py:b"}],
        {"a.py:b": {}},
        {"command": ["rm"]},
        "cuda:a.py:b",
        "palaestra./../a.py:b",
        "a\nb.py:c",
        "./a.py:b-c",
        "./a.py:b c",
        "évil:Env",
        {"env": "evil.module"},
        {"games": ["folder/x.tw-pddl"]},
    )
    assert all(map(names_code, code)) and names_code(["python", "x.py"], key="agents.a.tools.mcp.command")
    plain = (
        {"env": "pettingzoo.classic.tictactoe_v3"},
        {"env": "CartPole-v1"},
        {"games": "folder/x.z8"},
        "gigpo",
        "cuda:1",
        "a: b",
        "http://127.0.0.1:8000/v1",
        3,
        None,
        ["a", 2.0],
        "palaestra.testing:Echo",
        "12:30",
    )
    assert not any(map(names_code, plain))
    with trusting():
        assert not names_code("a.py:b")


def test_7_without_a_key(mark: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("file").resolve()))
    assert palaestra("train", "code/recipe.yaml", "run=made", "--quiet").code == 0
    again(mark)
    assert not made_here(Path("made")) and palaestra("eval", "./made").code == 2
    assert palaestra("eval", "./made", "--trust").code == 0
