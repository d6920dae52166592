"""What must hold of `reasoning_gym`:

1. It keeps the contract of environments: one dataset and several, levels, attempts, tags, spaces, noise,
   no list of answers, no answer.
2. Every dataset of the package makes questions, and its own answer is right; two have none, and so no expert.
3. The reward is the package's score; with several attempts, how much the score exceeds the best one before.
4. Only the text between tags counts, and without tags there is no answer. Spaces between digits change no score.
5. Options, mixtures and levels reach the datasets; levels are the tasks' difficulty.
6. Training and evaluation share no question. The same task is the same question, in another process too. Global
   generators stay as they were.
7. Random play among the listed answers is right in fewer than a fifth of the episodes, for datasets with open answers.
8. Noise replaces a share of the rewards, the same ones in the same task, and changes nothing else.
9. Scorers that run answers as code get no answer that could do harm or take hours.
10. Bad options are refused, and the error lists the names that exist.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, StepResult, Task
from palaestra.data.abilities import has
from palaestra.envs.adapters.reasoning_gym import answers, items
from palaestra.envs.adapters.reasoning_gym.world import ReasoningGym
from palaestra.errors import ContractError, MissingExtra, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.extras import skip_without
from tests.messages import told

skip_without("reasoning_gym")
PLAYER = "player"
TASK = Task(env="reasoning_gym", seed=4)
SLOW = {  # a tenth of a second and more for one item
    "arc_agi", "codeio", "countdown", "figlet_font", "futoshiki", "group_anagrams", "intermediate_integration",
    "knight_swap", "polynomial_equations", "puzzle24", "spell_backward", "word_ladder", "zebra_puzzles",
}  # fmt: skip
ERRING = {"palindrome_partitioning", "propositional_logic"}  # the package's own answer is not always right


def say(env: ReasoningGym, text: str) -> StepResult:
    return env.step({PLAYER: Action(text=text)})


def answer(env: ReasoningGym, task: Task, *texts: str) -> StepResult:
    env.reset(task)
    for text in texts:
        result = say(env, text)
    return result


def solve(env: ReasoningGym, task: Task) -> StepResult:
    env.reset(task)
    return env.step({PLAYER: env.expert(PLAYER)})


def right(env: ReasoningGym, task: Task) -> str:
    env.reset(task)
    return env.snapshot().item.answer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mixture": {"chain_sum": {"max_terms": 2}, "maze": {}}},
        {"levels": (0, 2), "attempts": 3},
        {"tags": True, "spaced": True, "noise": 0.3},
        {"dataset": "boxnet"},
        {"dataset": "pool_matrix", "attempts": 2},
        {"choices": 0},
    ],
    ids=str,
)
def test_contract(options: dict[str, Any]) -> None:  # rule 1
    check_environment(ReasoningGym(**options), make=lambda: ReasoningGym(**options))


@pytest.mark.parametrize("dataset", sorted(set(items.names()) - SLOW))
def test_every_dataset(dataset: str) -> None:  # rule 2
    env = ReasoningGym(dataset=dataset, choices=0)
    tasks = env.tasks("eval", 2, 0)
    if not has(env, "expert"):
        assert dataset in ("boxnet", "rush_hour")
        return
    won = [solve(env, task).info["success"] for task in tasks]
    assert all(won) or dataset in ERRING
    assert say(env, "no idea").rewards[PLAYER] < 0.999


def test_rewards() -> None:  # rule 3
    env = ReasoningGym(config={"max_terms": 2})
    good = right(env, TASK)
    result = answer(env, TASK, good)
    assert result.rewards == {PLAYER: 1.0} and result.terminated == {PLAYER}
    assert (result.info["success"], result.info["score"], result.info["process"]) == (True, 1.0, {PLAYER: 1.0})
    assert answer(env, TASK, f"+{int(good)}.0").rewards == {PLAYER: 1.0}  # the package's tolerance
    bad = answer(env, TASK, str(int(good) + 1))
    assert bad.rewards[PLAYER] == bad.info["score"] < 0.2 and not bad.info["success"] and bad.terminated
    dice = ReasoningGym(dataset="number_format", attempts=3)
    wrong = answer(dice, TASK, "1", "?")
    assert wrong.info["invalid"] == {PLAYER: True} and wrong.info["format"] == {PLAYER: 0.0}
    assert wrong.observations[PLAYER].text.startswith("that is no answer. attempts left 1.\n")
    assert say(dice, dice.expert(PLAYER).text).info["success"]


def test_attempts_pay_what_is_better() -> None:  # rule 3
    env = ReasoningGym(dataset="basic_arithmetic", attempts=4)
    good = right(env, TASK)
    env.reset(TASK)
    gained = [say(env, text).rewards[PLAYER] for text in (f"{good} or so", "7", f"{good}!")]
    part = gained[0]
    assert 0 < part < 1 and gained[1] == 0.0
    last = say(env, good)
    assert sum(gained) + last.rewards[PLAYER] == pytest.approx(1.0) and last.info["score"] == 1.0
    env.reset(TASK)
    first = say(env, "nothing")
    assert first.observations[PLAYER].text.startswith("wrong, score 0.0")


def test_tags_and_spaces() -> None:  # rule 4
    env = ReasoningGym(config={"min_digits": 2}, tags=True, spaced=True)
    seen = env.reset(TASK).observations[PLAYER]
    assert seen.text.endswith("write <answer> your answer </answer>.") and "1 2" in answers.spaced("12")
    good = right(env, TASK)
    for text in (f"<answer>{good}</answer>", f"so: <answer>7</answer> no, <answer> {answers.spaced(good)} </answer>."):
        result = answer(env, TASK, text)
        assert result.info["success"] and result.info["format"] == {PLAYER: 1.0}
    bare = answer(env, TASK, good)
    assert bare.info["invalid"] == {PLAYER: True} and bare.rewards == {PLAYER: 0.0}
    assert not answer(env, TASK, "<answer> ?? </answer>").info["success"]
    for text in ("12 + 345 = 6", "no digits", "1.5"):
        assert answers.unspaced(answers.spaced(text)) == text
    assert all(listed.startswith("<answer> ") for listed in seen.legal)


def test_options_reach_the_datasets() -> None:  # rule 5
    env = ReasoningGym(config={"min_terms": 3, "max_terms": 3, "max_digits": 1})
    for task in env.tasks("train", 20, 0):
        words = env.reset(task).observations[PLAYER].text.split(": ")[1].split()
        assert len(words) == 6 and all(len(word) == 1 for word in words)
    mixed = ReasoningGym(mixture={"chain_sum": {"max_terms": 2}, "count_bits": {"max_n": 31}, "gcd": {}})
    found = Counter(mixed.reset(task).info["stratum"] for task in mixed.tasks("train", 300, 0))
    assert set(found) == {"chain_sum", "count_bits", "gcd"} and min(found.values()) > 70


def test_levels() -> None:  # rule 5
    env = ReasoningGym(levels=(0, 2))
    tasks = env.tasks("train", 60, 0)
    assert {env.difficulty(task) for task in tasks} == {0.0, 1.0, 2.0}
    for task in tasks:
        numbers = env.reset(task).observations[PLAYER].text.split(": ")[1].split()[::2]
        level = env.difficulty(task)
        assert len(numbers) == level + 2 and all(len(number) <= level + 1 for number in numbers)
    easy = ReasoningGym(levels=(2, 2), config={"min_digits": 1, "max_digits": 1})
    text = easy.reset(TASK).observations[PLAYER].text
    assert len(text.split(": ")[1].split()) == 8 and all(len(word) == 1 for word in text.split(": ")[1].split())
    assert ReasoningGym().tasks("train", 1, 0)[0].difficulty is None


def questions(split: str, count: int = 300, **options: Any) -> list[str]:
    env = ReasoningGym(**options)
    return [env.reset(task).observations[PLAYER].text for task in env.tasks(split, count, 0)]


def test_splits_share_no_question() -> None:  # rule 6
    options = {"config": {"max_terms": 2, "max_digits": 1}}  # these have 200 questions
    train, held = set(questions("train", **options)), set(questions("eval", **options))
    assert len(train) > 50 < len(held) and not train & held
    with told(ContractError, "count_bits"):
        for split in ("train", "eval"):
            questions(split, 1, dataset="count_bits", config={"min_n": 5, "max_n": 5})


def test_the_same_task_is_the_same_question() -> None:  # rule 6
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    mixed = {"mixture": {"pool_matrix": {}, "knights_knaves": {}, "word_sorting": {}}}
    here = questions("eval", 9, **mixed)
    assert before == (random.getstate(), np.random.get_state()[1].tobytes())
    code = (
        "import json; from tests.envs.adapters.test_reasoning_gym import questions as q; "
        "print(json.dumps(q('eval', 9, **%s)))"
    )
    done = subprocess.run([sys.executable, "-c", code % mixed], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == here


@pytest.mark.parametrize("dataset", ["chain_sum", "rotate_matrix", "caesar_cipher", "base_conversion"])
def test_random_play(dataset: str) -> None:  # rule 7
    env, draw = ReasoningGym(dataset=dataset), random.Random(1)
    won = 0
    for task in env.tasks("eval", 100, 0):
        listed = list(env.reset(task).observations[PLAYER].legal)
        assert len(set(listed)) == len(listed) <= 11 and env.expert(PLAYER).text in listed
        won += say(env, draw.choice(listed)).info["success"]
    assert won < 20


def test_noise() -> None:  # rule 8
    plain, noisy = ReasoningGym(), ReasoningGym(noise=0.3)
    results = [solve(noisy, task) for task in plain.tasks("eval", 300, 0)]
    assert all(result.info["success"] and result.info["process"] == {PLAYER: 1.0} for result in results)
    paid = [solve(ReasoningGym(noise=0.3), task).rewards[PLAYER] for task in noisy.tasks("eval", 200, 0)]
    assert 0.6 < np.mean(paid) < 0.8 and set(paid) == {0.0, 1.0}
    assert paid == [solve(noisy, task).rewards[PLAYER] for task in noisy.tasks("eval", 200, 0)]
    assert {solve(plain, task).rewards[PLAYER] for task in plain.tasks("eval", 50, 0)} == {1.0}


@pytest.mark.parametrize(
    ("dataset", "text", "fine"),
    [
        ("countdown", "96 + (15 - 13)*69/2", True),
        ("countdown", "__import__('os').system('true')", False),
        ("countdown", "exit()", False),
        ("countdown", "9**9**9**9", False),
        ("countdown", "9**(9*9)", False),
        ("puzzle24", "8*(10 - 4 - 3)", True),
        ("simple_integration", "-5*x**2 + x/4 + C", True),
        ("simple_integration", "x.func(1)", False),
        ("simple_integration", "(((9**99)**99)**99)**99", False),
        ("simple_integration", "x**123456", False),
        ("intermediate_integration", "2*(5*x + 5)**(3/2)/3 + C", True),
        ("intermediate_integration", "sqrt(x)*exp(x) - sin(x)", True),
        ("intermediate_integration", "lambda: 0", False),
        ("spiral_matrix", "[1, 2, 3]", True),
        ("n_queens", "[['Q', '_'], ['_', 'Q']]", True),
        ("n_queens", "open('a', 'w')", False),
        ("string_insertion", "['A']*10**9", False),
        ("chain_sum", "open('a', 'w')", True),
        ("chain_sum", "1" * 5000, False),
    ],
)
def test_no_scorer_runs_what_does_harm(dataset: str, text: str, fine: bool) -> None:  # rule 9
    assert answers.harmless(dataset, text) == fine


def test_own_answers_are_harmless() -> None:  # rule 9
    for dataset in sorted((answers.EXPRESSIONS | answers.LISTS) - SLOW | {"countdown"}):
        kind = items.Kind(dataset=dataset, options="{}")
        for seed in range(10):
            found = items.item(kind, seed, None)
            assert found.answer is not None and found.score(found.answer) >= 0.999, (dataset, found.answer)


def test_a_scorer_that_fails_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 9
    env = ReasoningGym()
    env.reset(TASK)
    monkeypatch.setattr(type(env.snapshot().item.dataset), "score_answer", lambda *args: 1 / 0)
    assert say(env, "5").rewards == {PLAYER: 0.0}


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 10
    with pytest.raises(UnknownName, match="no dataset `chain_sums`") as caught:
        ReasoningGym(dataset="chain_sums")
    assert "chain_sum" in caught.value.options
    for options, message in (
        ({"config": {"max_term": 2}}, r"no option `max_term`(.|\n)*min_terms, max_terms"),
        ({"config": {"seed": 2}}, r"no option `seed`(.|\n)*come from the tasks"),
        ({"config": {"min_terms": 5, "max_terms": 2}}, r"makes no items(.|\n)*max_terms must be >= min_terms"),
        ({"mixture": {}}, "`mixture` is empty"),
        ({"mixture": {"gcd": {}}, "config": {"max_terms": 2}}, r"`config` has no effect(.|\n)*into `mixture`"),
        ({"levels": (3, 1)}, "`levels` is 3 to 1"),
        ({"levels": (0, 99)}, r"no level 11: its curriculum has 11 levels(.|\n)*between 0 and 10"),
        ({"dataset": "acre", "levels": (0, 0)}, r"has no levels(.|\n)*Leave `levels` out"),
        ({"attempts": 0}, "attempts"),
    ):
        with pytest.raises(RecipeError, match=message):
            ReasoningGym(**options)
    with pytest.raises(ContractError, match="before `reset`"):
        say(ReasoningGym(), "5")

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(items.importlib, "import_module", absent)
    items.package.cache_clear()
    with pytest.raises(MissingExtra, match=r"reasoning-gym(.|\n)*pip install 'palaestra\[envs\]'"):
        items.package()
    items.package.cache_clear()
