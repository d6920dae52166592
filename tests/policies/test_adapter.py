"""Adapters on one base: (1) a new adapter is its base bit for bit, in the trainer and in the engine; (2) the base's
weights are in memory once, and an adapter's module holds its own alone; (3) training one leaves the base and the others
as they are; (4) two adapters that change places change what they do; (5) one engine serves base and adapters at once,
and its numbers are the trainer's, whoever else is in the batch; (6) a clone has an adapter of its own on the same base;
(7) what is saved is one model for everybody, and an adapter for peft and for this policy; (8) the global random state
is left alone, and what does not fit is refused; (9) they are trained through one module, which a call hands its
adapter, also from several threads at once, and without one it is the base; no call changes a `requires_grad`; (10) a
folder that lacks weights of the adapter, or has others, that was trained on another model, or that asks for more than
plain low-rank additions, is refused before memory is taken for what it asks, and so is a value head that does not fit.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from palaestra.data import RunSetup
from palaestra.data.protocols import Request
from palaestra.engines import InProcessEngine
from palaestra.engines.forward import TransformersForward, forward_of
from palaestra.engines.llama import LlamaForward
from palaestra.errors import CheckpointError, RecipeError
from palaestra.models.adapters import own_weights, sharing
from palaestra.models.causal_lm import load_causal_lm
from palaestra.policies.adapter import AdapterPolicy
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.sequences import LanguageSamples, samples_of
from palaestra.testing import ScriptedPolicy, TinyModel
from tests.engines.conversations import lively
from tests.messages import told

IDS = torch.tensor([[5, 9, 40, 7, 3, 250, 11], [8, 8, 1, 30, 2, 100, 60]])


@pytest.fixture
def run_setup() -> RunSetup:
    base = TinyModel(name="base")
    lively(base.model)
    base.trainable = False
    return RunSetup(seed=1, policies={"base": base, "net": ScriptedPolicy(["red"])})


def stirred(policy: AdapterPolicy, seed: int = 0) -> AdapterPolicy:
    """With an adapter that does something."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.module.adapter.parameters():
            p.normal_(std=0.3, generator=draw)
    return policy


def logits(policy: Any) -> Tensor:
    with torch.no_grad():
        return policy.model(IDS).logits  # type: ignore[no-any-return]


