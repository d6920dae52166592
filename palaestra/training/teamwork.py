"""Teamwork: what each role of a team does in an iteration, and a word of warning when a role falls out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from palaestra.data import Step, StopReason, Trajectory
from palaestra.errors import NoSignal

NEARLY_ALL = 0.95  # of a team's tokens


def team_metrics(played: Sequence[Trajectory], roles: Sequence[str] = ()) -> dict[str, float]:
    """Per role, over all episodes that did not fail, whether it acted in them or not.

        agent/<role>/calls/mean     acts per episode           agent/<role>/active        share of episodes it acted in
        agent/<role>/tokens/mean    tokens per episode         agent/<role>/tokens/share  of all tokens of the team
        agent/<role>/invalid/mean   share of its acts that could not be read
        agent/<role>/reward/mean    its own rewards in an episode it acted in
        agent/<role>/turns/mean     acts in an episode it acted in

    Args:
        played: steps of opponents are left out.
        roles: that ought to act; one that never does has zeros. A single role gives nothing.
    """
    not_failed = [t for t in played if t.stop is not StopReason.ERROR]
    acts: dict[str, list[list[Step]]] = {role: [[] for _ in not_failed] for role in roles}
    for place, trajectory in enumerate(not_failed):
        for step in trajectory.steps:
            if step.marks.row_weight in (None, 1.0):
                acts.setdefault(step.agent, [[] for _ in not_failed])[place].append(step)
    if len(acts) < 2 or not not_failed:
        return {}
    tokens = {
        role: sum(len(step.action.tokens) for steps in episodes for step in steps) for role, episodes in acts.items()
    }
    total = sum(tokens.values())
    metrics: dict[str, float] = {}
    for role, episodes in sorted(acts.items()):
        steps = [step for episode in episodes for step in episode]
        active = [place for place, episode in enumerate(episodes) if episode]
        numbers = {
            "calls/mean": len(steps) / len(not_failed),
            "active": len(active) / len(not_failed),
            "tokens/mean": tokens[role] / len(not_failed),
            "invalid/mean": float(np.mean([step.info.get("invalid", 0.0) for step in steps] or [0.0])),
        }
        if total:
            numbers["tokens/share"] = tokens[role] / total
        if active:
            numbers["reward/mean"] = float(np.mean([not_failed[place].returns.get(role, 0.0) for place in active]))
            numbers["turns/mean"] = len(steps) / len(active)
        metrics |= {f"agent/{role}/{name}": value for name, value in numbers.items()}
    return metrics


@dataclass(slots=True)
class Teamwork:
    """Says so once when a role falls silent, comes back, or takes nearly all tokens of the team.

    Attributes:
        roles: that ought to act. patience: iterations after which a role that never acted ends the run.
    """

    roles: Sequence[str]
    patience: int
    acted: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    loud: str = ""
    iterations: int = 0

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """Lines to be shown after an iteration with these metrics.

        Raises: NoSignal, for a role that has not acted once in `patience` iterations.
        """
        self.iterations += 1
        lines = []
        for role in self.roles:
            active = metrics.get(f"agent/{role}/active")
            if active is None:
                continue
            if active > 0:
                self.acted.add(role)
                if role in self.silent:
                    self.silent.remove(role)
                    lines.append(f"role {role} acts again")
            elif role not in self.silent:
                self.silent.add(role)
                lines.append(f"role {role} has fallen silent: it acted in none of the iteration's episodes")
        never = [role for role in self.roles if role in self.silent and role not in self.acted]
        if never and self.iterations >= self.patience:
            raise NoSignal(
                where=f"role {never[0]}, {self.iterations} iterations",
                what="it has never acted, so nothing can be learned about it.",
                options=sorted(self.acted),
                remedy="Look at the program with `palaestra play`, or leave the role out of `agents`.",
            )
        return lines + self._shares(metrics)

    def _shares(self, metrics: Mapping[str, float]) -> list[str]:
        share = {role: metrics.get(f"agent/{role}/tokens/share", 0.0) for role in self.roles}
        loud = next((role for role, value in share.items() if value >= NEARLY_ALL and len(share) > 1), "")
        said, self.loud = self.loud, loud
        return [f"role {loud} takes {share[loud]:.0%} of the team's tokens"] if loud and loud != said else []
