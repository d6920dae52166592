"""Self-play: who plays whom. The learner plays itself, or one agent against its earlier selves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from palaestra.data import Play, StopReason, Trajectory, derive
from palaestra.errors import RecipeError
from palaestra.registry import Fraction, PositiveInt, register
from palaestra.rollout.programs import roles_of
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.pfsp.opponents import Choose, Member, Pool, Weighting, let_go

WHERE = "strategy: self_play"
EVEN = 1e-9  # returns that differ by less are a draw


@register(
    "strategy",
    "self_play",
    ignores_if={"choose=latest": ("weighting",), "choose=uniform": ("weighting",)},
    source="Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z",
)
class SelfPlay:
    """Each group of games is played by the present policy alone, or by it and one of its earlier selves.

    With probability `self_share` the policy plays all its agents. Otherwise a member of a pool of frozen snapshots is
    drawn, the same for the whole group, and the learner plays one agent, the member all the others. From sample to
    sample of a group the learner moves on to the next agent; where it begins is drawn for each group. A member's acts
    are rows of weight 0: nobody learns from them and no statistic counts them. Where other policies of the run play too
    (games with a policy for each agent), the member takes all agents of its own policy, and the others play against it;
    a strategy for each policy, one inside the other, gives each a pool. A play with roles already is left as it is.

    A pool of `prioritized` draws is prioritized fictitious self-play: see `opponents.chances`. A game is won by who
    has the larger return; where all get the same, every game is a draw and nobody is harder than anybody else.

    Args:
        policy: whose snapshots are the pool.
        every: iterations between snapshots; the first is of the start. Higher: members differ more. Usual: 5 to 50.
        size: most members; the oldest gives way. 1 with `latest`: an older copy. Higher: less is forgotten, and more
            models are asked. Usual: 5 to 50.
        choose: "latest", the last snapshot; "uniform", any, which is fictitious play; "prioritized", by win rates.
        weighting: of `prioritized`. "hard": (1 − x)², those it loses to; "variance": x (1 − x), its equals.
        self_share: in [0, 1]. 1: plain self-play, and the pool is only kept. Usual: 0.5.

    Evaluations are played as without it. The trajectory's info tells `opponent`: the member's name, or
    "self". Metrics: self_play/pool (members), self_play/share (of the plays, against the
    pool), self_play/score (mean of 1 won, 0.5 drawn, 0 lost in those), self_play/winrate/mean and lowest (smoothed,
    over members, of all their games), self_play/elo (of the learner; 1000 at the start, and a new member has the
    learner's). Where other policies play too the names are self_play/<policy>/pool and so on, the learner is
    those others, and there is no elo.

    Raises: RecipeError, for an unknown policy, one without weights, or one that plays nobody it could meet.
    """

    called_per = "group"

    def __init__(
        self,
        *,
        policy: str = "main",
        every: PositiveInt = 10,
        size: PositiveInt = 20,
        choose: Choose = "prioritized",
        weighting: Weighting = "hard",
        self_share: Fraction = 0.5,
    ) -> None:
        self._policy, self._every, self._choose, self._weighting = policy, every, choose, weighting
        self._self_share = self_share
        self.pool = Pool(size=size)
        self._taken: int | None = None  # iteration of the last snapshot
        self._stored: Mapping[str, Any] | None = None  # of a checkpoint, until there is a policy to put it into

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """What was played; the results against members go into the pay-off table."""
        ours, others = self._agents(rollout)
        self._grow(rollout)
        games: dict[tuple[str, int], tuple[Play, Member]] = {}  # against members
        count = 0

        def with_opponents(plays: Sequence[Play]) -> list[Play]:
            """The plays with their roles given out; those against a member are noted."""
            nonlocal count
            drawn = {play.group: self._drawn(play.group, rollout.seed) for play in plays}
            pairs = [self._against(play, *drawn[play.group], ours, others, rollout) for play in plays]
            for play, member in pairs:
                count += 1
                if member is not None:
                    member.playing += 1
                    games[play.group, play.sample] = play, member
            return [play for play, _ in pairs]

        inside = replace(rollout, more=lambda groups: with_opponents(rollout.more(groups)))
        try:
            played = await inside.collect(with_opponents(plays))
        finally:
            for _, member in games.values():
                member.playing -= 1
        scores = []
        for trajectory in sorted(played, key=lambda t: (t.group, t.sample)):
            game = games.get((trajectory.group, trajectory.sample))
            if trajectory.stop is not StopReason.ERROR and game is not None:
                play, member = game
                learners = [name for name in (*ours, *others) if name not in play.roles]
                scores.append(score(trajectory, learners, play.roles))
                self.pool.note(member, scores[-1])
        self._let_go(rollout)
        rollout.metrics |= self._metrics(scores, share=len(games) / count, against_others=bool(others))
        return played

    def _agents(self, rollout: RolloutContext) -> tuple[list[str], list[str]]:
        """The agents that the policy plays, and those of other policies."""
        policies = rollout.setup.policies
        if self._policy not in policies or policies[self._policy].module is None:
            raise RecipeError(
                where=f"{WHERE}, policy",
                what=f"`{self._policy}` is no policy of this run whose weights could be kept.",
                options=sorted(name for name, policy in policies.items() if policy.module is not None),
                remedy="Name the policy whose earlier selves are the opponents.",
            )
        names = roles_of(rollout.setup.program) or rollout.setup.source.agents
        ours = [name for name in names if rollout.setup.role(name).policy.name == self._policy]
        others = [name for name in names if name not in ours]
        if not ours or len(names) < 2:
            raise RecipeError(
                where=WHERE,
                what=f"`{self._policy}` plays {len(ours)} of {len(names)} agents, so that it cannot meet itself.",
                options=list(names),
                remedy="Play a game of at least two agents of which the policy plays one.",
            )
        return ours, others

    def _grow(self, rollout: RolloutContext) -> None:
        """Every so many iterations, the policy as it is now joins the pool."""
        policy = rollout.setup.policies[self._policy]
        if self._stored is not None:
            self.pool.restore(self._stored["pool"], policy)
            self._taken, self._stored = self._stored["taken"], None
        if self._taken is None or rollout.step - self._taken >= self._every:
            self.pool.add(policy, rollout.step)
            self._taken = rollout.step

    def _drawn(self, group: str, seed: int) -> tuple[Member | None, int]:
        """Whom the group plays against (None: itself), and with which agent the learner begins."""
        draw = np.random.default_rng(derive(seed, "self_play", self._policy, group))
        if draw.random() < self._self_share:
            return None, 0
        first = int(draw.integers(2**31))
        return self.pool.draw(draw, choose=self._choose, weighting=self._weighting), first

    def _against(
        self,
        play: Play,
        member: Member | None,
        first: int,
        ours: Sequence[str],
        others: Sequence[str],
        rollout: RolloutContext,
    ) -> tuple[Play, Member | None]:
        """The play with its roles given out, and the member that has some of them."""
        if member is None or play.roles:
            return replace(play, info={"opponent": "self", **play.info}), None
        learner = None if others else ours[(first + play.sample) % len(ours)]
        roles = {name: self._opponent_role(member, name, rollout) for name in ours if name != learner}
        return replace(play, roles=roles, info={**play.info, "opponent": member.policy.name}), member

    def _opponent_role(self, member: Member, name: str, rollout: RolloutContext) -> str:
        """The role in which a member plays an agent: as the agent's own, with the member's policy."""
        setup, role = rollout.setup, f"{member.policy.name}/{name}"
        if role not in setup.roles:
            made = replace(setup.role(name), policy=member.policy, opponent=True)
            setup.roles[role] = made  # type: ignore[index]  # roles may be added while a run goes on
        return role

    def _let_go(self, rollout: RolloutContext) -> None:
        """Members that have left, and play no more, leave the run too."""
        roles = rollout.setup.roles
        for member in self.pool.gone():
            for role in [name for name in roles if name.startswith(f"{member.policy.name}/")]:
                del roles[role]  # type: ignore[attr-defined]
            let_go(member)

    def _metrics(self, scores: Sequence[float], *, share: float, against_others: bool) -> dict[str, float]:
        """What the log is told; where other policies play too, and maybe have pools, under the policy's name."""
        rates = [member.rate for member in self.pool.members]
        metrics = {
            "pool": float(len(rates)),
            "share": share,
            "winrate/mean": float(np.mean(rates)),
            "winrate/lowest": min(rates),
        }
        if not against_others:  # a rating compares a policy with its earlier selves, and here others play against those
            metrics["elo"] = self.pool.rating
        if scores:
            metrics["score"] = float(np.mean(scores))
        head = f"self_play/{self._policy}" if against_others else "self_play"
        return {f"{head}/{name}": value for name, value in metrics.items()}

    # ---- checkpoints --------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The pool, and when it grew last."""
        return (
            dict(self._stored) if self._stored is not None else {"pool": self.pool.state_dict(), "taken": self._taken}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was saved; its weights are put back, and looked at, when there are policies to play."""
        self._stored = state


def score(played: Trajectory, learners: Sequence[str], members: Collection[str]) -> float:
    """1, 0.5 or 0: whether the learners got more on average than the members, the same, or less."""
    gained, lost = (
        float(np.mean([played.returns.get(name, 0.0) for name in side])) for side in (learners, list(members))
    )
    return 0.5 if abs(gained - lost) < EVEN else float(gained > lost)
