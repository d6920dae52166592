"""Rules of puzzles for one player: numbers and codes to guess, lakes, lights, pegs, towers, tiles and mines.

For each puzzle of the package they give the legal moves, a brief text and, from `solvers`, an expert.
"""

from __future__ import annotations

import itertools
import random

from palaestra.envs.adapters.textarena import solvers
from palaestra.envs.adapters.textarena.rules import Game, Rules, facts

WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
LISTED = 720  # the most codes that are listed; any code may be guessed


# ---- guess the number -------------------------------------------------------------------------------------
def _limits(game: Game) -> tuple[int, int]:
    """The lowest and the highest number that the secret can be after the hints so far."""
    low, high = game.min_number, game.max_number
    for guess, hint in facts(game)["guess_history"]:
        low, high = (max(low, guess + 1), high) if hint == "higher" else (low, min(high, guess - 1))
    return low, high


def _numbers(game: Game, seat: int) -> list[str]:
    return [str(n) for n in range(game.min_number, game.max_number + 1) if n not in game.guessed_numbers]


def _number(game: Game, seat: int) -> str:
    low, high = _limits(game)
    tried = " ".join(str(n) for n in sorted(game.guessed_numbers)) or "none"
    return f"between {low} and {high}. tried {tried}. guesses left {game.max_turns - game.state.turn}"


