"""What must hold of the world `prover`:

1. It keeps the contract of environments, in every wording.
2. Formulas are read as they are written. Other texts are refused, however long or deep they are.
3. Each tactic opens the goals that it should, by hand. A tactic that cannot be used is refused with a reason.
4. The checker is sound: every formula that tactics prove is provable, and true under all truth values.
5. The decision procedure proves known theorems of this logic, and nothing that only classical logic proves.
6. A shortest proof is a proof, and all sequences of fewer tactics fail.
7. Problems have the size, the letters and the length of proof that were asked for. Composed problems are theorems too.
8. The expert needs exactly `stratum` tactics, also in other wordings. Random play rarely succeeds.
9. Under noise some tactics have no effect, the same ones each time. 10. Snapshots, ends and splits.
11. Impossible options are refused.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.data import Action
from palaestra.envs.worlds.prover.formulas import FALSE, Formula, atom, implies, read
from palaestra.envs.worlds.prover.problems import ATOMS, draw_formula, instance, problem
from palaestra.envs.worlds.prover.search import provable, shortest
from palaestra.envs.worlds.prover.tactics import Goal, Refused, choices, use
from palaestra.envs.worlds.prover.world import AGENT, Prover
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.extras import some
from tests.messages import told

FORMULAS = st.recursive(
    st.one_of(st.sampled_from([atom(name) for name in "pqr"]), st.just(FALSE)),
    lambda part: st.tuples(st.sampled_from(["->", "&", "|"]), part, part).map(lambda f: Formula(f[0], (f[1], f[2]))),
    max_leaves=6,
)


def goal(text):
    """`a: p; b: q |- r` as a goal."""
    before, show = text.split("|-")
    hypotheses = [one.split(":") for one in before.split(";") if one.strip()]
    return Goal(tuple((name.strip(), read(formula)) for name, formula in hypotheses), read(show))


def shown(goals):
    return [f"{'; '.join(f'{n}: {f}' for n, f in one.given)} |- {one.show}".strip() for one in goals]


def true_under(formula, values):
    match formula.op:
        case "atom":
            return values[formula.name]
        case "false":
            return False
    left, right = (true_under(part, values) for part in formula.parts)
    return {"->": not left or right, "&": left and right, "|": left or right}[formula.op]


def classical(formula):
    rows = itertools.product((False, True), repeat=len(ATOMS))
    return all(true_under(formula, dict(zip(ATOMS, row, strict=True))) for row in rows)


def proves(start, tactics):
    goals = (start,)
    for text in tactics:
        if not goals:
            return False
        goals = use(goals, text)
    return not goals


@pytest.mark.parametrize(
    "options", some([{"symbols": "renamed", "composed": True}, {}, {"symbols": "words", "noise": 0.2}], fast=1)
)
def test_1_contract(options):
    check_environment(Prover(**options), make=lambda: Prover(**options), episodes=2)


# ---- formulas ---------------------------------------------------------------------------------------------
@given(FORMULAS)
def test_2_written_and_read(formula):
    assert read(str(formula)) == formula


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("p->q->r", "p -> q -> r"),
        ("(p -> q) -> r", "(p -> q) -> r"),
        ("p & q | r", "p & q | r"),
        ("p & (q | r)", "p & (q | r)"),
        ("p & (q & r)", "p & (q & r)"),
        ("~~p", "~~p"),
        ("~p & q", "~p & q"),
        ("~(p & q)", "~(p & q)"),
        ("p -> false", "~p"),
    ],
)
def test_2_brackets(text, written):
    assert str(read(text)) == written


WRONG = ("", "p q", "(p", "p)", "-> p", "p ->", "p & & q", "p + q", "P", "~")
HOSTILE = ("(" * 5000 + "p", "p -> " * 5000 + "p", "~" * 300 + "p")


@pytest.mark.parametrize("text", WRONG + HOSTILE, ids=lambda text: text[:8])
def test_2_no_formulas(text):
    assert read(text) is None


# ---- tactics ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        ("|- p -> q", "intro", ["a: p |- q"]),
        ("a: r |- p -> q", "intro", ["a: r; b: p |- q"]),
        ("|- p -> q", "intro h", ["h: p |- q"]),
        ("a: r |- p -> q", "intro a", ["a: p |- q"]),
        ("a: p |- p", "exact a", []),
        ("a: p -> q -> r |- r", "apply a", ["a: p -> q -> r |- p", "a: p -> q -> r |- q"]),
        ("a: p -> q -> r |- q -> r", "apply a", ["a: p -> q -> r |- p"]),
        ("a: p |- p", "apply a", []),
        ("|- p & q", "split", ["|- p", "|- q"]),
        ("|- p | q", "left", ["|- p"]),
        ("|- p | q", "right", ["|- q"]),
        ("a: p & q |- r", "cases a", ["a: p; b: q |- r"]),
        ("a: p & q |- r", "cases a x y", ["x: p; y: q |- r"]),
        ("a: p | q |- r", "cases a", ["a: p |- r", "a: q |- r"]),
        ("a: false |- r", "cases a", []),
        ("a: ~p |- p", "exfalso", ["a: ~p |- false"]),
        ("a: p |- q", "have x : p | q", ["a: p |- p | q", "a: p; x: p | q |- q"]),
    ],
)
def test_3_what_tactics_open(before, text, after):
    assert shown(use([goal(before)], text)) == after
    rest = goal("|- r")
    assert shown(use([goal(before), rest], text)) == [*after, "|- r"]


@pytest.mark.parametrize(
    ("before", "text", "why"),
    [
        ("|- p & q", "intro", "intro needs an implication"),
        ("a: p |- q", "exact a", "a is not what is to be shown"),
        ("a: p |- q", "exact z", "there is no z"),
        ("a: p -> r |- q", "apply a", "a does not end in what is to be shown"),
        ("|- p | q", "split", "split needs &"),
        ("|- p & q", "left", "left needs |"),
        ("a: p |- q", "cases a", "cases needs &, | or false, and a is none"),
        ("a: p & q |- r", "cases a x x", "each another one"),
        ("|- p -> q", "intro H!", "small letters"),
        ("a: p |- q", "have x p", "write have x : formula"),
        ("a: p |- q", "have x : p &", "write have x : formula"),
        ("a: p |- q", "sorry", "no such tactic"),
        ("a: p |- q", "", "no such tactic"),
        ("a: p |- q", "exact a b", "no such tactic"),
    ],
)
def test_3_what_is_refused(before, text, why):
    with pytest.raises(Refused, match=why.replace("|", r"\|")):
        use([goal(before)], text)


def test_3_a_proof_cannot_grow_without_end():
    goals = (goal("|- p"),)
    with pytest.raises(Refused, match="too many goals"):
        for _ in range(100):
            goals = use(goals, "have x : q")


# ---- logic ------------------------------------------------------------------------------------------------
@settings(max_examples=150, deadline=None)
@given(FORMULAS, st.lists(st.integers(0, 20), max_size=12))
def test_4_the_checker_is_sound(formula, picks):
    goals = (Goal((), formula),)
    for pick in picks:
        open_to = choices(goals[0])
        if not open_to:
            break
        goals = use(goals, open_to[pick % len(open_to)])
        if not goals:
            assert provable(frozenset(), formula) and classical(formula)
            break


@settings(max_examples=200, deadline=None)
@given(FORMULAS)
def test_4_what_is_provable_is_true(formula):
    if provable(frozenset(), formula):
        assert classical(formula)
    twice = implies(implies(formula, FALSE), FALSE)  # Glivenko: a formula is true classically if this is provable
    assert provable(frozenset(), twice) == classical(formula)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("p | ~p", False),
        ("~~p -> p", False),
        ("((p -> q) -> p) -> p", False),
        ("~(p & q) -> ~p | ~q", False),
        ("(p -> q) | (q -> p)", False),
        ("~~(p | ~p)", True),
        ("~~~p -> ~p", True),
        ("(p -> q) -> ~q -> ~p", True),
        ("~p | ~q -> ~(p & q)", True),
        ("(p -> r) -> (q -> r) -> p | q -> r", True),
        ("(p | q) & (p | r) -> p | q & r", True),
        ("((p -> q) -> r) -> q -> r", True),
        ("false -> p", True),
    ],
)
def test_5_known_theorems(text, holds):
    assert provable(frozenset(), read(text)) is holds
    assert (shortest(Goal((), read(text)), 14) is not None) is holds


def every_proof(start, length):
    """Whether some sequence of exactly this many tactics proves the goal."""
    if length == 0:
        return False
    for text in choices(start[0]):
        rest = use(start, text)
        if (not rest and length == 1) or (rest and every_proof(rest, length - 1)):
            return True
    return False


@pytest.mark.parametrize(
    ("text", "length"),
    [("p -> p", 2), ("p -> q -> p", 3), ("p & q -> q", 3), ("p -> p | q", 3), ("p & q -> q & p", 5), ("p | p -> p", 4),
     ("p -> (p -> q) -> q", 4), ("p -> ~~p", 4), ("false -> p", 2)],
)  # fmt: skip
def test_6_shortest_proofs(text, length):
    start = Goal((), read(text))
    found = shortest(start, 12)
    assert len(found) == length and proves(start, found)
    assert not any(every_proof((start,), fewer) for fewer in range(1, length))
    assert shortest(start, length - 1) is None


# ---- problems ---------------------------------------------------------------------------------------------
def test_7_problems():
    lengths = set()
    for seed in range(40):
        theorem, steps = problem((2, 5), 2, (3, 6), False, seed)
        assert 2 <= theorem.size <= 5 and set(str(theorem)) & {"r", "s"} == set()
        assert 3 <= steps <= 6 and steps == len(shortest(Goal((), theorem), 6)) and classical(theorem)
        lengths.add(steps)
    assert lengths == {3, 4, 5, 6}


def test_7_composed():
    for seed in range(10):
        theorem, steps = problem((2, 4), 3, (3, 8), True, seed)
        assert provable(frozenset(), theorem) and proves(Goal((), theorem), shortest(Goal((), theorem), steps))
    assert str(instance(read("p -> q"), "p", read("q & r"))) == "q & r -> q"


def test_7_drawn_formulas_have_their_size():
    draw = random.Random(0)
    assert [draw_formula(size, 3, draw).size for size in range(8)] == list(range(8))


# ---- play -------------------------------------------------------------------------------------------------
def test_8_the_expert():
    for symbols in ("signs", "words", "renamed"):
        env = Prover(symbols=symbols)
        for task in env.tasks("eval", 30, 1):
            result = env.reset(task)
            acts = 0
            while result.observations:
                assert env.expert(AGENT).text in result.observations[AGENT].legal
                result = env.step({AGENT: env.expert(AGENT)})
                assert result.info["process"] == {AGENT: 1.0} and result.info["executable"] == {AGENT: 1.0}
                acts += 1
            assert result.info["success"] is True
            assert str(acts) == result.info["stratum"] == str(int(env.difficulty(task)))
            assert result.rewards == {AGENT: 1.0} and result.terminated == {AGENT}


def test_8_random_play_rarely_succeeds():
    env, draw, won = Prover(), np.random.default_rng(0), 0
    for task in env.tasks("eval", 60, 0):
        result = env.reset(task)
        while result.observations:
            legal = result.observations[AGENT].legal
            result = env.step({AGENT: Action(text=legal[int(draw.integers(len(legal)))])})
        won += result.info["success"]
    assert won <= 12


def begin(text, **options):
    env = Prover(**options)
    env.reset(env.tasks("train", 1, 0)[0])
    start = env.snapshot()
    env.restore(type(start)(theorem=read(text), steps=3, seed=0, goals=(Goal((), read(text)),)))
    return env


def test_8_texts():
    env = begin("p & q -> q & p")
    seen = env.step({AGENT: Action(text=" Intro ")}).observations[AGENT]
    assert seen.text == "a: p & q |- q & p" and seen.legal == ["split", "exfalso", "cases a"]
    after = env.step({AGENT: Action(text="split")}).observations[AGENT]
    assert after.text == "a: p & q |- q. goals after it: 1"
    wrong = env.step({AGENT: Action(text="exact a")})
    assert wrong.observations[AGENT].text == "error: a is not what is to be shown. a: p & q |- q. goals after it: 1"
    assert (
        wrong.info["executable"] == {AGENT: 0.0}
        and wrong.info["process"] == {AGENT: 0.0}
        and "invalid" not in wrong.info
    )
    assert wrong.observations[AGENT].state_key == after.state_key
    for value in ("", "qed", None, 3):
        assert env.step({AGENT: Action(text="x", value=value)}).info["invalid"] == {AGENT: True}


def test_8_other_words():
    env = begin("~p -> q | p", symbols="renamed")
    assert env.step({AGENT: Action(text="assume h")}).observations[AGENT].text == "h: no x |- y else x"
    assert env.step({AGENT: Action(text="intro")}).info["invalid"] == {AGENT: True}
    assert (
        env.step({AGENT: Action(text="claim k : no x with y")})
        .observations[AGENT]
        .text.startswith("h: no x |- no x with y")
    )
    words = begin("~p -> q", symbols="words")
    assert words.step({AGENT: Action(text="intro")}).observations[AGENT].text == "a: not p |- q"
    assert words.step({AGENT: Action(text="have k : not q or p")}).info["executable"] == {AGENT: 1.0}


def test_8_a_dead_end():
    env = begin("p -> q | p")
    env.step({AGENT: Action(text="intro")})
    lost = env.step({AGENT: Action(text="left")})
    assert lost.info["process"] == {AGENT: 0.0} and lost.observations[AGENT].text == "a: p |- q"
    assert env.expert(AGENT).text == "exfalso"  # nothing helps, but it can be used
    end = env.step({AGENT: Action(text="exfalso")}).observations[AGENT]
    assert end.text == "a: p |- false" and list(end.legal) == ["exfalso"]
    assert env.expert(AGENT).text == "exfalso"  # no tactic changes the goal, but the expert must act


def test_9_noise():
    env = Prover(noise=0.5, max_turns=60)
    task = env.tasks("train", 1, 0)[0]
    runs = []
    for _ in range(2):
        env.reset(task)
        runs.append([env.step({AGENT: Action(text="exact zz")}).observations[AGENT].text for _ in range(40)])
    lost = sum(text.startswith("error: out of time") for text in runs[0])
    assert runs[0] == runs[1] and 10 < lost < 30


def test_10_abilities():
    env = Prover(max_turns=2)
    with pytest.raises(ContractError, match="before `reset`"):
        env.step({AGENT: Action(text="intro")})
    tasks = env.tasks("train", 20, 3)
    assert not {t.content_hash for t in tasks} & {t.content_hash for t in env.tasks("eval", 20, 3)}
    env.reset(tasks[0])
    kept = env.snapshot()
    env.step({AGENT: Action(text="qed")})
    cut = env.step({AGENT: Action(text="qed")})
    assert (
        cut.truncated == {AGENT} and set(cut.last) == {AGENT} and not cut.observations and cut.info["success"] is False
    )
    env.restore(kept)
    assert env.snapshot() == kept and env.step({AGENT: Action(text="qed")}).observations


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"size": (5, 2)}, "`size` is 5 to 2"),
        ({"steps": (6, 3)}, "`steps` is 6 to 3"),
        ({"steps": (3, 20)}, "steps"),
        ({"atoms": 5}, "atoms"),
        ({"symbols": "latin"}, "symbols"),
    ],
)
def test_11_impossible_options(options, fault):
    with pytest.raises(RecipeError, match=fault):
        Prover(**options)


def test_11_no_such_theorem():
    with told(RecipeError, "40 operators"):
        Prover(size=(2, 40))
    env = Prover(size=(1, 1), steps=(9, 9))
    with told(RecipeError, "9 to 9"):
        env.tasks("train", 1, 0)
