"""Warm start: policies learn to imitate the environment's expert, or a teacher, before reinforcement learning (behavior
cloning).

Demonstrations go through the context of the policy, so that it learns from the same token ids as it meets later. Only
the tokens of the expert have a loss. A teacher is another model, such as a large one behind an endpoint. It plays in
place of the policies, and only episodes in which it succeeds are cloned.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

import palaestra
from palaestra.boundary.tasks import tasks_of
from palaestra.data import Play, RunSetup, StopReason, Task, Trajectory, derive, rows_of
from palaestra.data.abilities import HasTasks, has
from palaestra.data.batches import micro_batches_of, token_index
from palaestra.data.interaction import FinishReason
from palaestra.data.protocols import Policy, Sampling, complete
from palaestra.endpoints.clients import VARIABLES
from palaestra.engines.heap import Growth
from palaestra.errors import CheckpointError, NoSignal, RecipeError
from palaestra.models.devices import on_cpu
from palaestra.models.pretrained import folder_of
from palaestra.registry import Section
from palaestra.registry.bound import BoundPart
from palaestra.registry.user_files import neighbors
from palaestra.rollout.programs import demonstration_of
from palaestra.rollout.teaching import taught
from palaestra.store.atomic import write_atomic
from palaestra.training.policy_gradient import make_optimizer, refuse_exploded, weight_norm
from palaestra.training.settings import RunSettings, WarmStartSettings


def warm_start(setup: RunSetup, run: RunSettings, *, say: Callable[[str, int, int], None]) -> dict[str, float]:
    """Play demonstrations, and clone every trainable policy that acts in them.

    With `warm_start.frozen`, policies that are not trained afterwards are cloned too, and the bases of adapters are
    among them. A base then learns from its adapters' demonstrations as well as from its own, and the adapters start as
    the base.

    Args:
        run: with a `warm_start`. A batch that is larger than `training.token_budget` is read in several passes.
        say: is called with (phase, steps done, steps in all) as the work goes on.

    Returns: metrics: the number of demonstrations, how many of a teacher were left out, how many of these failed, and
        the mean loss of the last epoch for each policy.
    Raises: RecipeError, if the environment has no expert, if `guidance` needs a teacher and it has none, or if the
        recipe's teacher cannot teach these policies; NoSignal, if every demonstration failed.
    """
    seed, settings = run.seed, run.warm_start
    assert settings is not None
    cloned = {
        name: members
        for name, members in _cloned_together(setup.policies, frozen=settings.frozen).items()
        if setup.policies[name].trainable or (settings.frozen and setup.policies[name].module is not None)
    }
    plays = [
        Play(task=task, group=f"demonstration-{i:05d}", sample=0, seed=derive(seed, "demonstration", i))
        for i, task in enumerate(demonstrated(setup.source, settings, seed=seed))
    ]
    if settings.teacher is None:
        _refuse_no_expert(setup)
        plays = _guided(plays, setup, share=settings.guidance)
        program = functools.partial(demonstration_of(setup.program), noise=settings.noise)
    else:
        students = {member for members in cloned.values() for member in members}
        teacher = _teacher(settings.teacher, setup, students)
        program = functools.partial(taught, program=setup.program, teacher=teacher, students=students)
    say("demonstrations", 0, len(plays))
    played = setup.runner.collect(plays, program=program)
    finished = _kept(played, None if settings.teacher is None else settings.least)
    metrics: dict[str, float] = {"warm_start/demonstrations": float(len(finished))}
    if settings.teacher is not None:
        metrics["warm_start/left_out"] = float(len(played) - len(finished))
        metrics["warm_start/failed"] = float(sum(t.stop is StopReason.ERROR for t in played))
    for name, members in cloned.items():
        policy, rows = setup.policies[name], [row for row in rows_of(finished) if row.step.policy in members]
        if rows:
            budget, own_seed = run.training.tokens_at_once, derive(seed, "cloning", name)
            metrics_of_policy = _clone(policy, rows, settings, token_budget=budget, seed=own_seed, say=say)
            metrics |= {f"warm_start/{name}/{key}": value for key, value in metrics_of_policy.items()}
            for member in members:
                setup.policies[member].weights_changed(setup.policies[member].version + 1)
    return metrics


def kept_line(metrics: Mapping[str, float]) -> str | None:
    """What to tell of a warm start: how many of the teacher's episodes were cloned; None without a teacher."""
    if "warm_start/left_out" not in metrics:
        return None
    cloned, left = metrics["warm_start/demonstrations"], metrics["warm_start/left_out"]
    failed = f"; {count:.0f} failed" if (count := metrics["warm_start/failed"]) else ""
    return f"warm start: {cloned:.0f} of the teacher's {cloned + left:.0f} episodes are cloned{failed}"


