"""Role exchange: every so many iterations the roles of a team swap who plays them.

Knows plays and names of roles. Knows no program, no policy and no optimizer: policies keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from palaestra.data import Play, Trajectory
from palaestra.errors import ContractError, RecipeError, nearest
from palaestra.registry import PositiveInt, register
from palaestra.rollout.programs import roles_of
from palaestra.rollout.strategies import RolloutContext

WHERE = "strategy: role_exchange"


@register("strategy", "role_exchange", source="arXiv 2410.06101")
class RoleExchange:
    """In iterations `every` to 2 · `every` − 1 the first role is played as the second, and so on; then further.

        iteration t, n roles:    role i is played by what the recipe gives to role (i + ⌊t / every⌋) mod n

    With two roles they swap, and swap back. Policies keep their weights, optimizers and references: who exchanges the
    parameters of two copies, as the authors do, exchanges the same thing. What the recipe gives to a role (policy,
    context, prompt, parser, sampling) moves as a whole, so that what belongs to the work and not to the worker must
    stand in the program. Evaluations are played as the recipe says.

    Args:
        roles: at least two, all different.
        every: iterations between exchanges. Higher: each learns one side longer. Usual: 5.

    Metrics: exchange/shift (by how many places roles are moved).

    Raises: RecipeError, for fewer than two roles, one named twice or one that nobody plays; ContractError, for plays
    that give roles away already.
    Differs from the authors' code: optimizers are kept, where theirs are made anew at each exchange.
    """

    called_per = "group"

    def __init__(self, *, roles: tuple[str, ...], every: PositiveInt = 5) -> None:
        if len(roles) < 2 or len(set(roles)) < len(roles):
            raise RecipeError(
                where=WHERE,
                what=f"`roles: [{', '.join(roles)}]` cannot be exchanged.",
                remedy="Name two roles or more, each once.",
            )
        self._roles, self._every = roles, every

    def exchanged(self, step: int) -> Mapping[str, str]:
        """Role → whose place it takes in iteration `step`; empty where nothing is moved."""
        shift = step // self._every % len(self._roles)
        moved = (*self._roles[shift:], *self._roles[:shift])
        return dict(zip(self._roles, moved, strict=True)) if shift else {}

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play with the roles of this iteration."""
        self._refuse_unknown(rollout)
        exchanged = self.exchanged(rollout.step)
        rollout.metrics["exchange/shift"] = float(rollout.step // self._every % len(self._roles))
        taken = next((play for play in plays if play.roles.keys() & set(self._roles)), None)
        if taken is not None:
            raise ContractError(
                where=WHERE,
                what=f"a play gives roles away already ({dict(taken.roles)}), and its roles cannot be exchanged too.",
                remedy="Let one strategy alone say who plays whom.",
            )

        def recast(given: Sequence[Play]) -> list[Play]:
            return [replace(play, roles={**play.roles, **exchanged}) for play in given]

        more = rollout.more
        return await replace(rollout, more=lambda groups: recast(more(groups))).collect(recast(plays))

    def _refuse_unknown(self, rollout: RolloutContext) -> None:
        """Raises: RecipeError, for a role that does not act, whose policy would play nobody, or that is frozen."""
        declared = roles_of(rollout.setup.program)
        acting = list(declared or rollout.setup.source.agents)
        if declared is None:  # then any role of the recipe may act
            acting += [name for name in rollout.setup.roles if name != "*" and name not in acting]
        for name in self._roles:
            if name not in acting:
                raise RecipeError(
                    where=f"{WHERE}, roles",
                    what=f"nobody is called `{name}`.",
                    options=nearest(name, acting),
                    remedy=f"Those who act are: {', '.join(acting)}.",
                )
            if rollout.setup.role(name).frozen:
                raise RecipeError(
                    where=f"agents.{name}.frozen",
                    what="a frozen role cannot change places: it would be another work each time that nobody learns.",
                    remedy="Leave `frozen` out, or set `trainable: false` of its policy.",
                )
