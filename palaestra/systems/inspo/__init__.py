"""INSPO (arXiv 2512.01945) addresses agents that are trained under one fixed instruction although nobody knows the
best one. It keeps a population of instructions with weights. Each group of rollouts draws one instruction, and
rewards move its weight. At intervals the lowest are dropped, a proposer writes candidates from failures, and those
that score best with the present policy join. The paper does not give the pace of the weights, the share that is
dropped, or the rule for joining: these are ours. Candidates are tried on fresh training tasks. The recipe's proposer
draws from a fixed pool of texts; a language model that writes them can be given as a function and is not included.
This file is the strategy.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from palaestra.data import Play, StopReason, Trajectory, derive
from palaestra.errors import CheckpointError, InvalidData, RecipeError
from palaestra.registry import Fraction, Positive, PositiveInt, part, register
from palaestra.rollout.strategies import RolloutContext

WHERE = "strategy: instruction_population"
Count = Annotated[int, pydantic.Field(ge=0)]


class Failed(NamedTuple):
    """What a proposer reads of an episode that went badly."""

    instruction: str
    reward: float
    transcript: str


@dataclass(slots=True, kw_only=True)
class Member:
    """One instruction: its weight, and a number that it keeps for the log."""

    text: str
    weight: float
    number: int


def draw_probabilities(weights: Sequence[float], temperature: float) -> np.ndarray:
    """softmax(weights / temperature): float64 (instructions,)."""
    scaled = np.asarray(weights, np.float64) / temperature
    scores = np.exp(scaled - scaled.max())
    found: np.ndarray = scores / scores.sum()
    return found


def moved(weight: float, reward: float, *, pace: float) -> float:
    """(1 − pace) · weight + pace · reward."""
    return (1 - pace) * weight + pace * reward


@register("strategy", "instruction_population", uses=("tokens",), source="arXiv 2512.01945")
class InstructionPopulation:
    """Each group plays under an instruction drawn from a population; rewards move the weights, failures the texts.

        p(I_j) = exp(w_j / temperature) / Σ_k exp(w_k / temperature)              one draw for a whole group
        w_j    ← (1 − pace) · w_j + pace · mean outcome of the rollouts under I_j   of this iteration; others stay

    Every `every` iterations the lowest weights are dropped, a proposer writes candidates from an instruction and
    failures under it (drawn with priority 1 − reward from a memory of the worst), all candidates are tried on the same
    fresh tasks with the present policy, and the best join with their score as weight.

    Args:
        instructions: to begin with, all different. "" is none at all. One, and no reflection, is plain GRPO.
        temperature: > 0, of the draw. Lower: the best one nearly always. Usual: 0.2.
        pace: in [0, 1]. Higher: weights follow the last rewards. Usual: 0.3.
        weight: of the first instructions. Higher: all are tried before one wins. Usual: 0.5.
        every: iterations between reflections; None: never. Usual: 20.
        drop: share of the population that goes then. Usual: 0.25.
        least, most: of the population.
        candidates: proposed each time. 0: only drop. Usual: 4.
        verify: tasks a candidate is tried on. Higher: a truer choice, more to play. Usual: 8.
        memory: worst trajectories that are kept. Usual: 64.
        shown: how many of them a proposer sees. Higher: more to learn from, longer prompts. Usual: 4.
        proposer: `module:function` or `file.py:function`, called with (instruction, failures, seed), answering a text,
            also asynchronously; None: draws from `pool`, a simulated writer who reads nothing.
        pool: texts of that writer.

    Evaluations are played under the instruction of the largest weight (`instruction`). Metrics: instruction/size,
    instruction/entropy (of p, nats), and for each member instruction/<number>/probability, where the first ones are
    0, 1, … in the order of the recipe.

    Raises: RecipeError, for an empty population, repeated texts, or reflection without writer; InvalidData, if plays
        have an instruction already or a group would mix several.
    Differs from the paper, whose numbers for pace, drop and joining are not given: those here are ours.
    """

    called_per = "iteration"  # weights move by the mean over an iteration

    def __init__(
        self,
        *,
        instructions: tuple[str, ...],
        temperature: Positive = 0.2,
        pace: Fraction = 0.3,
        weight: float = 0.5,
        every: PositiveInt | None = 20,
        drop: Fraction = 0.25,
        least: PositiveInt = 2,
        most: PositiveInt = 8,
        candidates: Count = 4,
        verify: PositiveInt = 8,
        memory: PositiveInt = 64,
        shown: PositiveInt = 4,
        proposer: str | None = None,
        pool: tuple[str, ...] = (),
    ) -> None:
        _refuse(instructions, writes=bool(proposer or pool) or not (every and candidates))
        self._temperature, self._pace, self._every = temperature, pace, every
        self._drop, self._least, self._most = drop, least, most
        self._candidates, self._verify, self._memory, self._shown = candidates, verify, memory, shown
        self._pool = pool
        self._propose: Any = self._from_pool if proposer is None else part("strategy", proposer, where=WHERE).target
        self.members = [Member(text=text, weight=weight, number=i) for i, text in enumerate(instructions)]
        self.failures: list[Failed] = []
        self._given = len(instructions)

    @property
    def phrases(self) -> tuple[str, ...]:
        """Texts that a policy may read, for a tokenizer."""
        return (*(member.text for member in self.members), *self._pool)

    @property
    def instruction(self) -> str | None:
        """The instruction of the largest weight, for evaluations; None, if it is the empty one."""
        return max(self.members, key=lambda member: member.weight).text or None

    @property
    def probabilities(self) -> np.ndarray:
        """Of the members, in their order."""
        return draw_probabilities([member.weight for member in self.members], self._temperature)

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """What was played under drawn instructions; candidates' trials are spent and not returned."""
        chosen = self._draw(plays, rollout.seed)
        played = await rollout.collect([_told(play, chosen[play.group].text) for play in plays])
        refuse_mixed(played)
        self._learn(played, chosen)
        if self._every is not None and (rollout.step + 1) % self._every == 0:
            await self._reflect(rollout)
        rollout.metrics |= self._metrics()
        return played

    def _draw(self, plays: Sequence[Play], seed: int) -> dict[str, Member]:
        found: dict[str, Member] = {}
        probabilities = self.probabilities
        for play in plays:
            if play.instruction:
                raise InvalidData(
                    where=WHERE,
                    what=f"group {play.group} has an instruction already: {play.instruction!r}.",
                    remedy="Let one part give instructions: this strategy, or the sampler.",
                )
            if play.group not in found:
                draw = np.random.default_rng(derive(seed, "instruction", play.group))
                found[play.group] = self.members[int(draw.choice(len(self.members), p=probabilities))]
        return found

    def _learn(self, played: Sequence[Trajectory], chosen: Mapping[str, Member]) -> None:
        """Weights from rewards, and the worst trajectories into memory."""
        rewards: dict[int, list[float]] = defaultdict(list)
        for one in played:
            if one.stop is not StopReason.ERROR:
                member, reward = chosen[one.group], _reward(one)
                rewards[member.number].append(reward)
                self.failures.append(Failed(member.text, reward, _transcript(one)))
        for member in self.members:
            if member.number in rewards:
                member.weight = moved(member.weight, float(np.mean(rewards[member.number])), pace=self._pace)
        self.failures = sorted(self.failures, key=lambda failed: failed.reward)[: self._memory]

    # ---- reflection ---------------------------------------------------------------------------------------
    async def _reflect(self, rollout: RolloutContext) -> None:
        """Drop the worst, propose, verify, let the best join."""
        going = min(int(self._drop * len(self.members)), len(self.members) - self._least)
        if going > 0:
            gone = {m.number for m in sorted(self.members, key=lambda m: (m.weight, -m.number))[:going]}
            self.members = [member for member in self.members if member.number not in gone]
        texts = [text for text in await self._written(rollout.seed) if text not in {m.text for m in self.members}]
        room = self._most - len(self.members)
        if not texts or room <= 0:
            return
        scores = await self._tried(texts, rollout)
        for place in np.argsort([-score for score in scores], kind="stable")[:room]:
            self.members.append(Member(text=texts[place], weight=scores[place], number=self._given))
            self._given += 1
        rollout.metrics["instruction/verified"] = float(len(texts))

    async def _written(self, seed: int) -> list[str]:
        """Different candidates, each from an instruction and failures under it."""
        found: dict[str, None] = {}
        for place in range(self._candidates):
            own = derive(seed, "proposal", place)
            draw = np.random.default_rng(own)
            member = self.members[int(draw.choice(len(self.members), p=self.probabilities))]
            text = self._propose(member.text, self._failures_of(member, draw), own)
            text = await text if inspect.isawaitable(text) else text
            found |= {str(text).strip(): None} if text else {}
        return list(found)

    def _failures_of(self, member: Member, draw: np.random.Generator) -> list[Failed]:
        own = [failed for failed in self.failures if failed.instruction == member.text]
        priority = np.array([max(1 - failed.reward, 0.0) for failed in own])
        count = min(self._shown, int((priority > 0).sum()))
        if not count:
            return []
        return [own[i] for i in draw.choice(len(own), count, replace=False, p=priority / priority.sum())]

    async def _tried(self, texts: Sequence[str], rollout: RolloutContext) -> list[float]:
        """Mean outcome of each candidate over the same tasks."""
        tasks = [play for play in rollout.more(self._verify) if play.sample == 0]
        plays = [
            replace(_told(play, text), group=f"{play.group}-candidate-{i}")
            for i, text in enumerate(texts)
            for play in tasks
        ]
        rewards: list[list[float]] = [[] for _ in texts]
        for one in await rollout.collect(plays):
            rewards[int(one.group.rpartition("-")[2])].append(_reward(one))
        return [float(np.mean(own)) if own else 0.0 for own in rewards]

    def _from_pool(self, instruction: str, failures: Sequence[Failed], seed: int) -> str:
        """The simulated writer: any text of the pool that is not in the population."""
        known = {member.text for member in self.members}
        free = [text for text in self._pool if text not in known]
        return free[int(np.random.default_rng(seed).integers(len(free)))] if free else ""

    def _metrics(self) -> dict[str, float]:
        p = self.probabilities
        found = {"instruction/size": float(len(p)), "instruction/entropy": float(-(p * np.log(p.clip(1e-300))).sum())}
        return found | {
            f"instruction/{member.number}/probability": float(share)
            for member, share in zip(self.members, p, strict=True)
        }

    # ---- checkpoints --------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Population, memory and how many instructions there were ever."""
        return {
            "members": [asdict(member) for member in self.members],
            "failures": [list(failed) for failed in self.failures],
            "given": self._given,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was saved.

        Raises: CheckpointError, if the population is empty.
        """
        if not state["members"]:
            raise CheckpointError(where=WHERE, what="the checkpoint holds no instruction.")
        self.members = [Member(**member) for member in state["members"]]
        self.failures = [Failed(*failed) for failed in state["failures"]]
        self._given = int(state["given"])


def refuse_mixed(played: Sequence[Trajectory]) -> None:
    """Raises: InvalidData, if trajectories of one group had different instructions: their mean is no baseline."""
    told: dict[str, set[str | None]] = defaultdict(set)
    for one in played:
        told[one.group] |= {step.observation.instruction for step in one.steps}
    for group, texts in told.items():
        if len(texts) > 1:
            raise InvalidData(
                where=f"{WHERE}, group {group}",
                what=f"its trajectories have {len(texts)} different instructions: {sorted(map(str, texts))}.",
                remedy="One instruction a group: trajectories are compared with their group's mean.",
            )


def _told(play: Play, text: str) -> Play:
    return replace(play, instruction=text or None, info={**play.info, "instruction": text})


def _reward(one: Trajectory) -> float:
    return float(one.outcome) if one.outcome is not None else float(sum(one.returns.values()))


def _transcript(one: Trajectory) -> str:
    return "\n".join(f"{step.observation.text or ''}\n> {step.action.text or step.action.value}" for step in one.steps)


def _refuse(instructions: Sequence[str], *, writes: bool) -> None:
    """Raises: RecipeError."""
    twice = sorted({text for text in instructions if list(instructions).count(text) > 1})
    if not instructions or twice:
        raise RecipeError(
            where=WHERE,
            what=f"the instruction {twice[0]!r} is there twice." if twice else "the population is empty.",
            remedy="Give `instructions` that differ, at least one.",
        )
    if not writes:
        raise RecipeError(
            where=WHERE,
            what="it should propose instructions, and nobody writes any.",
            remedy="Set `proposer` or `pool`, or `every: null` for a population that stays as it is.",
        )
