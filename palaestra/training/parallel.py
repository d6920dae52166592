"""Training of one run by several processes. Each rank plays its share of the episodes, and evaluates and backpropagates
its share of the micro-batches. Tables, stages and optimizer steps are the same on every rank.

Start it as any distributed program of torch: `torchrun --nproc-per-node 2 -m palaestra train RECIPE`. With one process
this module changes nothing.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from palaestra.data import Play, Trajectory
from palaestra.data.protocols import PolicyOutputs
from palaestra.data.ranks import OneProcess, Ranks
from palaestra.errors import PalaestraError, RankError, RecipeError
from palaestra.models.sharding import is_spread, shard, whole
from palaestra.process.interruption import Interruption, Stopped
from palaestra.registry import declared
from palaestra.rollout.strategies import RolloutContext
from palaestra.store.episodes import from_json, to_json
from palaestra.store.folder import EVALUATIONS, METRICS, RunFolder
from palaestra.training.settings import RunSettings

BUCKET = 2**25  # the most numbers that one message sums
OF_GLOO = re.compile(r"^\[\S*/gloo/\S*\] ")  # the place in the source of torch's library for processors
LAUNCHED_BY = ("RANK", "WORLD_SIZE", "MASTER_ADDR")  # variables that torchrun sets


@contextmanager
def joined(settings: RunSettings) -> Iterator[Ranks]:
    """A context with the ranks of this run: one process, or those that torchrun has started.

    Raises: RecipeError, for a recipe that several processes cannot run; RankError, if another process ends
        before this one.
    """
    if any(name not in os.environ for name in LAUNCHED_BY) or os.environ["WORLD_SIZE"] == "1":
        yield OneProcess()
        return
    refuse_alone(settings)
    accelerator = torch.device(settings.device).type
    dist.init_process_group("gloo" if accelerator == "cpu" else "cpu:gloo,cuda:nccl")
    try:
        yield ProcessGroup(in_step=settings.training.shard)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or OF_GLOO.search(str(error))):
            raise
        raise RankError(
            where=f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}",
            what=f"another process of the run has ended, or cannot be reached: {OF_GLOO.sub('', str(error), count=1)}",
            remedy="That process says why. Afterwards the same command with `--resume` continues.",
        ) from error
    finally:
        dist.destroy_process_group()


def device_of_rank(name: str) -> str:
    """The device of this process: `cuda` without a number becomes the device of its local rank."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" and "LOCAL_RANK" in os.environ else name


def refuse_alone(settings: RunSettings) -> None:
    """Refuse a recipe with a choice that needs a single process. Raises: RecipeError."""
    refused = [
        (f"strategy: {part.name}", "it branches off from episodes, whose sessions are in one process")
        for part in settings.strategy
        if "fork" in part.part.uses
    ]
    if settings.training.max_staleness:
        where = f"training.max_staleness: {settings.training.max_staleness}"
        refused.append(
            (
                where,
                "episodes that are played ahead are taken in the order in which they end, which differs between ranks",
            )
        )
    if not declared(settings.rollout.runner.part.target, "opens"):
        where = f"rollout.runner: {settings.rollout.runner.name}"
        refused.append((where, "it keeps episodes between the iterations, or plays all in lock step"))
    if settings.training.shard:
        refused += _refused_with_shards(settings)
    for where, why in refused:
        raise RecipeError(where=where, what=f"{why}.", remedy="Train with one process, or leave this choice out.")


def _refused_with_shards(settings: RunSettings) -> list[tuple[str, str]]:
    """The choices of a recipe that do not go with `training.shard`, each with the reason."""
    training = settings.training
    own = [part.name for part in settings.learner if declared(part.part.target, "runs") is None]
    chosen = {
        f"learner: {', '.join(own)}": bool(own),
        "training.agent_gradients": training.agent_gradients,
        "training.lag": bool(training.lag),
        "training.actor_noise": bool(training.actor_noise),
    }
    return [(name, "it does not go with `training.shard`, which spreads weights") for name in chosen if chosen[name]]


def spread(policies: Iterable[Any], ranks: Ranks) -> None:
    """Spread the networks of these policies over the ranks, so that each holds a slice of every weight.

    Policies that share a network share it afterwards, too. A policy without `network` does not change.

    Raises: PalaestraError, if the ranks have different weights.
    """
    if not ranks.in_step:
        return
    made: dict[int, torch.nn.Module] = {}
    for policy in policies:
        network = policy.network
        if network is not None:
            if id(network) not in made:
                refuse_different({policy.name: network}, ranks)
                made[id(network)] = copy.deepcopy(network)
                shard(made[id(network)], returns=PolicyOutputs)
            policy.train_through(made[id(network)])