def _refuse_no_expert(setup: RunSetup) -> None:
    if not has(setup.source, "expert"):
        raise RecipeError(
            where="warm_start",
            what=f"environment `{setup.environment_name}` has no expert to clone.",
            remedy="Leave `warm_start` out, give the environment a method `expert(agent) -> Action`, or name a model "
            "that plays well in `warm_start.teacher`.",
        )


def _teacher(chosen: BoundPart, setup: RunSetup, students: Collection[str]) -> Policy:
    """The policy that teaches. Raises: RecipeError, if it cannot teach these policies."""
    where = f"warm_start.teacher: {chosen.name}"
    try:
        made: Policy = complete(chosen.part.target("teacher", setup, **chosen.options), Policy, where=where)
        for name, role in setup.roles.items():  # a context that it cannot follow is refused before it is asked
            if role.policy.name in students and made.module is None:
                made.session(context=role.context, sampling=Sampling(), key=("teacher", name)).end(None)
    except RecipeError as error:  # it would speak of `policies`
        raise RecipeError(where=where, what=error.what, remedy=error.remedy) from None
    if made.module is not None or made.model is not None:
        raise RecipeError(
            where=where,
            what="a teacher has no weights in this process.",
            remedy="Serve its folder with `palaestra serve FOLDER`, and write `teacher: {endpoint: {model: …}}`.",
        )
    if wordless := sorted(name for name in students if setup.policies[name].renderer is None):
        raise RecipeError(
            where=where,
            what=f"a teacher answers in words, and policy `{wordless[0]}` generates no tokens.",
            remedy="Leave `warm_start.teacher` out, to clone the environment's expert.",
        )
    return made


def _kept(played: Sequence[Trajectory], least: float | None) -> list[Trajectory]:
    """The episodes that are cloned.

    Args:
        least: least outcome of an episode, in which no answer may have been cut; None: any outcome, of an expert.

    Raises: NoSignal, if there is none.
    """
    finished = [t for t in played if t.stop is not StopReason.ERROR and t.steps]
    if least is not None:
        whole = [t for t in finished if not any(step.action.finish is FinishReason.LENGTH for step in t.steps)]
        solved = [t for t in whole if t.outcome is not None and t.outcome >= least]
        if finished and not solved:
            outcomes = [t.outcome for t in whole if t.outcome is not None]
            best = f"the best outcome was {max(outcomes):g}" if outcomes else "no episode had an outcome"
            cut = (
                f", and answers were cut in {len(finished) - len(whole)} of them" if len(whole) < len(finished) else ""
            )
            raise NoSignal(
                where="warm_start.teacher",
                what=f"none of its {len(played)} episodes had an outcome of {least:g}: {best}{cut}.",
                remedy="Take a stronger model, raise rollout.response_tokens, or lower `warm_start.least`.",
            )
        finished = solved
    if not finished:
        first = next((t.error.message for t in played if t.error), "no episode had a step")
        raise NoSignal(where="warm_start", what=f"all {len(played)} demonstrations failed. The first:\n{first}")
    return finished


def demonstrated(source: HasTasks, settings: WarmStartSettings, *, seed: int) -> list[Task]:
    """The tasks that the expert or the teacher demonstrates."""
    return tasks_of(source, "train", settings.episodes, derive(seed, "demonstrations"))


def _cloned_together(policies: Mapping[str, Any], *, frozen: bool) -> dict[str, list[str]]:
    """Name of each policy to clone → the policies whose demonstrations it learns from.

    These are the policy itself and, for a base that is cloned, its adapters, which are not cloned themselves.
    """
    bases = {name: policy.base if frozen else None for name, policy in policies.items()}
    return {
        name: [name, *(other for other, base in bases.items() if base == name)]
        for name, base in bases.items()
        if base is None
    }


