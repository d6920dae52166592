"""The environment `prover`: its tasks, observations, rewards and expert.

`problems` draws the theorems, `tactics` checks proofs, and `search` finds the expert's proofs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.leniency import read_leniently
from palaestra.envs.kit.manuals import turn_limit, write_manual
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
REACH = 16  # most tactics of a proof that the expert can find


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one proof. It is frozen, so a snapshot needs no copy."""

    theorem: Formula
    steps: int  # tactics of its shortest proof
    seed: int
    goals: tuple[Goal, ...]
    fault: str = ""
    turn: int = 0


@register("environment", "prover")
class Prover(KeepsState[State]):
    """Prove a theorem of intuitionistic propositional logic by tactics, one goal after another.

    The observation `a: p -> q; b: p |- q` shows two hypotheses, `a` and `b`, and behind `|-` the formula to prove. A
    tactic works on the first open goal. `intro` makes the left side of an implication a hypothesis. `exact a` proves a
    goal that is the hypothesis `a`. `apply a` uses an implication backwards. `split` opens a goal for each side of `&`;
    `left` and `right` choose a side of `|`. `cases a` takes a hypothesis with `&` or `|` apart; it proves the goal if
    `a` is `false`. `exfalso` makes `false` the formula to prove. `have x : p & q` opens a goal for this formula, which
    is a hypothesis afterwards. Names for new hypotheses may follow `intro` and `cases`; without them the next free
    letters are used. `~p` means `p -> false`. A tactic that cannot be used is refused with a reason and changes
    nothing.

    Args:
        size: fewest and most operators of a theorem. Higher: longer texts. Usual: 2 to 6.
        steps: fewest and most tactics of a shortest proof, mixed evenly. Higher: rarer success. Usual: 3 to 8.
        atoms: number of different letters, 1–4. Lower: more theorems hold for a trivial reason. Usual: 3.
        composed: build each theorem from smaller theorems: `A & B`, or `(A -> c) -> c`.
        symbols: "signs", "words" (`p implies q`) or "renamed" (other words for tactics, operators and letters).
        noise: probability that a tactic has no effect, as if the checker had run out of time.
        max_turns: turns until the episode is cut off. Usual: twice the longest proof.

    Reward: 1 when no goal is left, else 0. A step's `info` has `process` (1 if the tactic makes the shortest remaining
    proof shorter), `executable` (0 for a tactic that is refused, lost by `noise` or unreadable) and `stratum` (the
    number of tactics of the theorem's shortest proof).

    The expert finds a shortest proof of each goal that has one of at most 16 tactics. It cannot repair a state in which
    a goal has no proof, such as after `left` where only `right` can be proved.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
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
            f"`size` allows theorems of {size[1]} operators, and beyond 20 operators a proof takes too long to find.",
            "Set its second number to 20 or less. `composed: true` joins short theorems into longer ones.",
        )
        self._params = {"size": list(size), "steps": list(steps), "atoms": atoms, "composed": composed}
        self._wording, self._noise, self._max_turns = WORDINGS[symbols], noise, max_turns

    def instruction(self, agent: str) -> str:
        """The rules of the world and its commands, for an agent that has never seen it."""
        show = self._wording.show
        tactics = {
            "intro": "the goal is an implication: its left side becomes a hypothesis",
            "exact a": "the goal is the hypothesis a: it is proved",
            "apply a": "the hypothesis a is an implication to the goal: prove its left side instead",
            "split": "the goal is p & q: prove both",
            "left": "the goal is p | q: prove p",
            "right": "the goal is p | q: prove q",
            "cases a": "take the hypothesis a, which is p & q or p | q, apart; if a is false, the goal is proved",
            "exfalso": "prove false instead of the goal",
            "have x : p & q": "prove this formula first, then use it as hypothesis x",
        }
        return write_manual(
            "You prove a theorem of intuitionistic propositional logic. A message such as "
            f"`{show('a: p -> q; b: p |- q')}` shows the hypotheses a and b, and behind them the goal. "
            f"`{show('~p')}` means `{show('p -> false')}`. Tactics work on the first open goal.",
            {show(tactic): does for tactic, does in tactics.items()},
            example=show("intro"),
            ending="A tactic that cannot be used is refused with a reason and changes nothing. The proof succeeds when "
            f"no goal is left.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` theorems. Training and evaluation share none."""
        return seeded_tasks("prover", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """The theorem."""
        return str(self._theorem(task.seed, task.params)[0])

    def difficulty(self, task: Task) -> float:
        """Number of tactics of a shortest proof."""
        return float(self._theorem(task.seed, task.params)[1])

    def reset(self, task: Task) -> StepResult:
        theorem, steps = self._theorem(task.seed, task.params)
        self.state = State(theorem=theorem, steps=steps, seed=task.seed, goals=(Goal((), theorem),))
        return single(AGENT, self._observe(self.state), info={"success": False, "stratum": str(steps)})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        text = actions[AGENT].value
        meant = self._meant(before, text) if isinstance(text, str) else ""
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
        """The next tactic of a shortest proof of the first goal. If no proof is known, the first possible tactic."""
        goal = self.state.goals[0]
        proof = _proof(goal)
        return Action(text=self._wording.show(proof[0] if proof else _usable(goal)[0]))

    # ---- playing ------------------------------------------------------------------------------------------
    def _theorem(self, seed: int, params: Mapping[str, Any] | None = None) -> tuple[Formula, int]:
        p = {**self._params, **(params or {})}
        return problem(tuple(p["size"]), p["atoms"], tuple(p["steps"]), p["composed"], seed)

    def _meant(self, state: State, text: str) -> str:
        """The tactic in a text, in the checker's tokens."""

        def read(text: str) -> str | None:
            tactic = " ".join(self._wording.read(text.lower()).split())
            return tactic if self._try(state, tactic, lost=False)[1] else None

        return read_leniently(text, read) or ""

    def _try(self, state: State, text: str, *, lost: bool) -> tuple[State, bool]:
        """The state after a tactic, and whether the tactic could be read."""
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
        return Observation(
            text=(f"error: {state.fault}. " if state.fault else "") + shown + more,
            legal=[self._wording.show(text) for text in _usable(goal)],
            state_key=f"{state.theorem}/" + " ; ".join(f"{one.given} {one.show}" for one in state.goals),
        )


def _usable(goal: Goal) -> list[str]:
    """The tactics that an agent may use on a goal. In a dead end this is `exfalso`, since an agent must act."""
    return choices(goal) or ["exfalso"]


@functools.lru_cache(maxsize=100_000)
def _proof(goal: Goal) -> tuple[str, ...] | None:
    found = shortest(goal, REACH)
    return None if found is None else tuple(found)


def _left(state: State) -> float:
    """How many tactics are still needed. A goal without a known proof counts as one more than the expert can find."""
    proofs = [_proof(goal) for goal in state.goals]
    return float(sum(len(proof) if proof is not None else REACH + 1 for proof in proofs))
