"""The environment `code`: the agent writes a function or repairs a package, and hidden tests judge the result.

`problems.py` and `repository.py` make the tasks, `acts.py` reads acts, `episode.py` carries them out, and `machines.py`
runs code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.code.acts import Act, Kind, Misread, Style, explained, read_act, write_act
from palaestra.envs.worlds.code.chains import DOMAINS, Domain
from palaestra.envs.worlds.code.episode import Effect, Plan, State, fails, next_act, plan, sensible, settle
from palaestra.envs.worlds.code.machines import Machine, Require, Where, backend, borrow, give_back
from palaestra.envs.worlds.code.problems import Sizes, build, meaning
from palaestra.envs.worlds.code.repository import Repository, build_repository
from palaestra.registry import Fraction, Positive, PositiveInt, register

AGENT = "player"
Depth = Annotated[int, pydantic.Field(ge=1, le=4)]
Files = Annotated[int, pydantic.Field(ge=3, le=6)]
Examples = Annotated[int, pydantic.Field(ge=1, le=10)]


@register("environment", "code")
class Code(KeepsState[State]):
    """Write a function, or repair a small package, so that it passes hidden tests. Programs run in a sandbox only.

    With `style: expression`, for small models, a program is one line: `try x * 3 + 1` shows which visible tests fail,
    and `submit` hands in the last program (`submit x * 3 + 1` another one). It may use `x`, numbers, strings, lists,
    `+ - * // %`, slices, `abs len max min sorted sum`, `.upper()` and `.lower()`. The environment evaluates it itself,
    without a sandbox. With the other styles, `run`, `test` and `submit` take a whole program that defines `f(x)`. With
    `kind: repository` there are files with one wrong line, and the acts are `list`, `read FILE`, `replace FILE NUMBER
    LINE`, `write FILE`, `test` and `submit`. Submitting ends the episode.

    Args:
        kind: "function", or "repository": functions of numbers in three to six files that import each other.
        style: how acts are written: "expression" (functions only), "fenced" (a word and a ```python block), "json" or
            "tagged" (calls of tools). None: "expression" for functions, "fenced" for repositories.
        text: how a function is described: in "words", by "examples" (the visible tests), or by "both".
        paraphrased: use other words and names. Tasks and solutions stay the same.
        domains: inputs of functions: "number", "string", "list". Each is equally frequent.
        depth: fewest and most operations of a function, 1–4. Higher: rarer success. Usual: 1 to 2.
        operators: number of operations for each pair of input kind and output kind, easiest first. From 9 on, an
            operation can also join the value with another value of the input, as in `x * 3 - x % 2`. Higher: more to
            choose from. Usual: 2–13.
        constants: largest constant in a program. Higher: more to choose from. Usual: 3–9.
        largest: largest number in the inputs of a function's visible tests. Hidden tests go further.
        mutants: number of wrong solutions of each function that are among the legal acts. Those of the function to
            write or repair each fail a hidden test.
        examples: number of visible tests, 1–10. Lower: more wrong solutions pass them. Usual: 3.
        hidden: number of hidden tests. A task has more if it needs them so that every mutant fails one, and fewer if
            there are too few different inputs.
        files: fewest and most files of a repository, 3–6. Higher: more to read.
        trivial: share of a function's visible tests that hardly any wrong solution fails. Hidden tests do not change.
            Higher: passing the visible tests says less. Usual: 0.
        wrong: share of the visible tests that expect a wrong value. In a repository, the test that shows the fault
            stays right. Hidden tests are always right. Higher: visible tests mislead more often. Usual: 0.
        noise: probability that the machine fails when it should run or test something.
        score: the reward for submitting: "all", 1 if all hidden tests pass, else 0; "fraction", the share that passes.
        sandbox: "bubblewrap", "subprocess" (no isolation) or "auto": bubblewrap, or subprocess where the machine has no
            bubblewrap and `require` is "none".
        require: "isolation" refuses to run a policy's code without isolation. "none" is for code that you trust.
        timeout_s: wall-clock seconds that one run may take.
        memory_mb: memory of one run, in MB, 64 or more.
        workers: number of warm interpreters, which all episodes share. Higher: more runs at once, more memory.
            Usual: 2.
        max_turns: turns after which the episode is cut off, without reward.

    Per step, `info` has `process`, 1 for the act that the expert would choose; `executable`, 0 for an act that cannot
    be read or done; `tested`, 1 if the visible tests have run since the last change; and at the end `passed`, the share
    of hidden tests that pass. The sandbox gets inputs but no expected values, and the environment compares the results.
    Results are cached by content, except those of runs that a limit ended. The expert knows the reference.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "process", "executable", "tested", "passed", "stratum"})

    def __init__(
        self,
        *,
        kind: Kind = "function",
        style: Style | None = None,
        text: Literal["words", "examples", "both"] = "both",
        paraphrased: bool = False,
        domains: tuple[Domain, ...] = DOMAINS,
        depth: tuple[Depth, Depth] = (1, 2),
        operators: Annotated[int, pydantic.Field(ge=1, le=13)] = 13,
        constants: Annotated[int, pydantic.Field(ge=1, le=9)] = 9,
        largest: Annotated[int, pydantic.Field(ge=2, le=50)] = 9,
        mutants: Annotated[int, pydantic.Field(ge=1, le=20)] = 6,
        examples: Examples = 3,
        hidden: PositiveInt = 8,
        files: tuple[Files, Files] = (3, 4),
        trivial: Fraction = 0.0,
        wrong: Fraction = 0.0,
        noise: Fraction = 0.0,
        score: Literal["all", "fraction"] = "all",
        sandbox: Where = "auto",
        require: Require = "isolation",
        timeout_s: Positive = 5.0,
        memory_mb: Annotated[int, pydantic.Field(ge=64)] = 256,
        workers: PositiveInt = 2,
        max_turns: PositiveInt = 8,
    ) -> None:
        self._kind, self._style = kind, style or ("expression" if kind == "function" else "fenced")
        _refuse_impossible(kind, self._style, depth=depth, files=files, spoiled=trivial + wrong, domains=domains)
        self._backend = None if self._style == "expression" else backend(sandbox, require)
        self._sizes: dict[str, Any] = {
            "domains": list(domains),
            "depth": list(depth),
            "operators": operators,
            "constants": constants,
            "largest": largest,
            "mutants": mutants,
            "examples": examples,
            "hidden": hidden,
            "trivial": trivial,
            "wrong": wrong,
        }
        self._params = self._sizes | {"kind": kind, "max_turns": max_turns}
        if kind == "repository":
            self._params["files"] = list(files)
        self._text, self._paraphrased, self._noise, self._score = text, paraphrased, noise, score
        self._limits: dict[str, Any] = {"timeout_s": timeout_s, "memory_mb": memory_mb}
        self._workers, self._max_turns = workers, max_turns
        self._machine: Machine | None = None
        if self._backend is not None:  # a coroutine function tells callers to await it
            self.step = self._step_waiting  # type: ignore[method-assign, assignment]

    def instruction(self, agent: str) -> str:
        """The rules, and the acts of `style: expression`. Those of the other styles stand in the observation's own
        instruction."""
        limit = turn_limit(self._max_turns)
        ending = f"Submitting ends the episode. It succeeds if all hidden tests pass.{limit}"
        if self._kind == "repository":
            return write_manual(
                "A small Python package has one wrong line. Read its files, run the tests, repair the line, and hand "
                "the files in.",
                ending=ending,
            )
        if self._style != "expression":
            return write_manual(
                "You write a Python function f(x) for a description or for examples. You can run and test it before "
                "you hand it in.",
                ending=ending,
            )
        return write_manual(
            "You write a Python expression of x that does what a message says, such as [1, 2] to [2, 1]. It may use x, "
            "numbers, strings, lists, + - * // %, slices, abs len max min sorted sum, .upper() and .lower().",
            {
                "try EXPRESSION": "see which of the shown examples it gets wrong",
                "submit": "hand in the expression tried last",
                "submit EXPRESSION": "hand in another one",
            },
            example="try sorted(x)[::-1]",
            ending=ending,
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks. Those of the split "train" occur in no other split."""
        return seeded_tasks("code", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """What the function gives on many inputs, or the package with and without its fault."""
        found = self._of(task.seed, task.params)
        return as_json((found.faulty, found.right)) if isinstance(found, Repository) else meaning(found)

    def difficulty(self, task: Task) -> float:
        """The number of operations of a function, or of files of a package."""
        return float(_size(self._of(task.seed, task.params)))

    def reset(self, task: Task) -> StepResult:
        found = self._of(task.seed, task.params)
        if self._backend is not None and self._machine is None:
            self._machine = borrow(self._backend, self._workers)
        self._max_turns = {**self._params, **task.params}["max_turns"]
        files = found.faulty if isinstance(found, Repository) else ()
        self.state = State(task=found, seed=task.seed, short=self._style == "expression", files=files)
        return single(AGENT, self._observe(self.state), info={"success": False, "stratum": str(_size(found))})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        """Play one act with an expression. Where a sandbox is needed, `_step_waiting` replaces this method."""
        before, act, planned = self._begin(actions)
        return self._end(before, act, None if planned is None else settle(planned, None))

    async def _step_waiting(self, actions: Mapping[str, Action]) -> StepResult:
        before, act, planned = self._begin(actions)
        if planned is None:
            return self._end(before, act, None)
        done = None
        if planned.job is not None and not planned.fault:
            assert self._machine is not None
            done = await self._machine.arun(planned.job, **self._limits)
        return self._end(before, act, settle(planned, done))

    def close(self) -> None:
        """End the episode. The last environment that closes also ends the processes that run code."""
        super().close()
        if self._machine is not None:
            give_back(self._machine)
            self._machine = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next act towards the reference. The expert knows it even where the agent sees only examples."""
        state = self.state
        return Action(text=write_act(next_act(state, self._max_turns - state.turn), self._style))

    # ---- playing ------------------------------------------------------------------------------------------
    def _of(self, seed: int, params: Mapping[str, Any] | None = None) -> Any:
        """The problem or the repository of a seed."""
        world = {**self._params, **(params or {})}
        sizes = {name: world[name] for name in self._sizes}
        made = Sizes(**sizes | {name: tuple(sizes[name]) for name in ("domains", "depth")})
        if world["kind"] == "function":
            return build(made, seed)
        return build_repository(made, tuple(world["files"]), self._paraphrased, seed)

    def _begin(self, actions: Mapping[str, Action]) -> tuple[State, Act | str, Plan | None]:
        """The state before the act, the act or why it cannot be read, and its plan; None if the machine fails."""
        before = self.state
        try:
            act = read_act(actions[AGENT].value, self._kind, self._style)
        except Misread as fault:
            return before, str(fault), None
        lost = self._noise > 0 and derive(before.seed, "noise", before.turn) / 2**63 < self._noise
        return before, act, None if lost and act.name in ("try", "run", "test") else plan(before, act)

    def _end(self, before: State, act: Act | str, effect: Effect | None) -> StepResult:
        if isinstance(act, str):
            effect = Effect(replace(before, said=act), False)
        elif effect is None:
            effect = fails(before, act)
        self.state = after = replace(effect.state, turn=before.turn + 1)
        over, passed = effect.passed is not None, effect.passed or 0.0
        told = {
            "process": float(act == next_act(before, self._max_turns - before.turn)),
            "executable": float(effect.fine),
            "tested": float(after.tested),
        } | ({"passed": passed} if over else {})
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=passed if self._score == "fraction" else float(passed == 1.0),
            over=over,
            cut=after.turn >= self._max_turns,
            act=told,
            readable=not isinstance(act, str),
            info={"success": passed == 1.0, "stratum": str(_size(after.task))},
        )

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        left = self._max_turns - state.turn
        acts = dict.fromkeys([*sensible(state), next_act(state, left)])
        between = ". " if state.short else "\n"
        parts = [self._asked(state), state.said, f"{left} left."]
        opened = ",".join(sorted(state.opened))
        return Observation(
            text=between.join(part for part in parts if part),
            legal=[write_act(act, self._style) for act in acts],
            state_key=f"{state.seed}/{left == 1}/{left <= 2}/{_digest(state)}/{opened}/{state.tested}/{state.said}",
            instruction=explained(self._kind, self._style),
        )

    def _asked(self, state: State) -> str:
        """The task in words."""
        task = state.task
        if isinstance(task, Repository):
            return f"one function is wrong. files: {' '.join(path for path, _ in state.files)}"
        words = task.told(paraphrased=self._paraphrased) if self._text != "examples" else ""
        shown = task.visible if self._text != "words" else ()
        if state.short:
            examples = ", ".join(f"{test.x!r} to {test.want!r}" for test in shown)
            return ". ".join(part for part in (words, examples) if part)
        lines = [f"write a function f(x): {words}" if words else "write a function f(x) with these examples"]
        return "\n".join(lines + [f"{test.call} == {test.want!r}" for test in shown])


def _size(task: Any) -> int:
    """The size of a task: operations, or files."""
    return len(task.right) if isinstance(task, Repository) else len(task.chain)


def _digest(state: State) -> str:
    """A number for the present programs. Equal programs have equal numbers."""
    return f"{derive(0, state.code, *(part for pair in state.files for part in pair)):x}"


def _refuse_impossible(
    kind: str, style: str, *, depth: tuple[int, int], files: tuple[int, int], spoiled: float, domains: tuple[str, ...]
) -> None:
    refuse = Refusals("environment: code")
    refuse.when_reversed(depth=depth, files=files)
    refuse.when(
        kind == "repository" and style == "expression",
        "`style: expression` cannot change files, and `kind` is repository.",
        "Set `style` to fenced, json or tagged.",
    )
    refuse.when(
        spoiled > 1,
        f"`trivial` and `wrong` together are {spoiled:g}.",
        "Lower one of them: their sum may be 1 at most.",
    )
    refuse.when_empty(DOMAINS, domains=domains)
