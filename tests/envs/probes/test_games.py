"""What must hold of `games`:

(1) it keeps the environment contract, for games of unequal size and number of players, in both texts;
(2) tasks are spread over the games by their weights, however many are asked for; splits share none;
(3) each game is played as in `openspiel`: moves, chance, ends, illegal moves; rewards go up to `reward_max`;
(4) observations begin with the game's name; with `text: signs` signs stand apart and moves are indices;
(5) vectors have the same length in all games and tell which game it is;
(6) the game is a column of every row, of cut episodes too, and MARS centers each game and seat;
(7) an expert that always blunders plays legal moves in every game; one that never does is the game's expert;
(8) a tokenizer gets the words of games that are not played;
(9) no game, a game given twice, weights that do not fit, a task of another game and a step before `reset` are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Play, RunSetup, StepResult, StepTable, Task
from palaestra.data.abilities import has
from palaestra.envs.adapters.openspiel.world import OpenSpiel
from palaestra.envs.probes.games import Games
from palaestra.errors import ContractError, RecipeError
from palaestra.parts.games import mars
from palaestra.policies import scripted
from palaestra.rollout import programs
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.testing import check_environment

BOARD, CARDS, SIGNAL, THREE = "tic_tac_toe", "kuhn_poker", "tiny_hanabi", "kuhn_poker(players=3)"


def task(game: str, seed: int = 2) -> Task:
    return Task(env="games", params={"game": game}, seed=seed)


def play(env: Any, task: Task, *moves: Any) -> StepResult:
    result = env.reset(task)
    for move in moves:
        (name,) = result.observations
        result = env.step({name: Action(value=move)})
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"opponent": "random", "text": "signs", "weights": (1, 2, 3)},
        {"games": (CARDS, THREE, "leduc_poker"), "blunders": 1.0, "text": "signs"},
    ],
)
def test_contract(options: dict[str, Any]) -> None:  # rule 1
    check_environment(Games(**options), episodes=8, make=lambda: Games(**options))


def test_tasks_are_spread() -> None:  # rule 2
    env = Games(weights=(1, 2, 3))
    for n, spread in ((60, [10, 20, 30]), (600, [100, 200, 300])):
        counts = Counter(one.params["game"] for one in env.tasks("train", n, 3))
        assert [counts[name] for name in (BOARD, CARDS, SIGNAL)] == pytest.approx(spread, abs=2)
    thirty = Counter(one.params["game"] for one in Games().tasks("train", 30, 4))
    assert all(9 <= count <= 11 for count in thirty.values())
    lone = Counter(env.tasks("train", 1, seed)[0].params["game"] for seed in range(300))
    assert lone[SIGNAL] > lone[CARDS] > lone[BOARD] > 20
    train, held = ({one.content_hash for one in Games().tasks(split, 40, 0)} for split in ("train", "eval"))
    assert not train & held and Games().tasks("train", 9, 0) == Games().tasks("train", 20, 0)[:9]


def test_games_are_those_of_openspiel() -> None:  # rule 3
    env = Games(games=(BOARD, CARDS, SIGNAL))
    for name in (BOARD, CARDS, SIGNAL):
        alone = OpenSpiel(game=name, reward_max=4.0)
        for seed in range(2, 20, 2):
            ours, theirs = env.reset(task(name, seed)), alone.reset(task(name, seed))
            while theirs.observations:
                (who,) = theirs.observations
                assert ours.observations[who].legal == theirs.observations[who].legal
                move = theirs.observations[who].legal[seed % len(theirs.observations[who].legal)]
                ours, theirs = (one.step({who: Action(value=move)}) for one in (env, alone))
            assert (ours.rewards, ours.terminated, ours.info) == (theirs.rewards, theirs.terminated, theirs.info)
    assert play(env, task(BOARD), 0, 3, 1, 4, 2).rewards == {"player_0": 4.0, "player_1": -4.0}
    taken = play(env, task(BOARD), 0, 0)
    assert taken.rewards == {"player_1": -4.0} and taken.info["illegal"] == {"player_1": 1.0}
    assert "invalid" not in play(env, task(CARDS), 7).info  # a move of another game only
    assert play(env, task(CARDS), "hello").info["invalid"] == {"player_0": True}


def test_texts() -> None:  # rule 4
    said = play(Games(), task(BOARD), 0, 4).observations["player_0"].text
    assert said.startswith("tic tac toe. you are player 0. x.. .o. ... actions: x(0,1), x(0,2),")
    signs = Games(games=(BOARD, "leduc_poker"), text="signs")
    said = play(signs, task(BOARD), "0", "4").observations["player_0"].text
    assert said == "tic tac toe. moves 1 2 3 5 6 7 8. player 0. x . . . o . . . ."
    assert " [ Private : " in play(signs, task("leduc_poker")).observations["player_0"].text
    plain = Games(games=(BOARD,), text="signs", show_actions=False)
    assert play(plain, task(BOARD)).observations["player_0"].text == "tic tac toe. player 0. . . . . . . . . ."
    assert plain.expert("player_0").text.isdecimal()
    assert Games(games=(THREE,)).reset(task(THREE)).observations["player_0"].text.startswith("kuhn poker. you are")


def test_vectors() -> None:  # rule 5
    env = Games()
    vectors = {name: next(iter(env.reset(task(name)).observations.values())).vector for name in (BOARD, CARDS, SIGNAL)}
    assert {len(vector) for vector in vectors.values()} == {env.vector_size} == {3 + 2 + 27}
    assert [int(np.argmax(vector[:3])) for vector in vectors.values()] == [0, 1, 2]
    assert vectors[BOARD][3:5].tolist() == [1.0, 0.0] and vectors[CARDS][-15:].sum() == 0
    assert env.action_count == 9 and Games(games=(THREE, CARDS)).agents == ("player_0", "player_1", "player_2")


def test_games_are_a_column() -> None:  # rule 6
    env = Games(text="signs")
    setup = RunSetup(
        environment_name="games",
        make_environment=Games,
        roles={"*": Role(policy=scripted.random("random", RunSetup(seed=0, action_count=9)))},
        program=programs.play,
        environment_options={},
    )
    runner = EpisodeRunner(setup, RolloutSettings(max_turns=3, in_flight=8))
    plays = [Play(task=one, group=f"g{i}", sample=0, seed=i) for i, one in enumerate(env.tasks("train", 60, 0))]
    table = StepTable.from_trajectories(runner.collect(plays))
    games, agents = np.array(table.labels("game"))[table["game"]], np.array(table.labels("agent"))[table["agent"]]
    assert set(games) == {BOARD, CARDS, SIGNAL} and (games == BOARD).sum() == 20 * 3  # all of them cut
    advantage = mars(table, by=("game", "agent")).numpy()
    for name in (CARDS, SIGNAL):
        for seat in ("player_0", "player_1"):
            assert advantage[(games == name) & (agents == seat)].sum() == pytest.approx(0, abs=1e-3)
    assert np.abs(advantage).max() > 0.5


def test_teachers() -> None:  # rule 7
    exact, wild = Games(games=(BOARD,)), Games(games=(BOARD,), blunders=1.0)
    first = {env: set() for env in (exact, wild)}
    for seed in range(2, 122, 2):
        for env in (exact, wild):
            play(env, task(BOARD, seed), 0)
            first[env].add(env.expert("player_1").value)
    assert first[exact] == {4} and first[wild] == set(range(1, 9))
    half = Games(games=(BOARD,), blunders=0.5)
    assert 0.4 < np.mean([play(half, task(BOARD, s), 0) is not None and half.expert("player_1").value == 4
                          for s in range(2, 402, 2)]) < 0.7  # fmt: skip
    assert not has(Games(games=(BOARD, "leduc_poker")), "expert")
    everywhere = Games(games=(BOARD, "leduc_poker"), blunders=1.0)
    assert everywhere.reset(task("leduc_poker")).observations["player_0"].legal and everywhere.expert("player_0").text


def test_words() -> None:  # rule 8
    phrases = Games(games=(BOARD,), words=("leduc_poker", THREE), text="signs").phrases
    assert any(text.startswith("leduc poker. moves 1 2.") for text in phrases)
    assert any("player 2" in text for text in phrases) and not any("tic" in text for text in phrases)
    assert Games().phrases == []


def test_what_is_refused() -> None:  # rule 9
    for options, said in (
        ({"games": ()}, "no game"),
        ({"games": (BOARD, BOARD)}, "twice"),
        ({"weights": (1.0,)}, "3 games have 1 weights"),
        ({"games": ("tic_tac_to",)}, "tic_tac_to"),
    ):
        with pytest.raises(RecipeError, match=said):
            Games(**options)
    with pytest.raises(ContractError, match="leduc_poker"):
        Games().reset(task("leduc_poker"))
    with pytest.raises(ContractError):
        Games().step({"player_0": Action(value=0)})
