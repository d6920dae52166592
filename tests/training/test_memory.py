"""The memory that a run needs. Rules:

1. Sizes of a model are those of the loaded model: weights, tied ones once, linear layers, keys and values.
2. What a pass keeps is what a real pass keeps, to the byte.
3. `palaestra plan` shows the lines and their sum; without a pretrained model it says so. An output layer that is not
   trained needs fewer logits. In bfloat16 on a CPU it shows the engine's copy of the weights. It shows the limit of the
   cache. An adapter adds what its rank and its targets say, or those of the folder that it is loaded from.
4. `train` refuses what cannot fit before it makes a folder, and the proposed token budget fits. A limit of the cache
   that exceeds what is free is refused.
5. The limit of a control group counts.
6. A real update of SmolLM2 stays below the plan, and above half of it.
7. A model that cannot be counted is trained all the same; one that cannot be loaded is refused by the loader. With
   shards nothing is refused. An adapter is counted wherever it stands, and so is a model in `load`.
8. Every model of a run is counted: references, copies that act, and models that parts load or copy. As many models are
   in memory at the end of a run.
9. Without a token budget, the start of a run chooses one with which half of the free memory suffices, writes it into
   `recipe.json`, says it, and a resumed run keeps it. Models that are made on the spot have a fixed one, in silence.
10. The token budget changes what an update computes by rounding alone: with packed rows, a reference, a loss of whole
   groups, a part that trains a second model, and additions.
"""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, LlamaConfig, MambaConfig, MixtralConfig

from palaestra.commands import plan
from palaestra.commands.runs import resolve
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import CheckpointError, RecipeError
from palaestra.models import devices, sizes
from palaestra.models.adapters import add_adapter
from palaestra.models.causal_lm import load_causal_lm, make_causal_lm
from palaestra.models.sizes import PROBE, LoadedModel, size_of
from palaestra.models.tokenizer import train_tokenizer
from palaestra.policies import frozen_head
from palaestra.recipe import load
from palaestra.recipe.smoke import VARIED
from palaestra.training import memory
from palaestra.training.loop import Trainer
from palaestra.training.memory import needs_of
from palaestra.training.start import train
from tests.messages import told

next_iteration = Trainer.iteration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(["a text", "another text"], vocabulary=300)
    tokenizer.save_pretrained(place)
    make_causal_lm(vocabulary=len(tokenizer), hidden=32, layers=3, heads=4, context=1024).save_pretrained(place)
    return str(place)


@pytest.fixture
def recipe(folder: str, tmp_path: Path) -> Path:
    """A recipe with a model of 3 layers and an adapter on it."""
    text = {
        "name": "memory",
        "run": str(tmp_path / "run"),
        "environment": {"babyai": {"level": "GoToObj", "max_turns": 8}},
        "policies": {
            "base": {"policy": {"language": {"model": folder}}, "trainable": False},
            "main": {"policy": {"adapter": {"of": "base", "rank": 4}}},
        },
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(text))
    return path


def test_1_sizes_of_the_loaded_model(folder: str) -> None:
    size, model = size_of(folder), load_causal_lm(folder)
    assert size is not None
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert len(size.linear) == 3 * 7 and size.vocabulary == model.config.vocab_size
    assert size.cache_per_token == 2 * 3 * 32
    assert size.additions(4) == sum(4 * (i + o) for i, o in size.linear.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_2_kept_bytes(folder: str, dtype: torch.dtype) -> None:
    model, kept = load_causal_lm(folder).to(dtype), {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), storage)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = model.base_model(input_ids=torch.zeros(1, PROBE, dtype=torch.long), use_cache=False)
    size = size_of(folder)
    assert hidden is not None and size is not None
    assert sum(size for size, _ in kept.values()) // PROBE == size.kept(str(dtype).removeprefix("torch."))


