"""Write episodes as JSON that people can read, and read them back without loss.

Fields with their default value are left out. int32 ids and 1-D float32 arrays are plain lists, with each float in the
shortest form that gives the same float32 again. Other arrays, tuples and numbers that JSON lacks have a tag. A picture
of a prompt names the step whose observation has its image.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.data import (
    Action,
    Failure,
    FinishReason,
    Marks,
    NextPrompt,
    Observation,
    Step,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
)
from palaestra.data.trajectory import MARKS, Picture, digest_of
from palaestra.errors import described
from palaestra.store.checksums import log_fault
from palaestra.store.folder import TRAJECTORIES, RunFolder
from palaestra.store.lines import OF_OTHER_FORM, STEP, JsonLines, damaged


class EpisodeLog:
    """`trajectories.jsonl` of a run folder: lines `{"step": …, "name": …, "trajectory": …}`."""

    def __init__(self, folder: RunFolder | str | os.PathLike[str]) -> None:
        path = folder.path if isinstance(folder, RunFolder) else Path(folder)
        self.lines = JsonLines(path / TRAJECTORIES)

    def append(self, step: int, name: str, trajectories: Sequence[Trajectory]) -> None:
        """Write episodes of iteration `step`. `name` says where they come from: `train`, or the name of a panel."""
        for trajectory in trajectories:
            self.lines.append({STEP: step, "name": name, "trajectory": to_json(trajectory)}, sort=False)

    def read(self) -> list[tuple[int, str, Trajectory]]:
        """All episodes, as (iteration, name, trajectory). Raises: RunFolderError, if a line is damaged."""
        episodes = []
        for number, line in enumerate(self.lines.read(), start=1):
            try:
                episodes.append((int(line[STEP]), str(line["name"]), from_json(line["trajectory"])))
            except OF_OTHER_FORM as error:
                raise damaged(self.lines.path, number, f"it is no episode ({described(error)})") from error
        return episodes

    def truncate(self, step: int) -> None:
        """Remove the episodes after iteration `step`."""
        self.lines.truncate(step)

    def salvage(self, step: int, place: Path) -> list[str]:
        """As `truncate`, but leave out lines that are no episodes. Returns what is wrong, a sentence for each fault.

        Args:
            place: the checkpoint after iteration `step`, which has a checksum of the log.
        """
        changed = log_fault(place, self.lines.path.parent, TRAJECTORIES)
        lost = self.lines.salvage(step, _is_episode)
        return [*filter(None, (changed, lost and f"{TRAJECTORIES}: {lost}"))]

    def drop(self, step: int, name: str) -> None:
        """Remove the episodes of this iteration with this name."""
        self.lines.keep(lambda line: (line[STEP], line["name"]) != (step, name))


def _is_episode(line: Mapping[str, Any]) -> bool:
    """Whether a line of the log can be read. Raises: one of `OF_OTHER_FORM`, if not."""
    from_json(line["trajectory"])
    return isinstance(line.get("name"), str)


def to_json(trajectory: Trajectory, *, timed: bool = False) -> dict[str, Any]:
    """A trajectory as JSON values, in the order in which people read: task, result, steps.

    Args:
        timed: include the seconds of each step, which differ between two runs of the same recipe.
    """
    images = _images_of(step.observation for step in trajectory.steps)
    return {
        "task": _task_to_json(trajectory.task),
        "group": trajectory.group,
        "sample": trajectory.sample,
        "outcome": None if trajectory.outcome is None else _number(trajectory.outcome),
        "returns": {agent: _number(value) for agent, value in trajectory.returns.items()},
        "stop": trajectory.stop.value,
    } | _without_defaults(
        error=_failure_to_json(trajectory.error),
        info=_encode(trajectory.info),
        replaced=dict(trajectory.replaced),
        steps=[_step_to_json(step, images, timed=timed) for step in trajectory.steps],
        last={agent: _observation_to_json(seen) for agent, seen in trajectory.last.items()},
        next_prompts={agent: _next_prompt_to_json(prompt, images) for agent, prompt in trajectory.next_prompts.items()},
    )


def from_json(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory that `to_json` wrote, equal in every field, with arrays of equal value, shape and type."""
    error = record.get("error")
    steps = record.get("steps", [])
    seen = [_observation_from_json(step["observation"]) for step in steps]
    prompts = record.get("next_prompts", {})
    return Trajectory(
        task=Task(**_decode(record["task"])),
        group=record["group"],
        sample=record["sample"],
        outcome=_decode(record["outcome"]),
        returns=_decode(record["returns"]),
        stop=StopReason(record["stop"]),
        error=Failure(**error) if error else None,
        info=_decode(record.get("info", {})),
        replaced=Counter(record.get("replaced", {})),
        steps=[_step_from_json(step, place, seen) for place, step in enumerate(steps)],
        last={agent: _observation_from_json(last) for agent, last in record.get("last", {}).items()},
        next_prompts={agent: _next_prompt_from_json(prompt, seen) for agent, prompt in prompts.items()},
    )


