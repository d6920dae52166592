"""Described questions of `tool_tasks`.

1. A script that matches words answers questions that are put in names, and hardly any that are described.
2. The expert answers all of them, and the contract holds. The problem has the same content, however it is put.
3. No description has a word of the table, and no two words share a description.
4. A reader who knows what each description means knows the sum.
5. With held-out wordings, training shares no description and no sentence with the other splits.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from palaestra.data import Action
from palaestra.envs.worlds.tool_tasks.goods import WORDS
from palaestra.envs.worlds.tool_tasks.requests import DESCRIPTIONS, FIRST, HALF, LAST, STEPS
from palaestra.envs.worlds.tool_tasks.world import AGENT, ToolTasks
from palaestra.errors import RecipeError
from palaestra.testing import check_environment
from tests.messages import told

DESCRIBED = {"request": "described"}
TABLE = {*WORDS["goods"].names, *WORDS["goods"].columns}
FACT = re.compile(rf"({'|'.join(WORDS['goods'].names)}) ({'|'.join(WORDS['goods'].columns)})")


def question_of(seen: str) -> str:
    return next(line for line in seen.splitlines() if line.startswith("question:")).partition(":")[2]


def script(seen: str) -> str:
    """Looks up all pairs of words of the table that the question has, and calculates with the results."""
    asked = question_of(seen)
    facts = FACT.findall(asked) or re.findall(rf"({'|'.join(WORDS['goods'].names)})()", asked)
    found = dict(re.findall(r"^r\d+ lookup (\w+ \w+): (\S+)$", seen, re.MULTILINE))
    result = re.search(r"^r\d+ calculator .*: (\S+)$", seen, re.MULTILINE)
    if result:
        return f"answer {result[1]}"
    for name, column in facts:
        if f"{name} {column or 'price'}" not in found:
            return f"lookup {name} {column or 'price'}"
    whole = FACT.sub(lambda fact: found[fact[0]], asked) if FACT.search(asked) else " + ".join(found.values())
    return f"calculator {whole}"


def success_of(tasks: int = 60, **options: object) -> float:
    async def played() -> float:
        env, won = ToolTasks(**options), 0
        for task in env.tasks("eval", tasks, 0):
            result = await env.reset(task)
            while result.observations:
                result = await env.step({AGENT: Action(text=script(result.observations[AGENT].text))})
            won += result.info["success"]
        return won / tasks

    return asyncio.run(played())


def text_of(env: ToolTasks, task: object) -> str:
    return question_of(asyncio.run(env.reset(task)).observations[AGENT].text)


def test_word_matching_fails_on_described_questions() -> None:  # rule 1
    assert success_of() >= 0.95
    assert success_of(**DESCRIBED) <= 0.05


@pytest.mark.parametrize("wordings", ["shared", "held_out"])
def test_the_expert_answers(wordings: str) -> None:  # rule 2
    env = ToolTasks(**DESCRIBED, wordings=wordings, refer=True)

    async def played() -> None:
        for task in env.tasks("eval", 30, 0):
            result = await env.reset(task)
            while result.observations:
                result = await env.step({AGENT: env.expert(AGENT)})
            assert result.info["success"]

    asyncio.run(played())


def test_contract() -> None:
    check_environment(ToolTasks(**DESCRIBED), make=lambda: ToolTasks(**DESCRIBED))
    task = ToolTasks().tasks("eval", 1, 0)[0]
    assert ToolTasks().content(task) == ToolTasks(**DESCRIBED).content(task)


def test_descriptions_never_use_words_of_the_table() -> None:  # rule 3
    texts = [text for row in (DESCRIPTIONS | STEPS).values() for text in row]
    assert DESCRIPTIONS.keys() == TABLE and len(texts) == len(set(texts)) == 4 * (len(TABLE) + len(STEPS)) and HALF == 2
    written = [*texts, *FIRST, *LAST]
    assert not [(text, word) for text in written for word in re.findall("[a-z]+", text.lower()) if word in TABLE]
    pieces = [piece.strip() for text in texts for piece in text.split("{x}") if piece.strip(" .")]
    assert not [(one, other) for one in texts for other in texts if one != other and one in other] and pieces


def test_a_reader_knows_the_sum() -> None:  # rule 4
    env = ToolTasks(**DESCRIBED)
    columns = {word: row for word, row in DESCRIPTIONS.items() if "{x}" in row[0]}
    goods = {word: row for word, row in DESCRIPTIONS.items() if word not in columns}
    parts = {
        text.format(x=thing): (good, column)
        for good, row in goods.items()
        for thing in row
        for column, forms in columns.items()
        for text in forms
    }
    for task in env.tasks("train", 40, 0):
        asked = text_of(env, task).partition("(")[0]
        problem = env._state.problem
        read = sorted((asked.index(text), fact) for text, fact in parts.items() if text in asked)
        said = [fact for _, fact in read]
        signs = [
            sign
            for sentence in asked.split(". ")[1:]
            for sign, row in STEPS.items()
            for form in row
            if _fits(form, sentence)
        ]
        assert said == list(problem.facts) and signs == list(problem.signs)


def _fits(form: str, sentence: str) -> bool:
    before, _, after = form.partition("{x}")
    return sentence.startswith(before) and f"{sentence.rstrip('.')}.".endswith(after)


def test_wordings_are_held_out() -> None:  # rule 5
    env = ToolTasks(**DESCRIBED, wordings="held_out")
    rows = [
        tuple(text.split("{x}")[0] for text in row) for row in (*DESCRIPTIONS.values(), *STEPS.values(), FIRST, LAST)
    ]
    for split, other in (("train", slice(HALF, None)), ("eval", slice(0, HALF))):
        for task in env.tasks(split, 40, 0):
            asked = text_of(env, task)
            assert not [one for row in rows for one in row[other] if len(one) > 9 and one in asked]


@pytest.mark.parametrize("other", [{"wording": "trees"}, {"questions": "q.jsonl", "tools": ("calculator",)}])
def test_what_cannot_be_described(other: dict[str, object], tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    with told(RecipeError, "only built-in sums"):
        ToolTasks(**DESCRIBED, **other)
