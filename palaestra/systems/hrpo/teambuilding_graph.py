"""The rules of the environment `teambuilding`: queries, teams, what a team solves, and what building actions cost."""

from __future__ import annotations

import random
from dataclasses import dataclass

from palaestra.data import derive
from palaestra.errors import InvalidData

ROLES = ("searcher", "coder", "writer", "analyst", "critic", "planner")
# For each topic, the roles that its queries need.
TOPICS: dict[str, tuple[str, ...]] = {
    "weather": ("searcher",),
    "sorting": ("coder",),
    "poem": ("writer",),
    "proof": ("analyst",),
    "news": ("searcher", "writer"),
    "chart": ("coder", "analyst"),
    "review": ("writer", "critic"),
    "travel": ("searcher", "planner"),
    "survey": ("searcher", "writer", "analyst"),
    "app": ("coder", "critic", "planner"),
    "audit": ("searcher", "analyst", "critic"),
    "campaign": ("writer", "analyst", "planner"),
}
Role = int
Edge = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Agents by their roles, in the order in which they joined; the last one answers.

    Attributes:
        roles: the role of each agent.
        edges: pairs (sender, receiver) of places in `roles`.
    """

    roles: tuple[Role, ...] = ()
    edges: frozenset[Edge] = frozenset()

    def without_last(self) -> Team:
        """The team without its last agent and that agent's edges."""
        last = len(self.roles) - 1
        return Team(roles=self.roles[:last], edges=frozenset(edge for edge in self.edges if last not in edge))

    def order(self) -> list[int]:
        """The agents in an order in which every sender comes before its receivers.

        Raises: InvalidData, for an edge to an agent that is not in the team, or for a cycle.
        """
        lost = sorted(edge for edge in self.edges if not all(0 <= end < len(self.roles) for end in edge))
        if lost:
            raise InvalidData(
                where="team",
                what=f"the edge {lost[0]} names an agent that does not exist; the team has {len(self.roles)}.",
                remedy="Delete an agent together with its edges.",
            )
        spoken: list[int] = []
        while len(spoken) < len(self.roles):
            silent = [one for one in range(len(self.roles)) if one not in spoken]
            free = [one for one in silent if all(a in spoken for a, b in self.edges if b == one)]
            if not free:
                raise InvalidData(
                    where="team",
                    what=f"agents {silent} wait for each other: the edges have a cycle.",
                    remedy="Let each agent hear only agents that joined before it; then there is always an order.",
                )
            spoken.append(free[0])
        return spoken

    def heard(self) -> set[int]:
        """The agents whose messages reach the one that answers, itself included.

        Raises: InvalidData, if the team is empty, and as `order`.
        """
        if not self.roles:
            raise InvalidData(
                where="team",
                what="it has no agent, so there is no answer.",
                remedy="Add an agent before the team is executed; `exit` is not legal on an empty team.",
            )
        reached = {len(self.roles) - 1}
        for one in reversed(self.order()):
            reached |= {a for a, b in self.edges if b == one and one in reached}
        return reached


def execute(team: Team, needed: frozenset[Role], *, faults: float, roles: int, seed: int) -> bool:
    """Whether the team solves its query: every needed role is heard, and none of them fails at this task.

    Role r of K fails with probability faults · r / (K − 1), sampled once per task, so that a second agent of the same
    role fails as well.
    """
    present = {team.roles[one] for one in team.heard()}
    able = {r for r in needed if random.Random(derive(seed, "fault", r)).random() >= faults * r / max(roles - 1, 1)}
    return needed <= present and able == needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The scores of single building actions. All values are ≥ 0; the first `exempt` actions score 0."""

    exempt: int
    step: float  # the price of every agent that is added
    duplicate: float  # a further price, if the team had its role already and it hears no agent
    delete: float  # the price of deleting an agent that was added just before
    use: float  # the gain for each agent that is heard for the first time

    def of_adding(self, place: int, before: Team, after: Team) -> float:
        """The score of building action number `place` (from 0), which added the last agent of `after`."""
        if place < self.exempt:
            return 0.0
        new = len(after.roles) - 1
        hears = {a for a, b in after.edges if b == new}
        first = hears - {a for a, _ in before.edges}
        twice = after.roles[new] in before.roles and not hears
        return self.use * len(first) - self.step - self.duplicate * twice

    def of_deleting(self, place: int, *, just_added: bool) -> float:
        """The score of building action number `place`, which deleted the last agent."""
        return -self.delete if place >= self.exempt and just_added else 0.0