# ---- pieces -----------------------------------------------------------------------------------------------
def _task_to_json(task: Task) -> dict[str, Any]:
    return {"env": task.env, "seed": task.seed} | _without_defaults(
        params=_encode(task.params),
        key=task.key,
        split=task.split,
        difficulty=_encode(task.difficulty),
        content=task.content,
    )


def _failure_to_json(failure: Failure | None) -> dict[str, str] | None:
    if failure is None:
        return None
    return {"boundary": failure.boundary, "message": failure.message, "kind": failure.kind}


def _images_of(observations: Iterable[Observation]) -> dict[bytes, int]:
    """Where each image is seen first."""
    found: dict[bytes, int] = {}
    for place, seen in enumerate(observations):
        if seen.image is not None:
            found.setdefault(digest_of(seen.image), place)
    return found


def _pictures_to_json(pictures: Sequence[Picture], images: Mapping[bytes, int]) -> list[dict[str, Any]]:
    records = []
    for picture in pictures:
        place = images.get(digest_of(picture.image))
        image = {"image": _encode(picture.image)} if place is None else {"step": place}
        records.append({"start": picture.start, "stop": picture.stop, "count": picture.count, **image})
    return records


def _pictures_from_json(records: Sequence[Mapping[str, Any]], seen: Sequence[Observation]) -> tuple[Picture, ...]:
    return tuple(
        Picture(
            image=seen[one["step"]].image if "step" in one else _decode(one["image"]),  # type: ignore[arg-type]
            start=one["start"],
            stop=one["stop"],
            count=one["count"],
        )
        for one in records
    )


def _next_prompt_to_json(prompt: NextPrompt, images: Mapping[bytes, int]) -> dict[str, Any]:
    pictures = _pictures_to_json(prompt.pictures, images)
    return {"ids": _array(prompt.ids, np.int32), "segment": prompt.segment} | _without_defaults(pictures=pictures)


def _next_prompt_from_json(record: Mapping[str, Any], seen: Sequence[Observation]) -> NextPrompt:
    pictures = _pictures_from_json(record.get("pictures", ()), seen)
    return NextPrompt(_to_array(record["ids"], np.int32), record["segment"], pictures)


def _step_to_json(step: Step, images: Mapping[bytes, int], *, timed: bool) -> dict[str, Any]:
    return {
        "agent": step.agent,
        "turn": step.turn,
        "observation": _observation_to_json(step.observation),
        "action": _action_to_json(step.action),
        "reward": _number(step.reward),
    } | _without_defaults(
        policy=step.policy or None,
        version=step.version or None,
        prompt=_array(step.prompt, np.int32),
        pictures=_pictures_to_json(step.pictures, images),
        segment=step.segment or None,
        invocation=step.invocation or None,
        parent=step.parent,
        terminated=step.terminated or None,
        truncated=step.truncated or None,
        seconds=step.seconds if timed and step.seconds else None,
        marks={name: value for name in MARKS if (value := getattr(step.marks, name)) is not None},
        info=_encode(step.info),
    )


