"""What policies of their own cost a team of three: `python benchmarks/separate_policies.py`.

Three roles act in every turn of 64 or 128 episodes. Three arms play the same episodes and learn from them:

    shared      one policy plays all three roles
    separate    each role has a policy of its own, with all its weights, an optimizer and a place in the engine
    adapters    each role has a low-rank adapter of its own on one frozen base

All arms begin with the same weights, draws depend on episode, role and turn only, and the learning rate is so small
that no weight moves: so the arms read and write the same tokens, id by id, in every iteration (checked below).
Everything else is what a training run does. The arms take turns in one process, iteration by iteration, so that
whatever else runs on the machine slows all of them; medians over iterations. `update` is everything between the last
episode and the next iteration (tables, advantages, passes, gradients, optimizer); `iteration` is that and the rollout.

Cases differ in what is hard for separate policies:

    in order          the roles of all episodes act in the same order: the engine serves mostly one policy at a time
    routed            the first role's act is followed by one of the two others: passes are often cut in two
    mixed             every episode has an order of its own: each pass of the engine is cut in three
    4 mini-batches    three policies make three times as many optimizer steps, each on a third of the tokens
    small             a model so small that the number of calls counts more than the work in them

With n mini-batches each policy makes n optimizer steps an iteration, as in the literature on separate policies
(arXiv 2602.08847: one and five).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
from machine import describe

from palaestra.data import derive
from palaestra.recipe import load
from palaestra.registry import register
from palaestra.rollout.programs import acted_by
from palaestra.store.folder import RunFolder
from palaestra.training.loop import Trainer
from palaestra.training.progress import Progress
from palaestra.training.start import _start_learners, _trainer  # runs are driven below: they take turns

RESULT = Path(__file__).parent / "results" / "separate_policies" / "costs.json"
ROLES = ("planner", "solver", "checker")
LIMIT = 1.15  # how much longer separate policies may take: of updates and of whole iterations
MIDDLE = {"hidden": 128, "layers": 4, "heads": 4, "context": 128, "vocabulary": 512}
SMALL = {"hidden": 64, "layers": 2, "heads": 4, "context": 128, "vocabulary": 512}
CASES: dict[str, dict[str, Any]] = {
    "in order": {"model": MIDDLE, "order": "same", "minibatches": 1, "tasks": 8},
    "4 mini-batches": {"model": MIDDLE, "order": "same", "minibatches": 4, "tasks": 8},
    "small, in order": {"model": SMALL, "order": "same", "minibatches": 1, "tasks": 16},
    "small, routed": {"model": SMALL, "order": "routed", "minibatches": 1, "tasks": 16},
    "small, mixed": {"model": SMALL, "order": "mixed", "minibatches": 1, "tasks": 16},
}


@register("program", "three_in_turn")
@acted_by(*ROLES)
async def three_in_turn(episode: Any, *, order: Literal["same", "routed", "mixed"] = "same") -> None:
    """All three act in each turn, or, `routed`, the first and one of the others; the last act is the environment's."""
    draw = np.random.default_rng(derive(episode.play.seed, "order"))
    names = list(draw.permutation(ROLES)) if order == "mixed" else list(ROLES)
    result = await episode.reset()
    while result.observations:
        (seen,) = result.observations.values()
        for name in names if order != "routed" else (names[0], names[draw.integers(1, 3)]):
            action = await episode.agents[name].act(seen)
            episode.agents[name].reward(float(action.tokens[0] % 5))
        result = await episode.step({name: action})


