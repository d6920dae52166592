"""What must hold of `codefix`:

1. It keeps the contract of environments, for all kinds of programs.
2. The interpreter works statement by statement; the faulty program fails every test, the mended one none.
3. The expert's edit mends the fault, whatever was tried before.
4. A failed edit is undone, or stays if `undo` is False. The episode ends with the last edit.
5. `process` is 1 for edits of the faulty line. An action that cannot be read or edits no line costs an edit.
6. `bias` is the share of faults that are put into line 2.
7. The teacher names the faulty line with probability `reveal`. Only the part "patch" tells the answer.
8. The difficulty of a task is the number of lines of its program.
9. With `programs` there are many faults, but few right programs.
"""

from __future__ import annotations

import pytest

from palaestra.data import Action, Task, Trajectory
from palaestra.envs.probes.codefix import CodeFix, Edit, Statement, World, build, execute
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

AGENT = "programmer"
OPTIONS = [
    {},
    {"words": 2, "faults": ["word"]},
    {"lines": 2, "edits": 1},
    {"lines": 8, "fewest": 3, "numbers": 2},
    {"undo": False},
    {"bias": 1.0},
]


def start(seed=0, **options):
    env = CodeFix(**options)
    return env, env.reset(Task(env="codefix", seed=seed))


def act(env, *texts):
    for text in texts:
        result = env.step({AGENT: Action(text=text)})
    return result


def attempt(seed=0):
    return Trajectory(task=Task(env="codefix", seed=seed), group="g")


@pytest.mark.parametrize("options", OPTIONS)
def test_contract(options):  # rule 1
    check_environment(CodeFix(**options), make=lambda: CodeFix(**options))


def test_options_are_checked():
    for options in ({"lines": 1}, {"numbers": 1}, {"teacher": ["shout"]}, {"reveal": 2}, {"words": 1}, {"faults": []}):
        with pytest.raises(RecipeError, match=next(iter(options))):
            CodeFix(**options)
    with told(RecipeError, "`fewest: 4`"):
        CodeFix(lines=3, fewest=4)
    with pytest.raises(ContractError, match="before `reset`"):
        act(CodeFix(), "set 1 add 1")


def test_the_interpreter():  # rule 2
    program = (Statement("add", 2), Statement("mul", 3), Statement("sub", 1))
    assert [execute(program, x) for x in (1, 2)] == [8, 11]
    assert Edit(2, Statement("add", 3)).applied(program)[1] == Statement("add", 3)
    assert Edit(4, Statement("add", 3)).applied(program) == program
    for seed in range(200):
        problem = build(World(fewest=2), seed)
        assert all(execute(problem.faulty, x) != want for x, want in problem.tests)
        assert problem.passes(problem.mend.applied(problem.faulty))
        assert problem.results(problem.faulty).count("want") == 2


@pytest.mark.parametrize("seed", range(10))
def test_the_expert_mends(seed):  # rule 3
    env, _ = start(seed)
    act(env, "nonsense")
    result = env.step({AGENT: env.expert(AGENT)})
    assert result.info["success"] and result.rewards == {AGENT: 1.0} and result.info["process"] == {AGENT: 1.0}
    assert not result.observations and result.terminated == {AGENT} and result.info["tests"] == 4


def test_failed_edits():  # rule 4
    env, result = start(1, edits=2)
    first = result.observations[AGENT].text
    after = act(env, "set 1 mul 4").observations[AGENT].text
    assert after.startswith(f"{first} undone on ")
    assert act(env, "set 1 mul 4").info["success"] is False
    env, _ = start(1, edits=2, undo=False)
    assert act(env, "set 1 mul 4").observations[AGENT].text.startswith("1 mul 4.")


def test_what_costs_an_edit():  # rule 5
    env, result = start(2, edits=4, fewest=2, lines=4)
    first = result.observations[AGENT]
    lost = act(env, "fix it")
    assert lost.info["invalid"] == {AGENT: True} and lost.info["process"] == {AGENT: 0.0}
    assert lost.observations[AGENT].text == f"{first.text} not understood"
    if len(first.legal) < env.action_count:
        assert "invalid" not in act(env, env.actions[-1]).info
    line = env.expert(AGENT).text.split()[1]
    wrong = next(one for one in env.actions if one.split()[1] == line and one != env.expert(AGENT).text)
    assert act(env, wrong).info["process"] == {AGENT: 1.0}


def test_bias():  # rule 6
    lines = [build(World(bias=0.7), seed).mend.line for seed in range(300)]
    assert 0.7 < lines.count(2) / 300 < 0.85
    assert {build(World(bias=1.0), seed).mend.line for seed in range(50)} == {2}


def test_the_teacher():  # rule 7
    env, _ = start(3)
    line, answer = env.expert(AGENT).text.split()[1], env.reference(attempt(3).task)
    said = env.guidance(attempt(3), seed=0)
    assert said.startswith("one statement is wrong. 0 edits failed: on ") and said.endswith(f"look at line {line}.")
    assert answer == env.expert(AGENT).text and answer not in said
    assert answer in CodeFix(teacher=["patch"]).guidance(attempt(3), seed=0)
    weak = CodeFix(teacher=["hint"], reveal=0.3)
    told = [weak.guidance(attempt(3), seed=seed) for seed in range(200)]
    assert 40 < sum(map(bool, told)) < 80 and told == [weak.guidance(attempt(3), seed=seed) for seed in range(200)]


def test_faults_of_words_are_off_by_twice_the_number():  # rule 2
    for seed in range(50):
        problem = build(World(lines=3, fewest=3, numbers=3, words=2, faults=("word",)), seed)
        off = {execute(problem.faulty, x) - want for x, want in problem.tests}
        assert len(off) == 1 and abs(off.pop()) == 2 * problem.mend.statement.number


def test_few_programs():  # rule 9
    mended = {
        problem.mend.applied(problem.faulty) for problem in (build(World(programs=3), seed) for seed in range(60))
    }
    assert len(mended) == 3
    assert len({build(World(programs=3), seed).faulty for seed in range(60)}) > 20


def test_difficulty():  # rule 8
    env = CodeFix(lines=5, fewest=2)
    for task in env.tasks("train", 20, 0):
        env.reset(task)
        assert env.difficulty(task) == len(env.state.problem.faulty)
