r"""How rows of `dataset` become problems.

1. A message may be a list of parts with texts, and calls of tools stay in it.
2. A template gets columns of any name, `{{word}}` writes braces, and LaTeX stays as it is.
3. Prompts that a model could not be asked as their author means it are refused with the row.
4. All problems of a file have the same columns.
5. A level may be small; a value without a number gives none.
6. The expert writes a right answer as the verifiers expect it.
7. Images of rows stand in the question where the row has them, and tell one problem from another.
"""

from __future__ import annotations

import pytest
from PIL import Image

from palaestra.chat.places import PLACE
from palaestra.envs.worlds.dataset.files import Row
from palaestra.envs.worlds.dataset.problems import Layout
from palaestra.errors import InvalidData
from tests.messages import told

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def problems(*rows, **options):
    return Layout(**options).problems([Row(row, f"a.jsonl:{number}") for number, row in enumerate(rows, start=1)])


def asked(template, **row):
    (problem,) = problems(row, template=template)
    return problem.prompt


# ---- rule 1 -----------------------------------------------------------------------------------------------
def test_parts_and_calls():
    parts = [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?", "image": None}]
    prompt = [
        {"role": "user", "content": parts, "name": None},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "name": "add", "tool_call_id": "1", "weight": 3},
    ]
    (problem,) = problems({"prompt": prompt})
    assert problem.observation().messages == (
        {"role": "user", "content": "2 + \n2?"},
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "call00000"}]},
        {"role": "tool", "content": "4", "name": "add", "tool_call_id": "call00000"},
    )


# ---- rule 2 -----------------------------------------------------------------------------------------------
def test_templates():
    assert (
        asked("{the question} { n } {a.b} {x-y}", **{"the question": "q", "n": 3, "a": {"b": 5}, "x-y": 1}) == "q 3 5 1"
    )
    assert asked(r"\frac{1}{2} \boxed{} {'a': 1} {q}", q="{answer}") == r"\frac{1}{2} \boxed{} {'a': 1} {answer}"
    assert asked(r"\boxed{{answer}}: {q}", q=["a", {"k": 1}]) == r"\boxed{answer}: ['a', {'k': 1}]"


# ---- rule 3 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("row", "options", "word"),
    [
        ({"q": 1.5}, {"template": "{q:.1f}"}, "`{q:.1f}`"),
        ({"q": [1]}, {"template": "{q[0]}"}, "`{q[0]}`"),
        ({"q": "x"}, {"template": r"\boxed{answer} {q}"}, "`{{answer}}`"),
        ({"q": " "}, {"template": "{q}"}, "empty"),
        ({"prompt": [{"role": "user", "content": "x"}]}, {"template": "{prompt}!"}, "holds messages"),
        (
            {"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is"}]},
            {},
            "last message is one of the assistant",
        ),
        ({"prompt": [{"role": "user", "content": "  "}]}, {}, "last message is empty"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}]}, {}, "image"),
        ({"prompt": "What is this?", "images": ["a.png"]}, {}, "there is no image a.png"),
        ({"prompt": "What is this?", "video": "a.mp4"}, {}, "`video`"),
        ({"prompt": "x", "level": float("inf")}, {"difficulty": "level"}, "inf"),
    ],
)
def test_prompts_that_cannot_be_asked(row, options, word):
    with told(InvalidData, word):
        problems(row, **options)


# ---- rule 4 -----------------------------------------------------------------------------------------------
def test_columns_that_rows_lack():
    first, second = problems({"prompt": "a", "solution": "4"}, {"prompt": "b", "tests": "assert x"})
    assert first.columns == {"prompt": "a", "solution": "4", "answer": "4", "tests": None}
    assert second.columns == {"prompt": "b", "solution": None, "answer": None, "tests": "assert x"}


# ---- rule 5 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "level"),
    [(3, 3), (1e-7, 1e-7), ("1e-3", 1e-3), ("Level 5", 5), ("hard", None), (True, None), (None, None), ([3], None)],
)
def test_levels(given, level):
    (problem,) = problems({"prompt": "x", "level": given})
    assert problem.level == level


# ---- rule 6 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("answer", "said"), [(4, "4"), (4.0, "4"), (4.5, "4.5"), (True, "true"), (["a", "b"], "a")])
def test_the_expert_writes_the_answer(answer, said):
    (problem,) = problems({"prompt": "x", "answer": answer})
    assert [one.text for one in problem.demonstration] == [said]


# ---- rule 7 -----------------------------------------------------------------------------------------------
def drawn(path, color):
    Image.new("RGB", (4, 3), color).save(path)
    return path


def read(row, folder, **options):
    (problem,) = Layout(**options).problems([Row(row, "a.jsonl:1", str(folder))])
    return problem, problem.observation()


def test_images_of_rows(tmp_path):
    red, blue = drawn(tmp_path / "red.png", "red"), drawn(tmp_path / "blue.png", "blue")
    stored = {"bytes": blue.read_bytes(), "path": None}  # as Hugging Face `datasets` writes them to Parquet
    problem, seen = read({"prompt": "Which color?", "image": "red.png", "answer": "red"}, tmp_path)
    assert seen.text is None and seen.messages == ({"role": "user", "content": "Which color?"},)
    assert seen.image.shape == (3, 4, 3) and (seen.image[0, 0] == (255, 0, 0)).all()
    system = [{"role": "system", "content": "Look."}, {"role": "user", "content": "Which color?"}]
    other, seen = read({"prompt": system, "images": [stored]}, tmp_path)
    assert seen.instruction == "Look." and (seen.image[0, 0] == (0, 0, 255)).all()
    assert (
        len({problem.digest, other.digest, read({"prompt": "Which color?", "image": "blue.png"}, tmp_path)[0].digest})
        == 3
    )
    parts = [
        {"type": "text", "text": "Is ", "image": None},
        {"type": "image", "text": None},
        {"type": "text", "text": " or "},
    ]
    parts += [{"type": "image"}, {"type": "text", "text": " redder?"}]
    _, seen = read({"prompt": [{"role": "user", "content": parts}], "images": ["red.png", stored]}, tmp_path)
    (message,) = seen.messages
    assert message["content"] == f"Is {PLACE} or {PLACE} redder?" and seen.image is None
    assert [tuple(one[0, 0]) for one in message["pictures"]] == [(255, 0, 0), (0, 0, 255)]
    _, seen = read({"prompt": "Is <image> or <image> redder?", "images": [str(red), str(blue)]}, tmp_path)  # verl
    assert seen.messages[0]["content"] == f"Is {PLACE} or {PLACE} redder?"
    _, seen = read({"prompt": "Now?", "image": "red.png"}, tmp_path, fewshot=({"prompt": "Before?", "answer": "no"},))
    assert [one["content"] for one in seen.messages] == ["Before?", "no", "Now?"] and seen.image is not None


def test_images_that_cannot_be_read(tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    with told(InvalidData, "cannot be read"):
        read({"prompt": "What?", "image": "notes.png"}, tmp_path)
    with told(InvalidData, "has 1 image, and its messages have 2 places"):
        read(
            {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}], "images": ["x"]}, tmp_path
        )
    with told(InvalidData, "a list is no image"):
        read({"prompt": "What?", "images": [[1, 2]]}, tmp_path)
