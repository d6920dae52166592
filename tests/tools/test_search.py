"""What must hold of search:

1. Texts with more and rarer words come first, equal scores in the order of ids; results are always the same.
2. Empty queries, empty indexes, unknown words and texts without words find nothing, and `k` may exceed the index.
3. A snippet is the part with the words; "…" marks what is left out.
4. A user's vectors work alone and mixed, and are refused where they do not fit.
5. Documents come from JSONL files and folders; faults name the line; an index is built once while nothing changes.
6. The tool shows ids and texts.
"""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.errors import InvalidData, MissingExtra
from palaestra.tools.search import Index, corpus, read_documents, search_tool, snippet

DOCUMENTS = {
    "pear": "A pear is a fruit. Pears are green.",
    "apple": "An apple is a fruit, red or green.",
    "tart": "Apple tart: apple, apple and dough.",
    "rock": "Granite is hard.",
}


def ids(index, query, k=10):
    return [hit.id for hit in index.search(query, k)]


def test_better_texts_come_first():  # rule 1
    index = Index(DOCUMENTS)
    assert ids(index, "apple") == ["tart", "apple"]
    assert ids(index, "GRANITE!") == ["rock"]
    assert ids(index, "granite fruit") == ["rock", "pear", "apple"] or ids(index, "granite fruit")[0] == "rock"
    assert ids(index, "apple tart dough", 1) == ["tart"]
    scores = [hit.score for hit in index.search("red apple", 4)]
    assert scores == sorted(scores, reverse=True) and scores[-1] > 0
    assert index.search("apple", 1)[0].text == DOCUMENTS["tart"]


def test_ties_are_in_the_order_of_ids():  # rule 1
    same = dict.fromkeys(("d", "a", "c", "b", "e"), "equal words here")
    for documents in (same, dict(reversed(same.items()))):
        assert ids(Index(documents), "words", 3) == ["a", "b", "c"]
    many = Index({f"{n:03}": f"word{n % 3} all" for n in range(300)})
    assert ids(many, "all", 5) == [f"{n:03}" for n in range(5)]
    assert ids(many, "word1 all", 3) == ["001", "004", "007"]


@settings(max_examples=50, deadline=None)
@given(words=st.permutations(["red", "green", "fruit", "apple", "pears"]))
def test_the_order_of_words_makes_no_difference(words):  # rule 1
    index = Index(DOCUMENTS)
    assert index.search(" ".join(words)) == index.search("red green fruit apple pears")


@pytest.mark.parametrize("query", ["", "   ", "?!", "xyzzy", "\ud800", "\x00"])
def test_nothing_is_found(query):  # rule 2
    assert Index(DOCUMENTS).search(query) == []


def test_nothing_to_search():  # rule 2
    for documents in ({}, {"a": ""}, {"a": "?!", "b": " "}):
        assert Index(documents).search("a") == []
    assert len(Index({})) == 0
    index = Index({"a": "", "b": "word"})
    assert ids(index, "word") == ["b"]
    assert index.search("word", 0) == index.search("word", -1) == []
    assert len(index.search("word " * 100_000, 99)) == 1


def test_snippets():  # rule 3
    text = "start " + "filler " * 100 + "the needle in hay " + "filler " * 100
    shown = snippet(text, ["needle", "hay"], 60)
    assert "needle in hay" in shown and shown.startswith("…") and shown.endswith("…") and len(shown) <= 62
    assert snippet(text, ["nothing"], 20) == "start filler filler…"
    assert snippet("short", ["short"], 20) == "short"
    assert Index({"a": text}, snippet=60).search("needle")[0].text == snippet(text, ["needle"], 60)


def letters(texts):
    return [[text.count(letter) for letter in "abc"] for text in texts]


def test_vectors():  # rule 4
    documents = {"x": "a a b", "y": "b b", "z": "c"}
    assert ids(Index(documents, embed=letters, mix=1), "b") == ["y", "x"]
    assert ids(Index(documents, embed=letters, mix=0), "bb") == []
    assert ids(Index(documents, embed=letters, mix=0.5), "bb") == ["y", "x"]  # no such word, but near
    first = Index(documents, embed=letters, mix=0.5).search("c")[0]
    assert (first.id, first.score) == ("z", pytest.approx(1.0))
    assert Index({}, embed=letters).search("a") == []


@pytest.mark.parametrize(
    ("embed", "why"),
    [
        (lambda texts: [1.0, 2.0], r"`embed` gave \(2,\) for 2 texts"),
        (lambda texts: [[1.0]], r"`embed` gave \(1, 1\)"),
        (lambda texts: [[float("nan")], [1.0]], "not finite"),
    ],
)
def test_vectors_that_do_not_fit(embed, why):  # rule 4
    with pytest.raises(InvalidData, match=why):
        Index({"a": "a", "b": "b"}, embed=embed)


def test_mix_is_checked():  # rule 4
    with pytest.raises(InvalidData, match="`mix` is 2"):
        Index({}, mix=2)


def test_documents_of_files(tmp_path):  # rule 5
    file = tmp_path / "texts.jsonl"
    lines = [{"id": 1, "text": "one"}, {"id": "b", "title": "Two", "text": "is even"}]
    file.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert read_documents(file) == {"1": "one", "b": "Two. is even"}
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"caf\xc3\xa9 \xff")
    (folder / "sub" / "b.md").write_text("b")
    (folder / "c.bin").write_text("c")
    assert read_documents(folder) == {"a.txt": "café �", "sub/b.md": "b"}
    first = corpus(file)
    assert corpus(file) is first and ids(first, "even") == ["b"]
    file.write_text(json.dumps({"id": "c", "text": "even more"}))
    assert ids(corpus(file), "even") == ["c"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"id": 1, "text": "a"}\n{"id": 2}', "texts.jsonl:2(.|\n)*not a document"),
        ("[]", "texts.jsonl:1"),
        ("{", "texts.jsonl:1"),
        ('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}', "an earlier document has the id '1'"),
        ('{"id": 1, "text": 3}', "`text` is not a text"),
    ],
)
def test_faults_name_the_line(tmp_path, text, why):  # rule 5
    file = tmp_path / "texts.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidData, match=why):
        read_documents(file)


def test_files_that_are_not_there(tmp_path):  # rule 5
    with pytest.raises(InvalidData, match="cannot be read"):
        corpus(tmp_path / "none.jsonl")


def test_the_tool():  # rule 6
    made = search_tool(Index(DOCUMENTS), k=1, cost=0.2)
    assert made.call(query="granite") == "[rock] Granite is hard."
    assert made.call(query="xyzzy") == "nothing found"
    assert (made.name, made.cost) == ("search", 0.2)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtra, match=r"palaestra\[tools\]"):
        Index(DOCUMENTS)
