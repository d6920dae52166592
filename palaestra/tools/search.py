"""An index that searches texts by words (BM25), by vectors, or by both, and a tool that searches it.

Results are the same on every machine: texts with equal scores come in the order of their ids.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.errors import InvalidData, missing_extra
from palaestra.tools.tool import Tool, tool

WORD = re.compile(r"\w+")
LONGEST_QUERY = 200  # words; further words are ignored
Embed = Callable[[Sequence[str]], Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that was found: its id, its score (higher: a better match), and the text or a part of it."""

    id: str
    score: float
    text: str


class Index:
    """An index of texts by id.

    Args:
        documents: texts by id. Without texts, nothing is found.
        k1, b: parameters of BM25. k1: how much a repeated word counts. b: how much long texts are discounted.
        embed: gives one vector for each of several texts, for search by meaning. None: search by words only.
        mix: weight of the vectors, 0 to 1. The score is (1 − mix) · BM25 / best BM25 + mix · cosine. Ignored
            without `embed`.
        snippet: most characters of a hit's text: the part with the most words of the query. None: the whole text.

    Raises: MissingExtra, without the package bm25s; InvalidData, for a bad `mix` or vectors that do not fit.
    """

    def __init__(
        self,
        documents: Mapping[str, str],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        embed: Embed | None = None,
        mix: float = 0.5,
        snippet: int | None = None,
    ) -> None:
        if not 0 <= mix <= 1:
            raise InvalidData(where="search index", what=f"`mix` is {mix}.", remedy="Set it to a number from 0 to 1.")
        self.ids = sorted(documents)
        self.texts = [documents[key] for key in self.ids]
        self._embed, self._mix, self._snippet = embed, mix if embed else 0.0, snippet
        words = [words_of(text) for text in self.texts]
        self._bm25 = _bm25(words, k1, b) if any(words) else None
        self._vectors = _unit(embed(self.texts), len(self.texts)) if embed and self.texts else None

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, query: str, k: int = 3) -> list[Hit]:
        """The `k` best matches, best first; fewer if fewer scores are above 0. An empty query finds nothing."""
        words = words_of(query)[:LONGEST_QUERY]
        if k <= 0 or not self.ids or not words:
            return []
        scores = self._scores(query, words)
        count = min(k, len(scores))
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        good = np.flatnonzero(scores >= least)
        order = good[np.argsort(-scores[good], kind="stable")][:count]  # ids are sorted: ties keep their order
        return [Hit(self.ids[i], float(scores[i]), self._shown(i, words)) for i in order if scores[i] > 0]

    def _scores(self, query: str, words: list[str]) -> np.ndarray:
        scores = np.zeros(len(self.ids))
        if self._bm25 is not None and self._mix < 1:
            # Sorted, so that the same words give exactly the same sum.
            known = sorted(self._bm25.get_tokens_ids(words))
            if known:
                scores = np.asarray(self._bm25.get_scores_from_ids(known), dtype=np.float64)
        if self._vectors is None or self._embed is None:
            return scores
        best = scores.max()
        near = self._vectors @ _unit(self._embed([query]), 1, size=self._vectors.shape[1])[0]
        return (1 - self._mix) * scores / (best if best > 0 else 1.0) + self._mix * near

    def _shown(self, number: int, words: list[str]) -> str:
        text = self.texts[number]
        return text if self._snippet is None else snippet(text, words, self._snippet)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case: letters, digits and underscores."""
    return WORD.findall(text.lower())


def snippet(text: str, words: Sequence[str], most: int) -> str:
    """The part of a text, at most `most` characters, that has the most of these words. "…" marks what is left out."""
    if len(text) <= most:
        return text
    wanted = set(words)
    places = [found.start() for found in WORD.finditer(text.lower()) if found[0] in wanted]
    best, start, first = 0, 0, 0
    for last, place in enumerate(places):
        while place - places[first] > most * 2 // 3:
            first += 1
        if last - first + 1 > best:
            best, start = last - first + 1, places[first]
    start = max(min(start - most // 6, len(text) - most), 0)
    return f"{'…' if start else ''}{text[start : start + most].strip()}{'…' if start + most < len(text) else ''}"


# ---- corpora ----------------------------------------------------------------------------------------------
def read_documents(path: str | Path) -> dict[str, str]:
    """Read documents, as texts by id, from a JSONL file or from a folder.

    Each line of a file is an object with `id`, `text` and an optional `title`. In a folder, each .txt or .md file is a
    document, whose id is its path in the folder.

    Raises: InvalidData, naming the line.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
        return {str(file.relative_to(place)): file.read_text(encoding="utf-8", errors="replace") for file in files}
    found: dict[str, str] = {}
    for number, line in _lines(place):
        where = f"{place}:{number}"
        try:
            entry = json.loads(line)
            key, text = str(entry["id"]), f"{entry['title']}. {entry['text']}" if "title" in entry else entry["text"]
        except (ValueError, KeyError, TypeError):
            remedy = 'Write {"id": "…", "text": "…"} on each line; "title" is optional.'
            raise InvalidData(where=where, what="this line is not a document.", remedy=remedy) from None
        if key in found or not isinstance(text, str):
            what = f"an earlier document has the id {key!r} too." if key in found else "`text` is not a text."
            raise InvalidData(where=where, what=what, remedy="Give each document an id of its own and a text.")
        found[key] = text
    return found