def _number_expert(game: Game, seat: int, draw: random.Random) -> str:
    return str(sum(_limits(game)) // 2)


# ---- mastermind -------------------------------------------------------------------------------------------
def _all_codes(game: Game) -> itertools.chain[tuple[int, ...]] | itertools.product[tuple[int, ...]]:
    digits = range(1, game.num_numbers + 1)
    if game.duplicate_numbers:
        return itertools.product(digits, repeat=game.code_length)
    return itertools.chain(itertools.permutations(digits, game.code_length))


def _codes(game: Game, seat: int) -> list[str]:
    tried = {tuple(entry["guess"]) for entry in facts(game)["history"]}
    untried = (code for code in _all_codes(game) if code not in tried)
    return [" ".join(map(str, code)) for code in itertools.islice(untried, LISTED)]


def _code(game: Game, seat: int) -> str:
    told = [
        f"{' '.join(map(str, entry['guess']))}: {entry['black']} right {entry['white']} moved"
        for entry in facts(game)["history"]
    ]
    head = f"code of {game.code_length} from 1 to {game.num_numbers}. guesses left {game.max_turns - game.state.turn}"
    return ". ".join([head, *told])


def _code_expert(game: Game, seat: int, draw: random.Random) -> str:
    """The first code that agrees with all answers so far."""
    history = [(tuple(entry["guess"]), (entry["black"], entry["white"])) for entry in facts(game)["history"]]
    agreeing = (code for code in _all_codes(game) if all(_pegs(code, guess) == told for guess, told in history))
    return " ".join(map(str, next(agreeing)))


def _pegs(code: tuple[int, ...], guess: tuple[int, ...]) -> tuple[int, int]:
    black = sum(a == b for a, b in zip(code, guess, strict=True))
    return black, sum(min(code.count(digit), guess.count(digit)) for digit in set(guess)) - black


# ---- frozen lake ------------------------------------------------------------------------------------------
def _ways(game: Game, seat: int) -> list[str]:
    row, column = facts(game)["player_pos"]
    return [way for way, (r, c) in WAYS.items() if 0 <= row + r < game.size and 0 <= column + c < game.size]


def _lake(game: Game, seat: int) -> str:
    place, sign = tuple(facts(game)["player_pos"]), {" ": ".", "H": "h", "G": "g"}
    board = [
        ["p" if (row, column) == place else sign[cell] for column, cell in enumerate(line)]
        for row, line in enumerate(facts(game)["grid"])
    ]
    return f"lake {' / '.join(' '.join(line) for line in board)}"


def _lake_expert(game: Game, seat: int, draw: random.Random) -> str:
    grid = facts(game)["grid"]

    def steps(place: tuple[int, int]) -> list[tuple[str, tuple[int, int]]]:
        aims = [(way, (place[0] + r, place[1] + c)) for way, (r, c) in WAYS.items()]
        return [(way, a) for way, a in aims if all(0 <= x < game.size for x in a) and grid[a[0]][a[1]] != "H"]

    goal = tuple(facts(game)["goal_pos"])
    return solvers.shortest(tuple(facts(game)["player_pos"]), steps, lambda place: place == goal)[0]


# ---- lights out -------------------------------------------------------------------------------------------
def _lights(game: Game, seat: int) -> list[str]:
    return [f"{row} {column}" for row in range(game.size) for column in range(game.size)]


def _light(game: Game, seat: int) -> str:
    grid = " / ".join(" ".join("o" if lit else "." for lit in row) for row in facts(game)["grid"])
    return f"lights {grid}. moves left {game.max_turns - facts(game)['moves_made']}"


def _light_expert(game: Game, seat: int, draw: random.Random) -> str:
    lit = [int(cell) for row in facts(game)["grid"] for cell in row]
    row, column = divmod(solvers.lights_out(lit, game.size)[0], game.size)
    return f"{row} {column}"


# ---- pegs, towers, tiles ----------------------------------------------------------------------------------
def _jumps(game: Game, seat: int) -> list[str]:
    board = facts(game)["board"]
    return [f"{f} {t}" for f, o, t in game.ALLOWED_MOVES if board[f] and board[o] and not board[t]]


def _pegs_left(game: Game, seat: int) -> str:
    return "pegs in " + " ".join(str(hole) for hole, peg in enumerate(facts(game)["board"]) if peg)


def _jump_expert(game: Game, seat: int, draw: random.Random) -> str:
    found = solvers.peg_jumps(tuple(facts(game)["board"]), game.ALLOWED_MOVES)
    return _jumps(game, seat)[0] if found is None else f"{found[0]} {found[1]}"


def _towers(game: Game) -> dict[str, tuple[int, ...]]:
    return {name: tuple(disks) for name, disks in facts(game)["towers"].items()}


def _carries(towers: tuple[tuple[int, ...], ...]) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    found = []
    for start, aim in itertools.permutations(range(3), 2):
        if towers[start] and (not towers[aim] or towers[aim][-1] > towers[start][-1]):
            after = list(towers)
            after[start], after[aim] = towers[start][:-1], (*towers[aim], towers[start][-1])
            found.append((f"{'ABC'[start]} {'ABC'[aim]}", tuple(after)))
    return found


def _disks(game: Game, seat: int) -> list[str]:
    return [move for move, _ in _carries(tuple(_towers(game).values()))]


def _tower(game: Game, seat: int) -> str:
    held = ". ".join(f"{name} {' '.join(map(str, disks)) or 'empty'}" for name, disks in _towers(game).items())
    return f"{held}. all to C"


def _tower_expert(game: Game, seat: int, draw: random.Random) -> str:
    start = tuple(_towers(game).values())
    return solvers.shortest(start, _carries, lambda towers: not towers[0] and not towers[1])[0]


def _slides(game: Game, seat: int) -> list[str]:
    row, column = game._get_empty_position()
    possible = {"up": row < 3, "down": row > 0, "left": column < 3, "right": column > 0}
    return [way for way, there in possible.items() if there]


def _tiles(game: Game, seat: int) -> str:
    return "tiles " + " / ".join(" ".join("_" if tile is None else str(tile) for tile in row) for row in game.board)


# ---- 2048 and mines ---------------------------------------------------------------------------------------
def _pushes(game: Game, seat: int) -> list[str]:
    board = facts(game)["board"]
    lines = {
        "up": [list(column) for column in zip(*board, strict=True)],
        "down": [list(column)[::-1] for column in zip(*board, strict=True)],
        "left": [list(row) for row in board],
        "right": [list(row)[::-1] for row in board],
    }
    return [way for way, rows in lines.items() if any(game._compress_and_merge(list(r))[0] != r for r in rows)]


def _numbers_on_board(game: Game, seat: int) -> str:
    board = " / ".join(" ".join(str(tile) if tile else "." for tile in row) for row in facts(game)["board"])
    return f"reach {game.target_tile}. board {board}"


def _hidden_cells(game: Game, seat: int) -> list[str]:
    return [f"{row} {col}" for row in range(game.rows) for col in range(game.cols) if not game.revealed[row][col]]


def _mines(game: Game, seat: int) -> str:
    board = " / ".join(
        " ".join(str(game.grid[row][col]) if game.revealed[row][col] else "." for col in range(game.cols))
        for row in range(game.rows)
    )
    return f"mines {game.num_mines}. field {board}"


SEARCH = "the search for a solution takes too long for a turn"
PUZZLES = {
    "GuessTheNumberEnv": Rules(legal=_numbers, brief=_number, expert=_number_expert),
    "MastermindEnv": Rules(legal=_codes, brief=_code, expert=_code_expert),
    "FrozenLakeEnv": Rules(legal=_ways, brief=_lake, expert=_lake_expert),
    "LightsOutEnv": Rules(legal=_lights, brief=_light, expert=_light_expert),
    "PegJumpEnv": Rules(legal=_jumps, brief=_pegs_left, expert=_jump_expert),
    "TowerOfHanoiEnv": Rules(legal=_disks, brief=_tower, expert=_tower_expert),
    "FifteenPuzzleEnv": Rules(legal=_slides, brief=_tiles, why_no_expert=SEARCH),
    "Game2048Env": Rules(legal=_pushes, brief=_numbers_on_board, why_no_expert="new tiles are random"),
    "MinesweeperEnv": Rules(legal=_hidden_cells, brief=_mines, why_no_expert="some cells can only be guessed"),
}
