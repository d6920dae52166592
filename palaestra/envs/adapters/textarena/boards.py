"""Rules of board games: tic-tac-toe and its variants, Connect Four, Nim, Othello, Breakthrough, Chopsticks.

For each game of the package they give the legal moves, a brief text and, from `solvers`, an expert.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from palaestra.envs.adapters.textarena import solvers
from palaestra.envs.adapters.textarena.rules import Game, Rules, facts, rows

EMPTY = ("", " ", ".")
STUCK = ["pass"]  # listed if no move is left; the game has no rule for this, so every text is invalid
UNSOLVED = "Palaestra has no solver for it"


# ---- tic-tac-toe and its variants -------------------------------------------------------------------------
def _free(board: Sequence[Sequence[str]]) -> list[int]:
    return [number for number, cell in enumerate(cell for row in board for cell in row) if cell in EMPTY]


def _cells(game: Game, seat: int) -> list[str]:
    return [str(cell) for cell in _free(facts(game)["board"])]


def _tic_tac_toe(game: Game, seat: int) -> str:
    own = "OX"[seat]
    cells = [cell for row in facts(game)["board"] for cell in row]
    signs = [str(number) if cell == "" else "+" if cell == own else "-" for number, cell in enumerate(cells)]
    return f"board {' / '.join(' '.join(signs[place : place + 3]) for place in (0, 3, 6))}"


def _tic_tac_toe_expert(game: Game, seat: int, draw: random.Random) -> str:
    board = "".join(cell or "." for row in facts(game)["board"] for cell in row)
    return draw.choice(solvers.lines_of_three(board, "OX"[seat], wild=False))


def _wild_cells(game: Game, seat: int) -> list[str]:
    return [f"{mark} {cell}" for cell in _free(facts(game)["board"]) for mark in "XO"]


def _wild(game: Game, seat: int) -> str:
    board = " / ".join(" ".join(cell.lower() or "." for cell in row) for row in facts(game)["board"])
    return f"board {board}"


def _wild_expert(game: Game, seat: int, draw: random.Random) -> str:
    board = "".join(cell or "." for row in facts(game)["board"] for cell in row)
    return draw.choice(solvers.lines_of_three(board, "X", wild=True))


def _three_players(game: Game, seat: int) -> str:
    sign = {mark: str((other - seat) % 3) for other, mark in game.symbols.items()} | {"": "."}
    board = " / ".join(" ".join(sign[cell] for cell in row) for row in facts(game)["board"])
    return f"you are 0. board {board}"


def _ultimate_moves(game: Game, seat: int) -> list[str]:
    here = facts(game)
    wanted, won = here["next_micro_board"], [cell for row in here["macro_board"] for cell in row]
    open_boards = [macro for macro in range(9) if won[macro] == " " and wanted in (None, macro)]
    return [f"{macro} {micro}" for macro in open_boards for micro in _free(here["board"][macro])] or STUCK


def _ultimate(game: Game, seat: int) -> str:
    here, own = facts(game), "OX"[seat]
    boards = " | ".join(f"{number} {rows(board, own, EMPTY)}" for number, board in enumerate(here["board"]))
    wanted = here["next_micro_board"]
    return f"play in {'any' if wanted is None else wanted}. {boards}"


# ---- Connect Four -----------------------------------------------------------------------------------------
def _columns(game: Game, seat: int) -> list[str]:
    return [f"col {column}" for column, cell in enumerate(facts(game)["board"][0]) if cell == "."]


def _connect(game: Game, seat: int) -> str:
    if not game.is_open:  # players of a blind game do not see the board
        return f"the board is hidden. columns 0 to {game.num_cols - 1}"
    return f"board {rows(facts(game)['board'], 'XO'[seat], EMPTY)}"


def _connect_expert(game: Game, seat: int, draw: random.Random) -> str:
    board = facts(game)["board"]
    return f"col {draw.choice(solvers.four_in_a_row(board, 'XO'[seat], 'XO'[1 - seat]))}"


# ---- Nim --------------------------------------------------------------------------------------------------
def _takings(game: Game, seat: int) -> list[str]:
    return [f"{pile} {count + 1}" for pile, size in enumerate(facts(game)["piles"]) for count in range(size)]


def _nim(game: Game, seat: int) -> str:
    return "piles " + " ".join(f"{pile}: {size}" for pile, size in enumerate(facts(game)["piles"]))


def _nim_expert(game: Game, seat: int, draw: random.Random) -> str:
    """A move after which the exclusive or of the sizes is 0; if there is none, one piece from the largest pile."""
    piles = facts(game)["piles"]
    odd = 0
    for size in piles:
        odd ^= size
    good = [f"{pile} {size - (size ^ odd)}" for pile, size in enumerate(piles) if (size ^ odd) < size]
    return draw.choice(good) if good else f"{piles.index(max(piles))} 1"


# ---- Othello ----------------------------------------------------------------------------------------------
def _othello_moves(game: Game, seat: int) -> list[str]:
    return [f"{row} {column}" for row, column in game._valid_moves("BW"[seat])] or ["skip"]


def _othello(game: Game, seat: int) -> str:
    return f"board {rows(game.board, 'BW'[seat], EMPTY)}"


# ---- Breakthrough -----------------------------------------------------------------------------------------
def _breakthrough_moves(game: Game, seat: int) -> list[str]:
    size, step = game.board_size, 1 if seat == 0 else -1
    files = "abcdefghijklmnopqrstuvwxyz"
    found = [
        f"{files[column]}{row + 1}{files[aim]}{row + step + 1}"
        for row in range(size)
        for column in range(size)
        for aim in (column - 1, column, column + 1)
        if 0 <= aim < size and 0 <= row + step < size and game._is_valid_move(seat, row, column, row + step, aim)
    ]
    return found or STUCK


def _breakthrough(game: Game, seat: int) -> str:
    if not game.is_open:
        return f"the board is hidden. you move {'up' if seat == 0 else 'down'}"
    board = facts(game)["board"]
    numbered = [f"{row + 1}: {rows([board[row]], 'WB'[seat], EMPTY)}" for row in reversed(range(game.board_size))]
    return f"you move {'up' if seat == 0 else 'down'}. {' / '.join(numbered)}"


# ---- Chopsticks -------------------------------------------------------------------------------------------
def _chopsticks_moves(game: Game, seat: int) -> list[str]:
    own, other = facts(game)["hands"][seat], facts(game)["hands"][1 - seat]
    attacks = [f"attack {mine} {aim}" for mine in (0, 1) for aim in (0, 1) if own[mine] and other[aim]]
    total = sum(own)
    return attacks + [f"split {left} {total - left}" for left in range(total + 1) if [left, total - left] != list(own)]


def _chopsticks(game: Game, seat: int) -> str:
    own, other = facts(game)["hands"][seat], facts(game)["hands"][1 - seat]
    return f"your hands {own[0]} {own[1]}. other hands {other[0]} {other[1]}. turn {game.state.turn}"


BOARDS = {
    "TicTacToeEnv": Rules(legal=_cells, brief=_tic_tac_toe, expert=_tic_tac_toe_expert),
    "WildTicTacToeEnv": Rules(legal=_wild_cells, brief=_wild, expert=_wild_expert),
    "ThreePlayerTicTacToeEnv": Rules(legal=_cells, brief=_three_players, why_no_expert=UNSOLVED),
    "UltimateTicTacToeEnv": Rules(legal=_ultimate_moves, brief=_ultimate, why_no_expert=UNSOLVED),
    "ConnectFourEnv": Rules(legal=_columns, brief=_connect, expert=_connect_expert),
    "NimEnv": Rules(legal=_takings, brief=_nim, expert=_nim_expert),
    "OthelloEnv": Rules(legal=_othello_moves, brief=_othello, why_no_expert=UNSOLVED),
    "BreakthroughEnv": Rules(legal=_breakthrough_moves, brief=_breakthrough, why_no_expert=UNSOLVED),
    "ChopsticksEnv": Rules(
        legal=_chopsticks_moves, brief=_chopsticks, why_no_expert="a game of good players never ends"
    ),
}
