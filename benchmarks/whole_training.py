"""Whole iterations of training a pretrained model, ours beside TRL's and a plain loop's; needs the extra `bench`.

    python benchmarks/whole_training.py --threads 2

All train as `models/smollm2-words.yaml` does: 16 questions × 8 answers of at most 16 tokens at temperature 1, low-rank
additions of rank 16 on all linear layers, one AdamW update, no KL term. The recipe itself leaves out groups whose
answers are all wrong or all right, and here no side does. But answers whose advantage is 0, those of groups with equal
rewards, have no gradient: Palaestra does not compute them in the update, and the others do. An iteration is generation,
rewards and the update. Each side has a process of its own, and they take turns. The first iterations are left out.

"plain" is what a careful user writes with transformers and peft: `generate` for all answers at once, and padded passes
of 16 sequences, with logits of the answers only. "bfloat16" is what each side offers by that name: ours and the plain
loop compute everything in it, TRL trains in autocast and generates in float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from machine import describe, peak_bytes

RESULT = Path(__file__).parent / "results" / "whole_training.json"
RECIPE = "models/smollm2-words.yaml"
SIDES = tuple(f"{side} {dtype}" for dtype in ("float32", "bfloat16") for side in ("ours", "trl", "plain"))
ROWS = 16  # sequences in a padded pass of the others
LIMIT = 1.5  # TRL's seconds over ours
SKIPPED = 1


# ---- what all sides train on ----------------------------------------------------------------------------------
def recipe_of(options: argparse.Namespace, dtype: str, folder: str) -> Any:
    """The recipe for so many iterations, hardly evaluated."""
    from palaestra.recipe import load

    changes = [f"training.iterations={options.iterations}", f"training.threads={options.threads}", f"dtype={dtype}"]
    changes += ["selection=[all]", "evaluation.tasks=2", f"run={folder}/run"]
    if options.model:
        changes.append(f"policies.main.policy.language.model={options.model}")
    return load([RECIPE], changes)


def questions(settings: Any, iterations: int) -> list[dict[str, Any]]:
    """Rows `prompt`, a chat, and `answer`, for all iterations."""
    world = settings.environment()
    rows = []
    for task in world.tasks("train", settings.rollout.tasks * iterations, seed=1):
        (observation,) = world.reset(task).observations.values()
        rows.append({"prompt": [dict(m) for m in observation.messages], "answer": world.expert(world.agents[0]).text})
    return rows


# ---- our side ---------------------------------------------------------------------------------------------------
def ours(options: argparse.Namespace, dtype: str, folder: str) -> list[dict[str, float]]:
    """Iterations of `palaestra train`, from its log."""
    from palaestra.store.folder import TIMINGS
    from palaestra.store.metrics import read
    from palaestra.training.start import train

    recipe = recipe_of(options, dtype, folder)
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    rows = read(Path(folder) / "run" / TIMINGS)
    return [
        {"generation": row["time/rollout"], "all": row["time/rollout"] + row["time/update"]}
        for row in rows
        if "time/update" in row
    ]


# ---- TRL's side -------------------------------------------------------------------------------------------------
def trl(options: argparse.Namespace, dtype: str, folder: str) -> list[dict[str, float]]:
    """Iterations of its trainer, from one step's begin to the next one's."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    settings = recipe_of(options, "float32", folder).settings
    rollout, seconds = settings.rollout, []
    clock = {"generation": 0.0, "begun": 0.0}
    config = GRPOConfig(
        output_dir=folder,
        max_steps=options.iterations,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=rollout.tasks * rollout.group // ROWS,
        num_generations=rollout.group,
        max_completion_length=rollout.response_tokens,
        learning_rate=settings.optimizer.options["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",
        temperature=1.0,
        bf16=dtype == "bfloat16",
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        log_completions=False,
    )

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **rest: Any) -> None:
            # A batch is generated after `on_step_begin` only in later versions, so the clock runs from end to end.
            clock["begun"] = clock["begun"] or time.perf_counter()

        def on_step_end(self, *_: Any, **rest: Any) -> None:
            now = time.perf_counter()
            seconds.append({"generation": clock["generation"], "all": now - clock["begun"]})
            clock.update(begun=now, generation=0.0)

    def correct(completions: Any, answer: Any, **rest: Any) -> list[float]:
        texts = [completion[0]["content"].strip() for completion in completions]
        return [float(text == right) for text, right in zip(texts, answer, strict=True)]

    trainer = GRPOTrainer(
        model=model_folder(settings),
        reward_funcs=correct,
        args=config,
        train_dataset=Dataset.from_list(questions(settings, options.iterations)),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[Clock()],
    )
    generate = trainer._generate

    def timed(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        result = generate(*given, **named)
        clock["generation"] += time.perf_counter() - begin
        return result

    trainer._generate = timed
    clock["begun"] = time.perf_counter()
    trainer.train()
    return seconds


# ---- the plain loop ---------------------------------------------------------------------------------------------
def plain(options: argparse.Namespace, dtype: str, folder: str) -> list[dict[str, float]]:
    """transformers' `generate`, padded passes and AdamW."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = recipe_of(options, "float32", folder).settings
    rollout, place = settings.rollout, model_folder(settings)
    tokenizer = AutoTokenizer.from_pretrained(place, padding_side="left", trust_remote_code=False)
    base = AutoModelForCausalLM.from_pretrained(place, dtype=getattr(torch, dtype), trust_remote_code=False)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.optimizer.options["lr"], weight_decay=0.0)
    asked, seconds = questions(settings, options.iterations), []
    for number in range(options.iterations):
        begin = time.perf_counter()
        rows = [row for row in asked[number * rollout.tasks :][: rollout.tasks] for _ in range(rollout.group)]
        chats = tokenizer.apply_chat_template(
            [row["prompt"] for row in rows],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        model.eval()
        with torch.inference_mode():
            ids = model.generate(
                **chats, max_new_tokens=rollout.response_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
            )
        generated = time.perf_counter()
        start = chats["input_ids"].shape[1]
        answers = ids[:, start:].clone()
        ended = (answers == tokenizer.eos_token_id).int()
        weight = (ended.cumsum(-1) - ended == 0).float()
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        reward = torch.tensor([float(t.strip() == row["answer"]) for t, row in zip(texts, rows, strict=True)])
        groups = reward.view(-1, rollout.group)
        gain = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
        gain, mask = gain.flatten(), torch.cat([chats["attention_mask"], weight.long()], 1)
        model.train()
        for at in range(0, len(rows), ROWS):
            part = slice(at, at + ROWS)
            logits = model(
                input_ids=ids[part],
                attention_mask=mask[part],
                logits_to_keep=answers.shape[1] + 1,
                use_cache=False,
            ).logits[:, :-1]
            chosen = logits.float().log_softmax(-1).gather(-1, answers[part, :, None])[..., 0]
            ((chosen.detach() - chosen).exp() * -gain[part, None] * weight[part]).sum().div(weight.sum()).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append({"generation": generated - begin, "all": time.perf_counter() - begin})
    return seconds


# ---- side by side -----------------------------------------------------------------------------------------------
def model_folder(settings: Any) -> str:
    """The folder of the recipe's model."""
    from palaestra.models.pretrained import located

    return str(located(settings.policies["main"].policy.options["model"]))


def one_side(options: argparse.Namespace) -> None:
    """In a process of its own: print the seconds of each iteration and the peak of memory."""
    import torch

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    side, dtype = options.side.split()
    with tempfile.TemporaryDirectory() as folder:
        seconds = {"ours": ours, "trl": trl, "plain": plain}[side](options, dtype, folder)
    peak = peak_bytes()
    print(json.dumps({"seconds": seconds, "peak": peak}))


def main() -> None:
    """Run the sides in turn and store the medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="another folder or name of a model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=4, help="of each process; the first is left out")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.side:
        one_side(options)
        return
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
    for _ in range(options.rounds):
        for side in options.sides:
            command = [sys.executable, __file__, "--side", side, "--threads", str(options.threads)]
            command += ["--iterations", str(options.iterations), *(["--model", options.model] if options.model else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{side} failed:\n{done.stderr}")
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
            print(side, json.dumps(found[side][-1]), flush=True)
    rows = {side: row(runs) for side, runs in found.items()}
    for side, own in rows.items():
        other = rows.get(f"ours {side.split()[1]}")
        if other is not None:
            own["times_ours"] = round(own["seconds_per_iteration"] / other["seconds_per_iteration"], 2)
        print(side, json.dumps(own), flush=True)
    machine = describe(("torch", "transformers", "peft", "trl")) | {"threads": options.threads}
    result = {"recipe": RECIPE, "machine": machine, "limit": LIMIT, "rows": rows}
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def row(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the iterations of all processes of one side."""
    kept = [seconds for run in runs for seconds in run["seconds"][SKIPPED:]]
    whole = statistics.median(seconds["all"] for seconds in kept)
    generation = statistics.median(seconds["generation"] for seconds in kept)
    return {
        "seconds_per_iteration": round(whole, 3),
        "seconds_of_generation": round(generation, 3),
        "seconds_of_update": round(whole - generation, 3),
        "peak_gigabytes": round(max(run["peak"] for run in runs) / 1e9, 2),
    }


if __name__ == "__main__":
    main()
