"""The cost of an episode and of its training step as turns grow: `python benchmarks/turns.py`.

"once" is the library: the engine keeps keys and values between turns, and an episode is one training sequence.
"reread" sends the whole prompt again every turn to an engine that forgets, and trains one sequence per turn.
Both play the same tokens and take the same gradient; both are checked. Rollout seconds are those of whole
episodes, environment and event loop included.

Ratios are of processor seconds: the benchmark runs in one thread, and on a machine that is shared wall time also
counts other programs. Wall seconds stand beside them.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe
from matplotlib.figure import Figure

from palaestra.chat import FullHistory
from palaestra.data import Batch, Play, RunSetup, Step, Trajectory, derive
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import Engine, Request, Response
from palaestra.engines import InProcessEngine
from palaestra.policies.language import LanguagePolicy
from palaestra.registry import part
from palaestra.registry.bound import BoundPart, bind
from palaestra.rollout.roles import Role
from palaestra.rollout.settings import RolloutSettings
from palaestra.testing.fakes import WORDS, EchoEnvironment
from palaestra.training.loop import prepare
from palaestra.training.stages import Stages
from palaestra.training.updates import Updater

RESULT = Path(__file__).parent / "results" / "turns.json"
TURNS = (1, 2, 4, 8, 16, 32)
LIMITS = {"tokens": 1.15, "speed": 4.0}  # at the most turns: ids computed per id of the episode, reread / once
VARIANTS = ("once", "reread")
TOKEN_BUDGET = 8192  # the default of a recipe


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of the model and of the episodes: `padding` words fill an observation, a response has at most `response` ids."""

    hidden: int = 64
    layers: int = 2
    context: int = 2048
    padding: int = 28
    response: int = 4
    groups: int = 2
    group: int = 4


# ---- the variant that reads everything again ------------------------------------------------------------------
@dataclass
class Rereading(Engine):
    """An engine that keeps ids and no keys and values: every request sends the whole prompt to a new session."""

    engine: InProcessEngine
    histories: dict[Hashable, list[np.ndarray]] = field(default_factory=dict)

    async def generate(self, request: Request) -> Response:
        history = self.histories.setdefault(request.session, [])
        history.append(request.prompt)
        turn = (request.session, len(history))
        response = await self.engine.generate(replace(request, session=turn, prompt=np.concatenate(history)))
        self.engine.close(turn)
        history.append(response.action.tokens)
        return response

    def close(self, session: Hashable) -> None:
        self.histories.pop(session, None)


def one_sequence_per_turn(trajectory: Trajectory) -> Trajectory:
    """The same episode, each turn a segment of its own which starts with everything before it."""
    steps: list[Step] = [
        replace(step, prompt=trajectory.prompt_of(step), segment=number) for number, step in enumerate(trajectory.steps)
    ]
    return replace(trajectory, steps=steps)


# ---- what is measured -----------------------------------------------------------------------------------------
@dataclass
class Side:
    """One variant: a policy to play with and one to train, so that playing never changes."""

    player: LanguagePolicy
    engine: InProcessEngine
    learner: LanguagePolicy
    updater: Updater


def make_policy(sizes: Sizes) -> LanguagePolicy:
    texts = [f"say {word}" for word in WORDS] + ["please please please"] * 4
    setup = RunSetup(seed=0, texts=lambda: texts)
    return LanguagePolicy(
        "main", setup, hidden=sizes.hidden, layers=sizes.layers, context=sizes.context, vocabulary=320
    )


def make_side(variant: str, sizes: Sizes) -> Side:
    player = make_policy(sizes)
    engine = InProcessEngine(models={"main": player.model}, share=variant == "once")
    player.engine = engine if variant == "once" else Rereading(engine)
    learner = make_policy(sizes)  # equal seeds give equal weights
    optimizer = bind("optimizer", BoundPart(name="adamw", options={"lr": 1e-3}))
    updater = Updater(
        policy=learner,
        optimizer=optimizer(list(learner.module.parameters())),
        loss=bind("loss", BoundPart(name="ppo_clip")),
        regularizers=[],
        how="token-mean",
        constant=None,
        epochs=1,
        minibatches=1,
        token_budget=TOKEN_BUDGET,
    )
    return Side(player, engine, learner, updater)


def play(side: Side, turns: int, sizes: Sizes) -> list[Trajectory]:
    """All episodes, with rewards drawn afterwards so that each of them moves something."""
    setup = RunSetup(
        environment_name="echo",
        make_environment=functools.partial(EchoEnvironment, turns=turns, padding=sizes.padding),
        roles={"*": Role(policy=side.player, context=FullHistory())},
        program=part("program", "play").target,
        environment_options={},
    )
    tasks = EchoEnvironment().tasks("train", sizes.groups, seed=0)
    plays = [
        Play(task=task, group=str(g), sample=i, seed=derive(g, i))
        for g, task in enumerate(tasks)
        for i in range(sizes.group)
    ]
    settings = RolloutSettings(max_turns=turns, response_tokens=sizes.response)
    played = part("rollout", "episodes").target(setup, settings).collect(plays)
    dice = np.random.default_rng(0)
    for trajectory in played:
        if trajectory.error is not None:
            raise RuntimeError(trajectory.error.message)
        trajectory.steps[-1].reward = float(dice.normal())
    return played  # type: ignore[no-any-return]