def _step_from_json(record: Mapping[str, Any], place: int, seen: Sequence[Observation]) -> Step:
    fields = dict(record)
    del fields["observation"]
    action = _action_from_json(fields.pop("action"))
    prompt = _to_array(fields.pop("prompt", []), np.int32)
    marks = Marks(**_decode(fields.pop("marks", {})))
    pictures = _pictures_from_json(fields.pop("pictures", ()), seen)
    return Step(
        observation=seen[place], action=action, prompt=prompt, pictures=pictures, marks=marks, **_decode(fields)
    )


def _observation_to_json(observation: Observation) -> dict[str, Any]:
    return _present(
        text=observation.text,
        messages=_encode(observation.messages),
        vector=_optional_array(observation.vector),
        image=_encode(observation.image),
        legal=_encode(observation.legal),
        state_key=observation.state_key,
        instruction=observation.instruction,
        tools=_encode(observation.tools),
        manual=observation.manual,
    )


def _observation_from_json(record: Mapping[str, Any]) -> Observation:
    fields = dict(record)
    vector = _from_optional_array(fields.pop("vector", None))
    return Observation(vector=vector, **_decode(fields))


def _action_to_json(action: Action) -> dict[str, Any]:
    calls = [{"name": c.name, "arguments": _encode(c.arguments), "id": c.id} for c in action.tool_calls]
    same = isinstance(action.value, str) and action.value == action.text
    return _present(
        text=action.text,
        reply=action.reply,
        value=None if same else _encode(action.value),
        tool_calls=calls or None,
        finish=action.finish.value,
        tokens=_array(action.tokens, np.int32) or None,
        logprobs=_optional_array(action.logprobs),
        entropy=_optional_array(action.entropy),
        versions=None if action.versions is None else _array(action.versions, np.int32),
    )


def _action_from_json(record: Mapping[str, Any]) -> Action:
    return Action(
        text=record.get("text"),
        reply=record.get("reply"),
        value=_decode(record.get("value")),
        tool_calls=[ToolCall(**_decode(call)) for call in record.get("tool_calls", [])] or (),
        tokens=_to_array(record.get("tokens", []), np.int32),
        logprobs=_from_optional_array(record.get("logprobs")),
        entropy=_from_optional_array(record.get("entropy")),
        versions=_to_array(record["versions"], np.int32) if "versions" in record else None,
        finish=FinishReason(record["finish"]),
    )


def _without_defaults(**fields: Any) -> dict[str, Any]:
    """The fields that are neither None nor empty. A field whose default is not empty may not be given empty."""
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# ---- values -----------------------------------------------------------------------------------------------
def _array(values: np.ndarray, dtype: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype == dtype:
        return [_short(value) for value in values]
    return _encode(values)


def _to_array(values: Any, dtype: Any) -> Any:
    return np.array(values, dtype) if isinstance(values, list) else _decode(values)


def _optional_array(values: np.ndarray | None) -> Any:
    return None if values is None else _array(values, np.float32)


def _from_optional_array(values: Any) -> Any:
    return None if values is None else _to_array(values, np.float32)


def _number(value: float) -> Any:
    return _encode(float(value))


def _short(value: np.generic) -> Any:
    """The shortest number that gives the same value in its dtype again. A text, if JSON lacks the number."""
    if not isinstance(value, np.floating):
        return value.item()
    return float(str(value)) if np.isfinite(value) else str(value)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        items = value.reshape(-1)
        exact = not np.issubdtype(value.dtype, np.floating)  # an image has many
        flat = items.tolist() if exact else [_short(item) for item in items]
        return {"__array__": flat, "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return {"__scalar__": _short(value), "dtype": str(value.dtype)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": str(value)}
    if isinstance(value, tuple):
        return {"__tuple__": [_encode(item) for item in value]}
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__array__" in value:
        return np.array(value["__array__"], value["dtype"]).reshape(value["shape"])
    if "__scalar__" in value:
        return np.dtype(value["dtype"]).type(value["__scalar__"])
    if "__float__" in value:
        return float(value["__float__"])
    if "__tuple__" in value:
        return tuple(_decode(item) for item in value["__tuple__"])
    return {key: _decode(item) for key, item in value.items()}
