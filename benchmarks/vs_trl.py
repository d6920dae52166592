"""One GRPO step (arXiv 2402.03300), ours and TRL's: `python benchmarks/vs_trl.py`; needs the extra `bench`.

Both sides start from the same lists of token ids and rewards and end with the optimizer's step: advantages, one
forward pass with log-probabilities and entropies, clipped loss, backward pass, clipping by norm, AdamW. The model
has equal first weights, batches are equal, and one micro-batch holds them.

TRL's side is its own `train()`, from `on_step_begin` to `on_step_end`. Its public `rollout_func` gives the
recorded ids and `reward_funcs` the recorded rewards. Left out of it, to be fair: generation, decoding of texts,
data loading, logging. Ours runs inside TRL's `on_step_end`, so that both alternate and share the machine's moods.
Gradients and weights are compared: times of different work would mean nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from machine import describe
from torch import Tensor

from palaestra.data import Action, Batch, FinishReason, Observation, RunSetup, Step, Task, Trajectory
from palaestra.data.iteration import Iteration
from palaestra.models.causal_lm import make_causal_lm
from palaestra.models.tokenizer import train_tokenizer
from palaestra.policies.language import LanguagePolicy
from palaestra.registry.bound import BoundPart, bind
from palaestra.training.loop import prepare
from palaestra.training.stages import Stages
from palaestra.training.updates import Updater

RESULT = Path(__file__).parent / "results" / "vs_trl.json"
LIMIT = 1.3  # TRL's seconds over ours
RATE, CLIP, NORM = 1e-3, 0.2, 1.0
TOKEN_BUDGET = 1 << 20  # one micro-batch, as on the other side


# ---- what is trained on ---------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes of a model and of a batch: `groups` × `group` episodes of `turns` turns.

    `prompt` ids come before each response, `response` is the least and the greatest length of one.
    `compact_head`: TRL changed to what it does on GPUs, see `_compact_head`.
    """

    hidden: int = 64
    layers: int = 2
    vocabulary: int = 1024
    groups: int = 4
    group: int = 8
    turns: int = 1
    prompt: int = 64
    response: tuple[int, int] = (64, 64)
    compact_head: bool = False


CASES = {
    "plain": Case(),
    "plain, hidden 128, 4 layers": Case(hidden=128, layers=4),
    "plain, vocabulary 4096": Case(vocabulary=4096),
    "plain, TRL changed: head at responses only": Case(compact_head=True),
    "plain, hidden 128, 4 layers, TRL changed": Case(hidden=128, layers=4, compact_head=True),
    "responses of 8 to 64 ids": Case(response=(8, 64)),
    "8 turns of 24 + 4 ids": Case(turns=8, prompt=24, response=(4, 4)),
}
HEADLINE = "plain"


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Per turn the new prompt ids and the response ids, and one reward at the end."""

    group: int
    prompts: list[list[int]]
    responses: list[list[int]]
    reward: float


def episodes(case: Case, *, seed: int) -> list[Episode]:
    """A batch; the first prompt is that of the group."""
    dice = np.random.default_rng(seed)

    def ids(length: int) -> list[int]:
        return dice.integers(4, case.vocabulary, length).tolist()  # type: ignore[no-any-return]

    batch = []
    for group in range(case.groups):
        first = ids(case.prompt)
        for _ in range(case.group):
            prompts = [first, *(ids(case.prompt) for _ in range(case.turns - 1))]
            responses = [ids(int(dice.integers(case.response[0], case.response[1] + 1))) for _ in prompts]
            batch.append(Episode(group=group, prompts=prompts, responses=responses, reward=float(dice.normal())))
    return batch


# ---- our side -------------------------------------------------------------------------------------------------
@dataclass
class Ours:
    """A policy around `model`, and the stages of GRPO."""

    policy: LanguagePolicy
    stages: Stages
    updater: Updater

    def step(self, played: Sequence[Episode]) -> float:
        """From ids and rewards to the optimizer's step. Returns the gradient's norm before clipping."""
        batch = Batch.of([_trajectory(episode, sample) for sample, episode in enumerate(played)])
        iteration = Iteration({"main": self.policy}, 0, 0, 1.0, TOKEN_BUDGET)
        prepare(batch, self.stages, iteration, several_updates=False)
        return self.updater.update(batch, iteration, seed=0)["policy/grad_norm"]

    @contextmanager
    def clipped_gradient(self) -> Iterator[list[Tensor]]:
        """Collects the gradient with which each step inside moves the weights; an update frees it afterwards."""
        kept: list[Tensor] = []
        inner = self.updater.optimizer.inner  # type: ignore[attr-defined]
        hook = inner.register_step_pre_hook(lambda *_: kept.append(_gradient(self.policy.model)))
        try:
            yield kept
        finally:
            hook.remove()


def ours(model: Any) -> Ours:
    """The library's flow, built from the parts that a recipe would name."""
    policy = LanguagePolicy("main", RunSetup(seed=0, texts=lambda: ["x"]), hidden=32, heads=2, vocabulary=300)
    policy.module.model = model
    optimizer = bind("optimizer", BoundPart(name="adamw", options={"lr": RATE, "clip": NORM}))
    updater = Updater(
        policy=policy,
        optimizer=optimizer(list(policy.module.parameters())),
        loss=bind("loss", BoundPart(name="ppo_clip", options={"low": CLIP, "high": CLIP})),
        regularizers=[],
        how="token-mean",
        constant=None,
        epochs=1,
        minibatches=1,
        token_budget=TOKEN_BUDGET,
    )
    stages = Stages(
        reward=[bind("reward", BoundPart(name="environment"))],
        selection=[],
        advantage=[bind("advantage", BoundPart(name="grpo"))],
        weights=[],
        updates={"main": updater.parts},
    )
    return Ours(policy, stages, updater)


