"""Mutated recipes: each resolves or is refused by a clean error, soon. The mutations are drawn from a fixed seed.

The quick form takes a few recipes that need no optional packages. The slow one takes all recipes of Palaestra, and
trains some of the mutations that resolve.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palaestra.errors import PalaestraError
from palaestra.recipe import Recipe, load, packaged

VALUES = (
    *("", "null", "~", "true", "0", "-1", "1", "2", "0.5", "-0.5", "1e9", "1e-30", "1e400", ".inf", "-.inf", ".nan"),
    *("9" * 5000, str(2**31), str(2**63 - 1), str(2**63), "!!int x", "!!float q", "!!timestamp q", "!!set {a, b}"),
    *(":", "a:b", "json:loads", ".py:x", "../x.py:y", "x" * 300, '"\\0"', '"\\ud800"', "'*'", "[]", "{}", "[[]]"),
    *(
        "{a: 1}",
        "[1, 2, 3]",
        "[null]",
        "{null: null}",
        "{'': ''}",
        "[" * 99 + "]" * 99,
        "&a [*a]",
        "*b",
        "{<<: {a: 1}}",
    ),
)
QUICK = ("quickstart.yaml", "setups/rooms-tiny.yaml", "setups/relay.yaml", "gigpo/recipe.yaml", "teams/chain.yaml")
SCALAR = re.compile(r"(?<=[:\[{,] )[^\s\[\]{},#&*]+")
KEY = re.compile(r"[\w-]+(?=:)")


def _value(text: str, draw: random.Random) -> str:
    return _put(text, SCALAR, draw.choice(VALUES), draw)


def _key(text: str, draw: random.Random) -> str:
    return _put(
        text, KEY, draw.choice(("x", "name", "run", "'*'", "a.b", "smoke", "baselines", "extends", "<<", "0")), draw
    )


def _put(text: str, pattern: re.Pattern[str], instead: str, draw: random.Random) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    one = draw.choice(found)
    return text[: one.start()] + instead + text[one.end() :]


def _swap(text: str, draw: random.Random) -> str:
    found = [one[0] for one in SCALAR.finditer(text)]
    return _put(text, SCALAR, draw.choice(found), draw) if found else text


def _without_line(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return "".join(lines)


def _line_twice(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    return "".join(lines)


def _indented(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    lines[place] = draw.choice(("  ", "\t", " ")) + lines[place]
    return "".join(lines)


def _cut(text: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text))]


def _letter(text: str, draw: random.Random) -> str:
    place = draw.randrange(len(text))
    return text[:place] + draw.choice("\0\x1b\u202e:-{}[]&*!|>'\"%@`#?,\n\té😀") + text[place + 1 :]


def _further(text: str, draw: random.Random) -> str:
    key = draw.choice(("seed", "rollout", "training", "agents", "policies", "advantage", "loss", "reward", "strategy",
                       "environment", "evaluation", "warm_start", "device", "dtype", "name", "extends"))  # fmt: skip
    return f"{text}\n{key}: {draw.choice(VALUES)}\n"


WAYS: tuple[Callable[[str, random.Random], str], ...] = (
    *(_value, _value, _value, _key, _swap, _swap, _without_line, _line_twice, _indented, _cut, _letter, _further),
)


def mutations(names: tuple[str, ...], seed: int) -> Iterator[tuple[Path, str]]:
    """The file of a recipe, and its text with one to three changes; without end."""
    files, draw = packaged(), random.Random(seed)
    while True:
        file = files[draw.choice(names)]
        text = file.read_text(encoding="utf-8")
        for _ in range(draw.choice((1, 1, 2, 3))):
            text = draw.choice(WAYS)(text, draw) or "x"
        yield file, text


def survives(file: Path, text: str, folder: Path) -> bool:
    """Resolve one mutation as `explain` does. Returns whether it was accepted. Anything but a clean error is raised."""
    place = folder / "mutated.yaml"
    beside = file.parent / "method.yaml"  # which a system's recipe extends
    place.write_text(re.sub(r"\bmethod\.yaml", str(beside), text) if beside.exists() else text, encoding="utf-8")
    began = time.monotonic()
    try:
        recipe = load([str(place)])
        written = json.loads(json.dumps(recipe.to_json()))
        assert recipe.explain()
        Recipe.from_json(written)
        return True
    except PalaestraError as error:
        message = str(error)
        assert error.where and error.what and len(message) < 5000, message[:5000]
        return False
    finally:
        assert time.monotonic() - began < 10.0, "it takes too long"


def fuzz(names: tuple[str, ...], folder: Path, *, seed: int, count: int, seconds: float) -> tuple[int, int]:
    """Numbers of mutations that were tried and accepted."""
    accepted = 0
    began = time.monotonic()
    for tried, (file, text) in enumerate(mutations(names, seed)):
        if tried == count or time.monotonic() - began > seconds:
            return tried, accepted
        try:
            accepted += survives(file, text, folder)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n--- {file}\n{text[:3000]}") from error
    raise AssertionError("mutations never end")


def test_quick(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    tried, accepted = fuzz(QUICK, tmp_path, seed=1, count=120, seconds=6.0)
    record_property("trials", tried)
    assert tried >= 10 and accepted < tried


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_whole(tmp_path: Path, seed: int, record_property: Callable[[str, object], None]) -> None:
    names = tuple(name for name in packaged() if not name.endswith("method.yaml"))
    tried, accepted = fuzz(names, tmp_path, seed=seed, count=150, seconds=240.0)
    record_property("trials", tried)
    assert tried == 150 and 0 < accepted < tried


SMALL = ("training.iterations=1", "rollout.tasks=2", "rollout.group=2", "evaluation.tasks=2", "training.threads=1")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 10))
def test_trained(tmp_path: Path, seed: int, record_property: Callable[[str, object], None]) -> None:
    """The command trains each mutation that resolves: it ends with a run or with one clean error."""
    statuses = []
    for file, text in mutations(("quickstart.yaml", "setups/rooms-tiny.yaml", "teams/chain.yaml"), seed):
        if not survives(file, text, tmp_path):
            continue
        words = (sys.executable, "-m", "palaestra", "train", "mutated.yaml", f"run={len(statuses)}", *SMALL)
        ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        what = f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}\n--- {file}\n{text}"
        assert ended.returncode in (0, 2) and "Traceback" not in ended.stderr, what
        statuses.append(ended.returncode)
        if len(statuses) == 6:
            break
    record_property("trials", len(statuses))
    assert 0 in statuses
