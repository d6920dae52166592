"""Small runs, one for each way in which tensors reach a device; tests play them on a fake device and on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train

TRAINING: dict[str, Any] = {
    "seed": 3,
    "optimizer": {"adamw": {"lr": 1e-3}},
    "training": {"iterations": 2, "token_budget": 512, "threads": 1, "max_empty": 99},
    "evaluation": {"tasks": 4},
}
TINY = {"hidden": 32, "layers": 1, "heads": 2, "context": 128, "vocabulary": 300}
CLONED = {"episodes": 48, "epochs": 8, "batch_tokens": 256, "optimizer": {"adamw": {"lr": 1e-2}}}
LANGUAGE: dict[str, Any] = {
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": {"language": {**TINY, "value_head": True}}}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 2, "response_tokens": 3},
    "warm_start": CLONED,
}
NETWORK: dict[str, Any] = {
    "environment": {"rooms": {"rooms": 4, "max_turns": 6, "mazes": 2}},
    "policies": {"main": {"policy": {"network": {"hidden": [16, 8]}}}},
    "rollout": {"runner": "vector", "tasks": 2, "group": 4, "max_turns": 6, "in_flight": 8},
    "warm_start": {"episodes": 16, "epochs": 2},
}
PPO: dict[str, Any] = {
    "advantage": {"ppo": {}},
    "loss": {"ppo_clip": {}},
    "regularizers": [{"value": {}}, {"entropy": {}}, {"kl": {}}],
    "reference": "start",
    "training": {"epochs": 2, "minibatches": 2, "agent_gradients": True},
}
QUESTIONS = {"environment": {"twenty_questions": {"objects": 4, "attributes": 3, "questions": 3}}}
ARCHER = {
    "advantage": {"archer": {"batch": 8, "critic_updates": 2, "warmup": 1, "capacity": 40, "hidden": 8}},
    "loss": {"reinforce": {}},
}
HAPO = {
    "advantage": {"hapo": {}},
    "loss": {"hapo": {"quantile": 0.8}},
    "training": {"epochs": 2, "minibatches": 2},
}
# By name the layers of a recipe, over TRAINING.
RUNS: dict[str, list[Any]] = {
    "language": [LANGUAGE, PPO],
    "grouped": [LANGUAGE, {"advantage": {"grpo": {"scale": "none"}}}],
    "mlp": [NETWORK, PPO],
    "gru": [NETWORK, PPO, {"policies": {"main": {"policy": {"network": {"hidden": [16, 8], "body": "gru"}}}}}],
    "adapters": [
        PPO,
        {
            "environment": {"echo": {"turns": 2, "agents": ["a", "b"]}},
            "policies": {
                "base": {"policy": {"language": TINY}, "trainable": False},
                "one": {"policy": {"adapter": {"of": "base", "rank": 2, "value_head": True}}},
                "two": {"policy": {"adapter": {"of": "base", "rank": 2, "value_head": True}}},
            },
            "agents": {"a": {"policy": "one"}, "b": {"policy": "two"}},
            "rollout": {"tasks": 4, "group": 4, "max_turns": 2, "response_tokens": 3},
            "warm_start": {**CLONED, "frozen": True},
        },
    ],
    "implicit": [
        LANGUAGE,
        {"reward": ["environment", {"implicit_process": {"lr": 1e-3}}], "advantage": {"grpo": {"scale": "none"}}},
    ],
    "progress": [
        LANGUAGE,
        {"reward": {"progress": {"explore": 0, "epochs": 1, "hidden": 8}}, "advantage": {"grpo": {"scale": "none"}}},
    ],
    "archer": [{**NETWORK, **QUESTIONS}, ARCHER],
    "archer_language": [
        {
            **LANGUAGE,
            **QUESTIONS,
            "agents": {"*": {"policy": "main", "context": "latest_only"}},
            "warm_start": {**CLONED, "episodes": 8, "epochs": 2},
        },
        {"advantage": {"archer": {**ARCHER["advantage"]["archer"], "encoder": "policy"}}, "loss": {"reinforce": {}}},
    ],
    "ahead": [LANGUAGE, {"training": {"max_staleness": 1}}],
    "disturbed": [LANGUAGE, {"training": {"actor_noise": 0.05}}],
    "heated": [LANGUAGE, {"strategy": [{"adaptive_temperature": {"strength": 0.2}}], **HAPO}],
    "covariance": [NETWORK, {"loss": {"ppo_clip_cov": {"share": 0.5, "lower": -9, "upper": 9}}}],
    "preferred": [
        NETWORK,
        {"loss": {"preference": {}}, "reference": "start", "aggregate": {"how": "sequence-mean"}},
    ],
    "replayed": [NETWORK, {"selection": [{"replay_success": {"how": "add", "expert": True}}]}],
    "muon": [LANGUAGE, PPO, {"optimizer": {"muon_clip": {"lr": 1e-3, "tau": 0.01}}}],
}


def played(name: str, folder: Path, *overrides: str, **options: Any) -> Path:
    """Train the small run of this name in a folder; `overrides` are those of the command line."""
    recipe = load([TRAINING, *RUNS[name]], [f"run={folder}", *overrides])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
    return folder


def log(folder: Path) -> list[dict[str, float]]:
    """The metrics of each iteration, without what a clock says."""
    return [
        {key: value for key, value in line.items() if not key.startswith("time/")}
        for line in MetricsLog(folder).metrics.read()
    ]


def newest(folder: Path) -> Path:
    """The last checkpoint."""
    return sorted((folder / "checkpoints").iterdir())[-1]