def copied(policy: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def say(policies: list[Any], prompts: list[list[int]]) -> dict[tuple[str, int], Any]:
    """What every policy says to every prompt, all at once in one engine."""
    engine = InProcessEngine(models={policy.name: policy.model for policy in policies})

    async def one(policy: Any, number: int) -> Any:
        ask = np.array(prompts[number], np.int32)
        name = policy.name
        request = Request(policy=name, session=(name, number), prompt=ask, seed=number, max_tokens=6)
        return (await engine.generate(request)).action

    async def everybody() -> list[Any]:
        return await asyncio.gather(*(one(policy, number) for policy in policies for number in range(len(prompts))))

    places = [(policy.name, number) for policy in policies for number in range(len(prompts))]
    return dict(zip(places, asyncio.run(everybody()), strict=True))


def trainers(policy: Any, prompt: list[int], tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities of these tokens by the model that the trainer sees."""
    with torch.no_grad():
        out = policy.model(torch.tensor([[*prompt, *tokens.tolist()]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(out, -1).gather(1, torch.from_numpy(tokens).long()[:, None])[:, 0].numpy()


PROMPTS = [[4, 7, 9, 200], [1, 2, 3], [60, 61, 62, 63, 64, 65, 66, 67, 68], [12], [90, 5, 90, 5, 90]]


def test_1_a_new_adapter_is_its_base(run_setup: RunSetup) -> None:
    base, adapter = run_setup.policies["base"], AdapterPolicy("solver", run_setup, of="base")
    assert torch.equal(logits(adapter), logits(base))
    said = say([base, adapter], PROMPTS)
    for number in range(len(PROMPTS)):
        ours, theirs = said["solver", number], said["base", number]
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)


def test_2_the_base_is_in_memory_once(run_setup: RunSetup) -> None:
    base = run_setup.policies["base"]
    one = AdapterPolicy("one", run_setup, of="base")
    two = AdapterPolicy("two", run_setup, of="base", value_head=True)
    stored = {p.data_ptr() for p in base.model.parameters()}
    for policy in (one, two):
        own = {p.data_ptr() for p in policy.module.parameters()}
        assert {p.data_ptr() for p in policy.model.parameters()} - own == stored
        assert not own & stored
        assert sum(p.numel() for p in policy.module.parameters()) < sum(p.numel() for p in base.model.parameters())
    assert all(p.requires_grad for p in base.model.parameters()), "a base can still be cloned"
    assert {name.split(".")[0] for name in two.module.state_dict()} == {"adapter", "value"}
    with torch.no_grad():
        base.model.lm_head.weight.mul_(2.0)
    assert torch.equal(logits(one), logits(base)), "what the base learns before the run, they all know"


@pytest.mark.parametrize("targets", [None, ("q_proj", "v_proj")])
def test_3_training_one_moves_no_other(run_setup: RunSetup, targets: tuple[str, ...] | None) -> None:
    base = run_setup.policies["base"]
    one, two = (AdapterPolicy(name, run_setup, of="base", targets=targets) for name in ("one", "two"))
    before, others, start = copied(base), copied(two), logits(two)
    optimizer = torch.optim.SGD(one.module.parameters(), lr=0.5)
    for _ in range(2):  # at first A has no gradient, for B is zero
        optimizer.zero_grad()
        one.model(IDS).logits.logsumexp(-1).sum().backward()
        optimizer.step()
    assert same(copied(base), before) and same(copied(two), others) and torch.equal(logits(two), start)
    assert not torch.equal(logits(one), start)
    assert all(p.grad is None for p in (*base.model.parameters(), *two.module.parameters()))
    assert len(list(one.module.parameters())) == (28 if targets is None else 8)


def test_4_role_exchange(run_setup: RunSetup) -> None:
    one = stirred(AdapterPolicy("one", run_setup, of="base"), 1)
    two = stirred(AdapterPolicy("two", run_setup, of="base"), 2)
    before = logits(one), logits(two)
    assert not torch.equal(*before)
    mine = {name: tensor.clone() for name, tensor in one.module.state_dict().items()}
    one.module.load_state_dict(two.module.state_dict())
    two.module.load_state_dict(mine)
    assert torch.equal(logits(one), before[1]) and torch.equal(logits(two), before[0])


@pytest.mark.parametrize("rank", [1, 8])
def test_5_one_engine_for_all(run_setup: RunSetup, rank: int) -> None:
    base = run_setup.policies["base"]
    one = stirred(AdapterPolicy("one", run_setup, of="base", rank=rank, alpha=2 * rank), 1)
    two = stirred(AdapterPolicy("two", run_setup, of="base", rank=rank, alpha=rank, targets=("q_proj", "down_proj")), 2)
    assert isinstance(forward_of(one.model, length=64), LlamaForward)
    said = say([base, one, two], PROMPTS)
    for policy in (base, one, two):
        for number, prompt in enumerate(PROMPTS):
            found = said[policy.name, number]
            np.testing.assert_allclose(found.logprobs, trainers(policy, prompt, found.tokens), atol=1e-5, rtol=0)
            alone = say([policy], PROMPTS[: number + 1])[policy.name, number]
            assert alone.tokens.tolist() == found.tokens.tolist()
            np.testing.assert_allclose(alone.logprobs, found.logprobs, atol=1e-6, rtol=0)


def test_5_other_adapters_take_the_general_way(run_setup: RunSetup) -> None:
    adapter = stirred(AdapterPolicy("one", run_setup, of="base"))
    adapter.model.model.layers[0].mlp.up_proj.lora_A["default"].bias = torch.nn.Parameter(torch.zeros(8))
    assert isinstance(forward_of(adapter.model, length=64), TransformersForward)
    found = say([adapter], PROMPTS)["one", 0]
    np.testing.assert_allclose(found.logprobs, trainers(adapter, PROMPTS[0], found.tokens), atol=1e-5, rtol=0)


def test_6_a_twin(run_setup: RunSetup) -> None:
    one = stirred(AdapterPolicy("one", run_setup, of="base", value_head=True))
    one.weights_changed(3)
    one.engine = InProcessEngine(models={"one": one.model})
    clone = one.clone()
    assert (clone.name, clone.version, clone.base, clone.engine) == ("one", 3, "base", None) and clone.has_critic
    assert torch.equal(logits(clone), logits(one)) and clone.architecture() == one.architecture()
    own = {p.data_ptr() for p in clone.module.parameters()}
    stored = {p.data_ptr() for p in run_setup.policies["base"].model.parameters()}
    assert {p.data_ptr() for p in clone.model.parameters()} - own == stored
    before = logits(one)
    stirred(clone, 5)
    clone.weights_changed(9)
    assert torch.equal(logits(one), before) and not torch.equal(logits(clone), before) and one.version == 3
    clone.module.requires_grad_(False)
    assert all(p.requires_grad for p in one.module.parameters())
    assert torch.equal(logits(clone.clone()), logits(clone)), "also of a frozen one"


def test_7_saved(run_setup: RunSetup, tmp_path: Path) -> None:
    one = stirred(AdapterPolicy("one", run_setup, of="base", rank=4, alpha=6.0, value_head=True))
    torch.nn.init.normal_(one.module.value.linear.weight)
    one.save(str(tmp_path))
    whole = LanguagePolicy("whole", RunSetup(seed=2), model=str(tmp_path), value_head=True)
    torch.testing.assert_close(logits(whole), logits(one), atol=1e-5, rtol=0)
    again = AdapterPolicy("again", run_setup, of="base", model=str(tmp_path), value_head=True)
    assert torch.equal(logits(again), logits(one)) and again.architecture() == one.architecture()
    for policy in (whole, again):
        assert same(policy.module.value.state_dict(), one.module.value.state_dict())
    assert all(p.requires_grad for p in again.module.parameters()) and len(
        list(own_weights(again.adapter).parameters())
    )
    import peft

    base = run_setup.policies["base"]
    base.save(str(tmp_path / "base"))
    theirs = peft.PeftModel.from_pretrained(load_causal_lm(tmp_path / "base"), tmp_path / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS).logits, logits(one), atol=1e-6, rtol=0)


def test_8_seeds(run_setup: RunSetup) -> None:
    state = torch.random.get_rng_state()
    one, again, two = (AdapterPolicy(name, run_setup, of="base") for name in ("one", "one", "two"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(one.module.state_dict(), again.module.state_dict())
    assert not same(one.module.state_dict(), two.module.state_dict())


def test_8_refused(run_setup: RunSetup, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no linear layer called `q_prj`"):
        AdapterPolicy("one", run_setup, of="base", targets=("q_prj",))
    for wrong in ("net", "nobody"):
        with told(RecipeError, f"`{wrong}`"):
            AdapterPolicy("one", run_setup, of=wrong)
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json"):
        AdapterPolicy("one", run_setup, of="base", model=str(tmp_path))
    stirred(AdapterPolicy("one", run_setup, of="base")).save(str(tmp_path))
    wide = LanguagePolicy("base", run_setup, hidden=48, vocabulary=320)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        AdapterPolicy("one", RunSetup(seed=0, policies={"base": wide}), of="base", model=str(tmp_path))
    with pytest.raises(RecipeError, match="rank"):
        AdapterPolicy("one", run_setup, of="base", rank=0)


def test_8_abilities() -> None:
    assert AdapterPolicy.abilities({"of": "base"}) == {"tokens"}
    assert AdapterPolicy.abilities({"of": "base", "value_head": True}) == {"tokens", "critic"}
    assert AdapterPolicy.stands_on({"of": "base"}) == "base"


def samples() -> LanguageSamples:
    """Two sequences of seven ids, of which the last four are responses."""
    return samples_of([row.numpy() for row in IDS], [np.arange(3, 7)] * 2)


def logprobs_of(policy: Any) -> Tensor:
    return policy.forward(samples(), [0, 1], ("logprob",))["logprob"]  # type: ignore[no-any-return]


def test_9_one_module_for_all(run_setup: RunSetup) -> None:
    base = run_setup.policies["base"]
    one = stirred(AdapterPolicy("one", run_setup, of="base"), 1)
    two = stirred(AdapterPolicy("two", run_setup, of="base", targets=("q_proj",), value_head=True), 2)
    network = one.network
    assert network is two.network is one.clone().network and network is not base.network
    wanted = {name: p.requires_grad for name, p in network.named_parameters()}
    for policy in (one, two):
        theirs = torch.log_softmax(policy.model(IDS).logits, -1)[:, 2:-1].gather(2, IDS[:, 3:, None])[..., 0]
        assert torch.equal(logprobs_of(policy), theirs.flatten()), "what peft computes"
    batch = samples().batch([0, 1])
    assert torch.equal(network(batch, ("logprob",), adapter=None)["logprob"], logprobs_of(base)), "the reference"
    logprobs_of(two).sum().backward()
    assert all(p.grad is not None for p in two.module.adapter.parameters())
    assert all(p.grad is None for p in (*base.module.parameters(), *one.module.parameters(), *network.parameters()))
    assert {name: p.requires_grad for name, p in network.named_parameters()} == wanted and not any(wanted.values())


def test_9_from_several_threads(run_setup: RunSetup) -> None:
    policies = [stirred(AdapterPolicy(str(seed), run_setup, of="base"), seed) for seed in range(4)]
    alone = [logprobs_of(policy) for policy in policies]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            assert all(torch.equal(*pair) for pair in zip(pool.map(logprobs_of, policies), alone, strict=True))


def test_8_more_than_low_rank(run_setup: RunSetup, tmp_path: Path) -> None:
    import peft

    base = run_setup.policies["base"]
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", use_dora=True)
    peft.get_peft_model(sharing(base.model), config).save_pretrained(tmp_path)
    with told(CheckpointError, "use_dora"):
        AdapterPolicy("one", run_setup, of="base", model=str(tmp_path))
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "embed_tokens"], task_type="CAUSAL_LM")
    peft.get_peft_model(sharing(base.model), config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="no low-rank additions"):
        AdapterPolicy("one", run_setup, of="base", model=str(tmp_path))


def test_8_shared_weights(run_setup: RunSetup) -> None:
    layers = run_setup.policies["base"].model.model.layers
    layers[1].self_attn.v_proj = layers[0].self_attn.v_proj  # one module at two places
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight  # two modules with one weight
    for target in ("v_proj", "up_proj"):
        with told(RecipeError, target):
            AdapterPolicy("a", run_setup, of="base", targets=("q_proj", target))
    with pytest.raises(RecipeError, match="several places"):
        AdapterPolicy("a", run_setup, of="base")
    AdapterPolicy("a", run_setup, of="base", targets=("q_proj", "lm_head"))


@pytest.fixture
def saved(run_setup: RunSetup, tmp_path: Path) -> Path:
    """The folder of an adapter with a value head."""
    stirred(AdapterPolicy("one", run_setup, of="base", value_head=True)).save(str(tmp_path / "one"))
    return tmp_path / "one"


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
ELSEWHERE = FIRST.replace("layers.0", "layers.77")


def rewritten(folder: Path, change: Any) -> None:
    file = folder / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda weights: weights.pop(FIRST), "lack"),
        (lambda weights: weights.clear(), "lack"),
        (lambda weights: weights.update({ELSEWHERE: weights[FIRST].clone()}), "77"),
        (lambda weights: weights.update({FIRST: weights[FIRST][:4].clone()}), "size mismatch"),
        (lambda weights: weights[FIRST].fill_(float("nan")), "infinite"),
    ],
)
def test_10_other_weights(run_setup: RunSetup, saved: Path, change: Any, word: str) -> None:
    rewritten(saved, change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with told(CheckpointError, word):
            AdapterPolicy("one", run_setup, of="base", model=str(saved))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"r": 2**16}, "65536"),
        ({"target_modules": ["q_proj"]}, "no place"),
        ({"lora_alpha": float("inf")}, "infinite"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"layer_replication": [[0, 2]] * 10**4}, "layer_replication"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"an_option_of_later": True}, "an_option_of_later"),
        ({"rank_pattern": dict.fromkeys(map(str, range(2**18)), 1)}, "entries"),
    ],
)
def test_10_other_descriptions(run_setup: RunSetup, saved: Path, changes: dict[str, Any], word: str) -> None:
    file = saved / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with told(CheckpointError, word):
        AdapterPolicy("one", run_setup, of="base", model=str(saved))


@pytest.mark.parametrize("changes", [{"target_modules": "(.+)+x"}, {"rank_pattern": {"(.+)+x": 8}}], ids=list)
def test_10_patterns_without_end(
    run_setup: RunSetup, saved: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palaestra.models.pretrained.PATIENCE_S", 1.0)
    file = saved / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with told(CheckpointError, "pattern"):
        AdapterPolicy("one", run_setup, of="base", model=str(saved))


def test_10_a_pattern_of_layers(run_setup: RunSetup, saved: Path) -> None:
    file = saved / "adapter" / "adapter_config.json"
    pattern = r"model\.layers\.\d+\.(self_attn|mlp)\.(?:[a-z]+_proj)"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_modules": pattern}))
    assert AdapterPolicy("one", run_setup, of="base", model=str(saved)).module.additions


def test_10_another_base(run_setup: RunSetup, saved: Path) -> None:
    base = run_setup.policies["base"]
    file = saved / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "somebody/base"}))
    AdapterPolicy("one", run_setup, of="base", model=str(saved))  # the base has no name
    for name in ("base", "/hub/models--somebody--base/snapshots/abc", "/hub/models--somebody--Base/snapshots/abc"):
        base.model.name_or_path = name
        AdapterPolicy("one", run_setup, of="base", model=str(saved))
    base.model.name_or_path = "somebody/base-instruct"
    with told(CheckpointError, "somebody/base"):
        AdapterPolicy("one", run_setup, of="base", model=str(saved))


def test_10_files_of_weights(run_setup: RunSetup, saved: Path) -> None:
    file = saved / "adapter" / "adapter_model.safetensors"
    file.write_bytes(b"xx")
    with told(CheckpointError, "header"):
        AdapterPolicy("one", run_setup, of="base", model=str(saved))
    file.rename(file.with_suffix(".bin"))
    with told(CheckpointError, "save them as safetensors"):
        AdapterPolicy("one", run_setup, of="base", model=str(saved))
    file.with_suffix(".bin").unlink()
    with told(CheckpointError, "adapter_model.bin"):
        AdapterPolicy("one", run_setup, of="base", model=str(saved))


def test_10_a_value_head(run_setup: RunSetup, saved: Path) -> None:
    with told(CheckpointError, "value_layers"):
        AdapterPolicy("one", run_setup, of="base", model=str(saved), value_head=True, value_layers=(8,))
    with told(CheckpointError, "value_layers"):
        LanguagePolicy("one", RunSetup(seed=2), model=str(saved), value_head=True, value_layers=(8,))
    (saved / "value_head.safetensors").write_bytes(b"xx")
    with told(CheckpointError, "header"):
        AdapterPolicy("one", run_setup, of="base", model=str(saved), value_head=True)


def test_10_the_random_state_stays(run_setup: RunSetup, saved: Path) -> None:
    state = torch.random.get_rng_state()
    AdapterPolicy("one", run_setup, of="base", model=str(saved))
    assert torch.equal(torch.random.get_rng_state(), state)
