"""Encoding of texts: (1) long and short texts have the ids of the tokenizer; (2) a text with more characters than a
context can hold is refused before it is tokenized; (3) so is one whose beginning has too many ids, and a long text that
fits is not refused; (4) both renderers refuse such an observation, and an episode with it ends as one that fills its
context; (5) results for short texts alone are remembered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from palaestra.chat import ChatRenderer, ContextFull, FullHistory, TagRenderer
from palaestra.chat.lengths import SHORT, Encoder, remembered
from palaestra.data import Observation
from palaestra.errors import EpisodeFailure
from palaestra.models.tokenizer import train_tokenizer
from tests.chat.conversations import policy_of
from tests.messages import told

WORDS = "the small model reads many words "


class Counted:
    """A tokenizer that counts the characters that it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.letters = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> Any:
        self.letters += len(text)
        return self._tokenizer.encode(text, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.letters += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts, **options)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.letters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **options)


def trained() -> Any:
    return train_tokenizer([WORDS * 20], vocabulary=300)


def test_1_ids() -> None:
    backend = trained().backend_tokenizer
    for text in ("", WORDS, WORDS * (2 * SHORT // len(WORDS))):
        assert Encoder(backend).encode(text).ids == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("limit", [None, 10, 1000])
def test_2_too_many_characters(limit: int | None) -> None:
    counted = Counted(trained().backend_tokenizer)
    encoder = Encoder(counted)  # type: ignore[arg-type]
    encoder.limit = limit
    if limit is None:
        assert len(encoder.encode("x" * 100_000).ids) == 100_000
        return
    with pytest.raises(ContextFull) as caught:
        encoder.encode("x" * (limit * encoder.longest + 1))
    assert caught.value.letters == limit * encoder.longest + 1 and counted.letters == 0


def test_3_too_many_ids_at_the_beginning() -> None:
    wide = "w" * 200
    tokenizer = Tokenizer(models.WordLevel({wide: 0, "a": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    counted = Counted(tokenizer)
    encoder = Encoder(counted)  # type: ignore[arg-type]
    encoder.limit = 50
    with pytest.raises(ContextFull):
        encoder.encode("a " * 4000)
    assert counted.letters == 800
    assert encoder.encode(f"{wide} " * 40).ids == [0] * 40


@pytest.mark.parametrize("template", [None, "qwen3"])
def test_4_observations(tiny: Any, tmp_path: Path, template: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny if template is None else policy_of(template, tmp_path / "model")
    assert isinstance(policy.renderer, TagRenderer if template is None else ChatRenderer)
    assert policy.renderer.encoder.limit == policy.limit
    encoder = policy.renderer.encoder
    longest, counted = encoder.longest, Counted(encoder._tokenizer)
    monkeypatch.setattr(encoder, "_tokenizer", counted)
    monkeypatch.setattr(policy, "engine", _Engine(policy.limit))
    monkeypatch.setattr(policy, "has_critic", True)
    session = policy.session(context=FullHistory(), sampling=None, key="k")
    book = Observation(text="xy " * policy.limit * longest)
    with told(EpisodeFailure, "characters"):
        session._observe(book)
    session.segment = 0
    with pytest.raises(ContextFull):
        session._observe(book)
    assert session.end(book) is None and counted.letters == 0


class _Engine:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def context(self, policy: str) -> int:
        return self.limit

    def close(self, session: Any) -> None: ...


def test_5_what_is_remembered() -> None:
    calls: list[str] = []
    function = remembered(lambda text: calls.append(text) or len(text))  # type: ignore[func-returns-value]
    long = "a" * (SHORT + 1)
    assert [function(text) for text in ("a", long, "a", long)] == [1, SHORT + 1, 1, SHORT + 1]
    assert calls == ["a", long, long]