def test_3_the_plan(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.run(recipe=[str(recipe)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:5]] == [
        "weights of base",
        "training of main",
        "one pass of an update of main",
        "the program",
        "together",
    ]
    rows = needs_of(load([str(recipe)]).settings)
    assert lines[4].split()[-2:] == memory.shown(sum(row.size for row in rows)).split()
    plan.run(recipe=["cartpole.yaml"])
    assert "no pretrained model" in capsys.readouterr().out


def test_3_whole_training(recipe: Path, folder: str) -> None:
    text = yaml.safe_load(recipe.read_text()) | {"reference": "start"}
    text["policies"] = {"main": {"policy": {"language": {"model": folder}}}}
    recipe.write_text(yaml.safe_dump(text))
    rows = {row.what: row.size for row in needs_of(load([str(recipe)]).settings)}
    size = size_of(folder)
    assert size is not None
    count = size.parameters
    assert rows["weights of main"] == rows["reference of main"] == 4 * count
    assert rows["training of main"] == 4 * 3 * count  # gradients and two states


def test_3_the_copy_of_the_engine(recipe: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "is_large", lambda _: True)
    size = size_of.__wrapped__(folder)
    monkeypatch.setattr("palaestra.policies.language.size_of", lambda model: size)
    begin, copies = "generation with base: ", {}
    for dtype in ("bfloat16", "float32"):
        for can in (True, False):
            monkeypatch.setattr(memory, "packs_bfloat16", lambda can=can: can)
            lines = memory.further_lines(load([str(recipe)], [f"dtype={dtype}"]).settings)
            copies[dtype, can] = [line.removeprefix(begin) for line in lines if line.startswith(begin)]
    model = load_causal_lm(folder)
    embeddings = 0 if model.config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    multiplied = sum(p.numel() for p in model.parameters()) - norms - embeddings
    assert copies.pop(("bfloat16", True)) == [f"{memory.shown(2 * multiplied)} for weights as they are multiplied"]
    assert not any(copies.values())


def test_4_refused_before_a_folder_is_made(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load([str(recipe)]).settings
    held = sum(row.size for row in needs_of(settings) if row.always)
    monkeypatch.setattr(memory, "free_bytes", lambda device: held + 10_000_000)
    with told(RecipeError, "token_budget=") as caught:
        train(load([str(recipe)], ["training.token_budget=8192"]).settings, recipe={})
    assert not (tmp_path / "run").exists()
    fits = str(caught.value).partition("training.token_budget=")[2].partition(",")[0]
    memory.refuse_what_cannot_fit(load([str(recipe)], [f"training.token_budget={fits}"]).settings)
    monkeypatch.setattr(memory, "free_bytes", lambda device: held // 2)
    with told(RecipeError, "smaller model"):
        train(settings, recipe={})


def test_3_the_limit_of_the_cache(recipe: Path) -> None:
    def lines(*overrides: str) -> list[str]:
        return memory.further_lines(load([str(recipe)], list(overrides)).settings)

    (line,) = [line for line in lines("engine.in_process.memory=64MB") if "at most" in line]
    size = memory._sizes(load([str(recipe)]).settings)["base"].model
    assert size.cache_per_token is not None
    share = 64 * 2**20 // 2  # the base and its adapter
    assert memory.shown(share) in line and f"{share // (4 * size.cache_per_token):,} tokens" in line
    assert any("at most" in line for line in lines())  # a share of what is free


def test_4_a_cache_beyond_what_is_free(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2_500_000_000)
    memory.refuse_what_cannot_fit(load([str(recipe)], ["engine.in_process.memory=500MB"]).settings)
    with told(RecipeError, "the cache of generation may take 42.9 GB"):
        memory.refuse_what_cannot_fit(load([str(recipe)], ["engine.in_process.memory=40GB"]).settings)


def test_3_what_an_adapter_adds(recipe: Path, folder: str, tmp_path: Path) -> None:
    """By its targets, and by the folder that it is loaded from."""
    size = size_of(folder)
    assert size is not None

    def trained(**options: Any) -> int:
        text = yaml.safe_load(recipe.read_text())
        text["policies"]["main"]["policy"]["adapter"] = {"of": "base", **options}
        recipe.write_text(yaml.safe_dump(text))
        return memory._sizes(load([str(recipe)]).settings)["main"].trained

    loaded = load_causal_lm(folder)
    queries = [part for name, part in loaded.named_modules() if name.endswith("q_proj")]
    each = sum(part.in_features + part.out_features for part in queries)
    assert trained(rank=3, targets=["q_proj"]) == 3 * each < trained(rank=3) == size.additions(3)
    adapter = add_adapter(loaded, rank=5, alpha=8, targets=["q_proj"], seed=0)
    adapter.save_pretrained(tmp_path / "saved")
    assert trained(model=str(tmp_path / "saved")) == 5 * each


def test_5_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CONTROL_GROUP", tmp_path)
    free = devices.free_bytes("cpu")
    assert free is not None and free > 2**20
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert (devices.free_bytes("cpu") or 0) > 2**20
    (tmp_path / "memory.max").write_text("5000\n")
    assert devices.free_bytes("cpu") == 4000


def test_3_logits_of_additions(recipe: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_head, "LOGITS", {"cpu": 1})
    size, passes, budget = size_of(folder), {}, 8192
    assert size is not None
    for kind in ({"adapter": {"of": "base", "rank": 4}}, {"language": {"model": folder}}):
        text = yaml.safe_load(recipe.read_text())
        text["policies"]["main"] = {"policy": kind}
        rows = {row.what: row.size for row in needs_of(load([text], [f"training.token_budget={budget}"]).settings)}
        passes[next(iter(kind))] = rows["one pass of an update of main"]
    fewer = (budget - frozen_head.FEWEST_ROWS) * size.vocabulary * memory.MASTER * memory.LOGITS
    assert passes["language"] - passes["adapter"] == fewer > 0


class Judge(StatefulPart):
    """A reward with a model of its own, which it makes of the policy."""

    def __init__(self) -> None:
        self.copies: list[Any] = []

    @staticmethod
    def loads(options: Any, policies: Any, settings: Any) -> list[LoadedModel]:
        return [LoadedModel(what="judge", size=policies["main"], count=2)]

    def start(self, setup: Any, policies: Any) -> None:
        self.copies = [copy.deepcopy(policies["main"].model) for _ in range(2)]

    def __call__(self, table: Any, iteration: Any) -> Any:
        return {"reward": table["reward"] + table["turn"]}


PLAYED = {
    "policies": ["reference=start"],
    "acting copies": ["training.lag=1"],
    "a critic": ["advantage={archer: {encoder: policy, warmup: 0, batch: 2}}", "loss=reinforce"],
    "a second model": ["reward=[{implicit_process: {lr: 1.0e-3}}, tests.training.test_memory:Judge]"],
    "opponents": [
        "environment={games: {games: [tic_tac_toe]}}", "strategy={self_play: {every: 1, size: 2}}",
        "advantage=reinforce_plus_plus",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", PLAYED)
@pytest.mark.parametrize("lora", ["null", "{rank: 2, alpha: 4}"], ids=["whole", "lora"])
def test_8_every_model_is_counted(
    kind: str, lora: str, folder: str, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = yaml.safe_load(recipe.read_text())
    text |= {"policies": {"main": {"policy": {"language": {"model": folder}}}}, "evaluation": {"tasks": 1}}
    text |= {"rollout": {"tasks": 2, "group": 2, "max_turns": 2, "response_tokens": 4}}
    text |= {"reward": [VARIED], "training": {"iterations": 3, "threads": 1}}
    settings = load([text], [*PLAYED[kind], f"policies.main.policy.language.lora={lora}"]).settings
    size, counts = size_of(folder), []
    assert size is not None

    def count(*_: Any) -> str:
        """Models in memory: their embeddings, each once. Low-rank additions share them."""
        gc.collect()
        shape = next(iter(load_causal_lm(folder).parameters())).shape
        some = [one for one in gc.get_objects() if isinstance(one, torch.nn.Parameter) and one.shape == shape]
        counts.append(len({one.data_ptr() for one in some}))
        return "done"

    count()
    monkeypatch.setattr("palaestra.training.start.closing_line", count)
    train(settings, recipe={}, quiet=True)
    planned = sum(
        loaded.count * (not loaded.adds) for loaded in memory._loaded(settings, memory._sizes(settings))
    ) + sum(one.holds_model for one in memory._sizes(settings).values())
    assert counts[1] - counts[0] == planned - (kind == "acting copies" and lora == "null") * 2


@pytest.mark.parametrize("budget", [8192, 2048, 512])
def test_9_the_budget_is_chosen_once(
    budget: int, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["evaluation.tasks=1", "training.threads=1", "rollout.tasks=2", "rollout.group=2", "rollout.max_turns=1"]
    small += ["rollout.response_tokens=2", f"reward={VARIED}", "training.max_empty=99"]
    one = load([str(recipe)], [*small, "training.iterations=1"])
    needed = sum(row.size for row in needs_of(load([str(recipe)], [f"training.token_budget={budget}"]).settings))
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2 * needed)
    train(one.settings, recipe=one.to_json())
    assert capsys.readouterr().err.count(f"training.token_budget={budget}: chosen at the start") == 1
    key = {"value": budget, "origin": "chosen at the start"}
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["training.token_budget"] == key
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2 * needed * (1 if budget == 512 else 2) + 10**9)
    budgets: list[int] = []

    def noted(trainer: Trainer) -> Iteration:
        made = next_iteration(trainer)
        budgets.append(made.token_budget)
        return made

    monkeypatch.setattr(Trainer, "iteration", noted)
    for name in (str(recipe), str(tmp_path / "run")):  # by the recipe, which has no budget, and by the run
        two = resolve([name, *small, f"training.iterations={2 + len(budgets)}"])
        train(two.settings, recipe=two.to_json(), resume=True)
        assert json.loads((tmp_path / "run" / "recipe.json").read_text())["training.token_budget"] == key
        said = capsys.readouterr().err
        assert "token_budget" not in said and "changed: training.iterations" in said
    assert budgets == [budget] * 2
    other = resolve([str(recipe), *small, "training.iterations=4", "training.token_budget=100"])
    train(other.settings, recipe=other.to_json(), resume=True)
    assert f"changed: training.token_budget {budget} -> 100" in capsys.readouterr().err


def test_9_models_made_on_the_spot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["training.iterations=1", "evaluation.tasks=1", "training.token_budget=null"]
    small = load(["cartpole.yaml"], [f"run={tmp_path / 'run'}", *few])
    assert small.settings.training.token_budget is None
    train(small.settings, recipe=small.to_json())
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["training.token_budget"]["value"] == 8192
    assert "token_budget" not in capsys.readouterr().err


def test_9_processes_on_one_machine_share_its_memory(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(row.size for row in needs_of(load([str(recipe)], ["training.token_budget=8192"]).settings))
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2 * needed)
    assert memory.with_budget(load([str(recipe)]).settings).training.token_budget == 8192
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memory.with_budget(load([str(recipe)]).settings).training.token_budget == 512


def test_10_the_budget_changes_no_number(recipe: Path, folder: str, tmp_path: Path) -> None:
    text = yaml.safe_load(recipe.read_text())
    language = {"model": folder, "packing": True, "lora": {"rank": 2, "alpha": 4}}
    text |= {"policies": {"main": {"policy": {"language": language}}}, "evaluation": {"tasks": 1}}
    text |= {"rollout": {"tasks": 2, "group": 3, "max_turns": 3, "response_tokens": 4}, "reference": "start"}
    text |= {"reward": [VARIED, {"implicit_process": {"lr": 1e-3, "updates": 2}}], "loss": "gspo"}
    text |= {"regularizers": [{"kl": {"coefficient": 0.1}}], "optimizer": {"adamw": {"lr": 1e-2}}}
    text |= {"training": {"iterations": 1, "epochs": 2, "minibatches": 2, "threads": 1}}
    runs = []
    for budget in (16, 256, 8192):
        found = load([text], [f"training.token_budget={budget}", f"run={tmp_path / str(budget)}"])
        train(found.settings, recipe=found.to_json(), quiet=True)
        runs.append(json.loads((tmp_path / str(budget) / "metrics.jsonl").read_text().splitlines()[0]))
    assert runs[0]["policy/grad_norm"] > 0 and runs[0]["prm/grad_norm"] > 0
    for run in runs[1:]:
        for key in runs[0]:
            assert run[key] == pytest.approx(runs[0][key], rel=1e-4, abs=1e-6), key


MOVING = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}  # positions that depend on numbers
NO_PASS = [
    LlamaConfig(vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                rope_parameters=MOVING),
    MixtralConfig(vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                  num_key_value_heads=2, num_local_experts=2, head_dim=16),
]  # fmt: skip


@pytest.mark.parametrize("config", NO_PASS, ids=lambda config: config.model_type)
def test_7_a_pass_that_cannot_be_counted(
    config: Any, folder: str, recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "other"
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    size = size_of(str(model))
    assert size is not None and size.kept("float32") is None and size.parameters and size.cache_per_token
    recipe.write_text(recipe.read_text().replace(folder, str(model)))
    settings = load([str(recipe)]).settings
    assert [row.what for row in needs_of(settings)] == ["weights of base", "training of main", "the program"]
    capfd.readouterr()
    plan.run(recipe=[str(recipe)])
    shown = capfd.readouterr()
    assert "cannot be counted" in shown.out and shown.err == ""


def test_7_without_attention(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=8)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    size = size_of(str(tmp_path))
    assert size is not None and size.parameters and size.cache_per_token is None


def test_7_a_folder_that_cannot_be_loaded(folder: str, recipe: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text('{"model_type": "no such thing"}')
    recipe.write_text(recipe.read_text().replace(folder, str(damaged)))
    with pytest.raises(CheckpointError, match=r"its config\.json cannot be read"):
        train(load([str(recipe)]).settings, recipe={}, quiet=True)


def test_7_shards_loads_and_orders(folder: str, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1)
    memory.refuse_what_cannot_fit(load([str(recipe)], ["training.shard=true"]).settings)
    text = yaml.safe_load(recipe.read_text())
    both = text["policies"]
    text["policies"] = {"first": {**both["main"], "trainable": False}, **both}  # an adapter before its base
    text["policies"]["base"] = {"policy": {"language": {}}, "load": folder, "trainable": False}
    settings = load([text]).settings
    assert set(memory._sizes(settings)) == {"first", "base", "main"}


UPDATE = """
import re, torch
from pathlib import Path
from palaestra.models.causal_lm import load_causal_lm
torch.set_num_threads(1)
def peak():  # `getrusage` would tell the peak of the process that started this one, if it was larger
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
model = load_causal_lm({model!r}).to(torch.{dtype})
def read(rows):
    return model.base_model(input_ids=torch.zeros(rows, 128, dtype=torch.long), use_cache=False).last_hidden_state
read(1).sum().backward()  # now all weights and gradients are in memory
before = peak()
read({rows}).sum().backward()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_6_a_real_pass(smollm2: str, dtype: str) -> None:
    code = UPDATE.format(model=smollm2, rows=8, dtype=dtype)
    used = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    size = size_of(smollm2)
    kept = size.kept(dtype) if size else None
    assert kept is not None
    planned = 8 * 128 * kept
    assert 0.5 * planned < used < memory.TEMPORARY * planned
