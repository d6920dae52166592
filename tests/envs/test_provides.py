"""The columns of an environment's episodes: (1) the class of every registered environment names them in `provides`;
(2) an object of `gymnasium` or `pettingzoo` leaves out `state_key` if no observation has one, and `outcome` if there
can be no success; its observations agree.
"""

from __future__ import annotations

import pytest

from palaestra import registry
from palaestra.data import Task
from palaestra.envs.adapters.gymnasium.world import GymnasiumEnvironment
from palaestra.errors import MissingExtra
from palaestra.registry import declared
from tests.extras import needs


def test_1_every_environment_names_its_columns() -> None:
    silent = []
    for name in registry.names("environment"):
        try:
            target = registry.part("environment", name).target
        except MissingExtra:
            continue
        if declared(target, "provides") is None:
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"id": "CartPole-v1"}, {"outcome", "illegal"}),
        ({"id": "CartPole-v1", "goal": False}, {"illegal"}),
        ({"id": "FrozenLake-v1"}, {"state_key", "outcome", "illegal"}),
        ({"id": "Blackjack-v1", "goal": False}, {"state_key", "illegal"}),
    ],
)
def test_2_gymnasium_names_what_it_gives(options: dict[str, object], columns: set[str]) -> None:
    environment = GymnasiumEnvironment(**options)  # type: ignore[arg-type]
    assert environment.provides == columns
    seen = environment.reset(Task(env="gymnasium", seed=0)).observations["player"]
    assert (seen.state_key is not None) == ("state_key" in columns)


@needs("pettingzoo")
@needs("mpe2")
def test_2_pettingzoo_names_what_it_gives() -> None:
    from palaestra.envs.adapters.pettingzoo.world import PettingZoo

    for env, has_keys in (("mpe2.simple_spread_v3", False), ("classic/tictactoe-v3", True)):
        environment = PettingZoo(env=env)
        seen = next(iter(environment.reset(Task(env="pettingzoo", seed=0)).observations.values()))
        assert ("state_key" in environment.provides) is has_keys is (seen.state_key is not None)
