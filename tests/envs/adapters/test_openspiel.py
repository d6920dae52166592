"""What must hold for `openspiel`:

(1) it keeps the environment contract, for boards, cards and a common payoff, in self-play and against each opponent;
(2) rewards are payoffs scaled to `reward_max`, and only the acting agents get them; in zero-sum games they sum to 0;
(3) chance and opponents depend on nothing but the task's seed, and seats alternate with it;
(4) the vector has the seat; the state key is the position or the information state; in Leduc poker the observation
tensor merges information states, and the information-state tensor and the state key do not;
(5) moves are indices or texts; an illegal one ends the game and sets the column `illegal`; only an unreadable one is
marked invalid;
(6) the expert is never beaten in tic-tac-toe, plays an equilibrium of value −1/18 in Kuhn poker, and always gets 10 in
tiny Hanabi; games without an expert lack the ability;
(7) the info at the end has game, success and score of the agent, or of player_0 in self-play; that at the start has the
game, since a limit may cut the episode off;
(8) a table made of its episodes has the columns game, outcome and agent;
(9) errors name an unknown game, simultaneous moves, a missing expert, tensor or package, and a task of another game.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Play, RunSetup, StepResult, StepTable, Task
from palaestra.data.abilities import has
from palaestra.envs.adapters.openspiel import games as openspiel_games
from palaestra.envs.adapters.openspiel.world import OpenSpiel
from palaestra.errors import ContractError, MissingExtra, RecipeError
from palaestra.policies import scripted
from palaestra.rollout import programs
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.testing import check_environment
from tests.messages import told

BOARD, CARDS, SIGNAL = "tic_tac_toe", "kuhn_poker", "tiny_hanabi"


def who(result: StepResult) -> str:
    (name,) = result.observations
    return name


def play(env: OpenSpiel, task: Task, *moves: Any) -> StepResult:
    result = env.reset(task)
    for move in moves:
        result = env.step({who(result): Action(value=move)})
    return result


def finish(env: OpenSpiel, task: Task, choose: Any) -> StepResult:
    result = env.reset(task)
    while result.observations:
        result = env.step({who(result): choose(env, result)})
    return result


def by_expert(env: OpenSpiel, result: StepResult) -> Action:
    return env.expert(who(result))


TASK = Task(env="openspiel", seed=2)


@pytest.mark.parametrize("opponent", ["self", "random", "first"])
@pytest.mark.parametrize("game", [BOARD, CARDS, SIGNAL, "leduc_poker", "kuhn_poker(players=3)"])
def test_contract(game: str, opponent: Any) -> None:  # rule 1
    check_environment(OpenSpiel(game=game, opponent=opponent), make=lambda: OpenSpiel(game=game, opponent=opponent))


def test_contract_against_experts() -> None:  # rule 1
    for game in (BOARD, CARDS, SIGNAL):
        check_environment(OpenSpiel(game=game, opponent="expert", show_actions=True))


def test_rewards_are_scaled_payoffs() -> None:  # rule 2
    env = OpenSpiel(game=BOARD, reward_max=4.0)
    won = play(env, TASK, 0, 3, 1, 4, 2)
    assert won.rewards == {"player_0": 4.0, "player_1": -4.0}
    assert won.terminated == {"player_0", "player_1"}
    env = OpenSpiel(game=CARDS)
    folded = play(env, TASK, 1, 0)
    assert folded.rewards == {"player_0": 0.5, "player_1": -0.5}  # one chip of at most two
    alone = OpenSpiel(game=CARDS, opponent="first", seats="first")
    assert play(alone, TASK, 1).rewards == {"player_0": 0.5}  # the opponent "first" always passes, so it folds
    together = OpenSpiel(game=SIGNAL)
    assert finish(together, TASK, by_expert).rewards == {"player_0": 1.0, "player_1": 1.0}


def test_seeds_decide() -> None:  # rule 3
    env = OpenSpiel(game=CARDS, opponent="random")
    shown = {}
    for task in env.tasks("train", 60, 0):
        result = env.reset(task)
        shown[task.seed] = who(result), result.observations[who(result)].text
        again = OpenSpiel(game=CARDS, opponent="random").reset(task)
        assert shown[task.seed] == (who(again), again.observations[who(again)].text)
    assert {name for name, _ in shown.values()} == {"player_0", "player_1"}
    assert len({text for _, text in shown.values()}) > 6
    for seats, name in (("first", "player_0"), ("last", "player_1")):
        fixed = OpenSpiel(game=CARDS, opponent="random", seats=seats)
        assert {who(fixed.reset(task)) for task in fixed.tasks("train", 20, 0)} == {name}


def test_opponents() -> None:  # rule 3
    env = OpenSpiel(game=BOARD, opponent="first", seats="first")
    text = play(env, TASK, 4).observations["player_0"].text
    assert text == "you are player 0. o.. .x. ..."
    answers = {play(OpenSpiel(opponent="random", seats="first"), Task(env="openspiel", seed=2 * s), 4)
               .observations["player_0"].text for s in range(60)}  # fmt: skip
    assert len(answers) == 8


def test_observations() -> None:  # rule 4
    env = OpenSpiel(game=BOARD)
    seen = play(env, TASK, 0, 4).observations["player_0"]
    assert env.vector_size == len(seen.vector) == 2 + 27
    assert seen.vector[:2].tolist() == [1.0, 0.0] and seen.vector.sum() == 1 + 9
    assert seen.legal == [1, 2, 3, 5, 6, 7, 8]
    other = play(env, TASK, 4).observations["player_1"]
    assert other.vector[:2].tolist() == [0.0, 1.0]
    first, second = play(env, TASK, 0, 4, 8), play(env, TASK, 8, 4, 0)
    assert first.observations["player_1"].state_key == second.observations["player_1"].state_key
    cards = OpenSpiel(game=CARDS, show_actions=True)
    seen = play(cards, TASK, 0).observations["player_1"]
    assert seen.state_key in ("1/0p", "1/1p", "1/2p")
    assert seen.text.endswith("actions: Pass, Bet.") and seen.text.startswith("you are player 1.")


def situations(env: OpenSpiel) -> list[Any]:
    """What each player to move observes in each state of the game."""

    def below(state: Any) -> list[Any]:
        if state.is_terminal():
            return []
        own = [] if state.is_chance_node() else [env.observation(state)]
        return own + [seen for move in state.legal_actions() for seen in below(state.child(move))]

    return below(env.game.new_initial_state())


@pytest.mark.parametrize(("tensor", "size", "distinct"), [("observation", 16, 516), ("information_state", 30, 936)])
def test_what_the_tensors_of_leduc_tell_apart(tensor: Any, size: int, distinct: int) -> None:  # rule 4
    env = OpenSpiel(game="leduc_poker", tensor=tensor)
    seen = situations(env)
    assert env.vector_size == 2 + size == len(seen[0].vector)
    assert len({one.state_key for one in seen}) == 936
    assert len({one.vector.tobytes() for one in seen}) == distinct
    legal = {one.state_key: one.legal for one in seen}
    assert all(legal[one.state_key] == one.legal for one in seen)


def test_the_tensor_that_is_read() -> None:  # rule 4
    assert OpenSpiel(game="leduc_poker").vector_size == 2 + 16
    check_environment(OpenSpiel(game="leduc_poker", tensor="information_state"))
    one, other = (OpenSpiel(game="leduc_poker", tensor=tensor).tasks("eval", 3, 0) for tensor in
                  ("observation", "information_state"))  # fmt: skip
    assert [task.content_hash for task in one] == [task.content_hash for task in other]


def test_moves_are_indices_or_texts() -> None:  # rule 5
    for move in (4, np.int64(4), "4", "x(1,1)", " X(1,1) "):
        assert play(OpenSpiel(), TASK, move).observations["player_1"].text == "you are player 1. ... .x. ..."
    assert OpenSpiel(game=CARDS).action_count == 2


@pytest.mark.parametrize(("move", "unreadable"), [(4, False), ("4", False), ("castle", True), (9, True), (-1, True)])
def test_illegal_moves_lose(move: Any, unreadable: bool) -> None:  # rule 5
    result = play(OpenSpiel(reward_max=2.0), TASK, 4, move)
    assert (result.observations, result.rewards) == ({}, {"player_1": -2.0})
    assert result.terminated == {"player_0", "player_1"}
    assert result.info["illegal"] == {"player_1": 1.0} and result.info["success"] is False
    assert result.info.get("invalid") == ({"player_1": True} if unreadable else None)


def test_the_expert_is_never_beaten() -> None:  # rule 6
    for opponent in ("random", "first", "expert"):
        env = OpenSpiel(game=BOARD, opponent=opponent)
        payoffs = [sum(finish(env, task, by_expert).rewards.values()) for task in env.tasks("train", 60, 0)]
        assert min(payoffs) >= 0.0
        assert (np.mean(payoffs) == 0) == (opponent == "expert")


def test_kuhn_is_worth_what_theory_says() -> None:  # rule 6
    choose, game = openspiel_games.solver(CARDS), openspiel_games.load(CARDS)
    spiel, draw = openspiel_games.package(), random.Random(0)
    shares: dict[str, list[float]] = {}

    def collect(state: Any) -> None:
        if state.is_terminal():
            return
        if not state.is_chance_node():
            bets = np.mean([choose(state, draw) for _ in range(4000)])
            shares.setdefault(state.information_state_string(), [1 - bets, bets])
        for move in state.legal_actions():
            collect(state.child(move))

    collect(game.new_initial_state())
    policy = spiel.TabularPolicy({place: list(enumerate(share)) for place, share in shares.items()})
    value = spiel.expected_returns(game.new_initial_state(), policy, -1, True)[0]
    assert value == pytest.approx(-1 / 18, abs=0.02)
    assert spiel.exploitability(game, policy) < 0.03


def test_hanabi_is_always_ten() -> None:  # rule 6
    env = OpenSpiel(game=SIGNAL)
    results = [finish(env, task, by_expert) for task in env.tasks("train", 40, 0)]
    assert {result.info["score"] for result in results} == {1.0}


def test_where_nobody_knows_there_is_no_expert() -> None:  # rule 6
    assert has(OpenSpiel(game="connect_four"), "expert") and not has(OpenSpiel(game="leduc_poker"), "expert")
    fast = finish(OpenSpiel(game="connect_four", opponent="random"), TASK, by_expert)
    assert fast.info["success"]


def test_the_end() -> None:  # rule 7
    env = OpenSpiel(game=BOARD)
    assert env.reset(TASK).info == {"game": BOARD}
    assert play(env, TASK, 0, 3, 1, 4, 2).info == {"game": BOARD, "success": True, "score": 1.0}
    assert play(env, TASK, 0, 3, 1, 4, 8, 5).info == {"game": BOARD, "success": False, "score": 0.0}
    draw = play(env, TASK, 0, 1, 2, 4, 3, 5, 7, 6, 8).info
    assert draw == {"game": BOARD, "success": False, "score": 0.5}
    second = OpenSpiel(game=BOARD, opponent="first", seats="last")
    assert finish(second, TASK, by_expert).info["success"]


def test_snapshots_keep_chance_and_opponents() -> None:  # rule 3
    env = OpenSpiel(game=BOARD, opponent="random")
    start = env.reset(TASK)
    saved = env.snapshot()
    texts = []
    for _ in range(2):
        env.restore(saved)
        result = env.step({who(start): Action(value=start.observations[who(start)].legal[0])})
        texts.append(result.observations[who(result)].text)
    assert texts[0] == texts[1]


def test_tables() -> None:  # rule 8
    env = OpenSpiel(game=CARDS)
    setup = RunSetup(
        environment_name="openspiel",
        make_environment=lambda: OpenSpiel(game=CARDS),
        roles={"*": Role(policy=scripted.random("r", RunSetup(seed=0)))},
        program=programs.play,
        environment_options={},
    )
    tasks = env.tasks("train", 8, 0)
    plays = [Play(task=task, group=str(i), sample=0, seed=i) for i, task in enumerate(tasks)]
    runner = EpisodeRunner(setup, RolloutSettings())
    table = StepTable.from_trajectories(runner.collect(plays))
    runner.close()
    assert table.labels("game") == [CARDS] and set(table.labels("agent")) == {"player_0", "player_1"}
    assert not bool(table["outcome"].isnan().any())
    assert float(table["reward"].sum()) == 0.0


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 9
    with pytest.raises(RecipeError, match="no game `tic_tac_too`") as caught:
        OpenSpiel(game="tic_tac_too")
    assert BOARD in caught.value.options
    with pytest.raises(RecipeError, match=r"move at the same time(.|\n)*turn_based_simultaneous_game"):
        OpenSpiel(game="matrix_rps")
    with pytest.raises(RecipeError, match="cannot load"):
        OpenSpiel(game="kuhn_poker(players=40)")
    with told(RecipeError, "`leduc_poker`"):
        OpenSpiel(game="leduc_poker", opponent="expert")
    with told(RecipeError, "no information-state tensor"):
        OpenSpiel(tensor="information_state")
    with pytest.raises(RecipeError, match="opponent"):
        OpenSpiel(opponent="strong")
    with pytest.raises(ContractError, match="the task is of `kuhn_poker`"):
        OpenSpiel().reset(OpenSpiel(game=CARDS).tasks("train", 1, 0)[0])
    with pytest.raises(ContractError, match="before `reset`"):
        OpenSpiel().step({"player_0": Action(value=0)})

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(openspiel_games.importlib, "import_module", absent)
    openspiel_games.package.cache_clear()
    with pytest.raises(MissingExtra, match=r"open_spiel(.|\n)*pip install 'palaestra\[envs\]'"):
        openspiel_games.package()
    openspiel_games.package.cache_clear()
