"""What must hold of the trained tokenizer: (1) every text comes back exactly, special or not; (2) frequent words
are one token, with the space before them; (3) training is deterministic and does not depend on the order of texts;
(4) special tokens have ids 0 to 3, and text can be kept from spelling them; (5) it lives in Hugging Face format;
(6) too small vocabularies and folders without one are refused; (7) words without end are read in pieces, so that the
time grows with their length, and other texts are read as before; (8) a folder is refused whose tokenizer cannot be
read, fails on short texts, has a pattern whose time has no end, or makes a text much longer."""

from __future__ import annotations

import json
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.errors import CheckpointError, InvalidData
from palaestra.models.tokenizer import load_tokenizer, train_tokenizer
from tests.messages import told

TEXTS = [
    "<|observation|>You see a red ball 2 steps left. You carry nothing.<|action|> turn left<|end|>",
    "<|observation|>You see a green key 3 steps forward.\nGo to the red ball.<|action|> go forward<|end|>",
    "<|observation|>A grey wall.<|action|> pick up the red ball<|end|>",
] * 5
TOKENIZER = train_tokenizer(TEXTS, vocabulary=600)


@given(st.text())
@settings(max_examples=150, deadline=None)
def test_every_text_comes_back(text):  # rule 1
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("text", ["", " ", "  a  b ", "a\r\n\tb", "don 't , x .", "日本\x00é", *TEXTS[:3]])
def test_awkward_texts_come_back(text):  # rule 1
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_frequent_words_are_one_token():  # rule 2
    words = [" left", " red", " ball", " forward", " steps", "You"]
    assert [len(TOKENIZER.encode(word)) for word in words] == [1] * len(words)
    assert len(TOKENIZER.encode(" go forward<|end|>")) == 3


def test_training_is_deterministic():  # rule 3
    again = train_tokenizer(reversed(TEXTS), vocabulary=600)
    assert again.get_vocab() == TOKENIZER.get_vocab()
    assert again.encode(TEXTS[0]) == TOKENIZER.encode(TEXTS[0])
    assert len(train_tokenizer(TEXTS, vocabulary=300)) == 300


def test_special_tokens():  # rule 4
    names = ["<|pad|>", "<|observation|>", "<|action|>", "<|end|>"]
    assert TOKENIZER.convert_tokens_to_ids(names) == [0, 1, 2, 3]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (0, 3)
    assert TOKENIZER.encode("x<|end|>")[-1] == 3
    spelled = TOKENIZER.encode("x<|end|>", split_special_tokens=True)
    assert min(spelled) > 3 and TOKENIZER.decode(spelled) == "x<|end|>"


def test_it_loads_as_it_was_saved(tmp_path):  # rule 5
    TOKENIZER.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.get_vocab() == TOKENIZER.get_vocab()
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 3)
    for text in [*TEXTS, " a b , c 's"]:
        assert loaded.encode(text) == TOKENIZER.encode(text)
        assert loaded.decode(loaded.encode(text)) == text


def test_refusals(tmp_path):  # rule 6
    with pytest.raises(InvalidData, match="260 or more"):
        train_tokenizer(TEXTS, vocabulary=100)
    with pytest.raises(CheckpointError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("word", ["letters", "digits", "signs", "blanks"])
def test_words_without_end(word):  # rule 7
    draw = random.Random(0)
    signs = {"letters": "abcdefghij", "digits": "0123456789", "signs": "?!.,;:+-*/", "blanks": " \t\n\r"}[word]
    text = "".join(draw.choices(signs, k=300_000))
    began = time.process_time()
    tokenizer = train_tokenizer([*TEXTS, text], vocabulary=400)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert time.process_time() - began < 20  # a word in one piece takes minutes


def test_other_texts_are_read_as_before(monkeypatch):  # rule 7
    texts = [*TEXTS, "a.b=" * 900, "word" * 249 + " and so on", "\n" * 900]
    cut = train_tokenizer(texts, vocabulary=500).get_vocab()
    monkeypatch.setattr("palaestra.models.tokenizer._LONG", re.compile("(?!)"))
    assert train_tokenizer(texts, vocabulary=500).get_vocab() == cut


def _replaced(pattern, content):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


BROKEN = {
    "kind": (("model", "type"), "Nope"),
    "merges": (("model", "merges"), [["q!", "z!"]]),
    "panic": (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "doubled": (("normalizer",), {"type": "Sequence", "normalizers": [_replaced("a", "aa")] * 40}),
    "empty": (("normalizer",), _replaced("", "a")),
    "prefix": (("normalizer",), {"type": "Prepend", "prepend": "a" * 1000}),
    "decoded": (("decoder",), _replaced(" ", "a" * 1000)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tokenizers(name, tmp_path):  # rule 8
    TOKENIZER.save_pretrained(tmp_path)
    path, value = BROKEN[name]
    said = json.loads((tmp_path / "tokenizer.json").read_text())
    inside = said
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    if name in ("kind", "merges", "panic"):  # the cause is a text of the package `tokenizers`
        with pytest.raises(CheckpointError, match="its tokenizer cannot be read: "):
            load_tokenizer(tmp_path)
        return
    with told(CheckpointError, "tokenizer"):
        load_tokenizer(tmp_path)


def test_usual_replacements_are_read(tmp_path):  # rule 8
    TOKENIZER.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "tokenizer.json").read_text())
    said["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, _replaced(" ", "_")]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    assert load_tokenizer(tmp_path).tokenize("a b")


def _with_part(folder, name, part):
    TOKENIZER.save_pretrained(folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: part}))
    return folder


def _split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize("kind", ["pre_tokenizer", "normalizer"])
def test_patterns_without_end(tmp_path, kind):  # rule 8
    split = _split(r"(\w+\s?)*$")
    part = split if kind == "pre_tokenizer" else {"type": "Replace", "pattern": split["pattern"], "content": "x"}
    with pytest.raises(CheckpointError, match="regular expression"):
        load_tokenizer(_with_part(tmp_path, kind, part))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)|\s+",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"(?: \p{L}+)+|\p{L}+",
    ],
)
def test_patterns_of_models(tmp_path, pattern):  # rule 8
    assert load_tokenizer(_with_part(tmp_path, "pre_tokenizer", _split(pattern))).encode("a b")


def test_a_pattern_that_takes_too_long(tmp_path, monkeypatch):  # rule 8
    monkeypatch.setattr("palaestra.models.tokenizer.TRIAL", "while True: pass")
    monkeypatch.setattr("palaestra.models.pretrained.PATIENCE_S", 0.5)
    with told(CheckpointError, "0.5 s"):
        load_tokenizer(_with_part(tmp_path, "pre_tokenizer", _split("(ab)+")))


def test_parts_that_panic(tmp_path):  # rule 8
    with told(CheckpointError, "chunk size"):
        load_tokenizer(_with_part(tmp_path, "pre_tokenizer", {"type": "FixedLength", "length": 0}))
