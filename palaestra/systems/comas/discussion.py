"""Discussion: agents answer a question, find fault with the answers and score them; nobody is told the truth.

Knows episodes, texts and who is dealt which work. Knows no policy and no reward: `interaction` pays for the scores.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, StepResult, derive
from palaestra.errors import ContractError
from palaestra.registry import PositiveInt, register
from palaestra.rollout.programs import acted_by, demonstrated_by, roles_of
from palaestra.teams.demonstration import option_of
from palaestra.teams.parsers import tagged

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

SOLVER, EVALUATOR, SCORER = "solver", "evaluator", "scorer"
SCORES = ("1", "2", "3")
SOLVE, EARLIER = "{question}{earlier}", " ; {solution} {evaluation}"
EVALUATE, SCORE = "{question} = {solution} ?", "{question} = {solution} {evaluation} !"
ASKED_BY = {SOLVER: ("solve", SOLVE), EVALUATOR: ("evaluate", EVALUATE), SCORER: ("score", SCORE)}  # option, default
ROUNDS, REFERENCES = 2, 2
Speak = Callable[["Told", str, str, str], Awaitable[str]]  # (discussion, who, as what, what is read) → what is said


@dataclass(slots=True, kw_only=True)
class Told:
    """One discussion: a solution and what was said of it. `right` is for reports and demonstrations alone."""

    question: str
    number: int
    solution: str = ""
    right: bool = False
    evaluation: str = ""
    score: int = 0  # 0: unreadable

    def fill(self, template: str, earlier: str = "") -> str:
        """The template with question, solution, evaluation and earlier discussions in their places."""
        values = {"question": self.question, "solution": self.solution, "evaluation": self.evaluation}
        return re.sub(r"\{(\w+)\}", lambda place: {**values, "earlier": earlier}.get(place[1], place[0]), template)


def _holding(*names: str) -> Any:
    def check(template: str) -> str:
        if missing := [name for name in names if f"{{{name}}}" not in template]:
            raise ValueError(f"it does not hold {{{'}, {'.join(missing)}}}")
        return template

    return pydantic.AfterValidator(check)


def score_of(text: str) -> int | None:
    """1, 2 or 3, alone or between <score> and </score>; None for anything else.

    >>> score_of("good. <score> 2 </score>"), score_of("4")
    (2, None)
    """
    inside = tagged(text, tag="score")
    said = (text if inside is None else inside).strip()
    return int(said) if said in SCORES else None


def dealt(names: Sequence[str], count: int, draw: np.random.Generator) -> list[str]:
    """Who works on which of `count` discussions: shuffled, and nobody twice before everybody once."""
    found: list[str] = []
    while len(found) < count:
        found += [names[place] for place in draw.permutation(len(names))]
    return found[:count]


def _telling(program: Any) -> Any:
    program.provides = frozenset({"stratum", "discussion", "score"})  # columns that tables have with it
    return program


def agents(options: Mapping[str, Any]) -> list[str]:
    """agent_1, agent_2 …, as many as the options say."""
    return [f"agent_{number + 1}" for number in range(int(options.get("agents", 4)))]


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """As `discussion` has it, by the environment's expert; judges are wrong with probability `noise`, and learn that.

    Solutions are as good as the expert, so that one that slips leaves the solvers something to learn. Wording and
    rounds are those of the recipe; how many earlier discussions are read is drawn.
    """
    names = roles_of(episode.setup.program) or agents({})
    wording = {duty: option_of(episode, key, template) for duty, (key, template) in ASKED_BY.items()}
    rounds, earlier = option_of(episode, "rounds", ROUNDS), option_of(episode, "earlier", EARLIER)
    question = _question(episode, await episode.reset())
    expert = [(await episode.expert(episode.names[0])).text or "" for _ in range(rounds * len(names))]
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))

    async def speak(told: Told, name: str, duty: str, read: str) -> str:
        right = told.right != (draw.random() < noise)
        said = {SOLVER: expert[told.number], EVALUATOR: "fine" if right else "error", SCORER: "3" if right else "1"}
        episode.agents[name].record(read, said[duty])
        return said[duty]

    references = int(draw.integers(REFERENCES + 1))
    more = {"rounds": rounds, "references": references}
    await _discuss(episode, question, names, speak, wording=wording, earlier=earlier, **more)


@register("program", "discussion", source="arXiv 2510.08529")
@acted_by(agents)
@demonstrated_by(demonstrate)
@_telling
async def discussion(
    episode: Episode,
    *,
    agents: PositiveInt = 4,
    rounds: PositiveInt = ROUNDS,
    references: Annotated[int, pydantic.Field(ge=0)] = REFERENCES,
    solve: Annotated[str, _holding("question", "earlier")] = SOLVE,
    earlier: Annotated[str, _holding("solution")] = EARLIER,
    evaluate: Annotated[str, _holding("question", "solution")] = EVALUATE,
    score: Annotated[str, _holding("question", "solution", "evaluation")] = SCORE,
) -> None:
    """In each round every agent solves the question, and each solution is evaluated by one agent and scored by another.

    For environments of one agent and one act. Evaluators, and after a second shuffle scorers, are dealt so that all
    work alike; an agent may judge its own solution. From the second round on solvers read discussions of the round
    before, drawn without replacement.

    Args:
        agents: `agent_1`, `agent_2` …; which policy plays each is said by `agents` of the recipe. Usual: 4.
        rounds: Higher: solvers see more of each other, and episodes cost more. Usual: 2.
        references: earlier discussions that a solver reads, at most. Higher: longer prompts. Usual: 2.
        solve, evaluate, score: what each work is asked by, with {question}, {solution}, {evaluation} and {earlier}.
        earlier: how one earlier discussion is told.

    A score is 1 (a fatal fault), 2 (small faults) or 3 (none), alone or in <score> … </score>; else the act is
    `invalid`. Rows tell `stratum` (solver, evaluator or scorer), `discussion` and, of scorers, `score` (0: unreadable).

    What the environment pays for a solution is taken back at once, so that nobody learns from it. `info` tells, of the
    last round: `accuracy`, `majority` (whether a most frequent solution is right), `judged` (scores of 3 for right and
    less for wrong solutions, as a share of all rounds). The outcome is that of one of the last solutions, drawn by the
    play's seed.

    Raises: ContractError, in an environment of several agents or acts.
    """
    wording = {SOLVER: solve, EVALUATOR: evaluate, SCORER: score}

    async def speak(told: Told, name: str, duty: str, read: str) -> str:
        if duty != SCORER:
            return (await episode.agents[name].act(read)).text or ""
        return str(await episode.agents[name].ask(read, score_of) or "")

    names = [f"agent_{number + 1}" for number in range(agents)]
    question = _question(episode, await episode.reset())
    more = {"rounds": rounds, "references": references}
    await _discuss(episode, question, names, speak, wording=wording, earlier=earlier, **more)


async def _discuss(
    episode: Episode,
    question: str,
    names: Sequence[str],
    speak: Speak,
    *,
    rounds: int,
    references: int,
    wording: Mapping[str, str],
    earlier: str,
) -> None:
    """Rounds of solving, evaluating and scoring, whoever `speak` lets speak."""

    async def work(told: Told, name: str, duty: str, read: str = "") -> str:
        said = await speak(told, name, duty, told.fill(wording[duty], read))
        step = episode.agents[name].last
        assert step is not None
        step.info |= {"stratum": duty, "discussion": float(told.number)}
        return said

    past: list[Told] = []
    for number in range(rounds):
        draw = np.random.default_rng(derive(episode.play.seed, "discussion", number))
        now = [Told(question=question, number=number * len(names) + place) for place in range(len(names))]
        before = past[-len(names) :]
        shown = [draw.permutation(len(before))[:references] for _ in now]
        reads = ["".join(before[place].fill(earlier) for place in places) for places in shown]
        solving = (work(told, name, SOLVER, read) for told, name, read in zip(now, names, reads, strict=True))
        for told, name, solution in zip(now, names, await asyncio.gather(*solving), strict=True):
            told.solution, told.right = solution, await _right(episode, name, solution)
        for duty in (EVALUATOR, SCORER):
            judges = dealt(names, len(now), draw)
            judging = (work(told, name, duty) for told, name in zip(now, judges, strict=True))
            for told, name, said in zip(now, judges, await asyncio.gather(*judging), strict=True):
                if duty == EVALUATOR:
                    told.evaluation = said
                else:
                    told.score = int(said or 0)
                    episode.latest[name].info["score"] = float(told.score)
        past += now
    _report(episode, past, past[-len(names) :])


def _report(episode: Episode, past: Sequence[Told], last: Sequence[Told]) -> None:
    """What the discussion came to, for logs: the truth is known here and nowhere else."""
    often = Counter(told.solution for told in last)
    found = {
        "success": last[derive(episode.play.seed, "outcome") % len(last)].right,
        "accuracy": float(np.mean([told.right for told in last])),
        "majority": float(max(last, key=lambda told: often[told.solution]).right),
        "judged": float(np.mean([(told.score == 3) == told.right for told in past])),
    }
    episode.trajectory.info = {**episode.trajectory.info, **found}


async def _right(episode: Episode, name: str, solution: str) -> bool:
    """Whether the environment takes a solution for right. What it pays is taken back: nobody may learn from it."""
    result = await episode.step({name: Action(text=solution, value=solution)})
    if result.observations:
        raise _unfit(episode, "its episodes go on after the first act")
    for reward in result.rewards.values():
        episode.reward(name, -reward)
    await episode.reset()
    return bool(result.info.get("success", sum(result.rewards.values()) > 0))


def _question(episode: Episode, result: StepResult) -> str:
    """What the task's only agent is shown."""
    if len(episode.names) != 1:
        raise _unfit(episode, f"it has {len(episode.names)} agents")
    return result.observations[episode.names[0]].text or ""


def _unfit(episode: Episode, why: str) -> ContractError:
    return ContractError(
        where=f"program discussion, environment {episode.setup.environment_name}",
        what=f"{why}; here several answers to one question are judged.",
        remedy="Take an environment with one agent that acts once, such as sums.",
    )
