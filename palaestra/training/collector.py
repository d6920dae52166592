"""The collector plays the episodes of each iteration when the loop asks for them."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from palaestra.data import Batch, Play, RunSetup, derive
from palaestra.data.protocols import Experience
from palaestra.rollout.strategies import RolloutContext
from palaestra.training.parallel import SharedRunner
from palaestra.training.settings import RunSettings
from palaestra.training.setup import connect_engine

Weights = Mapping[str, tuple[int, Mapping[str, Tensor]]]  # policy → version and state of its module


class Collector(Experience):
    """Plays the episodes of an iteration, all with the weights at its start.

    With `training.lag` or `training.actor_noise` copies of the policies act. Their weights are `lag` updates old, or
    differ by noise as in an engine of low precision. So a study of staleness and mismatch gives the same numbers each
    time.

    Attributes:
        setup: of the run, with the policies that learn.
        acting: the setup that plays: the same, or one with copies of the policies and its own engine and runner.
    """

    def __init__(self, setup: RunSetup, *, copies: bool = False) -> None:
        """
        Args:
            setup: of the run; its settings name the sampler and the strategies.
            copies: let copies act, also without `lag` and `actor_noise`.
        """
        settings: RunSettings = setup.settings
        self._settings, self._sampler = settings, settings.sampler.started()
        self._bound = [strategy.started() for strategy in settings.strategy]
        self.strategies: list[Any] = [strategy.state or strategy for strategy in self._bound]
        self._lock = threading.Lock()  # another thread may ask for plays
        self._past: deque[Weights] = deque(maxlen=settings.training.lag + 1)
        self.setup = setup
        copies = copies or bool(settings.training.lag or settings.training.actor_noise)
        self.acting = _with_copies(setup, settings) if copies else setup

    def collect(self, number: int) -> Batch:
        """The episodes of this iteration."""
        if self.acting is not self.setup:
            self._prepare_copies(number)
        plays, runner = self.plays(number), self.acting.runner
        if not self.strategies:
            played = runner.collect(plays)
            return Batch(kept=played, played=played)
        rollout = RolloutContext(
            more=self.more(number),
            settings=self._settings.rollout,
            sampling=runner.sampling(),
            step=number,
            seed=derive(self._settings.seed, "strategy", number),
            setup=self.acting,
        )
        kept = runner.perform(plays, self.strategies, rollout)
        played = sorted(rollout.played, key=lambda t: (t.group, t.sample))  # not in the order in which they ended
        return Batch(kept=kept, played=played, metrics=rollout.metrics)

    @property
    def instruction(self) -> str | None:  # type: ignore[override]
        """The instruction of a strategy that has one; evaluations give it to every policy."""
        return next((text for strategy in self._bound if (text := strategy.can("instruction"))), None)

    def publish(self, batch: Batch, number: int) -> dict[str, float]:
        """Let a sampler with state learn from the batch. If copies act, store the weights for later iterations."""
        metrics = self.learn(batch, number)
        if self.acting is not self.setup:
            self._note_weights()
        return metrics

    def learn(self, batch: Batch, number: int) -> dict[str, float]:
        """Let a sampler with state learn from the episodes of its tasks. Returns its metrics."""
        learn = self._sampler.can("learn")
        with self._lock:
            return dict(learn(batch.played, number)) if learn is not None else {}

    def _note_weights(self) -> None:
        self._past.append({n: (p.version, copy.deepcopy(p.module.state_dict())) for n, p in self._learners.items()})

    def close(self) -> None:
        """Close the collector's own runner and engine, if copies act. The run closes its own runner and engine."""
        if self.acting is not self.setup:
            self.acting.runner.close()
            if self.acting.engine is not None:
                self.acting.engine.shutdown()

    # ---- the plays of an iteration --------------------------------------------------------------------------
    def plays(self, step: int) -> list[Play]:
        """The plays of iteration `step`: a group for each task of the sampler."""
        return self._drawn(step, self._settings.rollout.tasks, self._settings.seed, first=0)

    def more(self, step: int, *, first: int | None = None) -> Callable[[int], list[Play]]:
        """A function that gives further groups of iteration `step`, new ones at each call.

        Args:
            first: number of the first further group; None: the number after the groups of the iteration itself.
        """
        given = self._settings.rollout.tasks if first is None else first

        def further(groups: int) -> list[Play]:
            nonlocal given
            plays = self._drawn(step, groups, derive(self._settings.seed, "more", given), first=given)
            given += groups
            return plays

        return further

    def _drawn(self, step: int, count: int, drawn_by: int, *, first: int) -> list[Play]:
        with self._lock:
            chosen = self._sampler(self.setup.source, step, count, drawn_by)
        seed, size = self._settings.seed, self._settings.rollout.group
        return [
            dataclasses.replace(
                play, group=f"{step:06d}-{i:05d}", sample=sample, seed=derive(seed, "play", step, i, sample)
            )
            for i, play in enumerate(map(Play.of, chosen), start=first)
            for sample in range(size if play.samples is None else play.samples)
        ]

    # ---- copies that act --------------------------------------------------------------------------------------
    @property
    def _learners(self) -> dict[str, Any]:
        """The policies with weights."""
        return {name: policy for name, policy in self.setup.policies.items() if policy.module is not None}

    def follow(self) -> None:
        """Give the learners' present weights to the copies."""
        for name, policy in self._learners.items():
            self._hand_over(name, policy.version, policy.module.state_dict())

    def _prepare_copies(self, step: int) -> None:
        """Give the copies their weights for this iteration; in the first iterations, those of the start."""
        if not self._past:
            self._note_weights()
        noise = self._settings.training.actor_noise
        for name, (version, state) in self._past[0].items():
            self._hand_over(name, version, state, again=noise > 0)
        if noise:
            self._disturb(noise, seed=derive(self._settings.seed, "actors", step))

    def _hand_over(self, name: str, version: int, state: Mapping[str, Tensor], *, again: bool = False) -> None:
        """Load these weights into a copy.

        Args:
            again: load them even if the copy already has this version.
        """
        acting = self.acting.policies[name]
        if again or acting.version != version:
            acting.module.load_state_dict(state)
            acting.weights_changed(version)

    def _disturb(self, share: float, *, seed: int) -> None:
        """Add normal noise to every tensor of the copies, with this share of the tensor's standard deviation."""
        draw = torch.Generator().manual_seed(seed % 2**63)
        for name in self._learners:
            acting = self.acting.policies[name]
            with torch.no_grad():
                for p in acting.module.parameters():
                    if p.numel() > 1:
                        p += share * p.std() * torch.randn(p.shape, generator=draw).to(p.device)
            acting.weights_changed(acting.version)

    # ---- checkpoints ------------------------------------------------------------------------------------------
    def stateful(self) -> dict[str, Any]:
        """Those of runner, sampler and strategies that have a state, and the collector itself if copies act."""
        held = {"runner": self.setup.runner, "sampler": self._sampler.state}
        held |= {f"strategy.{place}": one.state for place, one in enumerate(self._bound)}
        own = {"supply": self} if self.acting is not self.setup else {}  # its name in checkpoints
        return {name: one for name, one in held.items() if hasattr(one, "state_dict")} | own

    def state_dict(self) -> dict[str, Any]:
        """The stored weights of earlier updates."""
        return {"past": [{n: [version, dict(state)] for n, (version, state) in w.items()} for w in self._past]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the stored weights."""
        self._past.clear()
        self._past.extend({n: (int(kept[0]), kept[1]) for n, kept in w.items()} for w in state["past"])


def _with_copies(setup: RunSetup, settings: RunSettings) -> RunSetup:
    """The setup with copies of the policies that have weights, and with a new engine and runner for them."""
    policies = {name: p.clone() if p.module is not None else p for name, p in setup.policies.items()}
    engine = connect_engine(policies, setup.device, settings.engine, setup.ranks)
    roles = {name: dataclasses.replace(role, policy=policies[role.policy.name]) for name, role in setup.roles.items()}
    acting = dataclasses.replace(setup, policies=policies, roles=roles, engine=engine)
    acting.runner = settings.rollout.runner.part.target(acting, settings.rollout)
    if setup.ranks.world > 1:
        acting.runner = SharedRunner(acting.runner, setup.ranks)
    return acting
