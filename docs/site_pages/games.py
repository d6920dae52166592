"""The tables of TextArena's games, made from what `benchmarks/text_games.py` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from site_pages.markdown import table

RESULT = "benchmarks/results/worlds/textarena_games.json"
MARK = "<!-- made: games of TextArena -->"


def games_tables(root: Path) -> str:
    """The games that work, then those that do not. Variants share what stands before `-v0`."""
    found: dict[str, dict[str, Any]] = json.loads((root / RESULT).read_text(encoding="utf-8"))
    families: dict[str, list[str]] = {}
    for game in found:
        families.setdefault(game.partition("-v0")[0], []).append(game)
    works, refused = [], []
    for family, games in sorted(families.items()):
        first = found[games[0]]
        name = f"`{family}-v0`"
        variants = ", ".join(f"`{game.partition('-v0')[2].removeprefix('-')}`" for game in games if "-v0-" in game)
        if "refused" in first:
            refused.append((name, variants, first["refused"]))
            continue
        known = "expert" if first["expert"] else "legal moves" if first["legal"] else "–"
        repeats = "yes" if all(found[game]["same"] for game in games) else "no"
        works.append((name, variants, ", ".join(map(str, first["players"])), known, repeats))
    text = table(("game", "variants", "players", "known", "repeats"), works)
    return (
        text
        + "\nThese games cannot be set up on the machine of the measurement:\n\n"
        + table(("game", "variants", "why not"), refused)
    )
