"""The environment `prover`: tasks, tactics, rewards.

Knows goals and wordings. The checker is `tactics`, the expert `search`, theorems come from `problems`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.prover.formulas import Formula
from palaestra.envs.worlds.prover.problems import ATOMS, problem
from palaestra.envs.worlds.prover.search import shortest
from palaestra.envs.worlds.prover.tactics import UNREADABLE, Goal, Refused, choices, use
from palaestra.envs.worlds.prover.wording import WORDINGS, Symbols
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
Range = tuple[PositiveInt, PositiveInt]
REACH = 16  # tactics that the expert looks ahead, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far one proof is. Frozen: a snapshot is the state itself."""

    theorem: Formula
    steps: int  # of a shortest proof
    seed: int
    goals: tuple[Goal, ...]
    fault: str = ""
    turn: int = 0


@register("environment", "prover")
class Prover(KeepsState[State]):
    """Prove a theorem of intuitionistic propositional logic by tactics, one goal after another.

    `a: p -> q; b: p |- q` shows what is given and what is to be shown; tactics work on the first open goal. `intro`
    takes the left side of an implication as given, `exact a` is the end of a goal that is given, `apply a` uses an
    implication backwards, `split`, `left` and `right` go into `&` and `|`, `cases a` takes a given `&` or `|` apart
    (and ends the goal where `false` is given), `exfalso` shows `false` instead, `have x : p & q` proves something
    in between. Names of one's own may stand behind `intro` and `cases`; else the next free letters are taken.
    `~p` is `p -> false`. What cannot be used is refused with a reason, and nothing changes.

    Args:
        size: fewest and most operators of a theorem. Higher: longer texts. Usual: 2 to 6.
        steps: fewest and most tactics of a shortest proof, mixed evenly. Higher: rarer success. Usual: 3 to 8.
        atoms: different letters, 1–4. Fewer: more theorems hold for a trivial reason. Usual: 3.
        composed: theorems are made of two others, one of them inside an instance of the first.
        symbols: "signs", "words" (`p implies q`) or "renamed" (other words for tactics, operators and letters).
        noise: probability that a tactic is lost, as if the checker had run out of time.
        max_turns: turns until the episode is cut off. Usual: twice the longest proof.

    Reward: 1 when no goal is left, else 0. `info` tells `process`, 1 for a tactic after which a shortest proof is
    shorter, `executable`, 0 for what is refused or cannot be read, and `stratum`, the tactics of a shortest proof.
    The expert finds a shortest proof from any state that has one of at most 16 tactics; a state that has none (after
    `left` where only `right` is true) it cannot mend.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "difficulty", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "process", "executable", "stratum"})

    def __init__(
        self,
        *,
        size: Range = (2, 6),
        steps: tuple[Annotated[int, pydantic.Field(ge=1, le=12)], Annotated[int, pydantic.Field(ge=1, le=12)]] = (3, 8),
        atoms: Annotated[int, pydantic.Field(ge=1, le=len(ATOMS))] = 3,
        composed: bool = False,
        symbols: Symbols = "signs",
        noise: Fraction = 0.0,
        max_turns: PositiveInt = 16,
    ) -> None:
        refuse = Refusals("environment: prover")
        refuse.when_reversed(size=size, steps=steps)
        refuse.when(
            size[1] > 20,
            f"theorems of {size[1]} operators take too long to prove.",
            "Keep `size` at 20 or below; `composed` makes longer ones of short ones.",
        )
        self._params = {"size": list(size), "steps": list(steps), "atoms": atoms, "composed": composed}
        self._wording, self._noise, self._max_turns = WORDINGS[symbols], noise, max_turns

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` theorems; no split has one of another."""
        return seeded_tasks("prover", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """The theorem."""
        return str(self._theorem(task.seed, task.params)[0])

    def difficulty(self, task: Task) -> float:
        """Tactics of a shortest proof."""
        return float(self._theorem(task.seed, task.params)[1])

    def reset(self, task: Task) -> StepResult:
        theorem, steps = self._theorem(task.seed, task.params)
        self.state = State(theorem=theorem, steps=steps, seed=task.seed, goals=(Goal((), theorem),))
        return single(AGENT, self._observe(self.state), info={"success": False, "stratum": str(steps)})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        text = actions[AGENT].value
        meant = " ".join(self._wording.read(text.lower()).split()) if isinstance(text, str) else ""
        lost = self._noise > 0 and derive(before.seed, "noise", before.turn) / 2**63 < self._noise
        after, readable = self._try(before, meant, lost=lost)
        self.state = after = replace(after, turn=before.turn + 1)
        over = not after.goals
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=float(over),
            over=over,
            cut=after.turn >= self._max_turns,
            act={"process": float(_left(after) < _left(before)), "executable": float(not after.fault)},
            readable=readable,
            info={"success": over, "stratum": str(after.steps)},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next tactic of a shortest proof of the first goal; where none is known, the first that can be used."""
        goal = self.state.goals[0]
        proof = _proof(goal)
        return Action(text=self._wording.show(proof[0] if proof else choices(goal)[0]))

    # ---- playing ------------------------------------------------------------------------------------------
    def _theorem(self, seed: int, params: Mapping[str, Any] | None = None) -> tuple[Formula, int]:
        p = {**self._params, **(params or {})}
        return problem(tuple(p["size"]), p["atoms"], tuple(p["steps"]), p["composed"], seed)

    def _try(self, state: State, text: str, *, lost: bool) -> tuple[State, bool]:
        """The state after a tactic, and whether it could be read."""
        try:
            after = replace(state, goals=use(state.goals, text), fault="")
        except Refused as refused:
            after = replace(state, fault=str(refused))
        readable = after.fault != UNREADABLE
        return (replace(state, fault="out of time") if lost and readable else after), readable

    def _observe(self, state: State) -> Observation:
        goal = state.goals[0]
        given = "; ".join(f"{name}: {formula}" for name, formula in goal.given)
        more = f". goals after it: {len(state.goals) - 1}" if len(state.goals) > 1 else ""
        shown = self._wording.show(f"{given} |- {goal.show}".strip())
        # A goal in which nothing can be used is shown with a tactic that will be refused: an agent must act.
        legal = [self._wording.show(text) for text in choices(goal)] or [self._wording.show("exfalso")]
        return Observation(
            text=(f"error: {state.fault}. " if state.fault else "") + shown + more,
            legal=legal,
            state_key=f"{state.theorem}/" + " ; ".join(f"{one.given} {one.show}" for one in state.goals),
        )


@functools.lru_cache(maxsize=100_000)
def _proof(goal: Goal) -> tuple[str, ...] | None:
    found = shortest(goal, REACH)
    return None if found is None else tuple(found)


def _left(state: State) -> float:
    """Tactics that are still needed."""
    proofs = [_proof(goal) for goal in state.goals]
    return float(sum(len(proof) if proof is not None else REACH + 1 for proof in proofs))
