"""What must hold of the world `puzzles`:

1. It keeps the contract of environments, with every game, wording and view.
2. Frozen Lake by hand: moves, the edge, holes, the goal, slips. 3. Sokoban by hand: steps, pushes, blocked moves.
4. Minesweeper by hand: numbers, cascades, flags, the first place. The solver's proofs agree with every arrangement.
5. Every board can be solved: by a shortest way, or without a guess.
6. The expert solves everything. Random play rarely succeeds. 7. Sizes, boxes and mixed games are as asked.
8. Other signs change only signs, and the legend explains them. 9. One place is misread, the same one each time.
10. Ends, rewards, snapshots and splits. 11. Impossible options are refused.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from palaestra.data import Action
from palaestra.data.abilities import has
from palaestra.envs.worlds.puzzles.grid import around, shortest_way, toward
from palaestra.envs.worlds.puzzles.lake import Ice, Lake
from palaestra.envs.worlds.puzzles.mines import Field, Mines, opened, safe_places, seen
from palaestra.envs.worlds.puzzles.sokoban import Room, Sokoban, solution
from palaestra.envs.worlds.puzzles.world import AGENT, GAMES, Puzzles
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told


def say(env, value):
    return env.step({AGENT: Action(text=str(value), value=value)})


def room(*rows):
    where = {sign: {(r, c) for r, row in enumerate(rows) for c, s in enumerate(row) if s == sign} for sign in "#@+$*t"}
    at = next(iter(where["@"] | where["+"]))
    targets, boxes = where["t"] | where["+"] | where["*"], where["$"] | where["*"]
    return Room(len(rows), frozenset(where["#"]), frozenset(targets), frozenset(boxes), at)


def field(*rows, revealed=()):
    mines = {(r, c) for r, row in enumerate(rows) for c, sign in enumerate(row) if sign == "x"}
    return Field(len(rows), frozenset(mines), frozenset(revealed))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"games": ["lake"], "size": [4, 4], "noise": 0.3, "text": "brief"},
        {"games": ["mines"], "size": [4, 4], "symbols": "renamed"},
        {"games": ["sokoban"], "size": [6, 6], "boxes": 2, "misread": 0.3},
        {"symbols": "shuffled", "legend": True, "text": "brief"},
    ],
)
def test_1_contract(options):
    check_environment(Puzzles(**options), make=lambda: Puzzles(**options), episodes=3)


# ---- rules ------------------------------------------------------------------------------------------------
def test_2_lake():
    game, ice = Lake(0.4), Ice(3, frozenset({(1, 1)}), (2, 2), (0, 0))
    assert [game.act(ice, side, chance=0.9).at for side in ("up", "right", "down", "left")] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 0),
    ]
    assert game.act(ice, "right", chance=0.1).at == (1, 0)  # slips to its right: down
    assert game.act(ice, "down", chance=0.3).at == (0, 1)  # slips to its left: right
    assert game.lost(replace(ice, at=(1, 1))) and game.solved(replace(ice, at=(2, 2)))
    assert game.rows(ice) == [["@", ".", "."], [".", "o", "."], [".", ".", "g"]]
    assert game.brief(replace(ice, at=(0, 1))) == (
        "goal down 2 right 1. up edge. right ice. down hole. left ice. then up edge. right edge. down ice. left edge."
    )
    assert game._way(ice) == ["right", "right", "down", "down"] and game.expert(ice) == "right"


def test_3_sokoban():
    game = Sokoban(0.0, 1)
    start = room("#####", "#@$.#", "#.#t#", "#...#", "#####")
    pushed = game.act(start, "right", chance=-1)
    assert (pushed.at, pushed.boxes) == ((1, 2), {(1, 3)})
    assert game.act(pushed, "right", chance=-1) == pushed  # a wall is behind the box
    assert game.act(start, "up", chance=-1) == start and game.act(start, "down", chance=-1).at == (2, 1)
    assert game.rows(pushed)[1] == ["#", ".", "@", "$", "#"] and solution(pushed) is None  # no way leads above the box
    assert Sokoban(0.5, 1).act(start, "right", chance=0.2) == start
    two = room("######", "#@$$.#", "#....#", "#..tt#", "#....#", "######")
    assert game.act(two, "right", chance=-1) == two  # only one box can be pushed
    easy = room("#####", "#@$t#", "#...#", "#...#", "#####")
    assert solution(easy) == ("right",) and game.solved(game.act(easy, "right", chance=-1))
    assert game.brief(easy) == "box right 1. target right 2. up wall. left wall. box up wall."


def test_4_mines():
    game, board = Mines(0.0), field("x..", "...", "...")
    assert [[board.number((r, c)) for c in range(3)] for r in range(3)] == [[0, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert len(opened(board, (2, 2)).revealed) == 8 and game.solved(opened(board, (2, 2)))
    one = opened(board, (0, 1))
    assert one.revealed == {(0, 1)} and game.rows(one)[0] == ["?", "1", "?"]
    assert game.lost(game.act(one, "reveal 0 0", chance=-1)) and not game.solved(game.act(one, "reveal 0 0", chance=-1))
    flagged = game.act(one, "flag 0 0", chance=-1)
    assert game.rows(flagged)[0][0] == "f" and game.act(flagged, "flag 0 0", chance=-1).flags == frozenset()
    assert game.act(one, "reveal 0 1", chance=-1) == one
    assert game.brief(one) == "1 mines. 1 in 0 0 or 0 2 or 1 0 or 1 1 or 1 2."


def possible(board):
    """Every set of mines that fits the shown numbers, with any number of mines away from them, up to the total."""
    unknown = sorted({(r, c) for r in range(board.size) for c in range(board.size)} - board.revealed)
    for mined in itertools.combinations(unknown, len(board.mines)):
        other = replace(board, mines=frozenset(mined))
        if seen(other) == seen(board):
            yield other.mines


def test_4_what_is_proven_is_true():
    generator = np.random.default_rng(0)
    proven = 0
    for number in range(60):
        spots = [(int(s) // 4, int(s) % 4) for s in generator.permutation(16)]
        board = opened(Field(4, frozenset(spots[:3]), frozenset()), spots[5])
        safe = set(safe_places(4, seen(board), 3))
        ways = list(possible(board))
        really = {place for place in spots if place not in board.revealed and not any(place in way for way in ways)}
        assert safe <= really and board.mines in ways, number
        proven += len(safe) == len(really)
    assert proven >= 45  # the other boards need the total number of mines


# ---- boards -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_5_every_board_can_be_solved(seed):
    lake, sokoban, mines = Lake(0.0), Sokoban(0.0, 2), Mines(0.0)
    assert len(lake._way(lake.draw(6, seed))) >= 3
    assert len(solution(sokoban.draw(6, seed))) >= 4
    assert mines._acts_to_solve(mines.draw(6, seed)) >= 2
    board = mines.draw(6, seed)
    assert len(board.mines) == round(0.15 * 36) and board.revealed and not mines.lost(board)


def test_5_ways():
    steps = {"a": [("x", "b"), ("y", "c")], "b": [("z", "d")], "c": [], "d": []}
    assert shortest_way("a", steps.__getitem__, lambda s: s == "d") == ["x", "z"]
    assert shortest_way("c", steps.__getitem__, lambda s: s == "d") is None
    assert shortest_way("a", steps.__getitem__, lambda s: s == "d", most=1) is None
    assert toward((2, 2), (0, 1)) == "up 2 left 1" and toward((1, 1), (1, 1)) == "here"
    assert len(around((0, 0), 3)) == 3 and len(around((1, 1), 3)) == 8


@pytest.mark.parametrize("game", GAMES)
def test_6_the_expert(game):
    env = Puzzles(games=[game], size=[5, 6])
    for task in env.tasks("eval", 20, 1):
        result = env.reset(task)
        while result.observations:
            result = env.step({AGENT: env.expert(AGENT)})
            assert result.info["process"] == {AGENT: 1.0} and result.info["executable"] == {AGENT: 1.0}
        assert result.info["success"] is True and result.rewards == {AGENT: 1.0} and result.terminated == {AGENT}


def test_6_random_play_rarely_succeeds():
    env, draw, won = Puzzles(), np.random.default_rng(0), 0
    for task in env.tasks("eval", 60, 0):
        result = env.reset(task)
        while result.observations:
            legal = result.observations[AGENT].legal
            result = say(env, legal[int(draw.integers(len(legal)))])
        won += result.info["success"]
    assert won <= 12


def test_7_dials():
    env = Puzzles(size=[5, 6], boxes=1)
    found = set()
    for task in env.tasks("train", 60, 0):
        info = env.reset(task).info
        rows = env._games[info["stratum"]].rows(env.snapshot().board)
        found.add((info["stratum"], len(rows)))
    assert found == {(game, size) for game in GAMES for size in (5, 6)}
    only = Puzzles(games=["lake"], size=[4, 4])
    seen_now = only.reset(only.tasks("train", 1, 0)[0]).observations[AGENT]
    assert (
        only.action_count == 4 and len(seen_now.vector) == only.vector_size == 64 and seen_now.image.shape == (4, 4, 3)
    )
    assert seen_now.vector.reshape(16, 4).sum() == 16
    assert Puzzles(games=["mines"], size=[4, 4]).action_count == 32
    assert not has(env, "vector")


# ---- views ------------------------------------------------------------------------------------------------
def test_8_signs():
    plain = Puzzles()
    others = [Puzzles(symbols="renamed"), Puzzles(symbols="shuffled", legend=True)]
    drawn = set()
    for task in plain.tasks("train", 12, 0):
        text = plain.reset(task).observations[AGENT].text
        for env in others:
            shown = env.reset(task).observations[AGENT]
            assert env.snapshot().board == plain.snapshot().board and shown.text != text
            back = {other: sign for sign, other in env.snapshot().names}
            rows = shown.text.split(":\n")[1].splitlines()
            assert "\n".join(" ".join(back[sign] for sign in row.split()) for row in rows) == text.split(":\n")[1]
        drawn.add(others[1].snapshot().names)
        legend = others[1]._observe(others[1].snapshot()).text.splitlines()[0]
        assert all(f"{other} " in legend for _, other in others[1].snapshot().names)
    assert len(drawn) > 6


def test_9_misread():
    env, clear = Puzzles(misread=1.0), Puzzles()
    differ = 0
    for task in clear.tasks("train", 20, 0):
        first, second = (env.reset(task).observations[AGENT].text for _ in range(2))
        right = clear.reset(task).observations[AGENT].text
        assert first == second
        wrong = sum(a != b for a, b in zip(first.split(), right.split(), strict=True))
        assert wrong <= 1
        differ += wrong
    assert differ > 10


# ---- episodes ---------------------------------------------------------------------------------------------
def test_10_ends():
    env = Puzzles(games=["lake"], size=[4, 4], max_turns=5)
    with pytest.raises(ContractError, match="before `reset`"):
        say(env, "up")
    tasks = env.tasks("train", 30, 0)
    assert not {t.content_hash for t in tasks} & {t.content_hash for t in env.tasks("eval", 30, 0)}
    env.reset(tasks[0])
    kept = env.snapshot()
    env.restore(replace(kept, board=Ice(4, frozenset({(0, 1)}), (3, 3), (0, 0))))
    idle = say(env, "up")
    assert idle.observations[AGENT].text.startswith("nothing happens.") and idle.info["executable"] == {AGENT: 0.0}
    assert say(env, "jump").info["invalid"] == {AGENT: True} and say(env, 9).info["invalid"] == {AGENT: True}
    assert "invalid" not in say(env, 3).info
    lost = say(env, 1)
    assert lost.terminated == {AGENT} and lost.rewards == {AGENT: 0.0} and lost.info["success"] is False
    env.restore(kept)
    results = [say(env, "??") for _ in range(5)]
    assert results[-1].truncated == {AGENT} and set(results[-1].last) == {AGENT}
    env.restore(kept)
    assert env.snapshot() == kept


def test_10_after_a_mistake_that_cannot_be_mended():
    env = Puzzles(games=["sokoban"], size=[5, 5])
    env.reset(env.tasks("train", 1, 0)[0])
    stuck = room("#####", "#$.@#", "#..t#", "#...#", "#####")
    env.restore(replace(env.snapshot(), board=stuck))
    assert env.expert(AGENT).text == "up" and say(env, "up").info["process"] == {AGENT: 0.0}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"games": []}, "`games` is empty"),
        ({"games": ["lake", "lake"]}, "names lake twice(.|\n)*each once"),
        ({"games": ["chess"]}, "games"),
        ({"size": [6, 5]}, r"`size` is 6 to 5(.|\n)*Write `size: \[5, 6\]`"),
        ({"noise": 2}, "noise"),
    ],
)
def test_11_impossible_options(options, fault):
    with pytest.raises(RecipeError, match=fault):
        Puzzles(**options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"size": [4, 5]}, "4 to 5"),
        ({"games": ["lake"], "size": [3, 11]}, "3 to 11"),
        ({"size": [5, 5], "boxes": 2}, "`boxes` is 2"),
        ({"symbols": "shuffled"}, "`symbols: shuffled`"),
    ],
)
def test_11_options_that_do_not_fit(options, found):
    with told(RecipeError, found):
        Puzzles(**options)