class ProcessGroup(Ranks):
    """The ranks of torch's process group, seen from this process."""

    def __init__(self, *, in_step: bool = False) -> None:
        self.rank, self.world, self.in_step = dist.get_rank(), dist.get_world_size(), in_step

    def texts(self, own: str) -> list[str]:
        """The text `own` of each rank, in the order of ranks. Every rank gets all of them."""
        return [raw.decode() for raw in self._bytes(own.encode())]

    def exchange(self, own: Mapping[int, Mapping[str, Tensor]]) -> dict[int, Mapping[str, Tensor]]:
        """The named tensors of all ranks, by number of the piece of work. Every rank gets all of them, on the CPU."""
        flat = {f"{piece}.{name}": t.detach().cpu().contiguous() for piece, of in own.items() for name, t in of.items()}
        pieces: dict[int, dict[str, Tensor]] = {piece: {} for piece in own}
        for raw in self._bytes(save(flat)):
            for key, tensor in load(raw).items():
                piece, _, name = key.partition(".")
                pieces.setdefault(int(piece), {})[name] = tensor
        return dict(pieces)

    def sum_numbers(self, own: Mapping[str, float]) -> dict[str, float]:
        """The sum over ranks of each number, in the order of ranks; a rank that lacks one adds 0."""
        given: list[dict[str, float]] = [json.loads(text) for text in self.texts(json.dumps(dict(own)))]
        return {key: sum(numbers.get(key, 0.0) for numbers in given) for numbers in given for key in numbers}

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each parameter's gradient by its sum over ranks. Without a gradient on any rank it stays None."""
        learning = [
            p for p in parameters if p.requires_grad and not is_spread(p)
        ]  # torch itself sums the gradients of spread ones
        has = torch.tensor([p.grad is not None for p in learning], dtype=torch.int32)
        dist.all_reduce(has)
        shared = [p for p, ranks in zip(learning, has.tolist(), strict=True) if ranks]
        for parameter in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.sum_tensors([p.grad for p in shared if p.grad is not None])

    def sum_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in place. One message carries many small tensors."""
        for bucket in _buckets(tensors):
            together = torch.cat([tensor.flatten() for tensor in bucket])
            dist.all_reduce(together)
            for tensor, total in zip(bucket, together.split([t.numel() for t in bucket]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def _bytes(self, own: bytes) -> list[bytes]:
        lengths = torch.zeros(self.world, dtype=torch.int64)
        lengths[self.rank] = len(own)
        dist.all_reduce(lengths)
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
        padded[: len(own)] = torch.from_numpy(np.frombuffer(own, np.uint8).copy())
        given = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(given, padded)
        return [one[:length].numpy().tobytes() for one, length in zip(given, lengths.tolist(), strict=True)]


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in lists of at most BUCKET numbers, each list of one dtype and one device."""
    kinds: dict[tuple[Any, Any], list[Tensor]] = {}
    for tensor in tensors:
        bucket = kinds.setdefault((tensor.dtype, tensor.device), [])
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET:
            yield list(bucket)
            bucket.clear()
        bucket.append(tensor)
    yield from (bucket for bucket in kinds.values() if bucket)


# ---- episodes ---------------------------------------------------------------------------------------------
class SharedRunner:
    """A runner whose episodes all ranks play: each rank plays its share, and every rank gets all episodes.

    A group is divided among the ranks. Strategies run on every rank and decide the same, since they get the same
    episodes.
    """

    def __init__(self, runner: Any, ranks: Ranks) -> None:
        self._runner, self._ranks = runner, ranks

    def collect(self, plays: Sequence[Play], **options: Any) -> list[Trajectory]:
        """Play all plays. Returns the trajectories in their order."""
        return _gathered(self._runner.collect(self._ranks.own(plays), **options), self._ranks)

    def perform(self, plays: Sequence[Play], strategies: Sequence[Any], rollout: RolloutContext) -> list[Trajectory]:
        """Play through strategies, of which the first is the outermost."""
        one_at_a_time = (
            asyncio.Lock()
        )  # ranks exchange episodes in the order of the calls, which is the same on every rank

        async def shared(plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            async with one_at_a_time:
                played = await rollout.collect(self._ranks.own(plays))
                del rollout.played[len(rollout.played) - len(played) :]
                of_all = _gathered(played, self._ranks)
                rollout.played.extend(of_all)
                return of_all

        return self._runner.perform(plays, [*strategies, shared], rollout)  # type: ignore[no-any-return]

    def sampling(self, temperature: float | None = None) -> Any:
        """The sampling of the runner."""
        return self._runner.sampling(temperature)

    def close(self) -> None:
        """End the runner's workers."""
        self._runner.close()


def _gathered(own: Sequence[Trajectory], ranks: Ranks) -> list[Trajectory]:
    """The episodes of all ranks, in the order of the plays before `Ranks.own` divided them."""
    given = [json.loads(text) for text in ranks.texts(json.dumps([to_json(t, timed=True) for t in own]))]
    order = [of_rank[place] for place in range(max(map(len, given))) for of_rank in given if place < len(of_rank)]
    return [from_json(one) for one in order]


def share_logs(folder: RunFolder, ranks: Ranks) -> None:
    """Give every rank the logs of rank 0, since a run decides by its last evaluation."""
    if ranks.world == 1:
        return
    logs = [folder / name for name in (METRICS, EVALUATIONS) if (folder / name).is_file()]
    written = {log.name: log.read_text(encoding="utf-8", errors="replace") for log in logs}  # damaged lines go later
    for name, text in json.loads(ranks.texts(json.dumps(written))[0]).items():
        if not ranks.main:
            folder.write(name, text)


def refuse_interrupted(interruption: Interruption, ranks: Ranks) -> None:
    """End the run on all ranks, if a signal has arrived at one of them. Raises: Stopped."""
    given = ranks.texts(str(interruption.received or ""))
    if any(given):
        raise Stopped(int(next(filter(None, given))))


def refuse_different(modules: Mapping[str, torch.nn.Module], ranks: Ranks) -> None:
    """Refuse ranks that start with different weights. Raises: PalaestraError."""
    if ranks.world == 1:
        return
    sums = {name: float(sum(whole(p.detach()).double().sum() for p in m.parameters())) for name, m in modules.items()}
    given = ranks.texts(json.dumps(sums))
    if len({*given}) > 1:
        raise PalaestraError(
            where="several processes",
            what=f"they begin with different weights: {'; '.join(given)}.",
            remedy="Let all of them see the same files: the recipe, model folders, the run folder.",
        )
