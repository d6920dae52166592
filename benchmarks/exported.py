"""Exported weights in plain transformers: do they answer as often as the run they come from?

    palaestra train models/smollm2-words.yaml
    python benchmarks/exported.py runs/smollm2-words

The run's evaluation tasks are asked twice with equal sampling: by `palaestra eval RUN`, and by `generate` of
transformers with the folder that `palaestra export` writes. For the second, nothing of Palaestra writes the prompt: the
question is filled into the recipe's template here, and the folder's own chat template makes the text. It works for
recipes of one question and one answer, whose dataset has a column `answer`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from machine import describe
from transformers import AutoModelForCausalLM, AutoTokenizer

from palaestra.commands import evaluate, export
from palaestra.commands.runs import resolve, run_folder
from palaestra.evaluation.statistics import wilson_interval
from palaestra.training.settings import RunSettings

TOGETHER = 64  # prompts in one batch


def of_the_run(run: str, *, tasks: int, temperature: float) -> tuple[evaluate.PlayedPanel, RunSettings]:
    """What `palaestra eval` finds, and the settings of the run."""
    settings = resolve([run, f"evaluation.tasks={tasks}", f"evaluation.temperature={temperature}"]).settings
    return evaluate.play_wanted(settings, evaluate.Wanted(), run_folder([run])), settings


def questions(played: evaluate.PlayedPanel, settings: RunSettings) -> tuple[list[list[dict[str, str]]], list[str]]:
    """The chats of the tasks that were played, and the right answers."""
    options = settings.environment.options
    rows = [json.loads(line) for line in Path(options["path"]).read_text(encoding="utf-8").splitlines()]
    asked = [rows[episode.task.params["row"]] for episode in played.episodes]
    before = [
        {"role": role, "content": text}
        for shot in options.get("fewshot", ())
        for role, text in (("user", options["template"].format(**shot)), ("assistant", shot["answer"]))
    ]
    chats = [[*before, {"role": "user", "content": options["template"].format(**row)}] for row in asked]
    return chats, [row["answer"] for row in asked]


def plain(folder: str, chats: list[list[dict[str, str]]], *, temperature: float, tokens: int) -> list[str]:
    """What transformers generates with this folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    drawn: dict[str, Any] = {"do_sample": False}
    if temperature:
        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    torch.manual_seed(0)
    said = []
    for begin in range(0, len(chats), TOGETHER):
        read = tokenizer.apply_chat_template(
            chats[begin : begin + TOGETHER],
            add_generation_prompt=True,
            padding=True,
            return_dict=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            written = model.generate(**read, **drawn, max_new_tokens=tokens)
        said += tokenizer.batch_decode(written[:, read["input_ids"].shape[1] :], skip_special_tokens=True)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--out", type=Path, help="a file for the result, as JSON")
    chosen = parser.parse_args()
    played, settings = of_the_run(chosen.run, tasks=chosen.tasks, temperature=chosen.temperature)
    chats, answers = questions(played, settings)
    with tempfile.TemporaryDirectory() as folder:
        export.export(folder=chosen.run, out=folder)
        said = plain(folder, chats, temperature=chosen.temperature, tokens=settings.rollout.response_tokens)
    right = {
        "palaestra eval": played.evaluation.successes,
        "transformers": sum(one.strip() == answer for one, answer in zip(said, answers, strict=True)),
    }
    for name, count in right.items():
        print(f"{name}: {count} of {len(answers)}, {wilson_interval(count, len(answers))}")
    result = {"run": chosen.run, "temperature": chosen.temperature, "tasks": len(answers), "right": right}
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(result | {"machine": describe()}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
