"""The team program of CoMAS: agents answer a question, criticize the answers and score them, without the truth.

`interaction.py` turns the scores into rewards.
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
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import PositiveInt, declaring, register
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
Speak = Callable[["Told", str, str, str], Awaitable[str]]  # (discussion, agent, role, prompt) → answer


@dataclass(slots=True, kw_only=True)
class Told:
    """One discussion: a solution, its evaluation and its score. `right` is for reports and demonstrations only."""

    question: str
    number: int
    solution: str = ""
    right: bool = False
    evaluation: str = ""
    score: int = 0  # 0: unreadable

    def fill(self, template: str, earlier: str = "") -> str:
        """Fill the template with the question, the solution, the evaluation and earlier discussions."""
        values = {"question": self.question, "solution": self.solution, "evaluation": self.evaluation}
        return re.sub(r"\{(\w+)\}", lambda place: {**values, "earlier": earlier}.get(place[1], place[0]), template)


def _holding(*names: str) -> Any:
    def check(template: str) -> str:
        if missing := [name for name in names if f"{{{name}}}" not in template]:
            raise ValueError(f"it lacks {{{'}, {'.join(missing)}}}")
        return template

    return pydantic.AfterValidator(check)


def score_of(text: str) -> int | None:
    """The score 1, 2 or 3, alone or between <score> and </score>; None for any other text.

    >>> score_of("good. <score> 2 </score>"), score_of("4")
    (2, None)
    """
    inside = tagged(text, tag="score")
    said = (text if inside is None else inside).strip()
    return int(said) if said in SCORES else None


def dealt(names: Sequence[str], count: int, draw: np.random.Generator) -> list[str]:
    """Names for `count` discussions in random order; no name comes twice before every name came once."""
    found: list[str] = []
    while len(found) < count:
        found += [names[place] for place in draw.permutation(len(names))]
    return found[:count]


def agents(options: Mapping[str, Any]) -> list[str]:
    """The names agent_1, agent_2 …, as many as the options ask for."""
    return [f"agent_{number + 1}" for number in range(int(options.get("agents", 4)))]


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """Demonstrate `discussion` with the environment's expert; judges are wrong with probability `noise`.

    Solutions are the expert's; an expert that makes mistakes leaves the solvers something to learn. Templates and
    rounds are those of the recipe; the number of earlier discussions in a prompt is drawn.
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


def _refuse_few_turns(options: Mapping[str, Any], settings: Any, source: Any) -> None:
    """Refuse a `rollout.max_turns` that cuts every discussion of the last round off."""
    rounds, most = options["rounds"], settings.rollout.max_turns
    least = max(rounds * options["agents"] + 1, 3 * rounds)
    if most < least:
        raise RecipeError(
            where=f"rollout.max_turns: {most}",
            what=f"{rounds} rounds of {options['agents']} agents need {least} turns: the environment checks each "
            "solution before the last scores, and each agent acts three times a round.",
            remedy=f"Set rollout.max_turns={least}, or lower `rounds`.",
        )


@register("program", "discussion", uses=("one_agent", "one_act"), source="arXiv 2510.08529")
@acted_by(agents)
@demonstrated_by(demonstrate)
@declaring(provides=frozenset({"stratum", "discussion", "score"}), waits=True, fits=_refuse_few_turns)
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
    """In each round every agent solves the question; one agent evaluates each solution and another one scores it.

    For environments with one agent that acts once. Evaluators, and after a second shuffle scorers, are assigned so that
    all do the same amount of work; an agent may judge its own solution. From the second round on solvers read
    discussions of the round before, drawn without replacement.

    Args:
        agents: number of agents, named `agent_1`, `agent_2` …; the section `agents` of the recipe gives each its
            policy. Usual: 4.
        rounds: number of rounds. Higher: solvers read more of each other, and episodes cost more. Usual: 2.
        references: largest number of earlier discussions that a solver reads. Higher: longer prompts. Usual: 2.
        solve, evaluate, score: templates of the prompts for the three roles, with {question}, {solution}, {evaluation}
            and {earlier}.
        earlier: template of one earlier discussion in a solver's prompt.

    A score is 1 (a fatal fault), 2 (small faults) or 3 (no faults), alone or in <score> … </score>; otherwise the act
    is `invalid`. Rows have `stratum` (solver, evaluator or scorer), `discussion` and, for scorers, `score` (0:
    unreadable).

    The environment's reward for a solution is subtracted at once, so that no agent learns from it. `info` has, for the
    last round: `accuracy`, `majority` (whether a most frequent solution is right) and, over all rounds, `judged` (the
    share of scores that are 3 for a right solution or less for a wrong one). The outcome is that of one of the last
    solutions, drawn with the play's seed.

    `rollout.max_turns` must leave room for all rounds: each agent acts three times a round, and the environment checks
    each solution.

    Raises: RecipeError, for too few turns; ContractError, in an environment with several agents or acts.
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
    """Run the rounds of solving, evaluating and scoring; `speak` gives each text."""

    async def work(told: Told, name: str, duty: str, read: str = "") -> str:
        said = await speak(told, name, duty, told.fill(wording[duty], read))
        step = episode.agents[name].last
        assert step is not None
        step.info |= {"stratum": duty, "discussion": float(told.number)}
        if duty == SCORER:
            step.info["score"] = float(said or 0)
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
            for told, said in zip(now, await asyncio.gather(*judging), strict=True):
                if duty == EVALUATOR:
                    told.evaluation = said
                else:
                    told.score = int(said or 0)
        past += now
    _report(episode, past, past[-len(names) :])


def _report(episode: Episode, past: Sequence[Told], last: Sequence[Told]) -> None:
    """Write the results of the discussions to `info`, for logs; only this function uses the truth."""
    often = Counter(told.solution for told in last)
    found = {
        "success": last[derive(episode.play.seed, "outcome") % len(last)].right,
        "accuracy": float(np.mean([told.right for told in last])),
        "majority": float(max(last, key=lambda told: often[told.solution]).right),
        "judged": float(np.mean([(told.score == 3) == told.right for told in past])),
    }
    episode.trajectory.info = {**episode.trajectory.info, **found}


async def _right(episode: Episode, name: str, solution: str) -> bool:
    """Whether a solution is right. The environment's reward is subtracted, so that no agent learns from it."""
    result = await episode.step({name: Action(text=solution, value=solution)})
    if result.observations:
        raise _unfit(episode, "its episodes go on after the first act")
    for reward in result.rewards.values():
        episode.reward(name, -reward)
    await episode.reset()
    return bool(result.info.get("success", sum(result.rewards.values()) > 0))


def _question(episode: Episode, result: StepResult) -> str:
    """The observation of the task's only agent."""
    if len(episode.names) != 1:
        raise _unfit(episode, f"it has {len(episode.names)} agents")
    return result.observations[episode.names[0]].text or ""


def _unfit(episode: Episode, why: str) -> ContractError:
    return ContractError(
        where=f"program discussion, environment {episode.setup.environment_name}",
        what=f"{why}; this program judges several answers to one question.",
        remedy="Use an environment with one agent that acts once, such as sums.",
    )
