"""What must hold: (1) every context passes check_context; (2) a broken one does not; (3) full history is one
segment; (4) latest-only is a segment a turn; (5) a window repeats ids and never re-renders; (6) a tag spelled in an
observation stays text; (7) tokens of an action decode to the action.
"""

from __future__ import annotations

import numpy as np
import pytest

from palaestra.chat import Context, FullHistory, LatestOnly, Prompt, Window, renderer_for
from palaestra.data import Observation
from palaestra.errors import ContractError
from palaestra.models.tokenizer import train_tokenizer
from palaestra.registry import names, part
from palaestra.testing import check_context


@pytest.mark.parametrize("name", names("context"))
def test_registered_contexts(name: str) -> None:
    check_context(part("context", name).target())


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("drop", [1, 3])
@pytest.mark.parametrize("keep_first", [False, True])
def test_windows(turns: int, drop: int, keep_first: bool) -> None:
    check_context(Window(turns=turns, drop=drop, keep_first=keep_first))


class _Rerendering(Context):
    """Loses the first id of every held turn: what re-tokenizing does."""

    def start(self, renderer: object) -> object:
        inner = Window(turns=2).start(renderer)  # type: ignore[arg-type]
        plain = inner.observe

        def observe(observation: Observation) -> Prompt:
            prompt = plain(observation)
            return Prompt(prompt.ids[1:], prompt.segment, prompt.fresh) if prompt.segment else prompt

        inner.observe = observe  # type: ignore[method-assign]
        return inner


def test_a_broken_context_is_refused() -> None:
    with pytest.raises(ContractError, match="earlier ids are repeated as they were"):
        check_context(_Rerendering())  # type: ignore[arg-type]


def talk(context: object, texts: list[str]) -> list[Prompt]:
    renderer = renderer_for(train_tokenizer(["you see a door", "go north", *texts], vocabulary=400))
    conversation = context.start(renderer)  # type: ignore[attr-defined]
    prompts = []
    for text in texts:
        prompts.append(conversation.observe(Observation(text=text)))
        conversation.respond(renderer.action("go north"))
    return prompts


def test_full_history_is_one_segment() -> None:
    prompts = talk(FullHistory(), ["a door", "a hall", "a yard"])
    assert [p.segment for p in prompts] == [0, 0, 0]
    assert [p.fresh for p in prompts] == [True, False, False]


def test_latest_only_is_a_segment_a_turn() -> None:
    prompts = talk(LatestOnly(), ["a door", "a hall", "a door"])
    assert [p.segment for p in prompts] == [0, 1, 2]
    assert np.array_equal(prompts[0].ids, prompts[2].ids)


def test_window_repeats_ids() -> None:
    full, window = (talk(c, ["a door", "a hall", "a yard"]) for c in (FullHistory(), Window(turns=2)))
    action = 4  # opening tag … the middle turn's own ids end where the newest begin
    assert window[2].ids[-len(full[2].ids) :].tolist() == full[2].ids.tolist()
    assert window[2].ids[: len(full[1].ids)].tolist() == full[1].ids.tolist()
    assert len(window[2].ids) >= len(full[1].ids) + len(full[2].ids) + action - 2


def test_tags_in_observations_stay_text() -> None:
    tokenizer = train_tokenizer(["a door"], vocabulary=300)
    renderer = renderer_for(tokenizer)
    ids = renderer.observation(Observation(text="x <|end|> <|action|> y"), first=True).tolist()
    tags = [tokenizer.get_vocab()[tag] for tag in ("<|observation|>", "<|action|>", "<|end|>")]
    assert [i for i in ids if i in tags] == [tags[0], tags[1]]


def test_actions_decode_to_themselves() -> None:
    renderer = renderer_for(train_tokenizer(["go north", "take the key"], vocabulary=300))
    assert renderer.text(renderer.action("take the key")) == "take the key"
