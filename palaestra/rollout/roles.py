"""Roles: which policy plays a name of an episode, what it is shown, and how it speaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.data.protocols import Policy, Sampling
from palaestra.rollout.role_tools import RoleTools

Program = Callable[[Any], Awaitable[None]]  # async def program(episode: Episode) -> None


@dataclass(slots=True, kw_only=True)
class Role:
    """One name in an episode: the policy that plays it, what it is shown, and how it speaks.

    Attributes:
        context: through which it sees its history.
        frozen: its acts are never learned from; the others of its policy are.
        opponent: nor do they count in any statistic: an opponent from a pool, a stand-in.
        prompt: stands around whatever it is shown; "{text}" is that, "{tools}" how its tools are called.
        parser: text to what it means, None if it means nothing; in place of the program's own.
        tools: what it alone may call, in whatever program.
        acts_for: the environment's agent whose actions it gives; None: the only one.
        sampling: temperature, top_k, top_p and max_tokens that are its own.
    """

    policy: Policy
    context: Any = None
    frozen: bool = False
    opponent: bool = False
    prompt: str | None = None
    parser: Callable[[str], Any] | None = None
    tools: RoleTools | None = None
    acts_for: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def sampling_of(self, given: Sampling) -> Sampling:
        """How this role's actions are drawn; where `given` is exact only its own length counts."""
        changes = {name: value for name, value in self.sampling.items() if name == "max_tokens" or not given.exact}
        return replace(given, **changes) if changes else given
