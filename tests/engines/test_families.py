"""What must hold of families of decoders in transformers, each made small with random weights: (1) those listed as
served give the numbers of an uncached pass, for a long and a short session together and for turns that follow; also
where heads are wide and sessions share blocks; (2) those listed as refused are refused by name with the reason; (3) a
window that a mask hides and no layer names is refused, though a short pass would not show it, and such a model is
served up to the window; (4) every decoder that transformers has is listed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from palaestra.engines import InProcessEngine
from palaestra.errors import ContractError
from tests.engines.conversations import VOCABULARY, Talker, assert_true_to, lively

LIST = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
SERVED = {name: part.get("own", {}) for part in LIST["served"] for name in part["names"]}
REFUSED = {name: (part["why"], part.get("own", {})) for part in LIST["refused"] for name in part["names"]}
UNTRIED = [name for part in LIST["untried"] for name in part["names"]]
# Each shows something that others do not: tied keys, capped logits, windows, positions in a table, sinks, experts, and
# values that are narrower than keys. All others are slow tests, since there are many.
FAST = ("cohere2", "deepseek_v3", "gemma2", "gpt2", "gpt_oss", "qwen3_moe", "bert", "bloom", "lfm2", "mamba", "phimoe")


def some(kinds: Iterable[str], fast: Iterable[str] = FAST) -> list[Any]:
    quick = {*fast}
    return [pytest.param(kind, marks=[] if kind in quick else pytest.mark.slow) for kind in kinds]


def made(kind: str, **changes: Any) -> Any:
    """A small model. Each family takes those sizes that its configuration has."""
    blank = AutoConfig.for_model(kind)
    own = (SERVED[kind] if kind in SERVED else REFUSED[kind][1]) | changes
    # Some configurations raise other errors than AttributeError for a value that differs between layers.
    known = {*blank.to_dict(), *blank.attribute_map, *dir(type(blank))}
    sizes = {name: value for name, value in (LIST["sizes"] | own).items() if value is not None and name in known}
    config = AutoConfig.for_model(kind, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return lively(AutoModelForCausalLM.from_config(config), 3.0)


def assert_served(model: Any, engine: InProcessEngine) -> None:
    random = np.random.default_rng(0)
    long, short, same = (Talker(engine, name) for name in ("long", "short", "same"))

    def prompt(count: int) -> np.ndarray:
        return random.integers(3, VOCABULARY, count).astype(np.int32)

    async def play() -> None:
        first = prompt(150)
        await asyncio.gather(
            long.say(first, seed=1, max_tokens=6),
            short.say(prompt(5), seed=2, max_tokens=6),
            same.say(first, seed=3, max_tokens=6),
        )
        await asyncio.gather(long.say(prompt(20), seed=4, max_tokens=3), short.say(prompt(70), seed=5, max_tokens=3))

    asyncio.run(play())
    for talker in (long, short, same):
        assert_true_to(model, talker)


@pytest.mark.parametrize("kind", some(SERVED))
def test_1_served(kind: str) -> None:
    model = made(kind)
    assert_served(model, InProcessEngine(models={"p": model}))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt_oss", {"head_dim": 64}),
        ("deepseek_v3", {"qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 32}),
    ],
)
def test_1_wide(kind: str, changes: dict[str, Any]) -> None:
    model = made(kind, **changes)
    engine = InProcessEngine(models={"p": model})
    assert_served(model, engine)


@pytest.mark.parametrize("kind", some(REFUSED))
def test_2_refused(kind: str) -> None:
    model = made(kind)
    why, _ = REFUSED[kind]
    with pytest.raises(ContractError, match=rf"(?s){type(model).__name__}.*cannot be served: .*{why}"):
        InProcessEngine(models={"p": model})


def test_3_a_window_that_no_layer_names() -> None:
    model = made("phimoe", sliding_window=300)
    with pytest.raises(ContractError, match="the mask of its layer 0 hides keys from a distance of 300"):
        InProcessEngine(models={"p": model})
    assert_served(model, InProcessEngine(models={"p": model}, max_length=300))


@pytest.mark.skipif(transformers.__version__ != LIST["transformers"], reason="the list is that of another version")
def test_4_every_decoder_is_listed() -> None:
    listed = [*SERVED, *REFUSED, *UNTRIED]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
