"""The environment `teambuilding`: a policy builds a team for a query, one agent and one connection after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import choice, read_index
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, NonNegative, PositiveInt, register
from palaestra.systems.hrpo.teambuilding_graph import ROLES, TOPICS, Prices, Role, Team, execute

AGENT = "builder"
DELETE, EXIT, YES, NO = "delete", "exit", "yes", "no"
EMPTY = Team()


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an episode; a new agent is in `team` before the questions whom it hears.

    Attributes:
        topic, needed: of the query.
        seed: of the task.
        team: the team as it is.
        before: the team before the present action.
        asked: the agent that the new one may hear; None: a node is to be chosen.
        done: building actions so far.
        added: whether the last of them added an agent.
    """

    topic: str
    needed: frozenset[Role]
    seed: int
    team: Team = EMPTY
    before: Team = EMPTY
    asked: int | None = None
    done: int = 0
    added: bool = False


@register("environment", "teambuilding")
class Teambuilding(KeepsState[State]):
    """Build the team that a query needs: which roles, and who hears whom.

    `query: survey. team: empty.` A building action is a node: `add searcher` (or another role), `delete` (the agent
    that joined last) or `exit`. After an addition follows one `yes` or `no` for each earlier agent: `does 2 writer hear
    1 searcher?` So the probability of an action is that of its node times those of its connections. At `exit` the team
    is executed by fixed rules: the last agent answers, and every role that the topic needs, one to three of six, must
    reach it and must not fail. The needs of a topic are always the same; observations do not show them.

    Args:
        roles: K, 1–6, kinds of agents. Higher: more to choose from. Usual: 6.
        needs: fewest and most roles that a query needs. Usual: [1, 3].
        agents: most agents of a team. Higher: larger graphs. Usual: 6.
        max_actions: building actions; then the team is executed as it is. Usual: 10.
        faults: role r (from 0) fails a task with probability faults · r / (K − 1). Higher: fewer queries can be solved.
            Usual: 0.1.
        exempt: building actions without a score of their own. Usual: 3.
        step: ≥ 0, the price of each added agent. Usual: 0.05.
        duplicate: ≥ 0, the further price of an agent that repeats a role and hears no agent. Usual: 0.2.
        delete: ≥ 0, the price of deleting an agent that was just added. Usual: 0.1.
        use: ≥ 0, the gain for each agent that is heard for the first time. Usual: 0.05.

    Reward: 1 if the team solves the query, else 0. An act that is impossible or cannot be read counts as a building
    action and changes nothing.

    A step's `info` has `invocation`, the number of its building action, and, on the action's last act, `process`, the
    action's score. The last one has `agents`, the size of the team, and `stratum`, the number of roles that were
    needed.

    Raises: RecipeError, if no topic needs so many of so few roles.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "process", "stratum"})

    def __init__(
        self,
        *,
        roles: Annotated[int, pydantic.Field(ge=1, le=len(ROLES))] = 6,
        needs: tuple[PositiveInt, PositiveInt] = (1, 3),
        agents: PositiveInt = 6,
        max_actions: PositiveInt = 10,
        faults: Fraction = 0.1,
        exempt: Annotated[int, pydantic.Field(ge=0)] = 3,
        step: NonNegative = 0.05,
        duplicate: NonNegative = 0.2,
        delete: NonNegative = 0.1,
        use: NonNegative = 0.05,
    ) -> None:
        self._params: dict[str, Any] = {"roles": roles, "needs": list(needs), "faults": faults}
        self._roles, self._size, self._limit, self._faults = ROLES[:roles], agents, max_actions, faults
        self._prices = Prices(exempt=exempt, step=step, duplicate=duplicate, delete=delete, use=use)
        fewest, most = needs
        self._topics = [t for t, need in TOPICS.items() if fewest <= len(need) <= most and set(need) <= {*self._roles}]
        Refusals("environment: teambuilding").when(
            not self._topics,
            f"no topic needs {fewest} to {most} of the {roles} roles {', '.join(self._roles)}.",
            "Raise `roles` (6), or widen `needs` ([1, 3]).",
        )
        self.actions: tuple[str, ...] = (*(f"add {role}" for role in self._roles), DELETE, EXIT, YES, NO)
        self.action_count = len(self.actions)
        self.vector_size = len(TOPICS) + agents * roles + agents * agents + agents + 2

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        fewest, most = self._params["needs"]
        count = f"{fewest} to {most} roles" if fewest < most else f"{most} role{'s' * (most != 1)}"
        faults = " An agent may also fail at a query." if self._faults and len(self._roles) > 1 else ""
        return write_manual(
            "You build a team of agents for a query. Every message has the topic of the query, and the team: its "
            "agents by number and role, and whom each one hears. The agent that joined last answers the query. Each "
            f"topic needs {count}, the same in every episode, and messages do not tell them. Each needed role must be "
            "that of the agent that answers, or of an agent that it hears, directly or through others."
            f"{faults}",
            {
                "add ROLE": f"add an agent: {', '.join(self._roles)}",
                DELETE: "remove the agent that joined last",
                EXIT: "end: the team answers the query",
                f"{YES}, {NO}": "only after a question: whether the new agent hears the earlier one",
            },
            example=f"add {self._roles[0]}",
            ending=f"A team has at most {self._size} agents. You can add, delete or exit {self._limit} times in all, "
            "and what is impossible or cannot be read counts, too. After that the team answers as it is. The episode "
            "succeeds if the team solves the query.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` queries; splits never share a seed."""
        return seeded_tasks("teambuilding", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The topic, which says what team it needs."""
        return self._topic(task)

    def _topic(self, task: Task) -> str:
        return self._topics[derive(task.seed, "topic") % len(self._topics)]

    def reset(self, task: Task) -> StepResult:
        topic = self._topic(task)
        needed = frozenset(ROLES.index(role) for role in TOPICS[topic])
        self.state = State(topic=topic, needed=needed, seed=task.seed)
        return single(AGENT, self._observe(self.state, ""), info={"stratum": str(len(needed))})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        state = self.state
        meant = read_index(actions[AGENT].value, self.actions)
        said, over = "", False
        if meant is None or meant not in self._possible(state):
            said = "not understood. " if meant is None else "not possible. "
            after, score = replace(state, done=state.done + 1, added=False), 0.0
        else:
            after, score = self._moved(state, self.actions[meant])
            over = self.actions[meant] == EXIT
        self.state = after
        over = over or after.done >= self._limit
        solved = over and self._solves(after)
        ends = {"success": solved, "agents": len(after.team.roles), "stratum": str(len(after.needed))}
        return single(
            AGENT,
            None if over else self._observe(after, said),
            reward=float(solved),
            over=over,
            act={"invocation": state.done} | ({"process": score} if after.done > state.done else {}),
            readable=meant is not None,
            info=ends if over else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Adds each needed role once, hearing those of the others that are there, and exits."""
        state = self.state
        team = state.team
        if state.asked is not None:
            useful = (
                team.roles[state.asked] in state.needed and team.roles[state.asked] not in team.roles[: state.asked]
            )
            return choice(YES if useful else NO, self.actions)
        missing = sorted(state.needed - set(team.roles))
        unheard = [] if missing or not team.roles else sorted(state.needed - {team.roles[one] for one in team.heard()})
        text = f"add {ROLES[(missing or unheard)[0]]}" if missing or unheard else EXIT
        if len(team.roles) == self._size:
            text = EXIT
        return choice(text, self.actions)

    # ---- playing ------------------------------------------------------------------------------------------
    def _solves(self, state: State) -> bool:
        """Whether the team, executed as it is, solves the query."""
        team, roles = state.team, len(self._roles)
        return bool(team.roles) and execute(team, state.needed, faults=self._faults, roles=roles, seed=state.seed)

    def _possible(self, state: State) -> list[int]:
        """Indices of the possible actions: answers, if there is a question, else nodes."""
        index = self.actions.index
        if state.asked is not None:
            return [index(YES), index(NO)]
        adding = range(len(self._roles)) if len(state.team.roles) < self._size else ()
        return [*adding, *([index(DELETE), index(EXIT)] if state.team.roles else [])]

    def _moved(self, state: State, action: str) -> tuple[State, float]:
        """The state after a possible action, and the score of the building action, if it is complete."""
        team = state.team
        if action in (YES, NO):
            assert state.asked is not None
            new = len(team.roles) - 1
            if action == YES:
                team = Team(roles=team.roles, edges=team.edges | {(state.asked, new)})
            return self._asked(replace(state, team=team), state.asked + 1)
        if action == DELETE:
            score = self._prices.of_deleting(state.done, just_added=state.added)
            return replace(state, team=team.without_last(), done=state.done + 1, added=False), score
        if action == EXIT:
            return replace(state, done=state.done + 1, added=False), 0.0
        role = ROLES.index(action.removeprefix("add "))
        return self._asked(replace(state, before=team, team=Team(roles=(*team.roles, role), edges=team.edges)), 0)

    def _asked(self, state: State, place: int) -> tuple[State, float]:
        """Ask whether the new agent hears the one at `place`; after the last question the action is complete."""
        if place < len(state.team.roles) - 1:
            return replace(state, asked=place), 0.0
        score = self._prices.of_adding(state.done, state.before, state.team)
        return replace(state, asked=None, done=state.done + 1, added=True), score

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State, said: str) -> Observation:
        text = _describe(state)
        return Observation(
            text=f"{said}{text}",
            vector=self._vector(state),
            legal=self._possible(state),
            state_key=f"{text} {state.done}",
        )

    def _vector(self, state: State) -> np.ndarray:
        """Topic; role of each agent; edges; the agent in question; whether a node is to be chosen; share of actions
        done.
        """
        roles = np.zeros((self._size, len(self._roles)), np.float32)
        hears = np.zeros((self._size, self._size), np.float32)
        topic, asked = np.zeros(len(TOPICS), np.float32), np.zeros(self._size, np.float32)
        topic[list(TOPICS).index(state.topic)] = 1
        for place, role in enumerate(state.team.roles):
            roles[place, role] = 1
        for sender, receiver in state.team.edges:
            hears[sender, receiver] = 1
        if state.asked is not None:
            asked[state.asked] = 1
        rest = np.array([state.asked is None, state.done / self._limit], np.float32)
        return np.concatenate([topic, roles.reshape(-1), hears.reshape(-1), asked, rest])


def _describe(state: State) -> str:
    """`query: survey. team: 1 searcher, 2 writer hears 1. does 2 writer hear 1 searcher?`"""
    members = []
    for place, role in enumerate(state.team.roles):
        heard = sorted(str(a + 1) for a, b in state.team.edges if b == place)
        members.append(f"{place + 1} {ROLES[role]}" + (f" hears {' '.join(heard)}" if heard else ""))
    text = f"query: {state.topic}. team: {', '.join(members) or 'empty'}."
    if state.asked is None:
        return text
    new, old = len(state.team.roles) - 1, state.asked
    return f"{text} does {new + 1} {ROLES[state.team.roles[new]]} hear {old + 1} {ROLES[state.team.roles[old]]}?"