def _guided(plays: list[Play], setup: RunSetup, *, share: float) -> list[Play]:
    """The plays; a share of them has the teacher's guidance for a first attempt as instruction."""
    if share > 0 and not has(setup.source, "guidance"):
        raise RecipeError(
            where="warm_start.guidance",
            what=f"environment `{setup.environment_name}` has no teacher.",
            remedy="Set it to 0, or give the environment the ability `guidance`: `guidance(trajectory, *, seed)` and "
            "`reference(task)`.",
        )
    guided = []
    for play in plays:
        draw = np.random.default_rng(derive(play.seed, "guidance"))
        if draw.random() < share:
            attempt = Trajectory(task=play.task, group=play.group)
            text = setup.source.guidance(attempt, seed=derive(play.seed, "guidance"))
            play = dataclasses.replace(play, instruction=text or None)
        guided.append(play)
    return guided


def _clone(
    policy: Any,
    rows: list[Any],
    settings: WarmStartSettings,
    *,
    token_budget: int,
    seed: int,
    say: Callable[[str, int, int], None],
) -> dict[str, float]:
    samples = policy.collate(rows, temperature=1.0)
    taught = _taught_tokens(rows)
    batches = micro_batches_of(samples, range(len(samples.cost)), budget=settings.batch_tokens)
    optimizer = make_optimizer(settings.optimizer, policy.module)
    losses: list[float] = []
    growth = Growth()
    steps = settings.epochs * len(batches)
    size = weight_norm(policy.module)
    policy.module.train()
    for epoch in range(settings.epochs):
        for place in np.random.default_rng(derive(seed, epoch)).permutation(len(batches)):
            batch = batches[int(place)]
            total = taught[torch.from_numpy(token_index(samples, batch))].sum().clamp_min(1.0)
            optimizer.zero()
            parts = []
            for which in micro_batches_of(samples, batch, budget=token_budget):
                now = policy.forward(samples, which, ("logprob",))
                weight = taught[torch.from_numpy(token_index(samples, which))].to(now["logprob"].device)
                loss = -(weight * now["logprob"]).sum() / total.to(weight.device)
                loss.backward()
                parts.append(float(loss.detach()))
            optimizer.step()
            losses.append(sum(parts))
            growth.bound()
            say("cloning", len(losses), steps)
    policy.module.eval()
    refuse_exploded(f"policy {policy.name}", size, weight_norm(policy.module), rate="warm_start.optimizer.…lr")
    last = losses[-len(batches) :]
    return {"loss": float(np.mean(last))}


def _taught_tokens(rows: list[Any]) -> torch.Tensor:
    """1 on response tokens of the expert, 0 on those of random acts, in the order of the table's tokens: (tokens,)."""
    last = rows[-1]
    weight = torch.zeros(last.start + max(len(last.step.action.tokens), 1))
    for row in rows:
        width = max(len(row.step.action.tokens), 1)
        weight[row.start : row.start + width] = 1.0 - float(row.step.marks.noise or 0.0)
    return weight


# ---- clones that are kept -------------------------------------------------------------------------------
# Settings that cannot change a warm start, since they act only after it. Strategies are not among them, because the
# tokenizer is trained on their phrases.
AFTERWARDS = {"name", "run", "engine", "experience", "reward", "selection", "advantage", "weights", "learner"}
AFTERWARDS |= {"loss", "aggregate", "regularizers", "optimizer", "training", "evaluation", "sampler", "reference"}
AFTERWARDS |= {"strict"}
OF_ROLLOUTS = {"tasks", "group", "in_flight", "temperature", "top_k", "top_p", "window"}
OF_POLICIES = {"optimizer", "loss", "regularizers", "epochs", "minibatches", "every", "reference"}
FOLDERS = {"model", "load"}  # settings and options that name a folder with weights
# Of rollouts and roles; they decide a teacher's answers.
SAMPLING = {"temperature", "top_k", "top_p", "response_tokens"}
OF_AGENTS = {"frozen", *SAMPLING}
UNHEARD = {"url", "key", "timeout_s", "retries", "in_flight"}  # options of an endpoint that change no answer


class Clones:
    """The weights after a warm start, in a folder that several runs share.

    Args:
        folder: made if it is missing.
        settings: of the run. The name of the file is a hash of all that decides the weights: settings, and the content
            of the user's files, data files and model folders that the settings name.
    """

    def __init__(self, folder: str, settings: RunSettings) -> None:
        self.path = Path(folder) / f"{_digest(settings)}.pt"

    def restore(self, policies: Mapping[str, Any]) -> bool:
        """Put the weights of the file into the policies. Returns False, if there is no file yet.

        Raises: CheckpointError, for a file that cannot be read or does not fit the policies.
        """
        if not self.path.exists():
            return False
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            for name, policy in _learners(policies).items():
                policy.module.load_state_dict(kept[name]["weights"])
                policy.weights_changed(int(kept[name]["version"]))
        except (OSError, RuntimeError, EOFError, KeyError, ValueError, UnpicklingError) as error:
            raise CheckpointError(
                where=str(self.path),
                what=f"it does not hold the weights of this run's warm start: {type(error).__name__}.",
                remedy="Remove the file.",
            ) from error
        return True

    def keep(self, policies: Mapping[str, Any]) -> None:
        """Write the weights of all policies. The file appears only when it is complete."""
        content = {
            name: {"weights": on_cpu(policy.module.state_dict()), "version": policy.version}
            for name, policy in _learners(policies).items()
        }
        write_atomic(self.path, lambda file: torch.save(content, file))


