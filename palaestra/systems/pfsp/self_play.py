"""The strategy `self_play`: the learner plays against itself, or against its earlier versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.data import Play, StopReason, Trajectory, derive
from palaestra.errors import RecipeError
from palaestra.models.sizes import LoadedModel, PolicySize, copy_of
from palaestra.registry import Fraction, PositiveInt, register
from palaestra.rollout.programs import roles_of
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.pfsp.opponents import Choose, Member, Pool, Weighting, let_go

if TYPE_CHECKING:
    from palaestra.training.settings import RunSettings

WHERE = "strategy: self_play"
EVEN = 1e-9  # a smaller difference of returns is a draw


@register(
    "strategy",
    "self_play",
    ignores_if={"choose=latest": ("weighting",), "choose=uniform": ("weighting",)},
    source="Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z",
)
class SelfPlay:
    """Play each group of games with the present policy alone, or against one of its earlier versions.

    With probability `self_share` the policy plays all its agents. Otherwise a member of a pool of frozen snapshots is
    sampled, the same for the whole group. The learner plays one agent and the member all the others. The learner's
    first agent is sampled for each group, and from sample to sample of the group it moves on to the next agent. A
    member's acts are rows of weight 0: no policy learns from them and no statistic counts them.

    Where other policies of the run play too (games with a policy for each agent), the member takes all agents of its
    own policy, and the other policies play against it. One such strategy per policy, one inside the other, gives each
    policy a pool. A play that has roles already is left as it is.

    `choose: prioritized` is prioritized fictitious self-play; see `opponents.chances`. The side with the larger return
    wins a game. Where all agents get the same return, every game is a draw and all opponents are equal.

    Args:
        policy: the policy whose snapshots are the pool.
        every: iterations between snapshots; the first one is taken at the start. Higher: members differ more. Usual: 5
            to 50.
        size: most members; a further one replaces the oldest. 1 with `latest`: one older copy. Higher: less is
            forgotten, and more models are in memory. Usual: 5 to 50.
        choose: "latest", the last snapshot; "uniform", any, which is fictitious play; "prioritized", by win rates.
        weighting: with `prioritized`. "hard": (1 − x)², members that the learner loses to; "variance": x (1 − x),
            members that are its equals.
        self_share: in [0, 1]. 1: plain self-play, and the pool is filled but not used. Usual: 0.5.

    Evaluations are played without it. The trajectory's info has `opponent`: the member's name, or "self".
    Metrics: self_play/pool (members), self_play/share (of the plays, those against the pool), self_play/score (mean of
        1 won, 0.5 drawn, 0 lost in those), self_play/winrate/mean and lowest (smoothed, over members, of all their
        games), self_play/elo (the learner's; 1000 at the start, and a new member has the learner's). Where other
        policies play too, the names are self_play/<policy>/pool and so on, results are those of the other policies, and
        there is no elo.
    Raises: RecipeError, for an unknown policy, one without weights, or one that has no opponent in the game.
    """

    called_per = "group"

    @staticmethod
    def loads(options: Mapping[str, Any], policies: Mapping[str, PolicySize], settings: Any) -> list[LoadedModel]:
        """The members of the pool: copies of the policy, as many as the run takes and the pool holds."""
        name = options["policy"]
        members = min(options["size"], 1 + (settings.training.iterations - 1) // options["every"])
        what = f"earlier versions of {name}"
        return [copy_of(policies[name], what, count=members)] if name in policies else []

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
        self._stored: Mapping[str, Any] | None = None  # a checkpoint's state, until there is a policy to restore it for

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play and return the plays, and record the results against members."""
        ours, others = self._agents(rollout)
        self._grow(rollout)
        games: dict[tuple[str, int], tuple[Play, Member]] = {}  # those against members
        count = 0

        def with_opponents(plays: Sequence[Play]) -> list[Play]:
            """The plays with their roles assigned; those against a member are recorded in `games`."""
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
                what=f"`{self._policy}` is no policy of this run that has weights.",
                options=sorted(name for name, policy in policies.items() if policy.module is not None),
                remedy="Name the policy whose earlier versions are the opponents.",
            )
        names = roles_of(rollout.setup.program) or rollout.setup.source.agents
        return _sides(self._policy, {name: rollout.setup.role(name).policy.name for name in names})

    @staticmethod
    def fits(options: Mapping[str, Any], settings: RunSettings, source: Any) -> None:
        """Raises: RecipeError, for a policy that does not play, or has no opponent in the game."""
        names = roles_of(settings.program) or source.agents
        _sides(options["policy"], {name: settings.role(name).policy for name in names})

    def _grow(self, rollout: RolloutContext) -> None:
        """Every `every` iterations, add the policy as it is now to the pool."""
        policy = rollout.setup.policies[self._policy]
        if self._stored is not None:
            self.pool.restore(self._stored["pool"], policy)
            self._taken, self._stored = self._stored["taken"], None
        if self._taken is None or rollout.step - self._taken >= self._every:
            self.pool.add(policy, rollout.step)
            self._taken = rollout.step

    def _drawn(self, group: str, seed: int) -> tuple[Member | None, int]:
        """The opponent of a group (None: the policy itself), and the number from which the learner's first agent
        follows.
        """
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
        """The play with its roles assigned, and the member that plays some of them."""
        if member is None or play.roles:
            return replace(play, info={"opponent": "self", **play.info}), None
        learner = None if others else ours[(first + play.sample) % len(ours)]
        roles = {name: self._opponent_role(member, name, rollout) for name in ours if name != learner}
        return replace(play, roles=roles, info={**play.info, "opponent": member.policy.name}), member

    def _opponent_role(self, member: Member, name: str, rollout: RolloutContext) -> str:
        """The role of a member that plays an agent: the agent's own role, with the member's policy."""
        setup, role = rollout.setup, f"{member.policy.name}/{name}"
        if role not in setup.roles:
            made = replace(setup.role(name), policy=member.policy, opponent=True)
            setup.roles[role] = made  # type: ignore[index]  # roles may be added while a run goes on
        return role

    def _let_go(self, rollout: RolloutContext) -> None:
        """Remove the roles of replaced members that play no more, and free their weights in the engine."""
        roles = rollout.setup.roles
        for member in self.pool.gone():
            for role in [name for name in roles if name.startswith(f"{member.policy.name}/")]:
                del roles[role]  # type: ignore[attr-defined]
            let_go(member)

    def _metrics(self, scores: Sequence[float], *, share: float, against_others: bool) -> dict[str, float]:
        """The metrics of an iteration; where other policies play too, which may have pools, under the policy's name."""
        rates = [member.rate for member in self.pool.members]
        metrics = {
            "pool": float(len(rates)),
            "share": share,
            "winrate/mean": float(np.mean(rates)),
            "winrate/lowest": min(rates),
        }
        if not against_others:  # the rating compares a policy with its own earlier versions only
            metrics["elo"] = self.pool.rating
        if scores:
            metrics["score"] = float(np.mean(scores))
        head = f"self_play/{self._policy}" if against_others else "self_play"
        return {f"{head}/{name}": value for name, value in metrics.items()}

    # ---- checkpoints --------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The pool, and the iteration of its last snapshot."""
        return (
            dict(self._stored) if self._stored is not None else {"pool": self.pool.state_dict(), "taken": self._taken}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the state; the pool is restored when the next iteration begins, since it needs the policies."""
        self._stored = state


def _sides(policy: str, players: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The agents that the policy plays, and those of other policies.

    Args:
        players: agent → its policy.

    Raises: RecipeError.
    """
    ours = [name for name, player in players.items() if player == policy]
    if not ours or len(players) < 2:
        raise RecipeError(
            where=WHERE,
            what=f"`{policy}` plays {len(ours)} of {len(players)} agents, so it cannot play against itself.",
            options=list(players),
            remedy="Play a game of at least two agents, of which the policy plays at least one.",
        )
    return ours, [name for name in players if name not in ours]


def score(played: Trajectory, learners: Sequence[str], members: Collection[str]) -> float:
    """1, 0.5 or 0: whether the learners' mean return is larger than the members', the same, or smaller."""
    gained, lost = (
        float(np.mean([played.returns.get(name, 0.0) for name in side])) for side in (learners, list(members))
    )
    return 0.5 if abs(gained - lost) < EVEN else float(gained > lost)
