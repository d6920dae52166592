"""Computes every interval in committed results anew from the values of the seeds that the results hold.

    python benchmarks/intervals.py            # all comparison.json and results of teams; prints what changed
    python benchmarks/intervals.py --check    # writes nothing; exit 1 if an interval is not what the code computes now

A comparison holds the curves of its seeds, and the results of teams their evaluations, so nothing is run.
`measures.json` and `spikes.json` hold no values of seeds: their intervals stay as they were made, each with its method.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import teams

from palaestra.evaluation.comparison import Comparison, recomputed
from palaestra.store.atomic import write_atomic

ROOT = Path(__file__).resolve().parent.parent


def comparisons() -> Iterator[Path]:
    """Every committed comparison."""
    for folder in ("palaestra/systems", "benchmarks/results"):
        yield from sorted((ROOT / folder).rglob("comparison.json"))


def renewed(path: Path) -> tuple[dict[str, Any], Comparison]:
    """A comparison as JSON with its intervals computed now; the versions stay those that its runs were made with."""
    found = json.loads(path.read_text(encoding="utf-8"))
    table = path.with_suffix(".txt").read_text(encoding="utf-8")
    made = recomputed(found, order=sorted(found["arms"], key=lambda arm: table.index(f"│ {arm} ")))
    written: dict[str, Any] = json.loads(json.dumps({**found, **made.to_json(), "versions": found["versions"]}))
    return written, made


def differ(before: Any, after: Any) -> bool:
    """Whether two results differ by more than how processors round."""
    return _rounded(before) != _rounded(after)


def _rounded(found: Any) -> Any:
    return json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.9g}"))


def changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Differences whose verdict is another one, or whose bootstrap holds 0 now and did not, or the other way."""
    for arm, both in before["differences"].items():
        for what, old in both.items():
            new = after["differences"][arm][what]
            if old["bootstrap"] is None:
                continue
            held, holds = (found["bootstrap"]["low"] <= 0 <= found["bootstrap"]["high"] for found in (old, new))
            if held != holds or old["verdict"] != new["verdict"]:
                yield f"{arm}, {what}: {_told(old)} -> {_told(new)}"


def _told(found: dict[str, Any]) -> str:
    bounds = "{mean:+.4f} [{low:+.4f}, {high:+.4f}]"
    student = bounds.format(**found["student"])
    return f"{bounds.format(**found['bootstrap'])}, Student {student}, {found['verdict']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    stale = 0
    for path in comparisons():
        before = json.loads(path.read_text(encoding="utf-8"))
        after, made = renewed(path)
        stale += differ(before, after)
        for line in changes(before, after):
            print(f"{path.parent.relative_to(ROOT)}: {line}")
        if differ(before, after) and not chosen.check:
            write_atomic(path, json.dumps(after, indent=1, sort_keys=True) + "\n")
            write_atomic(path.with_suffix(".txt"), made.text())
    for path in sorted(teams.RESULTS.glob("*.json")):
        before = json.loads(path.read_text(encoding="utf-8"))
        if "seeds" in before:
            arms = before["arms"].items()
            after = {**before, "seeds": {arm: teams.over_seeds([*curves.values()]) for arm, curves in arms}}
            stale += differ(before, after)
            if differ(before, after) and not chosen.check:
                write_atomic(path, json.dumps(after, indent=1) + "\n")
    print(f"{stale} files {'differ' if chosen.check else 'are written'}")
    raise SystemExit(1 if chosen.check and stale else 0)


if __name__ == "__main__":
    main()
