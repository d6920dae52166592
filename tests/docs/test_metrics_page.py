"""The page of metrics is complete: (1) every name that three small runs write stands on it, those of evaluations and
times too, and so does every name of the pinned runs; (2) every name on it is written somewhere in the code; (3) every
name that the code writes stands on it; (4) no name is explained twice, and each has a meaning.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from site_pages.metrics import MARK, METRICS, metrics_tables

from palaestra.recipe import load
from palaestra.training.start import train
from tests.docs.pages import ROOT
from tests.house.source_text import package_files, shown, tree

LOGS = ("metrics.jsonl", "evaluations.jsonl", "timings.jsonl")
RUNS = {  # files and overrides, and some of the names that this run must write
    "language": (["quickstart.yaml"], {"policy/kl", "prompt/mean", "mismatch/kl", "eval/babyai/success_low"}),
    "team": (
        ["teams/search_qa.yaml", "training.agent_gradients=true"],
        {"agent/verifier/return/shift", "policy/searcher/mismatch/abs", "policy/searcher/agent/searcher/grad_norm"},
    ),
    "critic": (["ppo/recipe.yaml"], {"value/loss", "updates", "time/update"}),
}
WRITERS = (
    "engines/session.py",
    "training/",
    "parts/",
    "rollout/",
    "replay/",
    "systems/",
    "store/",
    "evaluation/panels.py",
    "envs/worlds/dataset/groups.py",
)
HOLE = "<>"  # what an f-string puts in
NAME = re.compile(r"[a-z_]+(?:/(?:[a-z_0-9]+|<>|<>_[a-z_]+))+")
# Strings in code that look like names: what stands in front of names, the ends of names of a part that puts a word in
# front, names that the page splits in two, what the warm start returns to its callers, and folders.
OTHERS = {"agent/<>/<>", "eval/<>", "eval/<>/<>", "policy/<>/<>", "winrate/mean", "winrate/lowest", "runs/<>"}
OTHERS |= {"tools/<>/calls", "tools/<>/errors", "warm_start/<>/<>"}
OTHERS |= {"warm_start/demonstrations", "warm_start/left_out", "warm_start/failed"}


def rows() -> Iterator[tuple[str, str, bool]]:
    """What stands in front of a name, the name, and whether it may carry the name of a policy."""
    for section in METRICS["sections"]:
        for names, *_ in section["names"]:
            for name in names.split(", "):
                yield section.get("front", ""), name, section.get("per_policy", False)


def holes(name: str) -> str:
    return re.sub(r"<\w+>", HOLE, name)


@cache
def on_the_page() -> re.Pattern[str]:
    """Matches every name that the page explains."""
    names = [front + name for front, name, _ in rows()]
    updates = [name for _, name, per_policy in rows() if per_policy] + [*METRICS["of_systems"]]
    names += [*METRICS["of_systems"], *("policy/<policy>/" + name.removeprefix("policy/") for name in updates)]
    return re.compile("|".join(re.escape(holes(n)).replace(HOLE, "[^/]+").replace(r"\*", ".+") for n in names))


def strings(path: Path) -> set[str]:
    """The strings of a file; of an f-string, with `<>` for what it puts in."""
    nodes = list(ast.walk(tree(path)))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    pieces = {id(piece) for node in joined for piece in node.values}
    found = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in pieces}
    return found | {
        "".join(str(piece.value) if isinstance(piece, ast.Constant) else HOLE for piece in node.values)
        for node in joined
    }


@cache
def written(below: tuple[str, ...] = WRITERS) -> frozenset[str]:
    """The strings of the files that write metrics."""
    files = [path for path in package_files() if shown(path).removeprefix("palaestra/").startswith(below)]
    return frozenset().union(*map(strings, files))


def is_written(name: str, found: Iterable[str]) -> bool:
    """Whether a string, or an f-string that gives more than its last word, is this name."""
    name = holes(name)
    patterns = [text for text in found if HOLE in text and re.search("[a-z]", text) and not text.endswith(HOLE)]
    return name in found or any(re.fullmatch(re.escape(p).replace(HOLE, "[^/]+"), name) for p in patterns)


def unexplained(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if not on_the_page().fullmatch(name)})


@pytest.mark.parametrize("name", RUNS)
def test_1_names_of_a_run(name: str, tmp_path: Path) -> None:
    words, expected = RUNS[name]
    found = load([w for w in words if "=" not in w], [*(w for w in words if "=" in w), f"run={tmp_path}"], smoke=True)
    train(found.settings, recipe=found.to_json(), quiet=True, overwrite=True)
    texts = [(tmp_path / log).read_text(encoding="utf-8") for log in LOGS]
    names = {key for text in texts for line in text.splitlines() for key in json.loads(line)}
    assert expected <= names
    assert not unexplained(names)


def test_1_names_of_the_pinned_runs() -> None:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "tests/pins/expected").glob("*.json")]
    lines = [line for file in files for line in (*file.get("metrics", ()), *file.get("evaluations", ()))]
    assert len(lines) > 100 and not unexplained(name for line in lines for name in line)


def test_1_others_are_not_explained() -> None:
    assert unexplained(
        ["policy/kl", "policy/k", "polity/kl", "stop/completed", "outcome/meany", "agent/a/b/active"]
    ) == [
        "agent/a/b/active",
        "outcome/meany",
        "policy/k",
        "polity/kl",
    ]


def test_2_no_dead_name() -> None:
    assert not [front + name for front, name, _ in rows() if not is_written(name, written())]
    assert not is_written("policy/kll", written()) and not is_written("eval/<panel>/succes", written())
    assert is_written("stop/<reason>", {"stop/<>"}) and not is_written("stop/all", {"stop/<>"})


@pytest.mark.parametrize("name", METRICS["of_systems"])
def test_2_methods_write_their_names(name: str) -> None:
    for method in METRICS["of_systems"][name]:
        pattern = re.escape(name).replace(r"\*", ".+")
        assert [text for text in written((f"systems/{method}/",)) if re.fullmatch(pattern, text)], method


def test_3_every_name_of_the_code() -> None:
    names = {text for text in written() if NAME.fullmatch(text)}
    assert len(names) > 100 and {"dataset/passes", "policy/agent/<>/grad_norm"} <= names
    ends = {holes(name) for front, name, _ in rows() if front}
    assert not [name for name in unexplained(names - ends) if name not in OTHERS]
    assert names >= OTHERS


def test_4_each_name_once() -> None:
    names = [front + name for front, name, _ in rows()] + [*METRICS["of_systems"]]
    assert len(names) == len({*names}) > 100
    found = [row for section in METRICS["sections"] for row in section["names"]]
    assert not [row for row in found if len(row) != 4 or not re.match(r"[A-Z].*\.$", row[1], re.DOTALL)]
    assert not [cell for row in found for cell in row[1:] if cell and not cell.endswith((".", ")."))]


def test_4_the_page_has_the_tables() -> None:
    assert MARK in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    lines = [line for line in metrics_tables().splitlines() if line.startswith("| `")]
    assert len(lines) == sum(len(section["names"]) for section in METRICS["sections"]) + len(METRICS["of_systems"])
    assert not [line for line in lines if line.count("|") not in (3, 5)]