def learn(side: Side, played: Sequence[Trajectory]) -> tuple[float, int]:
    """One update. Returns the gradient's norm and how many ids the model read."""
    stages = Stages(
        reward=[bind("reward", BoundPart(name="environment"))],
        selection=[],
        advantage=[bind("advantage", BoundPart(name="grpo"))],
        weights=[],
        updates={"main": side.updater.parts},
    )
    iteration = Iteration({"main": side.learner}, 0, 0, 1.0, TOKEN_BUDGET)
    batch = Batch.of(played)
    prepare(batch, stages, iteration, several_updates=False)
    norm = side.updater.update(batch, iteration, seed=0)["policy/grad_norm"]
    return norm, int(iteration.samples("main").cost.sum())


def measure(turns: int, sizes: Sizes, repeats: int) -> dict[str, Any]:
    """One row: both variants in turn, medians of `repeats` after one to warm up."""
    sides = {variant: make_side(variant, sizes) for variant in VARIANTS}
    clocks = {f"{what}_{variant}": Clock() for what in ("rollout", "training") for variant in VARIANTS}
    counts: dict[str, int] = {}
    norms: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    sampled: dict[str, list[int]] = {}
    for _ in range(repeats + 1):
        for variant, side in sides.items():
            side.engine.sleep()  # each repeat begins without keys and values
            side.engine.statistics.reset()
            with clocks[f"rollout_{variant}"]:
                played = play(side, turns, sizes)
            counts[f"engine_tokens_{variant}"] = side.engine.statistics.computed_tokens
            counts["episode_tokens"] = sum(len(s.prompt) + len(s.action.tokens) for t in played for s in t.steps)
            sampled[variant] = [int(i) for t in played for s in t.steps for i in s.action.tokens]
            batch = played if variant == "once" else [one_sequence_per_turn(t) for t in played]
            with clocks[f"training_{variant}"]:
                norm, counts[f"training_tokens_{variant}"] = learn(side, batch)
            norms[variant].append(norm)
    return row(turns, counts, clocks) | {
        "same_tokens": sampled["once"] == sampled["reread"],
        "gradient_norm_difference": max(abs(a - b) / a for a, b in zip(*norms.values(), strict=True)),
    }


@dataclass
class Clock:
    """A context that remembers the wall and processor seconds of each of its uses; the first warms up."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def __enter__(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def __exit__(self, *exception: object) -> None:
        self.wall.append(time.perf_counter() - self._begun[0])
        self.processor.append(time.process_time() - self._begun[1])

    def median(self, kind: str) -> float:
        return statistics.median(getattr(self, kind)[1:])


def row(turns: int, counts: dict[str, int], clocks: dict[str, Clock]) -> dict[str, Any]:
    """Counts and seconds with their ratios."""
    seconds = {name: clock.median("processor") for name, clock in clocks.items()}
    totals = {v: seconds[f"rollout_{v}"] + seconds[f"training_{v}"] for v in VARIANTS}
    return {
        "turns": turns,
        **counts,
        **{f"engine_tokens_per_token_{v}": counts[f"engine_tokens_{v}"] / counts["episode_tokens"] for v in VARIANTS},
        **{f"{name}_seconds": value for name, value in seconds.items()},
        **{f"{name}_wall_seconds": clock.median("wall") for name, clock in clocks.items()},
        "rollout_ratio": seconds["rollout_reread"] / seconds["rollout_once"],
        "training_ratio": seconds["training_reread"] / seconds["training_once"],
        "ratio": totals["reread"] / totals["once"],
        "ratio_wall": _total(clocks, "reread") / _total(clocks, "once"),
    }


def _total(clocks: dict[str, Clock], variant: str) -> float:
    return sum(clocks[f"{what}_{variant}"].median("wall") for what in ("rollout", "training"))


# ---- report ---------------------------------------------------------------------------------------------------
def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds and computed ids against turns, both axes logarithmic."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    turns = [r["turns"] for r in rows]
    for panel, what, title in zip(
        panels,
        ("rollout_{}_seconds", "training_{}_seconds", "engine_tokens_per_token_{}"),
        ("rollout, processor seconds", "training step, processor seconds", "ids computed per id of the episode"),
        strict=True,
    ):
        for variant, color in zip(VARIANTS, ("#2066a8", "#c46666"), strict=True):
            panel.plot(turns, [r[what.format(variant)] for r in rows], "o-", color=color, label=variant)
        panel.set(xscale="log", yscale="log", xlabel="turns", title=title)
        panel.set_xticks(turns, [str(t) for t in turns], minor=False)
        panel.minorticks_off()
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, nargs="+", default=list(TURNS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=Sizes.hidden)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    sizes = Sizes(hidden=options.hidden)
    rows = []
    for turns in options.turns:
        rows.append(measure(turns, sizes, options.repeats))
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}), flush=True)
    content = {"machine": describe(), "sizes": vars(sizes), "limits": LIMITS, "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    plot(rows, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
