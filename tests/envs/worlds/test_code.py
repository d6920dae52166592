"""What must hold of the world `code` as long as only expressions run:

1. It keeps the environment's contract, with every way to describe a function.
2. The grammar reads what it lists and nothing else; values that grow too large are faults.
3. Chains are written with few parentheses and in words; mutants differ in one step.
4. Each mutant of a problem fails a hidden test; trivial and wrong tests are trivial and wrong; hidden tests are right.
5. `try` shows the failing tests; `submit` ends the episode; an unreadable act is marked and costs a turn.
6. Rewards are as computed by hand: all or nothing, or the share of hidden tests.
7. The expert solves every task, also after wrong tries and in the last turn; random play rarely does.
8. Options, paraphrases and noise have their effects.
9. A snapshot is restored.
10. Impossible options are refused.
11. Packages have one wrong line, which visible tests show; both wordings have the same fault.
12. Every act is read as it was written, in every style.

`test_code_sandbox.py` has what needs a sandbox.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from palaestra.data import Action
from palaestra.envs.worlds.code.acts import MANUALS, Act, Misread, explained, read_act, write_act
from palaestra.envs.worlds.code.chains import OPERATIONS, Step, Vocabulary, written
from palaestra.envs.worlds.code.chains import told as in_words
from palaestra.envs.worlds.code.grammar import Fault, Unreadable, evaluate, read
from palaestra.envs.worlds.code.judging import same, worked_out
from palaestra.envs.worlds.code.problems import Problem, Sizes, Test, build, program
from palaestra.envs.worlds.code.repository import build_repository, line_of
from palaestra.envs.worlds.code.world import AGENT, Code
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.extras import some
from tests.messages import told

ADD, TIMES, LENGTH = (next(one for one in OPERATIONS if one.plain.startswith(w)) for w in ("add", "mult", "count the"))
ALL = ("number", "string", "list")


def say(env, text):
    return env.step({AGENT: Action(text=text)})


def by_hand(env, **options):
    """An environment whose task is `x * 3 + 1`, with two hidden tests that `x + 3` passes one of."""
    env.reset(env.tasks("train", 1, 0)[0])
    task = Problem(
        chain=(Step(TIMES, 3), Step(ADD, 1)),
        reference="x * 3 + 1",
        mutants=("x + 3",),
        visible=(Test(x=1, want=4), Test(x=2, want=7)),
        hidden=(Test(x=1, want=4), Test(x=5, want=16)),
    )
    env.restore(replace(env.snapshot(), task=task, **options))
    return env


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"text": "examples", "noise": 0.3, "trivial": 0.4, "wrong": 0.4, "score": "fraction"},
        {"text": "words", "paraphrased": True, "domains": ["list"], "depth": [2, 3], "max_turns": 2},
    ],
)
def test_1_contract(options):
    check_environment(Code(**options), make=lambda: Code(**options), episodes=3)


# ---- grammar ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "x", "value"),
    [
        ("x * 3 + 1", 4, 13),
        ("-(x - 7) // 2 % 5", 2, 2),
        ("abs(min(x, 3)) + max(1, 2)", -4, 6),
        ("x[::-1] + 'z'", "abc", "cbaz"),
        ("x.upper()[1:3].lower() * 2", "abcd", "bcbc"),
        ("sorted(x)[:2] + [9, len(x)]", [3, 1, 2], [1, 2, 9, 3]),
        ("sum(x[1:]) * x[-1]", [5, 2, 3], 15),
    ],
)
def test_2_values(text, x, value):
    assert evaluate(read(text), x) == value == eval(text, {"x": x})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "y",
        "x +",
        "x ** 9",
        "x if x else 1",
        "x.__class__",
        "print(x)",
        "max()",
        "sorted(x, reverse=1)",
        "[y for y in x]",
        "lambda: x",
        "1.5",
        "x.upper(1)",
        "x[1, 2]",
        "f'{x}'",
        "x\n",
        "(" * 60,
        "x + " * 40 + "x",
        "1" * 30,
        "x < 2",
        "True",
        "max(*x)",
    ],
)
def test_2_everything_else_is_refused(text):
    with pytest.raises(Unreadable):
        read(text)


@pytest.mark.parametrize(
    ("text", "x", "fault"),
    [
        ("x // 0", 1, "ZeroDivisionError"),
        ("x[9]", "abc", "IndexError"),
        ("x + 'a'", 1, "TypeError"),
        ("max(x)", [], "ValueError"),
        ("x.upper()", 1, "AttributeError"),
        ("x * 999999999", "abc", "too large"),
        ("x * 1000000000 * 1000000000 * 1000000000", 9, "too large"),
        ("'%s' % 3", 1, "TypeError"),
    ],
)
def test_2_faults(text, x, fault):
    with pytest.raises(Fault, match=fault):
        evaluate(read(text), x)


# ---- chains and problems ----------------------------------------------------------------------------------
def test_3_chains():
    chain = (Step(ADD, 1), Step(TIMES, 3))
    assert written(chain) == "(x + 1) * 3" and written(chain[::-1]) == "x * 3 + 1"
    assert written((Step(LENGTH, 1), Step(ADD, 2))) == "len(x) + 2"
    assert in_words(chain, paraphrased=False) == "add 1, then multiply by 3"
    assert in_words(chain, paraphrased=True) == "increase by 1, then scale by 3"
    assert written(chain, "scale(x)") == "(scale(x) + 1) * 3"


def test_3_mutants():
    found = {written(one) for one in Vocabulary(2, 3).mutants((Step(ADD, 1), Step(TIMES, 2)), random.Random(0))}
    near = {"x * 2", "x + 1", "x * 2 + 1", "(x + 2) * 2", "(x + 3) * 2", "x * 2 * 2", "x * 3 * 2"}
    assert found == near | {"(x + 1) * 3", "x + 1 + 1", "x + 1 + 2", "x + 1 + 3"}


def test_4_problems():
    sizes = Sizes(domains=ALL)
    for seed in range(25):
        task = build(sizes, seed)
        assert len(task.mutants) == 6 and len(task.visible) == 3 and len(task.hidden) >= 8
        assert all(one.passed for one in worked_out(task.reference, task.hidden + task.visible))
        for mutant in task.mutants:
            assert not all(one.passed for one in worked_out(mutant, task.hidden))


def test_4_spoiled_tests():
    for seed in range(20):
        task = build(Sizes(wrong=1.0), seed)
        for test in task.visible:
            right = worked_out(task.reference, [test])[0].passed
            assert right != (test.kind == "wrong")  # one that every mutant passes cannot be made wrong
        assert all(one.passed for one in worked_out(task.reference, task.hidden))
        easy, plain = (build(Sizes(trivial=share), seed) for share in (1.0, 0.0))
        assert {test.kind for test in easy.visible} == {"trivial"} and {test.kind for test in plain.visible} == {"good"}

        def passing(task, test):
            return sum(worked_out(mutant, [test])[0].passed for mutant in task.mutants)

        assert passing(easy, easy.visible[0]) >= max(passing(easy, test) for test in [*easy.hidden, *plain.visible])


# ---- acts and rewards -------------------------------------------------------------------------------------
def test_5_trying_and_submitting():
    env = by_hand(Code(text="examples", max_turns=9))
    seen = say(env, "try x + 3")
    text = seen.observations[AGENT].text
    assert text == "1 to 4, 2 to 7. tried x + 3. 2 gives 5. 8 left." and seen.rewards == {AGENT: 0.0}
    assert seen.info["process"] == {AGENT: 0.0} and seen.info["tested"] == {AGENT: 1.0}
    text = say(env, "try x // 0").observations[AGENT].text
    assert "1 gives ZeroDivisionError" in text
    assert "all pass" in say(env, "  try   1 + 3 * x ").observations[AGENT].text
    done = say(env, "submit")
    assert done.terminated == {AGENT} and done.info["success"] is True and done.rewards == {AGENT: 1.0}
    assert done.info["passed"] == {AGENT: 1.0} and done.info["tested"] == {AGENT: 1.0}


def test_5_what_cannot_be_read_or_done():
    env = by_hand(Code(max_turns=20))
    early = say(env, "submit")
    assert "there is no program yet" in early.observations[AGENT].text and early.info["executable"] == {AGENT: 0.0}
    assert "invalid" not in early.info
    for text in ("try", "run x", "", None, 3, "x * 3 + 1"):
        result = env.step({AGENT: Action(text="?", value=text)})
        assert result.info["invalid"] == {AGENT: True} and "not understood" in result.observations[AGENT].text
    for text in ("try import os", "submit __import__('os')", "try y"):
        result = say(env, text)
        assert result.info["executable"] == {AGENT: 0.0} and result.observations and env.snapshot().code == ""
    with pytest.raises(ContractError, match="before `reset`"):
        say(Code(), "submit")


def test_6_rewards():
    for score, expected in (("all", 0.0), ("fraction", 0.5)):
        done = say(by_hand(Code(score=score)), "submit x + 3")
        assert done.rewards == {AGENT: expected} and done.info["passed"] == {AGENT: 0.5}
        assert done.info["success"] is False and done.info["tested"] == {AGENT: 0.0}
        assert say(by_hand(Code(score=score)), "submit x + x + x + 1").rewards == {AGENT: 1.0}
    env = by_hand(Code(max_turns=1))
    cut = say(env, "try x * 3 + 1")
    assert cut.truncated == {AGENT} and cut.rewards == {AGENT: 0.0} and set(cut.last) == {AGENT}


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [(1, 1, True), (True, 1, False), (1.0, 1, False), ([1, 2], [1, 2], True), ([1], [True], False), ("1", 1, False)],
)
def test_6_values_are_the_same_kind(got, want, equal):
    assert same(got, want) is equal


# ---- expert and dials -------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", some([{"text": "examples", "depth": (3, 4)}, {}, {"max_turns": 1}], fast=1))
def test_7_the_expert(options):
    env = Code(**options)
    for task in env.tasks("eval", 70, 1):
        result = env.reset(task)
        if env._max_turns > 3:
            say(env, result.observations[AGENT].legal[0]), say(env, "nonsense")
        while not (result := say(env, env.expert(AGENT).text)).terminated:
            assert result.observations and result.info["process"] == {AGENT: 1.0}
        assert result.info["success"] is True and result.rewards == {AGENT: 1.0}


def test_7_random_play_rarely_succeeds():
    env, draw, won = Code(), random.Random(0), 0
    for task in env.tasks("eval", 100, 0):
        result = env.reset(task)
        while result.observations:
            result = say(env, draw.choice(result.observations[AGENT].legal))
        won += result.info["success"]
    assert won < 30  # 13 % in the long run


@pytest.mark.slow
def test_8_dials():
    env = Code(domains=("number",), operators=2, constants=3, depth=(2, 2), examples=2, largest=4, mutants=3)
    for task in env.tasks("train", 30, 0):
        env.reset(task)
        problem = env.snapshot().task
        assert env.difficulty(task) == len(problem.chain) == 2
        assert len(problem.visible) == 2 and len(problem.mutants) == 3
        assert all(1 <= test.x <= 4 for test in problem.visible)
        assert set(problem.reference) <= set("x+* ()123")
    train, held_out = Code().tasks("train", 200, 3), Code().tasks("eval", 200, 3)
    assert not {t.content_hash for t in train} & {t.content_hash for t in held_out}


def test_8_texts():
    task = Code().tasks("train", 1, 0)[0]
    texts = {}
    for text in ("words", "examples", "both"):
        for paraphrased in (False, True):
            env = Code(text=text, paraphrased=paraphrased)
            texts[text, paraphrased] = env.reset(task).observations[AGENT].text
            reference = env.snapshot().task.reference
            assert say(env, f"submit {reference}").info["success"]
    assert len(set(texts.values())) == 5 and texts["examples", True] == texts["examples", False]
    assert " to " not in texts["words", False]


def test_8_noise():
    env = Code(noise=0.5, max_turns=60)
    task, runs = env.tasks("train", 1, 0)[0], []
    for _ in range(2):
        env.reset(task)
        runs.append([say(env, "try x").info["executable"][AGENT] for _ in range(50)])
    assert runs[0] == runs[1] and 10 < sum(runs[0]) < 40
    assert say(env, f"submit {env.snapshot().task.reference}").info["success"]  # submitting never fails


def test_9_snapshot():
    env = Code()
    tasks = env.tasks("train", 2, 0)
    env.reset(tasks[0])
    say(env, "try x")
    kept = env.snapshot()
    first = say(env, "try x").observations[AGENT].text
    env.reset(tasks[1])
    env.restore(kept)
    assert say(env, "try x").observations[AGENT].text == first


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"depth": (2, 1)}, "2 to 1"),
        ({"kind": "repository", "files": (4, 3), "style": "json"}, "4 to 3"),
        ({"kind": "repository", "style": "expression"}, "expression"),
        ({"trivial": 0.6, "wrong": 0.6}, "1.2"),
        ({"domains": ()}, "`domains`"),
        ({"style": "fenced", "sandbox": "subprocess"}, "subprocess"),
        ({"examples": 0}, "examples"),
        ({"noise": 2.0}, "noise"),
    ],
)
def test_10_impossible_options(options, fault):
    with told(RecipeError, fault):
        Code(**options)


def test_10_no_such_problems():
    env = Code(operators=1, constants=1, depth=(1, 1), domains=("number",))
    with told(RecipeError, "6 mutants"):
        env.tasks("train", 1, 0)
    with told(RecipeError, "20 mutants"):
        build_repository(Sizes(operators=1, constants=2, mutants=20), (3, 3), False, 0)


# ---- repositories and acts --------------------------------------------------------------------------------
def test_11_repositories():
    sizes = Sizes(mutants=3, wrong=1.0)
    for seed in range(15):
        task, other = (build_repository(sizes, (3, 6), paraphrased, seed) for paraphrased in (False, True))
        assert 3 <= len(task.right) <= 6 and task.place[1] == other.place[1]
        different = [
            (path, number)
            for (path, now), (_, then) in zip(task.faulty, task.right, strict=True)
            for number, pair in enumerate(zip(now.splitlines(), then.splitlines(), strict=True), start=1)
            if pair[0] != pair[1]
        ]
        assert different == [task.place]
        lines = task.choices[task.place]
        assert line_of(task.right, task.place) in lines and line_of(task.faulty, task.place) in lines
        assert [test.kind for test in task.visible].count("good") == 1 and "wrong" in {t.kind for t in task.visible}
        assert {test.kind for test in task.hidden} <= {"good", "trivial"}
        assert [test.x for test in task.hidden] == [test.x for test in other.hidden]
        assert not {path for path, _ in task.right} & {path for path, _ in other.right}


@pytest.mark.parametrize("style", ["fenced", "json", "tagged"])
def test_12_acts_are_read_as_written(style):
    code = program("x * 3")
    acts = {
        "function": [Act("run", code), Act("test", code), Act("test"), Act("submit", code), Act("submit")],
        "repository": [
            Act("list"),
            Act("read", file="a.py"),
            Act("replace", "return 'x y'", "a.py", 12),
            Act("write", code, "a.py"),
            Act("test"),
            Act("submit"),
        ],
    }
    for kind, several in acts.items():
        for act in several:
            assert read_act(write_act(act, style), kind, style) == act
        assert {act.name for act in several} == set(MANUALS[kind])
        assert all(name in explained(kind, style) for name in MANUALS[kind])
        for text in ("", "fly", "try x", "run", "read", "```python\nx\n```", '{"name": "fly", "arguments": {}}'):
            with pytest.raises(Misread):
                read_act(text, kind, style)


def test_12_thoughts_before_an_act():
    assert read_act("The loop is wrong.\n\ntest", "repository", "fenced") == Act("test")
    assert read_act("I think:\n```python\n1\n```\nso\nrun\n```python\n2\n```\nok", "function", "fenced").code == "2\n"
    with pytest.raises(Misread, match="one call at a time"):
        read_act('{"name": "test", "arguments": {}} {"name": "submit", "arguments": {}}', "function", "json")
    with pytest.raises(Misread, match="too long"):
        read_act("submit" + " " * 30_000 + "x", "function", "fenced")
