"""One set of tasks, played by a run, its exported folder, its adapter, and the same model behind `palaestra serve`: the
first three have equal results of every episode; the endpoint has them at temperature 0, and otherwise its success
differs by less than three standard errors.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palaestra.models.causal_lm import make_causal_lm
from tests.commands.conftest import Command
from tests.commands.test_players import outcomes, played, result
from tests.extras import absent, needs

pytestmark = [needs("openai", "fastapi", "uvicorn", "trl"), pytest.mark.slow]
if not absent(*pytestmark[0].args):
    from tests.chat.templates import tokenizer_of
    from tests.commands.test_serve import address_in, command

WHOLE = {
    "name": "whole",
    "seed": 1,
    "environment": {"echo": {}},
    "agents": {"*": {"policy": "main", "context": "full_history"}},
    "policies": {"main": {"policy": {"language": {"model": "base"}}}},
    "warm_start": {"episodes": 128, "epochs": 8, "batch_tokens": 1024, "optimizer": {"adamw": {"lr": 0.005}}},
    "rollout": {"tasks": 4, "group": 4, "response_tokens": 6},
    "advantage": "grpo",
    "training": {"iterations": 1, "threads": 1},
    "evaluation": {"tasks": 32},
}
ADDED = {
    "name": "added",
    "policies": {"main": {"policy": {"language": {"model": "hf", "lora": {"rank": 4, "alpha": 8}}}}},
    "warm_start": None,
    "optimizer": {"adamw": {"lr": 0.005}},
    "regularizers": [{"entropy": {"coefficient": 0.1}}],  # so that every update changes weights
    "training": {"iterations": 2},
}
SAMPLED = ("--temperature", 1.4, "--samples", 12, "--seed", 5)


def test_one_policy_in_four_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, palaestra: Command) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = tokenizer_of("qwen2_5")
    make_causal_lm(vocabulary=len(tokenizer), hidden=64, layers=2, heads=2, context=512, seed=1).save_pretrained("base")
    tokenizer.save_pretrained("base")
    Path("whole.yaml").write_text(json.dumps(WHOLE))
    Path("added.yaml").write_text(json.dumps(ADDED))
    assert palaestra("train", "whole.yaml", "--quiet").code == 0
    assert palaestra("export", "runs/whole", "hf").code == 0
    assert palaestra("train", "whole.yaml", "added.yaml", "--quiet").code == 0
    assert palaestra("export", "runs/added", "exported").code == 0
    with command(str(tmp_path / "exported"), "--max-tokens", "8") as (_, line):
        served = ("--policy", address_in(line), "--model", "exported")
        for how in ((), SAMPLED):
            of_run = result(palaestra, "runs/added", *how)
            for player in ("exported", "exported/adapter"):
                assert played(result(palaestra, "runs/added", "--policy", player, *how)) == played(of_run), player
            of_endpoint = result(palaestra, "runs/added", *served, *how)
            success, low, high = (of_run["success"][part] for part in ("value", "low", "high"))
            error = 2**0.5 * (high - low) / 3.92  # of the difference of two such values
            assert abs(success - of_endpoint["success"]["value"]) <= 3 * error and of_endpoint["tasks"] == 32
            if how:
                assert 0.05 < success < 0.95 and low > 0 and high < 1, "some episodes succeed and some do not"
            else:
                assert outcomes(of_endpoint) == outcomes(of_run) and success > 0
