"""Roles of a run: who acts, which policy plays whom, and which settings must agree where a policy is shared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.data.protocols import Context, complete
from palaestra.errors import RecipeError, nearest
from palaestra.rollout.programs import roles_of
from palaestra.rollout.roles import Role, RoleTools
from palaestra.tools import Toolbox
from palaestra.training.settings import RoleSettings, RunSettings, ToolSettings


def make_roles(
    settings: RunSettings, agents: Sequence[str], declared: Sequence[str] | None, policies: Mapping[str, Any]
) -> dict[str, Role]:
    """A role for every name that may act, and "*" where the recipe has it.

    Args:
        agents: of the environment.
        declared: roles that the program says it has; empty: the environment's agents; None: it does not say.

    Raises: RecipeError, for a role without a policy, one that nobody knows, or a policy that no role has.
    """
    acting = tuple(declared or agents)
    if declared is None:  # then any name in the recipe may be a role
        acting = tuple(dict.fromkeys((*agents, *(name for name in settings.agents if name != "*"))))
    _refuse_unknown(settings, acting, agents)
    _refuse_unknown_agents(settings, agents)
    roles = {}
    for name in dict.fromkeys((*acting, *settings.agents, *agents, "*")):
        chosen = settings.role(name)
        if chosen.policy in policies:
            roles[name] = _role(chosen, policies[chosen.policy])
        elif name in acting or name in settings.agents:
            raise RecipeError(
                where=f"agents.{name}.policy",
                what=f"no policy is called `{chosen.policy}`.",
                options=sorted(policies),
                remedy=f"Write `agents: {{{name}: {{policy: …}}}}`.",
            )
    _refuse_unused(settings, roles, acting, policies)
    return roles


def _role(chosen: RoleSettings, policy: Any) -> Role:
    return Role(
        policy=policy,
        context=complete(chosen.context(), Context, where=f"context: {chosen.context.name}"),
        frozen=chosen.frozen,
        prompt=chosen.prompt,
        parser=chosen.parser,
        tools=_tools(chosen.tools),
        acts_for=chosen.acts_for,
        sampling=chosen.sampling,
    )


def _tools(chosen: ToolSettings) -> RoleTools | None:
    """The tools of a role, made once for all its episodes. Raises: ContractError, for two tools of one name."""
    if not chosen.use:
        return None
    options = chosen.model_dump(exclude={"use"})
    tools = RoleTools(tools=tuple(tool() for tool in chosen.use), **options)
    Toolbox(tools.tools)  # refuses two of one name
    return tools


def temperatures(settings: RunSettings, roles: Mapping[str, Role]) -> dict[str, float]:
    """Per policy, the temperature that all its roles act at. An agent of the environment that never acts has none.

    Raises: RecipeError, if roles that share a trained policy have different ones: its probabilities are taken at one.
    """
    by_policy: dict[str, dict[float, str]] = defaultdict(dict)
    for name in roles_of(settings.program) or [name for name in roles if name != "*"]:
        role = roles[name]
        if not role.frozen:
            temperature = role.sampling.get("temperature", settings.rollout.temperature)
            by_policy[role.policy.name].setdefault(temperature, name)
    for policy, chosen in by_policy.items():
        if len(chosen) > 1 and settings.policies[policy].trainable:
            said = ", ".join(f"{name} {temperature:g}" for temperature, name in chosen.items())
            raise RecipeError(
                where=f"policies.{policy}",
                what=f"its roles act at different temperatures ({said}), and its probabilities are taken at one.",
                remedy="Give them one `temperature`, or policies of their own.",
            )
    return {policy: next(iter(chosen)) for policy, chosen in by_policy.items()}


def _refuse_unknown(settings: RunSettings, acting: Sequence[str], agents: Sequence[str]) -> None:
    for name in settings.agents:
        if name != "*" and name not in acting and name not in agents:
            raise RecipeError(
                where=f"agents.{name}",
                what=f"nobody of that name acts with program `{settings.program.name}` in environment "
                f"`{settings.environment.name}`.",
                options=nearest(name, list(acting)) or list(acting),
                remedy=f"Those who act are: {', '.join(acting)}.",
            )


def _refuse_unknown_agents(settings: RunSettings, agents: Sequence[str]) -> None:
    for name, chosen in settings.agents.items():
        if chosen.acts_for is not None and chosen.acts_for not in agents:
            raise RecipeError(
                where=f"agents.{name}.acts_for",
                what=f"environment `{settings.environment.name}` has no agent `{chosen.acts_for}`.",
                options=nearest(chosen.acts_for, agents),
                remedy="Name the environment's agent that this role acts for; leave it out where there is only one.",
            )


def _refuse_unused(
    settings: RunSettings, roles: Mapping[str, Role], acting: Sequence[str], policies: Mapping[str, Any]
) -> None:
    used = {roles[name].policy.name for name in acting}
    used |= {policy.base for policy in policies.values() if policy.base is not None}  # adapters stand on another policy
    for name in policies:
        if name not in used:
            raise RecipeError(
                where=f"policies.{name}",
                what="no role is played by it.",
                options=[f"agents.{role}.policy={name}" for role in acting],
                remedy="Give it a role, or leave it out.",
            )
