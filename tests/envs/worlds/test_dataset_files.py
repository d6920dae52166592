"""The files of `dataset`, as other programs write them.

1. Byte order marks, other ends of lines, blank lines and unusual letters make no difference, and a value may be long.
2. A `.json` may have a row a line, and the kind of a file may be in capital letters.
3. An empty value of a CSV and NaN are None.
4. A file that cannot be read is refused with its name, and the row if there is one.
5. A folder with several splits is refused however their files are called; hidden files are not read.
"""

from __future__ import annotations

import json

import pytest

from palaestra.envs.worlds.dataset.files import read_rows
from palaestra.errors import InvalidData
from tests.extras import imported, skip_without
from tests.messages import told

ROW = '{"prompt": "2 + 2?", "answer": "4"}'
COLUMNS = {"prompt": "2 + 2?", "answer": "4"}


@pytest.fixture
def read(tmp_path):
    """The columns of the rows of a file with this content."""

    def read(name, content):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return [dict(row.columns) for row in read_rows(str(tmp_path / name))]

    return read


# ---- rule 1 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"\xef\xbb\xbf" + ROW.encode()),
        ("b.jsonl", f"\r\n{ROW}\r\n\r\n   \r\n"),
        ("c.csv", b"\xef\xbb\xbfprompt,answer\r\n\r\n2 + 2?,4\r\n"),
        ("d.tsv", "prompt\tanswer\n2 + 2?\t4"),
    ],
)
def test_what_makes_no_difference(read, name, content):
    assert read(name, content) == [COLUMNS]


@pytest.mark.parametrize("letters", ["a\u2028b\x85c\x0cd", "🤖", 'a "b", c\nd', "x" * 200_000])
def test_unusual_and_long_values(read, letters):
    quoted = letters.replace('"', '""')
    assert read("a.csv", f'prompt,answer\n"{quoted}",4\n') == [{"prompt": letters, "answer": "4"}]
    assert read("b.csv", "prompt,answer\na\u2028b\x85c,4\n") == [{"prompt": "a\u2028b\x85c", "answer": "4"}]
    assert read("a.jsonl", json.dumps({"prompt": letters}, ensure_ascii=False)) == [{"prompt": letters}]
    assert read("b.jsonl", json.dumps({"prompt": letters})) == [{"prompt": letters}]


def test_the_place_of_a_row_is_its_first_line(tmp_path):
    (tmp_path / "a.csv").write_text('prompt,answer\n"a\nb",4\n\nc,5\n')
    assert [row.place for row in read_rows(str(tmp_path / "a.csv"))] == ["a.csv:2", "a.csv:5"]


# ---- rule 2 -----------------------------------------------------------------------------------------------
def test_kinds(read):
    assert read("a.json", f"{ROW}\n{ROW}\n") == [COLUMNS] * 2
    assert read("b.json", json.dumps([COLUMNS], indent=2)) == [COLUMNS]
    assert read("c.JSONL", ROW) == [COLUMNS]


# ---- rule 3 -----------------------------------------------------------------------------------------------
def test_missing_values(read):
    assert read("a.csv", "prompt,answer\nx,\n") == [{"prompt": "x", "answer": None}]
    assert read("a.jsonl", '{"prompt": "x", "level": NaN}') == [{"prompt": "x", "level": None}]


# ---- rule 4 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.jsonl", ROW + "\n" + "[" * 100_000, "a.jsonl:2"),
        ("a.jsonl", '{"prompt": "cut \\ud83d"}', "half of a character"),
        ("a.json", '{"data": []}', "not a list of rows"),
        ("a.csv", "prompt,answer,answer\nx,4,5\n", "two columns"),
        ("a.csv", 'prompt,answer\nx,4\n"y,5\n', "a.csv:3"),
        ("a.csv", "prompt,answer\nx\n", "the row has 1"),
        ("a.csv", 'prompt,answer\n"he" said,4\n', "double quote"),
    ],
)
def test_faults(read, name, content, word):
    with told(InvalidData, word):
        read(name, content)


@pytest.mark.parametrize("content", [b"", b"not a table"])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables_that_are_none(read, name, content):
    skip_without("pyarrow")
    with pytest.raises(InvalidData, match="cannot be read as"):  # the rest of the message is that of pyarrow
        read(name, content)


def test_a_table_with_two_columns_of_one_name(tmp_path):
    pyarrow = imported("pyarrow")
    imported("pyarrow.parquet").write_table(pyarrow.table([["a"], ["b"]], ["prompt", "prompt"]), tmp_path / "a.parquet")
    with pytest.raises(InvalidData, match="prompt"):
        read_rows(str(tmp_path / "a.parquet"))


# ---- rule 5 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("first", "second"),
    [("training.jsonl", "testing.jsonl"), ("sums_train.jsonl", "sums_test.jsonl"), ("a/my-Train.jsonl", "a/val.jsonl")],
)
def test_splits_of_other_names(tmp_path, first, second):
    for name in (first, second):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(ROW)
    with told(InvalidData, "several splits") as raised:
        read_rows(str(tmp_path))
    for option in raised.value.options:
        assert len(read_rows(option)) == 1


def test_names_that_only_look_like_splits(tmp_path):
    for name in ("latest.jsonl", "training-1.jsonl", "train-2.jsonl"):
        (tmp_path / name).write_text(ROW)
    assert len(read_rows(str(tmp_path))) == 3


def test_hidden_files(tmp_path):
    (tmp_path / ".ipynb_checkpoints").mkdir()
    for name in ("rows.jsonl", ".ipynb_checkpoints/rows-checkpoint.jsonl", ".rows.jsonl"):
        (tmp_path / name).write_text(ROW)
    assert len(read_rows(str(tmp_path))) == 1