def _lines(place: Path) -> Iterator[tuple[int, str]]:
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "Name a JSONL file or a folder of .txt and .md files."
        raise InvalidData(where=f"documents: {place}", what=f"they cannot be read: {error}.", remedy=remedy) from None
    yield from ((number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip())


def corpus(path: str | Path, *, snippet: int | None = 400) -> Index:
    """The index of a file or folder of documents. A process builds it once, and again after a file has changed."""
    place = Path(path)
    files = sorted(place.rglob("*")) if place.is_dir() else [place] if place.exists() else []
    state = "\n".join(f"{file} {file.stat().st_mtime_ns} {file.stat().st_size}" for file in files)
    return _corpus(str(place), hashlib.sha256(state.encode()).hexdigest(), snippet)


@functools.lru_cache(maxsize=8)
def _corpus(path: str, state: str, snippet: int | None) -> Index:
    return Index(read_documents(path), snippet=snippet)


def search_tool(index: Index, *, k: int = 3, name: str = "search", cost: float = 0.0) -> Tool:
    """A tool that searches an index.

    Args:
        k: most texts that one call finds.
        name: name of the tool. cost: cost of one call.
    """

    def found(query: str) -> str:
        hits = index.search(query, k)
        return "\n".join(f"[{hit.id}] {hit.text}" for hit in hits) if hits else "nothing found"

    return dataclasses.replace(SEARCH, name=name, call=found, cost=cost)


def search(query: str) -> str:
    """Find texts about something.

    Args:
        query: a few words that stand in the text.
    """
    raise NotImplementedError


SEARCH = tool(search)  # made once, because building the schema takes longer than a call


# ---- scoring ----------------------------------------------------------------------------------------------
def _bm25(words: list[list[str]], k1: float, b: float) -> Any:
    try:
        import bm25s
    except ModuleNotFoundError as error:
        raise missing_extra("bm25s", extra="tools", needed_for="search") from error
    made = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy")
    made.index(words, show_progress=False)
    return made


def _unit(vectors: Any, count: int, size: int | None = None) -> np.ndarray:
    """The vectors scaled to length 1, (count, size). A vector of zeros stays as it is."""
    found = np.asarray(vectors, dtype=np.float64)
    if found.ndim != 2 or len(found) != count or (size is not None and found.shape[1] != size):
        what = f"`embed` gave {found.shape} for {count} texts."
        raise InvalidData(where="search index", what=what, remedy="Return one vector of the same size for each text.")
    if not np.isfinite(found).all():
        remedy = "Return finite numbers for every text."
        raise InvalidData(where="search index", what="`embed` gave numbers that are not finite.", remedy=remedy)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
