"""The environment `dataset`: the agent answers problems of a file, and reward functions judge its replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.data.task import content_digest
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.verifiers.calling import Reply, line_of, refuse_missing, responder_of, rewards_of, success_of
from palaestra.envs.worlds.dataset.collection import collection_of
from palaestra.envs.worlds.dataset.layouts import LayoutName
from palaestra.envs.worlds.dataset.problems import NAME, Given, Layout, Problem
from palaestra.envs.worlds.dataset.turns import answered, judged_text, said_by
from palaestra.errors import EpisodeFailure, InvalidData, RecipeError
from palaestra.registry import File, Files, PositiveInt, register

AGENT = "assistant"
WHERE = f"environment: {NAME}"
Rewards = Annotated[str | dict[str, Any] | list[str | dict[str, Any]], Files(functions=True)]
Share = Annotated[float, pydantic.Field(gt=0, lt=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One conversation: its problem, what was said after the prompt, and the ids of the replies."""

    problem: Problem
    said: tuple[Given, ...] = ()
    tokens: tuple[int, ...] = ()
    turn: int = 0


@register("environment", "dataset")
class Dataset(KeepsState[State]):
    """Answer problems of a file; functions judge the replies.

    A file is JSON lines, a JSON list, CSV, Parquet, a folder of those, or a data set of the Hugging Face hub that was
    downloaded before. Columns are those of TRL, verl and OpenAI. Every column reaches the reward functions. The tools
    of a column `tools` are declared to a role with `tools.native`, and its calls are the reply.

    Args:
        path: the training problems, from the recipe's folder or the working folder.
        eval: the problems of evaluations. Training leaves out problems that are also here. None: a share of `path`.
        split: the share of `path` that is held out, by the hash of the problem. Without effect with `eval`.
        prompt: column of the question: a text, or messages with `role` and `content`. Without it, `messages` is used.
        answer: column of the right answer, or a list of right answers. None: `answer`, `solution`, `ground_truth` or
            verl's `reward_model.ground_truth`. Rewards get it as `answer`.
        completion: column of a good reply, for the expert. Without it, the expert gives the last reply of `messages`,
            or the right answer itself.
        template: the question with `{column}` places, instead of the column `prompt`. `{{word}}` writes `{word}`.
        system: the system message of every problem.
        fewshot: examples before the question: rows with the columns of the question and the answer, or messages.
        reward: what judges the reply: a verifier (`exact_match`), or a function of yours (`rewards.py:correct`), each
            also with options (`{number: {tolerance: 0.01}}`), or a list of those, which are summed.
        weights: a factor for each function of `reward`; null: 1 each.
        success: when a reply counts as solved: the least reward of the first function, or a rule, `correct > 0.5`.
        layout: `sharegpt` for rows with `conversations`, `alpaca` for rows with `instruction`, `input` and `output`;
            `columns` for rows with `prompt` or `messages`.
        problem: columns that tell one problem from another; empty: the question.
        difficulty: column of numbers that are higher for harder problems. None: `difficulty` or `level`, if present.
        respond: a function of yours that answers the agent: `def reply(messages, **columns)` returns a text, or None to
            end the conversation. It may be `async`, and name the columns that it takes. None: one reply ends it.
        max_turns: most replies of a conversation; at least 2 with `respond`.

    Reward: the weighted sum of the functions, after the last reply. The mean of a function is `info/<function>/mean`.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "difficulty", "expert", "snapshot", "judging", "notes")
    one_act = True
    provides = frozenset({"state_key", "outcome"})
    judging = True

    def __init__(
        self,
        *,
        path: File,
        eval: Annotated[str | None, Files()] = None,
        split: Share = 0.1,
        prompt: str = "prompt",
        answer: str | None = None,
        completion: str = "completion",
        template: str | None = None,
        system: str | None = None,
        fewshot: tuple[dict[str, Any], ...] = (),
        reward: Rewards = "exact_match",
        weights: tuple[float, ...] | None = None,
        success: float | str = 1.0,
        problem: tuple[str, ...] = (),
        difficulty: str | None = None,
        layout: LayoutName = "columns",
        respond: Annotated[str | None, Files(functions=True)] = None,
        max_turns: PositiveInt = 1,
    ) -> None:
        layout = Layout(
            prompt=prompt,
            answer=answer,
            completion=completion,
            template=template,
            system=system,
            fewshot=tuple(fewshot),
            problem=tuple(problem),
            difficulty=difficulty,
            layout=layout,
        )
        if respond is not None and ":" not in respond:
            raise RecipeError(
                where=f"{WHERE}, respond",
                what=f"`{respond}` names no function.",
                remedy="Write `respond: chat.py:reply`, a function of a file beside the recipe.",
            )
        if max_turns > 1 and respond is None:
            raise RecipeError(
                where=WHERE,
                what=f"`max_turns: {max_turns}` has no effect without `respond`: one reply ends the conversation.",
                remedy="Name a function that answers the agent, `respond: chat.py:reply`, or leave out `max_turns`.",
            )
        if respond is not None and max_turns == 1:
            raise RecipeError(
                where=WHERE,
                what="`respond` has no effect with `max_turns: 1`: one reply ends the conversation.",
                remedy="Set `max_turns`, the most replies of a conversation, or leave out `respond`.",
            )
        self._given = given = collection_of(path, eval, layout, split=split)
        self._split, self.notes = split, given.notes
        self._rewards = rewards_of(reward, weights, given.problems[0].columns, where=WHERE)
        if given.apart is not None:
            refuse_missing(self._rewards, given.apart[0].columns, where=f"{WHERE}, eval: {eval}")
        self._success = success_of(success, self._rewards, where=WHERE)
        columns = given.problems[0].columns
        self._respond = None if respond is None else responder_of(respond, columns, where=f"{WHERE}, respond")
        self._max_turns = max_turns
        self.one_act = respond is None
        if not given.have_levels:
            self.abilities = without(self.abilities, "difficulty")
        if not given.have_demonstrations:
            self.abilities = without(self.abilities, "expert")

    # ---- tasks --------------------------------------------------------------------------------------------
    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` problems in a random order. "train" begins again when all were drawn; all other splits are held out.

        Raises: InvalidData, if `n` different problems are not held out, or if there are none for training.
        """
        train = split == "train"
        problems = self._given.train if train else self._given.held_out
        if not problems or (n > len(problems) and not train):
            raise InvalidData(
                where=f"{WHERE}, split {split}",
                what=f"only {len(problems)} different problems were found, and {n} were asked for.",
                remedy=f"Ask for at most {len(problems)} (`evaluation.tasks`), or change `split`, which is now "
                f"{self._split:g}.\nRows with the same question are one problem, unless `problem` names columns "
                "that tell them apart."
                if problems
                else (
                    "Give more rows, or change `split`."
                    if self._given.apart is None
                    else "All questions of `path` are also in `eval`. Name another file."
                ),
            )
        drawn: list[int] = []
        while len(drawn) < n:
            order = np.random.default_rng(derive(seed, NAME, split, len(drawn) // len(problems)))
            drawn += order.permutation(len(problems)).tolist()
        return [self._task(split, *problems[place]) for place in drawn[:n]]

    def _task(self, split: str, number: int, problem: Problem) -> Task:
        return Task(
            env=NAME,
            params={"place": problem.place, "row": number, "apart": self._given.apart is not None and split != "train"},
            seed=number,
            key=problem.place,
            split=split,
            difficulty=problem.level,
            content=problem.digest,
        )

    def problem(self, task: Task) -> Problem:
        """The problem of a task. Raises: InvalidData, if the file has changed."""
        problems = (self._given.apart or ()) if task.params.get("apart") else self._given.problems
        row = task.params.get("row", -1)
        if not 0 <= row < len(problems) or (task.content or problems[row].digest) != problems[row].digest:
            raise InvalidData(
                where=f"{WHERE}, {task.params.get('place', 'task')}",
                what="the file no longer has this problem.",
                remedy="Use the file as it was, or begin a new run.",
            )
        return problems[row]

    def content(self, task: Task) -> Any:
        """The question, or the columns of the option `problem`."""
        return self.problem(task).content

    def difficulty(self, task: Task) -> float:
        """The number in the column of the option `difficulty`."""
        problem = self.problem(task)
        if problem.level is None:
            raise InvalidData(
                where=f"{WHERE}, {problem.place}",
                what="the row has no number in the column `difficulty` or `level`, and other rows have one.",
                remedy="Give every row a number, or use the sampler `uniform`, which does not ask how hard a task is.",
            )
        return problem.level

    # ---- episodes -----------------------------------------------------------------------------------------
    def reset(self, task: Task) -> StepResult:
        self.state = State(problem=self.problem(task))
        return single(AGENT, self.state.problem.observation())

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        if not self.judging:
            return single(AGENT, None, over=True)
        action, state = actions[AGENT], self.state
        said = (*state.said, said_by(action, state.said))
        tokens = (*state.tokens, *action.tokens.tolist())
        state = self.state = replace(state, said=said, tokens=tokens, turn=state.turn + 1)
        answer = await self._answer(state) if state.turn < self._max_turns else None
        if answer is not None:
            self.state = replace(state, said=(*said, answered(answer, said)))
            key = content_digest(state.problem.digest, self.state.said)
            return single(AGENT, Observation(text=answer, state_key=key))
        reward, info = await self._judged(state, judged_text(action))
        return single(AGENT, None, reward=reward, over=True, info=info)

    async def _answer(self, state: State) -> str | None:
        """What the user's function `respond` says next; None: the conversation is over."""
        if self._respond is None:
            return None
        problem = state.problem
        try:
            answer = await self._respond([*problem.messages, *state.said], problem.columns)
        except EpisodeFailure:
            raise
        except Exception as error:
            line = line_of(self._respond.function, error)
            raise self._unanswered(problem, f"the function raised {type(error).__name__}: {error}{line}") from error
        if answer is not None and not isinstance(answer, str):
            line = line_of(self._respond.function)
            raise self._unanswered(problem, f"the function returned {answer!r}, neither a text nor None{line}")
        return answer

    async def _judged(self, state: State, text: str) -> tuple[float, dict[str, Any]]:
        """The reward of a conversation, and its info: the success and the value of each function that applies."""
        problem = state.problem
        reply = Reply(
            text=text,
            messages=state.said,
            prompt=problem.prompt,
            tokens=state.tokens,
            columns=problem.columns,
            place=problem.place,
        )
        values: dict[str, float | None] = {}
        info: dict[str, Any] = {}
        for reward in self._rewards:
            values[reward.name], logged = await reward(reply)
            info |= logged
        if all(value is None for value in values.values()):
            raise EpisodeFailure(
                boundary="environment",
                where=f"{WHERE}, {problem.place}",
                what=f"no reward function applies to this row: {', '.join(values)} gave None.",
                remedy="Give the row what they need, such as `answer`, or leave it out. A failed episode is kept out "
                "of the update and counted.",
            )
        info |= {name: value for name, value in values.items() if value is not None}
        success = self._success.of(values)
        total = sum(reward.weight * (values[reward.name] or 0.0) for reward in self._rewards)
        return total, info if success is None else info | {"success": success}

    def _unanswered(self, problem: Problem, what: str) -> EpisodeFailure:
        return EpisodeFailure(
            boundary="environment",
            where=f"{WHERE}, respond, {problem.place}",
            what=f"{what}.",
            remedy="Correct the function, or the row. A failed episode is kept out of the update and counted.",
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The good reply of the row, or that of this turn."""
        replies = self.state.problem.demonstration
        return replies[min(self.state.turn, len(replies) - 1)] if replies else Action(text="")

    @property
    def first(self) -> Problem:
        """The problem of the first row."""
        return self._given.problems[0]
