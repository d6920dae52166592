"""RunSetup: the environment, policies, roles, program and runner of a run, in one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palaestra.data.ranks import OneProcess, Ranks
from palaestra.data.task import Task
from palaestra.data.trajectory import Trajectory
from palaestra.errors import ContractError, nearest


@dataclass(slots=True, kw_only=True, eq=False)
class RunSetup:
    """What is built once for a run.

    A run fills it in steps. When a policy is made, the setup holds the environment and its sizes, the seed, the device,
    the texts and the policies made before. Roles, program and runner follow. Strategies and parts with state get the
    complete setup.

    Attributes:
        seed: for initial weights.
        device: name of the torch device that modules are moved to.
        environment_name, environment_options: as in the recipe.
        make_environment: makes a new environment; picklable if workers are processes.
        source: an environment in which no episode is played; it gives tasks and is asked for its abilities.
        vector_size, action_count: of the environment; None without the ability `vector`.
        texts: returns transcripts of the environment, for a tokenizer; may be slow.
        demonstrate: lets the environment's expert solve tasks. Each act is recorded as if a policy of the run had
            taken it, without log-probabilities. None, if there is no expert.
        policies: by name; an adapter's base is among them.
        engine: generates for all policies that write tokens; None, if there is none. Call `shutdown` at the end.
        roles: by name; "*" is the role of every other agent. Opponents from a pool are added during a run.
        program: says which agent acts when.
        runner: plays episodes. Call `close` at the end.
        temperatures: by policy, the temperature of its roles.
        team: roles that should act, if the program or the recipe names several.
        ranks: the processes that work on the run.
        settings: of the run, as the recipe gives them. folder: where the run writes; None: nowhere.
    """

    seed: int = 0
    device: str = "cpu"
    environment_name: str = ""
    environment_options: Mapping[str, Any] = field(default_factory=dict)
    make_environment: Callable[[], Any] = lambda: None
    source: Any = None
    vector_size: int | None = None
    action_count: int | None = None
    texts: Callable[[], Sequence[str]] = tuple
    demonstrate: Callable[[Sequence[Task]], list[Trajectory]] | None = None
    policies: dict[str, Any] = field(default_factory=dict)
    engine: Any = None
    roles: Mapping[str, Any] = field(default_factory=dict)
    program: Any = None
    runner: Any = None
    temperatures: dict[str, float] = field(default_factory=dict)
    team: tuple[str, ...] = ()
    ranks: Ranks = field(default_factory=OneProcess)
    settings: Any = None
    folder: Path | None = None

    @property
    def trained(self) -> dict[str, Any]:
        """The policies that learn, by name."""
        return {name: policy for name, policy in self.policies.items() if policy.trainable}

    def role(self, agent: str) -> Any:
        """The role of this agent's name, else the role `*`.

        Raises: ContractError, if there is neither.
        """
        if agent not in self.roles and "*" not in self.roles:
            raise ContractError(
                where=f"role {agent}",
                what=f"no role is called `{agent}`.",
                options=nearest(agent, self.roles),
                remedy=f"Write `agents: {{{agent}: {{policy: …}}}}`, or call another role in the program.",
            )
        return self.roles[agent] if agent in self.roles else self.roles["*"]

    def frozen(self, agent: str) -> bool:
        """Whether this agent's acts are kept out of the updates."""
        return bool(self.role(agent).frozen)
