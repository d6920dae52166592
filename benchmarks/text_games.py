"""Which games of TextArena can be had on this machine, for how many players, and whether seeds repeat them.

    python benchmarks/text_games.py            # writes results/worlds/textarena_games.json, which the site shows

Every game that the package registers is built without the network and set up for one to six players. Games that work
are played for forty moves, legal ones where they are known and a few generic words elsewhere, in two processes whose
hashes of texts differ: the same seed must give the same messages in both.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from palaestra.envs.adapters.textarena.games import rules_of
from palaestra.envs.adapters.textarena.match import Match
from palaestra.envs.adapters.textarena.package import build, fewest_players, names, refusal
from palaestra.errors import PalaestraError

RESULT = Path(__file__).parent / "results" / "worlds" / "textarena_games.json"
WORDS = ("hello", "[0]", "[1]", "[1 1]", "[0 1]", "[up]", "[accept]", "[pass]", "[call]", "[2]", "[a1 a2]", "[yes]")
MOVES, MOST = 40, 6


def survey(game: str) -> dict[str, Any]:
    """What is known of one game: why it cannot be had, or who plays it and what its messages are."""
    try:
        built = build(game, {})
        fewest = fewest_players(game, "{}")
    except PalaestraError as error:
        return {"refused": error.what}
    rules = rules_of(built)
    match = Match(game, {}, players=fewest, seed=7)
    draw, digest, played = random.Random(7), hashlib.sha256(), 0
    while not match.done and played < MOVES:
        match.listen()
        digest.update(match.text(new=True).encode())
        legal = rules.legal(match.game, match.seat) if rules else WORDS
        move = draw.choice(legal)
        match.move(move if "[" in move or rules is None else f"[{move}]")
        played += 1
    return {
        "class": type(built).__name__,
        "players": [count for count in range(1, MOST + 1) if not refusal(game, {}, count)],
        "legal": rules is not None,
        "expert": rules is not None and rules.expert is not None,
        "why_no_expert": "" if rules is None else rules.why_no_expert,
        "crash": match.crash,
        "messages": digest.hexdigest()[:16],
    }


def everything() -> dict[str, dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()):  # some games talk to the terminal
        return {game: survey(game) for game in names()}


def elsewhere() -> dict[str, dict[str, Any]]:
    """The same in a fresh process with another hash of texts."""
    command = [sys.executable, __file__, "--print"]
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print what was found, as JSON, and write nothing")
    chosen = parser.parse_args()
    found = everything()
    if chosen.print:
        print(json.dumps(found))
        return
    other = elsewhere()
    for game, here in found.items():
        here["same"] = here == other[game]
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
