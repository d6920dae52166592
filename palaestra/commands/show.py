"""`palaestra show`: prints what each role reads first, as text and as ids, and how its reply is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palaestra.commands.runs import resolve
from palaestra.data import Play, Step, derive
from palaestra.rollout.runner import EpisodeRunner
from palaestra.training.setup import build_setup

IDS_PER_LINE = 16


def run(*, recipe: Sequence[str], smoke: bool = False) -> None:
    """Play one turn of an evaluation task with fresh policies, and print the first prompt of each role that acted."""
    settings = resolve(recipe, smoke=smoke).settings
    setup = build_setup(settings)
    (task,) = setup.source.tasks("eval", 1, settings.seed)
    play = Play(task=task, group="show", sample=0, seed=derive(settings.seed, "show"))
    runner = EpisodeRunner(setup, settings.rollout.model_copy(update={"max_turns": 1}))
    try:
        (played,) = runner.collect([play])
    finally:
        runner.close()
        setup.runner.close()
        if setup.engine is not None:
            setup.engine.shutdown()
    if played.error is not None:
        print(f"the episode failed: {played.error}")
    first: dict[str, Step] = {}
    for step in played.steps:
        first.setdefault(step.agent, step)
    for name, step in first.items():
        print("\n".join(shown(name, step, setup)) + "\n")


def shown(name: str, step: Step, setup: Any) -> list[str]:
    """Lines about the first act of a role."""
    role = setup.role(name)
    lines = [f"role {name}, policy {step.policy}"]
    if role.policy.renderer is None or not len(step.prompt):
        return [*lines, f"it reads no tokens; the observation is: {step.observation.text or step.observation.vector!r}"]
    tokenizer = role.policy.tokenizer
    ids = [int(i) for i in step.prompt]
    tools = [] if role.tools is None else [tool.manual() for tool in role.tools.tools]
    ends = ", ".join(f"{i} {tokenizer.decode([i])!r}" for i in role.policy.renderer.stop)
    rows = [" ".join(map(str, ids[i : i + IDS_PER_LINE])) for i in range(0, len(ids), IDS_PER_LINE)]
    return [
        *lines,
        f"--- prompt, {len(ids)} tokens",
        tokenizer.decode(ids, skip_special_tokens=False),
        "--- ids",
        *rows,
        "--- reply",
        f"reader: {_first_line(role.reader)}",
        f"ends at: {ends}",
        *([f"tools, written as {role.tools.format}:", *tools] if tools else []),
    ]


def _first_line(reader: Any) -> str:
    return f"{type(reader).__name__}. {(type(reader).__doc__ or '').strip().splitlines()[0]}"