def _trajectory(episode: Episode, sample: int) -> Trajectory:
    steps = [
        Step(
            agent="player",
            turn=turn,
            action=Action(tokens=np.array(response, np.int32), finish=FinishReason.STOP),
            observation=Observation(),
            policy="main",
            prompt=np.array(prompt, np.int32),
        )
        for turn, (prompt, response) in enumerate(zip(episode.prompts, episode.responses, strict=True))
    ]
    steps[-1].reward, steps[-1].terminated = episode.reward, True
    return Trajectory(task=Task(env="fixed", seed=episode.group), group=str(episode.group), sample=sample, steps=steps)


# ---- TRL's side -----------------------------------------------------------------------------------------------
def trl_trainer(model: Any, case: Case, batches: Sequence[Sequence[Episode]], steps: int, folder: str) -> Any:
    """Its trainer with the same method and the same batches, one after another."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    size = case.groups * case.group
    config = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=size,
        num_generations=case.group,
        max_completion_length=4096,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        weight_decay=0.0,
        max_grad_norm=NORM,
        beta=0.0,
        num_iterations=1,
        epsilon=CLIP,
        epsilon_high=CLIP,
        loss_type="dapo",  # the mean over all tokens of the batch
        scale_rewards="group",
        temperature=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        log_completions=False,
    )
    turn = iter(range(steps))

    def rollout(prompts: Any, trainer: Any) -> dict[str, Any]:
        return _as_completions(batches[next(turn) % len(batches)])

    def reward(completions: Any, reward_of: Any, **rest: Any) -> Any:
        return reward_of

    tokenizer: Any = train_tokenizer(["x"], vocabulary=300)
    tokenizer.batch_decode = lambda ids, **options: [""] * len(ids)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "x", "reward_of": 0.0}] * case.groups),
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _as_completions(batch: Sequence[Episode]) -> dict[str, Any]:
    """What `rollout_func` returns: later prompts are part of the completion, and `env_mask` is 0 there."""
    completions, masks = [], []
    for episode in batch:
        ids, mask = list(episode.responses[0]), [1] * len(episode.responses[0])
        for prompt, response in zip(episode.prompts[1:], episode.responses[1:], strict=True):
            ids += [*prompt, *response]
            mask += [0] * len(prompt) + [1] * len(response)
        completions.append(ids)
        masks.append(mask)
    fields = {
        "prompt_ids": [episode.prompts[0] for episode in batch],
        "completion_ids": completions,
        "logprobs": None,
        "reward_of": [episode.reward for episode in batch],
    }
    return fields if len(batch[0].prompts) == 1 else fields | {"env_mask": masks}


# ---- side by side ---------------------------------------------------------------------------------------------
@dataclass
class Times:
    """Of each step, after the first few: wall and processor seconds."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    _begun: tuple[float, float] = (0.0, 0.0)

    def begin(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.wall.append(time.perf_counter() - self._begun[0])
        self.processor.append(time.process_time() - self._begun[1])


@dataclass
class Race:
    """What the two sides gave."""

    ours: Times = field(default_factory=Times)
    trl: Times = field(default_factory=Times)
    norms: list[tuple[float, float]] = field(default_factory=list)  # (TRL's, ours) of each step
    gradient_difference: float = 0.0  # of the first step, relative
    weight_difference: float = 0.0  # after the last step, relative


def race(case: Case, steps: int) -> Race:
    """Both sides take `steps` steps in turn, on the same batches, from the same weights."""
    batches = [episodes(case, seed=seed) for seed in range(4)]
    longest = case.turns * (case.prompt + case.response[1])
    theirs = make_causal_lm(
        vocabulary=case.vocabulary, hidden=case.hidden, layers=case.layers, context=max(512, longest), seed=1
    )
    mine = ours(copy.deepcopy(theirs))
    result = Race()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if case.compact_head:
            stack.enter_context(_compact_head())
        trainer = trl_trainer(theirs, case, batches, steps, folder)
        trainer.add_callback(_alternate(result, mine, batches))
        trainer.train()
    logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    result.norms = [(float(norm), own) for norm, (_, own) in zip(logged, result.norms, strict=True)]
    result.weight_difference = _difference(_flat(theirs), _flat(mine.policy.model))
    return result


def _alternate(result: Race, mine: Ours, batches: Sequence[Sequence[Episode]]) -> Any:
    """A callback of TRL's trainer which times its step and then takes ours."""
    from transformers import TrainerCallback

    class Alternate(TrainerCallback):  # type: ignore[misc]
        gradient: Tensor

        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            result.trl.begin()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == 0:
                self.gradient = _gradient(rest["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            result.trl.end()
            first = state.global_step == 1
            with ExitStack() as stack:
                gradient = stack.enter_context(mine.clipped_gradient()) if first else []
                result.ours.begin()
                norm = mine.step(batches[(state.global_step - 1) % len(batches)])
                result.ours.end()
            result.norms.append((0.0, norm))
            if first:
                result.gradient_difference = _difference(self.gradient, gradient[0])

    return Alternate()


def _compact_head() -> Any:
    """TRL 1.16's fused head scores every position on CPUs and only labeled ones on GPUs; this chooses the latter."""
    return mock.patch("trl.trainer.utils._use_triton", lambda device: True)


def _flat(model: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()]).clone()


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm())


# ---- report ---------------------------------------------------------------------------------------------------
def row(case: Case, steps: int, skip: int) -> dict[str, Any]:
    """One case's numbers; the first `skip` steps warm up."""
    result = race(case, steps)
    medians = {
        f"{side}_{clock}_milliseconds": 1000 * statistics.median(getattr(getattr(result, side), clock)[skip:])
        for side in ("trl", "ours")
        for clock in ("wall", "processor")
    }
    norm_difference = max(abs(a - b) / a for a, b in result.norms)
    return {
        "case": vars(case),
        "ratio": medians["trl_wall_milliseconds"] / medians["ours_wall_milliseconds"],
        "ratio_processor": medians["trl_processor_milliseconds"] / medians["ours_processor_milliseconds"],
        **medians,
        "first_gradient_difference": result.gradient_difference,
        "gradient_norm_difference": norm_difference,
        "last_weight_difference": result.weight_difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--skip", type=int, default=4, help="steps to warm up")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.simplefilter("ignore", FutureWarning)  # about option names of transformers
    rows: dict[str, dict[str, Any]] = {}
    for name in options.cases:
        rows[name] = row(CASES[name], options.steps, options.skip)
        print(name, json.dumps({k: round(v, 5) for k, v in rows[name].items() if k != "case"}), flush=True)
    content = {
        "machine": describe(("numpy", "transformers", "trl")),
        "limit": LIMIT,
        "headline": HEADLINE,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
