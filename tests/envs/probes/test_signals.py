"""What must hold of `signals`:

(1) it keeps the environment contract, with every option;
(2) the speaker sees only the target; the listener sees the symbols and all objects, in an order that tells nothing;
(3) both are rewarded for the right choice; an unreadable act is no choice, and too high an index has `format` 0;
(4) the fixed code has a symbol for each value of each attribute: it wins unless objects have the same symbols, and it
    can play one of the roles;
(5) a share `noise` of the symbols arrives changed, and what was uttered does not change;
(6) distractors differ from the target and from each other, and with `near` in one attribute only;
(7) legal actions and names tell who acts, and both can be left out;
(8) splits share no seed, and impossible games are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, StepResult, Task
from palaestra.envs.probes.signals import LISTENER, SPEAKER, Signals
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told


def say(env: Signals, value: Any) -> StepResult:
    return env.step({env._acting: Action(value=value)})


def play(env: Signals, *values: Any, seed: int = 4) -> StepResult:
    result = env.reset(Task(env="signals", seed=seed))
    for value in values:
        result = say(env, value)
    return result


def by_code(env: Signals, seed: int) -> StepResult:
    result = env.reset(Task(env="signals", seed=seed))
    while result.observations:
        (agent,) = result.observations
        result = env.step({agent: env.expert(agent)})
    return result


@pytest.mark.parametrize(
    "options",
    [{}, {"near": True, "noise": 0.3}, {"code": "speaker"}, {"code": "listener"}, {"offer": "all", "names": False}],
)
def test_contract(options: dict[str, Any]) -> None:  # rule 1
    check_environment(Signals(**options), make=lambda: Signals(**options))


def test_who_sees_what() -> None:  # rule 2
    env = Signals()
    first = env.reset(Task(env="signals", seed=4)).observations
    assert list(first) == [SPEAKER]
    state = env.state
    target = " ".join(f"{'abc'[k]}{value}" for k, value in enumerate(state.things[state.target]))
    assert first[SPEAKER].text == f"speaker. said nothing. object {target}."
    assert say(env, 7).observations[SPEAKER].text == f"speaker. said 7. object {target}."
    seen = play(env, 7, 0, 11).observations[LISTENER]
    assert seen.text.startswith("listener. heard 7 0 11. object 0 ") and seen.text.count("object") == 4
    assert f"object {state.target} {target}." in seen.text
    targets = []
    for task in env.tasks("train", 400, 0):
        env.reset(task)
        targets.append(env.state.target)
    assert np.bincount(targets, minlength=4).min() > 70


def test_vectors() -> None:  # rule 2
    env = Signals()
    speaker = env.reset(Task(env="signals", seed=4)).observations[SPEAKER].vector
    state = env.state
    listener = play(env, 7, 0, 11).observations[LISTENER].vector
    assert len(speaker) == len(listener) == env.vector_size == 2 + 4 * 12 + 3 * 12
    assert speaker[:2].tolist() == [1, 0] and listener[:2].tolist() == [0, 1]
    assert speaker[2:14].sum() == 3 and speaker[14:].sum() == 0  # the target, and no symbol yet
    objects = listener[2:50].reshape(4, 3, 4)
    assert [tuple(row.argmax(1)) for row in objects] == list(state.things) and objects.sum() == 12
    assert listener[50:].reshape(3, 12).argmax(1).tolist() == [7, 0, 11]


def test_rewards() -> None:  # rule 3
    env = Signals()
    play(env, 0, 0, 0)
    target = env.state.target
    for value, won, form, unreadable in (
        (target, True, 1.0, False),
        (str(target), True, 1.0, False),
        ((target + 1) % 4, False, 1.0, False),
        (9, False, 0.0, False),
        ("the first", False, 0.0, True),
        (-1, False, 0.0, True),
    ):
        result = play(env, 0, 0, 0, value)
        assert result.rewards == {SPEAKER: float(won), LISTENER: float(won)} and result.info["success"] is won
        assert result.info["format"] == {LISTENER: form} and ("invalid" in result.info) == unreadable
        assert result.terminated == {SPEAKER, LISTENER} and not result.observations
    assert play(env, "hm", 2, 3).info["format"] == {SPEAKER: 1.0}
    play(env, "hm", 2, 12)
    assert env.state.uttered == (0, 2, 0)  # acts without a meaning are symbol 0


def test_the_code() -> None:  # rule 4
    env = Signals(attributes=3, values=4)
    results = [by_code(env, seed) for seed in range(0, 200, 2)]
    assert all(result.info["success"] and result.info["in_code"] == 1.0 for result in results)
    env.reset(Task(env="signals", seed=4))
    thing = env.state.things[env.state.target]
    said = []
    for _ in range(3):
        said.append(env.expert(SPEAKER).value)
        say(env, said[-1])
    assert said == [thing[0], 4 + thing[1], 8 + thing[2]]
    short = [by_code(Signals(length=1), seed).info["success"] for seed in range(0, 400, 2)]
    assert 0.5 < np.mean(short) < 0.95  # with one attribute told, several objects can fit


@pytest.mark.parametrize("code", ["speaker", "listener"])
def test_partners_by_code(code: Any) -> None:  # rule 4
    env, other = Signals(code=code), LISTENER if code == SPEAKER else SPEAKER
    result = env.reset(Task(env="signals", seed=4))
    assert list(result.observations) == [other]
    while result.observations:
        result = env.step({other: env.expert(other)})
    assert result.rewards == {other: 1.0} and result.terminated == {other} and result.info["in_code"] == 1.0


def test_noise() -> None:  # rule 5
    env, changed = Signals(noise=0.3), []
    for task in env.tasks("train", 300, 0):
        env.reset(task)
        for _ in range(3):
            result = say(env, 5)
        state = env.state
        assert state.uttered == (5, 5, 5)
        assert result.observations[LISTENER].text.startswith("listener. heard " + " ".join(map(str, state.heard)))
        changed += [symbol != 5 for symbol in state.heard]
    assert np.mean(changed) == pytest.approx(0.3, abs=0.04)


def test_distractors() -> None:  # rule 6
    for options in ({}, {"near": True}, {"attributes": 1, "values": 4}):
        env = Signals(**options)
        for task in env.tasks("train", 50, 0):
            env.reset(task)
            state = env.state
            assert len(set(state.things)) == 4
            right = state.things[state.target]
            differ = [sum(a != b for a, b in zip(right, thing, strict=True)) for thing in state.things]
            assert sorted(differ)[0] == 0 and sorted(differ)[1] >= 1
            if "near" in options:
                assert max(differ) == 1


def test_masks_and_names() -> None:  # rule 7
    env = Signals()
    first = env.reset(Task(env="signals", seed=4)).observations[SPEAKER]
    assert first.legal == list(range(12)) and play(env, 0, 0, 0).observations[LISTENER].legal == [0, 1, 2, 3]
    bare = Signals(names=False, offer="all")
    seen = bare.reset(Task(env="signals", seed=4)).observations[SPEAKER]
    assert seen.legal is None and seen.text == first.text.removeprefix("speaker. ")
    assert not seen.vector[:2].any() and np.array_equal(seen.vector[2:], first.vector[2:])
    assert seen.state_key.startswith("speaker/")  # state keys still tell the role


def test_splits() -> None:  # rule 8
    env = Signals()
    assert not {t.seed for t in env.tasks("train", 200, 0)} & {t.seed for t in env.tasks("eval", 200, 0)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symbols": 11}, "needs one"),
        ({"attributes": 1, "values": 2, "distractors": 2}, "most 1"),
        ({"near": True, "values": 2, "distractors": 4}, "most 3"),
        ({"attributes": 30, "symbols": 200}, "26 letters"),
        ({"code": "both"}, "code"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:  # rule 8
    with told(RecipeError, message):
        Signals(**options)


def test_nothing_works_before_a_task() -> None:
    with pytest.raises(ContractError, match="before `reset`"):
        Signals().step({SPEAKER: Action(value=0)})
