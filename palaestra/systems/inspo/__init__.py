"""INSPO (arXiv 2512.01945) addresses agents that are trained under one fixed instruction although nobody knows the best
one. It keeps a population of instructions with weights. Each group of rollouts samples one instruction, and rewards
move its weight. At intervals the instructions of lowest weight are dropped, a proposer writes candidates from failures,
and the candidates that score best with the present policy join. The paper does not give the pace of the weights, the
share that is dropped, or the rule for joining: these are ours. Candidates are tried on fresh training tasks. The
recipe's proposer samples from a fixed pool of texts; a language model that writes them can be given as a function and
is not included. This file is the strategy.
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
    """An episode with a low reward, as a proposer reads it."""

    instruction: str
    reward: float
    transcript: str


@dataclass(slots=True, kw_only=True)
class Member:
    """One instruction with its weight, and a number that identifies it in the log."""

    text: str
    weight: float
    number: int


def draw_probabilities(weights: Sequence[float], temperature: float) -> np.ndarray:
    """The probability of each instruction, softmax(weights / temperature): float64 (instructions,)."""
    scaled = np.asarray(weights, np.float64) / temperature
    scores = np.exp(scaled - scaled.max())
    found: np.ndarray = scores / scores.sum()
    return found


def moved(weight: float, reward: float, *, pace: float) -> float:
    """The new weight: (1 − pace) · weight + pace · reward."""
    return (1 - pace) * weight + pace * reward


@register("strategy", "instruction_population", uses=("tokens",), source="arXiv 2512.01945")
class InstructionPopulation:
    """Play each group under an instruction from a population; rewards move weights, failures lead to new texts.

        p(I_j) = exp(w_j / temperature) / Σ_k exp(w_k / temperature)              one sample for a whole group
        w_j    ← (1 − pace) · w_j + pace · mean outcome of the rollouts under I_j   of this iteration; others stay

    Every `every` iterations there is a reflection. The lowest weights are dropped. A proposer writes candidates from an
    instruction and failures under it, which are sampled with priority 1 − reward from a memory of the worst
    trajectories. All candidates are tried on the same fresh tasks with the present policy, and the best join with their
    score as weight.

    Evaluations are played under the instruction of the largest weight (`instruction`).

    Args:
        instructions: the first members, all different. "" is no instruction. One member without reflection is plain
            GRPO.
        temperature: > 0, of the softmax. Lower: the best one nearly always. Usual: 0.2.
        pace: in [0, 1]. Higher: weights follow the last rewards. Usual: 0.3.
        weight: the weight of the first instructions. Higher: all are tried before one wins. Usual: 0.5.
        every: iterations between reflections; None: never. Usual: 20.
        drop: share of the population that a reflection drops. Usual: 0.25.
        least: the smallest population that dropping leaves.
        most: the largest population.
        candidates: texts proposed in each reflection. 0: only drop. Usual: 4.
        verify: tasks that each candidate is tried on. Higher: a more reliable choice, more episodes. Usual: 8.
        memory: how many of the worst trajectories are kept.
        shown: how many of them a proposer sees at most.
        proposer: `module:function` or `file.py:function`, called with (instruction, failures, seed), which returns a
            text or awaits one; None: samples from `pool`, a simulated proposer that reads nothing.
        pool: texts of the simulated proposer.

    Metrics: instruction/size, instruction/entropy (of p, nats), and for each member instruction/<number>/probability,
        where the first ones are 0, 1, … in the order of the recipe.
    Raises: RecipeError, for an empty population, repeated texts, or reflection without a proposer; InvalidData, if
        plays have an instruction already or a group would mix several.
    Differs from the paper, which does not give numbers for pace, drop and joining: those here are ours.
    """

    called_per = "iteration"  # a weight moves by the mean outcome over an iteration

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
        """All texts that a policy may read from this part; a tokenizer is built from them."""
        return (*(member.text for member in self.members), *self._pool)

    @property
    def instruction(self) -> str | None:
        """The instruction of the largest weight, for evaluations; None, if it is ""."""
        return max(self.members, key=lambda member: member.weight).text or None

    @property
    def probabilities(self) -> np.ndarray:
        """The probability of each member, float64 (members,)."""
        return draw_probabilities([member.weight for member in self.members], self._temperature)

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play and return the plays under sampled instructions. Trials of candidates count as spent and are not
        returned.
        """
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
        """Move weights by the rewards, and keep the worst trajectories in memory."""
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
        """Drop the lowest weights, propose candidates, try them, and let the best join."""
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
        """Different candidates, each written from an instruction and failures under it."""
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
        """The mean outcome of each candidate over the same tasks."""
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
        """The simulated proposer: any text of the pool that is not in the population."""
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
        """The population, the memory, and the next member's number."""
        return {
            "members": [asdict(member) for member in self.members],
            "failures": [list(failed) for failed in self.failures],
            "given": self._given,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises: CheckpointError, if the population is empty.
        """
        if not state["members"]:
            raise CheckpointError(
                where=WHERE,
                what="the checkpoint's population of instructions is empty.",
                remedy="Resume from another checkpoint, or start a new run.",
            )
        self.members = [Member(**member) for member in state["members"]]
        self.failures = [Failed(*failed) for failed in state["failures"]]
        self._given = int(state["given"])


def refuse_mixed(played: Sequence[Trajectory]) -> None:
    """Raise InvalidData if trajectories of one group had different instructions: their mean is not a baseline.

    Agents are compared by their first steps. Roles read different rules, and an environment may tell its own only once.
    """
    told: dict[tuple[str, str], set[str | None]] = defaultdict(set)
    for one in played:
        for agent in dict.fromkeys(step.agent for step in one.steps):
            first = next(step for step in one.steps if step.agent == agent)
            told[one.group, agent].add(first.observation.instruction)
    for (group, _), texts in told.items():
        if len(texts) > 1:
            raise InvalidData(
                where=f"{WHERE}, group {group}",
                what=f"its trajectories have {len(texts)} different instructions: {sorted(map(str, texts))}.",
                remedy="Give each group one instruction: trajectories are compared with their group's mean.",
            )


def _told(play: Play, text: str) -> Play:
    return replace(play, instruction=text or None, info={**play.info, "instruction": text})


def _reward(one: Trajectory) -> float:
    return float(one.outcome) if one.outcome is not None else float(sum(one.returns.values()))


def _transcript(one: Trajectory) -> str:
    return "\n".join(f"{step.observation.text or ''}\n> {step.action.text or step.action.value}" for step in one.steps)


def _refuse(instructions: Sequence[str], *, writes: bool) -> None:
    """Raise RecipeError for an empty population, repeated texts, or reflection without a proposer."""
    twice = sorted({text for text in instructions if list(instructions).count(text) > 1})
    if not instructions or twice:
        raise RecipeError(
            where=WHERE,
            what=f"`instructions` has {twice[0]!r} twice." if twice else "`instructions` is empty.",
            remedy="Give at least one instruction, and no text twice.",
        )
    if not writes:
        raise RecipeError(
            where=WHERE,
            what="`every` and `candidates` ask for new instructions, but neither `proposer` nor `pool` is set.",
            remedy="Set `proposer` or `pool`, or `every: null` for a population that stays as it is.",
        )
