"""What must hold of `textarena`:

1. It keeps the contract of environments: boards, cards, dice, puzzles, games of three, in self-play, against opponents,
   with slips, and games without rules of ours.
2. Thirty games run to their end by legal moves. The game accepts each of them, unless no move is left.
3. All randomness comes from the task's seed: another process plays the same game, interleaved episodes do not disturb
   each other, and the global generators stay as they were.
4. Rewards are the game's, and only the acting agents get them; success and score follow from them; a draw scores 0.5.
5. The game judges invalid moves: the first is allowed and marked, the second loses.
6. A move at which the game raises an error loses.
7. Seats alternate with the seed, or stay; opponents and blunders are as the options say; slips make other moves.
8. Texts are what is new, everything, or one brief line with the legal moves; an agent's own moves are not repeated.
9. Moves may lack their brackets.
10. Experts are never beaten in tic-tac-toe and always right in puzzles; a game without an expert has a reason.
11. Games that cannot be built are refused in one line that names what is missing, and nothing is downloaded.
12. Bad options are refused; training and evaluation share no task; an episode that is cut off has a last observation.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, StepResult, Task
from palaestra.data.abilities import has
from palaestra.envs.adapters.textarena import package, solvers
from palaestra.envs.adapters.textarena.games import RULES
from palaestra.envs.adapters.textarena.world import TextArena
from palaestra.errors import ContractError, MissingExtra, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.extras import needs

pytestmark = needs("textarena")
BOARD = "TicTacToe-v0"
TASK = Task(env="textarena", seed=4)
RANDOM_PLAY = (
    "TicTacToe-v0", "WildTicTacToe-v0", "ThreePlayerTicTacToe-v0", "UltimateTicTacToe-v0", "ConnectFour-v0",
    "ConnectFour-v0-blind", "Nim-v0", "Nim-v0-large", "Othello-v0-tiny", "Othello-v0-hard", "Breakthrough-v0-tiny",
    "Breakthrough-v0-blind", "Chopsticks-v0", "PigDice-v0-short", "LiarsDice-v0-small", "KuhnPoker-v0",
    "IteratedRockPaperScissors-v0", "IteratedMatchingPennies-v0", "GuessTheNumber-v0", "Mastermind-v0",
    "FrozenLake-v0", "FrozenLake-v0-random", "LightsOut-v0", "PegJump-v0", "TowerOfHanoi-v0", "2048-v0-ultra-easy",
    "Minesweeper-v0-small", "Bandit-v0", "Secretary-v0", "Blackjack-v0",
)  # fmt: skip


def who(result: StepResult) -> str:
    (name,) = result.observations
    return name


def act(env: TextArena, result: StepResult, text: str) -> StepResult:
    return env.step({who(result): Action(text=text)})


def play(env: TextArena, task: Task, *moves: str) -> StepResult:
    result = env.reset(task)
    for move in moves:
        result = act(env, result, move)
    return result


def finish(env: TextArena, task: Task, draw: random.Random | None = None) -> list[StepResult]:
    """Play a whole game, by the expert or at random."""
    results = [env.reset(task)]
    while results[-1].observations:
        (name, seen), *_ = results[-1].observations.items()
        action = env.expert(name) if draw is None else Action(text=draw.choice(list(seen.legal or ())))
        results.append(env.step({name: action}))
    return results


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"opponent": "random", "text": "brief"},
        {"opponent": "expert", "blunders": 0.3, "noise": 0.2, "seat": "last"},
        {"game": "ThreePlayerTicTacToe-v0", "text": "all"},
        {"game": "LiarsDice-v0-small", "players": 3},
        {"game": "Mastermind-v0", "text": "brief"},
        {"game": "KuhnPoker-v0", "opponent": "random", "noise": 0.5},
        {"game": "Nim-v0", "options": {"piles": [1, 2, 2]}, "opponent": "expert", "seat": "first"},
        {"game": "PigDice-v0-50", "max_turns": 7},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()) or "default",
)
def test_contract(options: dict[str, Any]) -> None:  # rule 1
    check_environment(TextArena(**options), make=lambda: TextArena(**options), episodes=3)


@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("SimpleNegotiation-v0", ("hello", "[Offer: 1 Wheat -> 1 Wood]", "[Accept]", "[Deny]")),
        ("IteratedPrisonersDilemma-v0", ("hello", "[Cooperate]", "[Defect]")),
        ("Countdown-v0", ("[0 1 +]", "[1 2 *]", "?")),
        ("ThreePlayerIPD-v0", ("hello", "[1 cooperate] [2 defect]")),
    ],
)
def test_contract_of_games_without_rules(game: str, words: tuple[str, ...]) -> None:  # rule 1
    env = TextArena(game=game, max_turns=20)
    assert env.reset(TASK).observations[env.agents[0]].legal is None and not has(env, "expert")
    check_environment(
        env,
        make=lambda: TextArena(game=game, max_turns=20),
        episodes=2,
        act=lambda seen, draw: Action(text=draw.choice(words)),
    )


@pytest.mark.parametrize("game", RANDOM_PLAY)
def test_games_run_by_legal_moves(game: str) -> None:  # rule 2
    env, draw = TextArena(game=game, text="brief"), random.Random(3)
    for task in env.tasks("eval", 4, 0):
        results = finish(env, task, draw)
        for before, after in itertools.pairwise(results):
            stuck = next(iter(before.observations.values())).legal == ["pass"]
            assert not after.info.get("invalid") or stuck or "Minesweeper" in game  # a mine is an invalid move there
        assert isinstance(results[-1].info["success"], bool) and 0 <= results[-1].info["score"] <= 1
        assert results[-1].info["reason"] if results[-1].terminated else results[-1].last


def test_all_rules_are_tried() -> None:  # rule 2
    played = {type(package.build(game, {})).__name__ for game in (*RANDOM_PLAY, "FifteenPuzzle-v0")}
    assert played == set(RULES)


def transcript(game: str, seed: int = 5) -> list[Any]:
    env = TextArena(game=game, opponent="random" if game == "PigDice-v0-50" else "self", text="all", max_turns=12)
    return [
        [(name, seen.text) for name, seen in (result.observations or result.last).items()]
        for result in finish(env, Task(env="textarena", seed=seed), random.Random(1))
    ]


def test_a_fresh_process_plays_the_same() -> None:  # rule 3
    games = ["PigDice-v0-50", "KuhnPoker-v0", "FrozenLake-v0", "Minesweeper-v0-small"]
    code = (
        "import json; from tests.envs.adapters.test_textarena import transcript as t; "
        "print(json.dumps([t(g) for g in %s]))"
    )
    done = subprocess.run([sys.executable, "-c", code % games], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps([transcript(game) for game in games]))


def test_episodes_by_turns_do_not_disturb_each_other() -> None:  # rule 3
    alone = {game: transcript(game) for game in ("Blackjack-v0", "2048-v0-ultra-easy")}
    random.seed(99)
    np.random.seed(99)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    envs = {game: TextArena(game=game, text="all", max_turns=12) for game in alone}
    draws = {game: random.Random(1) for game in alone}
    results = {game: env.reset(Task(env="textarena", seed=5)) for game, env in envs.items()}
    heard = {game: [[("player", results[game].observations["player"].text)]] for game in alone}
    while any(result.observations for result in results.values()):
        for game, env in envs.items():
            if results[game].observations:
                legal = list(results[game].observations["player"].legal or ())
                results[game] = act(env, results[game], draws[game].choice(legal))
                seen = results[game].observations or results[game].last
                heard[game].append([(name, shown.text) for name, shown in seen.items()])
    assert heard == alone
    assert before == (random.getstate(), np.random.get_state()[1].tobytes())


def test_other_seeds_are_other_games() -> None:  # rule 3
    assert len({str(transcript("FrozenLake-v0", seed)) for seed in range(8)}) > 4


def test_rewards() -> None:  # rule 4
    env = TextArena()
    won = play(env, TASK, "0", "3", "1", "4", "2")
    assert won.rewards == {"player_0": 1.0, "player_1": -1.0} and won.terminated == {"player_0", "player_1"}
    assert (won.info["success"], won.info["score"]) == (True, 1.0) and "Player 0 has won" in won.info["reason"]
    lost = play(env, TASK, "0", "3", "1", "4", "8", "5")
    assert (lost.info["success"], lost.info["score"], lost.rewards["player_0"]) == (False, 0.0, -1.0)
    drawn = play(env, TASK, "0", "1", "2", "4", "3", "5", "7", "6", "8")
    assert (drawn.info["success"], drawn.info["score"]) == (False, 0.5) and set(drawn.rewards.values()) == {0.0}
    single = TextArena(opponent="random", seat="first")
    results = finish(single, TASK)
    assert [set(result.rewards) for result in results[1:]] == [set()] * (len(results) - 2) + [{"player_0"}]
    alone = TextArena(game="TowerOfHanoi-v0")
    assert alone.agents == ("player",)
    part = play(alone, TASK, *(["A B", "B A"] * 7), "A B")
    assert part.terminated and part.rewards == {"player": 0.0} and not part.info["success"]
    assert finish(alone, TASK)[-1].rewards == {"player": 1.0}


def test_invalid_moves() -> None:  # rule 5
    env = TextArena(text="brief")
    first = play(env, TASK, "4", "4")
    assert first.info["invalid"] == {"player_1": True} and who(first) == "player_1"
    assert first.observations["player_1"].text.startswith("that was invalid, try again. board")
    good = act(env, first, "0")
    assert "invalid" not in good.info and who(good) == "player_0"
    second = play(env, TASK, "4", "4", "castle")
    assert second.rewards == {"player_0": 1.0, "player_1": -1.0} and second.info["invalid"] == {"player_1": True}
    dice = TextArena(game="LiarsDice-v0-small", players=3)
    out = play(dice, TASK, "call", "call")
    assert out.info["invalid"] == {"player_0": True} and who(out) == "player_1" and not out.terminated


def test_a_reward_that_is_no_number_is_a_loss() -> None:  # rule 6
    result = play(TextArena(game="Countdown-v0"), TASK, "?", "?")
    assert result.rewards == {"player": -1.0} and result.info["score"] == 0.0


def test_a_game_that_breaks_down_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 6
    env = TextArena(opponent="random", seat="first")
    start = env.reset(TASK)
    kind = type(env.snapshot()[0].game)
    monkeypatch.setattr(kind, "step", lambda self, action: {}["unheard of"])
    result = act(env, start, "0")
    assert result.rewards == {"player_0": -1.0} and result.terminated == {"player_0"}
    assert result.info["invalid"] == {"player_0": True} and result.info["reason"] == "KeyError: 'unheard of'"
    assert (result.info["success"], result.info["score"]) == (False, 0.0)


def test_seats_and_opponents() -> None:  # rule 7
    for seat, expected in (("first", {"player_0"}), ("last", {"player_1"}), ("alternate", {"player_0", "player_1"})):
        env = TextArena(opponent="random", seat=seat)
        assert {who(env.reset(task)) for task in env.tasks("train", 12, 0)} == expected
    assert {who(TextArena().reset(task)) for task in TextArena().tasks("train", 12, 0)} == {"player_0"}
    wins = []
    for blunders in (0.0, 0.5, 1.0):
        env = TextArena(game="Nim-v0", opponent="expert", blunders=blunders, seat="first")
        wins.append(sum(finish(env, t, random.Random(1))[-1].info["success"] for t in env.tasks("train", 60, 0)))
    assert wins[0] <= 2 < wins[1] < wins[2]
    env = TextArena(game="Nim-v0", opponent="expert", seat="first")
    assert all(finish(env, task)[-1].info["success"] for task in env.tasks("eval", 40, 0))


def test_slips() -> None:  # rule 7
    slips = [play(TextArena(noise=0.5), Task(env="textarena", seed=seed), "4") for seed in range(200)]
    share = np.mean(["slipped" in result.info for result in slips])
    assert 0.4 < share < 0.6
    for result in slips:
        if "slipped" not in result.info:
            assert "[4]" not in (result.observations["player_1"].legal or ())
    assert "slipped" not in play(TextArena(), TASK, "4").info


def test_texts() -> None:  # rule 8
    brief = play(TextArena(text="brief"), TASK, "4", "0").observations["player_0"]
    assert brief.text == "board - 1 2 / 3 + 5 / 6 7 8\nmoves 1, 2, 3, 5, 6, 7, 8"
    assert brief.legal == ["1", "2", "3", "5", "6", "7", "8"]
    new = play(TextArena(), TASK, "4", "0").observations["player_0"]
    assert new.legal[:2] == ["[1]", "[2]"] and "You are Player 0" not in new.text
    assert "[Player 1] [0]" in new.text and "[Player 0] [4]" not in new.text
    everything = play(TextArena(text="all"), TASK, "4", "0").observations["player_0"].text
    assert everything.startswith("[GAME] You are Player 0 in Tic Tac Toe.") and everything.endswith(new.text)
    assert new.state_key == brief.state_key
    for game in RANDOM_PLAY:
        env = TextArena(game=game, text="brief")
        (seen,) = [shown.text for shown in env.reset(TASK).observations.values()]
        situation = seen.partition("\nmoves")[0]
        assert len(situation.split()) <= 130 and "\n" not in situation, game


def test_brackets_may_be_left_out() -> None:  # rule 9
    texts = [play(TextArena(), TASK, move).observations["player_1"].state_key for move in ("[4]", "4", "I take [4]")]
    assert len(set(texts)) == 1


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("GuessTheNumber-v0", {}),
        ("GuessTheNumber-v0-hardcore", {}),
        ("Mastermind-v0", {}),
        ("Mastermind-v0", {"duplicate_numbers": True, "code_length": 3}),
        ("FrozenLake-v0-hardcore", {}),
        ("LightsOut-v0", {}),
        ("LightsOut-v0", {"size": 4}),
        ("PegJump-v0", {}),
        ("TowerOfHanoi-v0-medium", {}),
        ("Nim-v0-large", {}),
        ("WildTicTacToe-v0", {}),
        ("ConnectFour-v0", {}),
    ],
)
def test_experts_win(game: str, options: dict[str, Any]) -> None:  # rule 10
    env = TextArena(game=game, options=options)
    if len(env.agents) > 1:
        env = TextArena(game=game, options=options, opponent="random", seat="first")
    count = {"ConnectFour-v0": 4, "PegJump-v0": 2, "TowerOfHanoi-v0-medium": 2, "WildTicTacToe-v0": 20}.get(game, 40)
    assert all(finish(env, task)[-1].info["success"] for task in env.tasks("eval", count, 0))


def test_the_expert_is_never_beaten() -> None:  # rule 10
    for opponent in ("random", "expert"):
        env = TextArena(opponent=opponent)
        rewards = [sum(finish(env, task)[-1].rewards.values()) for task in env.tasks("eval", 200, 0)]
        assert min(rewards) == 0.0 and (np.mean(rewards) > 0.85) == (opponent == "random")


def test_solvers() -> None:  # rule 10
    assert solvers.lines_of_three("XX.OO....", "X", wild=False) == ("2",)
    assert solvers.lines_of_three("XX.O.....", "O", wild=False) == ("2",)
    board = [["."] * 7 for _ in range(5)] + [list("XXX.OO.")]
    assert solvers.four_in_a_row(board, "X", "O") == [3] and solvers.four_in_a_row(board, "O", "X") == [3]
    assert solvers.lights_out([0] * 9, 3) == [] and solvers.lights_out([1, 1, 0, 1, 0, 0, 0, 0, 0], 3) == [0]
    assert solvers.lights_out([1] + [0] * 24, 5) == []  # cannot be put out
    assert solvers.peg_jumps((False, True) + (False,) * 14, ()) == (0, 0)
    assert solvers.shortest(0, lambda n: [("up", n + 1)] if n < 3 else [], lambda n: n == 9) == []


def test_where_nobody_knows_there_is_no_expert() -> None:  # rule 10
    assert all(bool(rules.expert) != bool(rules.why_no_expert) for rules in RULES.values())
    for game in ("KuhnPoker-v0", "Othello-v0-tiny", "Sokoban-v0"):
        assert not has(TextArena(game=game), "expert")


@pytest.mark.parametrize(
    ("game", "missing"),
    [
        ("Hangman-v0", "needs the word list `words` of nltk, which is not on this machine"),
        ("Wordle-v0", "needs the word list `words` of nltk"),
        ("TwentyQuestions-v0", r"language model of openrouter\.ai"),
        ("UsedCar-v0-balanced", "lacks a module"),
        ("ScorableGames-v0", "lacks a file"),
    ],
)
def test_games_that_cannot_be_built(game: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 11
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.setenv("NLTK_DATA", "/nowhere")
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("the network was asked"))
    with pytest.raises(RecipeError, match=missing) as caught:
        TextArena(game=game)
    assert caught.value.where == f"environment textarena, game: {game}" and "\n" not in caught.value.what


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the games run there")
def test_games_of_a_later_python_are_refused() -> None:  # rule 11
    with pytest.raises(RecipeError, match=r"needs Python 3\.12 or later"):
        TextArena(game="Chess-v0")


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 12
    with pytest.raises(UnknownName, match="no game `TicTacTo-v0`") as caught:
        TextArena(game="TicTacTo-v0")
    assert BOARD in caught.value.options
    for options, message in (
        ({"options": {"sides": 3}}, r"cannot be built(.|\n)*Check `options`"),
        ({"players": 5}, "cannot be played by 5: The number of players has to be 2"),
        ({"game": "PegJump-v0", "opponent": "random"}, "the game has one player"),
        ({"game": "SimpleTak-v0", "opponent": "random"}, "`opponent: random` needs a list of legal moves"),
        ({"game": "KuhnPoker-v0", "opponent": "expert"}, r"no opponent `expert`: even the best play"),
        ({"opponent": "random", "blunders": 0.5}, "only an opponent `expert` blunders"),
        ({"game": "SimpleTak-v0", "noise": 0.1}, "`noise: 0.1` needs a list of legal moves"),
        ({"game": "SimpleTak-v0", "text": "brief"}, "no `text: brief`"),
        ({"opponent": "strong"}, "opponent"),
    ):
        with pytest.raises(RecipeError, match=message):
            TextArena(**options)
    with pytest.raises(ContractError, match="the task is of `Nim-v0`"):
        TextArena().reset(TextArena(game="Nim-v0").tasks("train", 1, 0)[0])
    with pytest.raises(ContractError, match="before `reset`"):
        TextArena().step({"player_0": Action(text="4")})

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(package.importlib, "import_module", absent)
    package.package.cache_clear()
    with pytest.raises(MissingExtra, match=r"textarena(.|\n)*pip install 'palaestra\[envs\]'"):
        package.package()
    package.package.cache_clear()


def test_a_cut_episode() -> None:  # rule 12
    env = TextArena(text="brief", max_turns=2)
    result = play(env, TASK, "4", "0")
    assert not result.observations and result.truncated == {"player_0", "player_1"}
    assert result.last["player_0"].text.startswith("board - 1 2") and result.rewards == {}
    assert (result.info["success"], result.info["score"]) == (False, 0.0)
    assert {t.seed % 2 for t in env.tasks("train", 50, 0)} == {0} != {t.seed % 2 for t in env.tasks("eval", 50, 0)}
