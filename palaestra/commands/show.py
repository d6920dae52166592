"""`palaestra show`: prints what each role reads first, as text and as ids, and how its reply is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.boundary.tasks import tasks_of
from palaestra.commands.runs import resolve
from palaestra.data import Play, Step, ToolCall, derive
from palaestra.data.trajectory import Picture
from palaestra.process.terminal import visible
from palaestra.rollout.runner import EpisodeRunner
from palaestra.tools.tool import example_of
from palaestra.training.setup import build_setup

IDS_PER_LINE = 16


def run(*, recipe: Sequence[str], smoke: bool = False) -> None:
    """Play one turn of an evaluation task with fresh policies, and print the first prompt of each role that acted."""
    settings = resolve(recipe, smoke=smoke).settings
    setup = build_setup(settings)
    (task,) = tasks_of(setup.source, "eval", 1, settings.seed)
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
        print(f"the episode failed: {visible(played.error.message)}")
    first: dict[str, Step] = {}
    for step in played.steps:
        first.setdefault(step.agent, step)
    for name, step in first.items():
        print(visible("\n".join(shown(name, step, setup))) + "\n")


def shown(name: str, step: Step, setup: Any) -> list[str]:
    """Lines about the first act of a role."""
    role = setup.role(name)
    lines = [f"role {name}, policy {step.policy}"]
    if role.policy.renderer is None or not len(step.prompt):
        return [*lines, f"it reads no tokens; the observation is: {step.observation.text or step.observation.vector!r}"]
    tokenizer = role.policy.tokenizer
    ids = [int(i) for i in step.prompt]
    pieces = _pieces(ids, step.pictures)
    ends = ", ".join(f"{i} {tokenizer.decode([i])!r}" for i in role.policy.renderer.stop)
    return [
        *lines,
        f"--- prompt, {len(ids)} tokens",
        "".join(
            _said(piece) if isinstance(piece, Picture) else tokenizer.decode(piece, skip_special_tokens=False)
            for piece in pieces
        ),
        "--- ids",
        *(row for piece in pieces for row in ([_said(piece)] if isinstance(piece, Picture) else _rows(piece))),
        "--- reply",
        f"reader: {_first_line(role.reader)}",
        f"ends at: {ends}",
        *_tools(role, step),
    ]


def _pieces(ids: list[int], pictures: Sequence[Picture]) -> list[list[int] | Picture]:
    """A prompt, cut where pictures begin and end."""
    pieces: list[list[int] | Picture] = []
    begin = 0
    for picture in pictures:
        pieces += [ids[begin : picture.start], picture]
        begin = picture.stop
    return [*pieces, ids[begin:]]


def _said(picture: Picture) -> str:
    height, width, _ = picture.image.shape
    return f"[an image of {width} × {height} pixels, {picture.stop - picture.start} tokens]"


def _rows(ids: Sequence[int]) -> list[str]:
    return [" ".join(map(str, ids[i : i + IDS_PER_LINE])) for i in range(0, len(ids), IDS_PER_LINE)]


def _tools(role: Any, step: Step) -> list[str]:
    """Lines about the tools of a role: how they are declared, which there are, and how a call is written."""
    if role.tools is None:
        return []
    if not role.tools.native:
        return [f"tools, written as {role.tools.format}:", *(tool.manual() for tool in role.tools.tools)]
    declared, renderer = tuple(step.observation.tools or ()), role.policy.renderer
    names = ", ".join(tool["function"]["name"] for tool in declared) or "none"
    if not renderer.instructed:
        return [f"tools: {names}. The policy has no chat template, so its prompts do not declare them."]
    how = "by the chat template" if renderer.support.declares else "in words, since the chat template cannot"
    example = [ToolCall(name=declared[0]["function"]["name"], arguments=_example(declared[0]))] if declared else []
    written = [f"a call: {renderer.said(renderer.call(example, declared))!r}"] if example else []
    return [f"tools, declared {how}: {names}", *written]


def _example(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = tool["function"]["parameters"]
    return {name: example_of(parameters["properties"].get(name, {})) for name in parameters.get("required", ())}


def _first_line(reader: Any) -> str:
    return f"{type(reader).__name__}. {(type(reader).__doc__ or '').strip().splitlines()[0]}"
