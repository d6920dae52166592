"""Experience from files: preference pairs, demonstrations and stored episodes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.chat import ContextFull
from palaestra.data import Batch, NextPrompt, RunSetup, Step, Trajectory, derive
from palaestra.data.protocols import Experience, Session
from palaestra.envs.worlds.dataset.layouts import LayoutName
from palaestra.envs.worlds.dataset.records import WHERE, Record, Records, read_records
from palaestra.errors import EpisodeFailure, InvalidData, RecipeError
from palaestra.registry import File, PositiveInt, register
from palaestra.registry.source_search import PACKAGE
from palaestra.rollout.episode import segment_number
from palaestra.rollout.strategies import opening
from palaestra.training.settings import RunSettings
from palaestra.training.setup import roles_in


@register("experience", "dataset")
class Dataset(Experience):
    """Learn from the records of a file instead of playing.

    The file holds pairs, demonstrations or stored episodes: `read_records` in `palaestra.envs.worlds.dataset.records`
    lists the columns.
    Every record is repeated in sessions of the run's policies, with their tokenizer, chat template and context.
    Each record is one group. The records of an iteration depend only on its number and the run's seed.
    """

    provides = frozenset({"outcome", "pair"})
    ignores = ("sampler", "strategy", "rollout.tasks", "rollout.group")  # nothing is played but evaluations

    def __init__(
        self,
        setup: RunSetup,
        *,
        path: File,
        batch: PositiveInt = 16,
        shuffle: bool = True,
        agent: str | None = None,
        layout: LayoutName = "columns",
    ) -> None:
        """
        Args:
            path: of the file, from the recipe's folder or the working folder; `dpo/pairs.jsonl` is a file in the folder
                of a system.
            batch: records of an iteration. Higher: smoother gradients, fewer updates in one pass over the file.
            shuffle: use a new random order in each pass over the file.
            agent: the role whose conversations the file holds; None: the only role.
            layout: `sharegpt` for rows with `conversations`, `alpaca` for rows with `instruction` and `output`.

        Raises: RecipeError, without such a file; InvalidData, for a record that cannot be read.
        """
        read = _read(path, [name for name in setup.roles if name != "*"], agent=agent, layout=layout)
        self.records, self.notes = read.records, read.notes
        self._setup, self._seed, self._shuffle = setup, setup.settings.seed, shuffle
        self._batch = min(batch, len(self.records))

    @staticmethod
    def fits(options: Mapping[str, Any], settings: RunSettings, source: Any) -> Sequence[str]:
        """Read the file before the start. Returns lines on what of it is not used."""
        roles = [name for name in roles_in(settings, source.agents) if name != "*"]
        return _read(options["path"], roles, agent=options["agent"], layout=options["layout"]).notes

    def collect(self, number: int) -> Batch:
        """The records of this iteration. Records that do not fit a policy's context are left out and counted.

        Raises: InvalidData, if none fits.
        """
        drawn = self._drawn(number)
        kept: list[Trajectory] = []
        too_long = 0
        for place, record in enumerate(drawn):
            try:
                kept += [self._told(trajectory, f"{number:06d}-{place:05d}") for trajectory in record]
            except ContextFull:
                too_long += 1
        if not kept:
            raise InvalidData(
                where=WHERE,
                what=f"none of the {len(drawn)} records of iteration {number} fits the policy's context.",
                remedy="Use a policy with a longer context, or shorten the records.",
            )
        passes = (number + 1) * self._batch / len(self.records)
        return Batch(kept=kept, played=[], metrics={"dataset/passes": passes, "dataset/too_long": float(too_long)})

    def _drawn(self, number: int) -> list[Record]:
        """The records of this iteration. An iteration may hold the end of one pass and the start of the next."""
        size = len(self.records)
        places = range(number * self._batch, (number + 1) * self._batch)
        orders = {which: self._order(which) for which in {place // size for place in places}}
        return [self.records[orders[place // size][place % size]] for place in places]

    def _order(self, which: int) -> list[int]:
        """The order of the records in pass number `which`."""
        size = len(self.records)
        draw = np.random.default_rng(derive(self._seed, "dataset", which))
        return draw.permutation(size).tolist() if self._shuffle else list(range(size))

    def _told(self, trajectory: Trajectory, group: str) -> Trajectory:
        """The episode with the token ids of the run's policies. Raises: ContextFull, if it does not fit a context."""
        opened = opening(self._setup)
        sessions: dict[tuple[str, int], Session] = {}
        steps: list[Step] = []
        for step in trajectory.steps:
            key = (step.agent, step.invocation)
            if key not in sessions:
                sessions[key] = opened(step.agent, (group, trajectory.sample, *key))
            steps.append(self._step(step, sessions[key]))
        next_prompts: dict[str, NextPrompt] = {}
        for (agent, invocation), session in sessions.items():
            prompt = session.end(None if invocation else trajectory.last.get(agent))
            if prompt is not None:
                next_prompts[agent] = prompt
        return replace(trajectory, group=group, steps=steps, next_prompts=next_prompts)

    def _step(self, step: Step, session: Session) -> Step:
        """The step with the ids of its role's policy. Log-probabilities are kept if the response has the same ids."""
        try:
            response = session.record(step.observation, step.action)
        except EpisodeFailure as failure:
            if failure.boundary == "engine":  # the first prompt fills the context
                raise ContextFull from None
            raise
        same = step.action.logprobs is not None and np.array_equal(step.action.tokens, response.action.tokens)
        return replace(
            step,
            action=step.action if same else response.action,
            policy=self._setup.role(step.agent).policy.name,
            version=response.version,
            prompt=response.prompt,
            pictures=response.pictures,
            segment=segment_number(step.invocation, response.segment),
        )


def _read(path: str, roles: Sequence[str], *, agent: str | None, layout: LayoutName) -> Records:
    """The records of a file. Raises: as the constructor of `Dataset`."""
    place = next((one for one in (Path(path), PACKAGE / "systems" / path) if one.is_file()), None)
    if place is None:
        raise RecipeError(where=f"{WHERE}, path", what=f"there is no file {path}.", remedy="Correct the path.")
    state = place.stat()
    return _records(place, state.st_mtime_ns, state.st_size, agent or (roles[0] if len(roles) == 1 else None), layout)


@functools.lru_cache(maxsize=1)  # the check before the start and the run read the same file
def _records(place: Path, changed: int, size: int, agent: str | None, layout: LayoutName) -> Records:
    return read_records(place, agent, layout=layout)