def _learners(policies: Mapping[str, Any]) -> dict[str, Any]:
    return {name: policy for name, policy in policies.items() if policy.module is not None}


def _digest(settings: RunSettings) -> str:
    """A hash of everything that a warm start depends on."""
    chosen = settings.model_dump(mode="json", exclude=AFTERWARDS)  # type: ignore[arg-type]
    own = settings.warm_start
    taught = SAMPLING if own is not None and own.teacher is not None else set()
    chosen["rollout"] = {key: value for key, value in chosen["rollout"].items() if key not in OF_ROLLOUTS - taught}
    chosen["policies"] = {
        name: {key: value for key, value in policy.items() if key not in OF_POLICIES}
        for name, policy in chosen["policies"].items()
    }
    chosen["agents"] = {
        name: {key: value for key, value in role.items() if key not in OF_AGENTS - taught}
        for name, role in chosen["agents"].items()
    }
    if chosen["warm_start"] is not None:
        chosen["warm_start"].pop("keep")
        if own is not None and own.teacher is not None:
            chosen["warm_start"]["teacher"] = _heard(own.teacher)
        else:  # the same key as before there were teachers
            del chosen["warm_start"]["teacher"], chosen["warm_start"]["least"]
    contents = dict(_contents(chosen, _own_files(settings)))
    written = [palaestra.__version__, torch.__version__, chosen, *([contents] if contents else [])]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:20]


def _heard(teacher: BoundPart) -> Any:
    """What decides a teacher's answers: its options and its address, without keys, passwords and time limits."""
    if teacher.name != "endpoint":
        return [teacher.name, dict(teacher.options)]
    name = teacher.options.get("url") or VARIABLES[teacher.options.get("style") or "openai"][0]
    address = urlsplit(os.environ.get(name, ""))
    place = address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="").geturl()
    options = {option: value for option, value in teacher.options.items() if option not in UNHEARD}
    return [teacher.name, {"served": options.pop("model", None), **options}, place]  # `model` would mean a folder here


# ---- content of files that settings name ------------------------------------------------------------------
def _contents(value: Any, own: Mapping[str, str], key: str = "") -> Iterator[tuple[str, str]]:
    """Hashes of the files and model folders that settings name: text of the setting → hash of the content.

    Args:
        own: name of a part in a user's file → the file. The files beside it that it imports count too.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _contents(inner, own, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _contents(inner, own, key)
    elif isinstance(value, str):
        file = _own_file(value, own) if key == "name" else value
        if os.path.isfile(file):
            yield value, _hash_of(Path(file))
            beside = neighbors(file) if value in own else []
            yield from ((f"{value} {os.path.basename(other)}", _hash_of(Path(other))) for other in beside)
        elif key in FOLDERS and (folder := Path(file) if os.path.isdir(file) else folder_of(file)) is not None:
            inside = sorted(path for path in folder.rglob("*") if path.is_file())
            listed = [[path.relative_to(folder).as_posix(), path.stat().st_size, _hash_of(path)] for path in inside]
            yield value, hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _own_files(value: Any) -> dict[str, str]:
    """The bound parts that are in a user's files: name → file."""
    if isinstance(value, BoundPart):
        return {value.name: value.file} if value.file else {}
    if isinstance(value, Section):
        return _own_files([getattr(value, name) for name in type(value).model_fields])
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {name: file for one in inner for name, file in _own_files(one).items()}


def _own_file(name: str, own: Mapping[str, str]) -> str:
    """The file of a user's part, `path/to/file.py:attribute` or `module:attribute`; empty for other parts."""
    place, colon, _ = name.rpartition(":")
    if name in own:
        return own[name]
    if not colon or place.endswith(".py"):
        return place
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        return ""
    return str(spec.origin) if spec is not None else ""


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