def recipe(arm: str, case: dict[str, Any]) -> dict[str, Any]:
    """One arm's recipe."""
    whole = {"policy": {"language": case["model"]}}
    policies: dict[str, Any] = {"main": whole}
    if arm == "separate":
        policies = dict.fromkeys(ROLES, whole)
    if arm == "adapters":
        policies = {"base": whole | {"trainable": False}}
        policies |= {role: {"policy": {"adapter": {"of": "base", "rank": 8}}} for role in ROLES}
    return {
        "seed": 1,
        "environment": {"echo": {"turns": 3 if case["order"] == "routed" else 2, "padding": 24}},
        "program": {f"{Path(__file__).resolve()}:three_in_turn": {"order": case["order"]}},
        "agents": {role: {"policy": "main" if arm == "shared" else role, "context": "latest_only"} for role in ROLES},
        "policies": policies,
        "rollout": {"tasks": case["tasks"], "group": 8, "max_turns": 8, "response_tokens": 16, "in_flight": 512},
        "advantage": {"dr_mas": {"by": ["group", "agent"], "unit": "row"}},
        "optimizer": {"adamw": {"lr": 1e-30}},
        "training": {"iterations": 1, "minibatches": case["minibatches"], "threads": 1},
        "evaluation": {"tasks": 1},
    }


class Arm:
    """One run in motion, and what its iterations took."""

    def __init__(self, name: str, case: dict[str, Any], folder: str) -> None:
        made = load([recipe(name, case)], [f"run={folder}/{name}"])
        self.trainer: Trainer = _trainer(
            made.settings, RunFolder.create(f"{folder}/{name}"), Progress(total=1, quiet=True)
        )
        _start_learners(self.trainer)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.tokens: list[tuple[int, ...]] = []
        self._collected = (0.0, 0.0)
        collect = self.trainer.experience.collect

        def timed(step: int) -> Any:
            batch = collect(step)
            self._collected = time.perf_counter(), time.process_time()
            acts = [s.action.tokens for t in batch.played for s in t.steps]
            self.tokens.append(tuple(int(token) for tokens in acts for token in tokens))
            return batch

        self.trainer.experience.collect = timed  # type: ignore[method-assign]

    def iterate(self) -> None:
        """One iteration, timed."""
        wall, processor = time.perf_counter(), time.process_time()
        self.trainer.iterate()
        for kind, begun, between, now in (
            ("wall", wall, self._collected[0], time.perf_counter()),
            ("processor", processor, self._collected[1], time.process_time()),
        ):
            self.seconds[f"iteration {kind}"].append(now - begun)
            self.seconds[f"rollout {kind}"].append(between - begun)
            self.seconds[f"update {kind}"].append(now - between)


def measure(case: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Medians of each arm, and how many times longer than `shared` it takes in the same round."""
    with tempfile.TemporaryDirectory() as folder:
        arms = {name: Arm(name, case, folder) for name in ("shared", "separate", "adapters")}
        for round_number in range(repeats + 1):
            names = list(arms)
            for name in names[round_number % 3 :] + names[: round_number % 3]:
                arms[name].iterate()
        assert all(arm.tokens == arms["shared"].tokens for arm in arms.values()), "the arms did not do the same"
        for arm in arms.values():
            arm.trainer.setup.runner.close()
    found: dict[str, Any] = {"tokens": len(arms["shared"].tokens[0])}
    for name, arm in arms.items():
        kept = {key: values[1:] for key, values in arm.seconds.items()}  # the first round warms caches
        shared = {key: values[1:] for key, values in arms["shared"].seconds.items()}
        found[name] = {
            "seconds": {key: statistics.median(values) for key, values in kept.items()},
            "times_shared": {
                key: statistics.median(a / b for a, b in zip(values, shared[key], strict=True))
                for key, values in kept.items()
            },
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--check", action="store_true", help="fail if separate policies cost more than is promised")
    chosen = parser.parse_args()
    found = {}
    for name in chosen.cases:
        found[name] = measure(CASES[name], chosen.repeats)
        for arm in ("separate", "adapters"):
            ratios = {key: f"{value:.2f}" for key, value in found[name][arm]["times_shared"].items()}
            print(f"{name:26} {arm:9} {ratios}")
    content = {"machine": describe(("numpy", "transformers", "peft")), "limit": LIMIT, "repeats": chosen.repeats}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(content | {"cases": found}, indent=1) + "\n", encoding="utf-8")
    if chosen.check:
        ratios = found["in order"]["separate"]["times_shared"]
        assert ratios["update wall"] <= LIMIT and ratios["iteration wall"] <= LIMIT


if __name__ == "__main__":
    main()
