"""Random tables for property tests: several groups, agents and lengths; one token a row or many; padding."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import Part
from palaestra.registry.column_names import is_output

quick = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def tables(
    draw: st.DrawFn, *, one_token: bool = False, agents: tuple[str, ...] = ("M", "S"), one_row: bool = False
) -> StepTable:
    """One to three groups, the first of at least two trajectories; every column that an estimator of ours reads.

    Numbers are quarters: exact in binary, so that sums do not depend on their order.
    """
    sizes = draw(st.lists(st.integers(1, 4), min_size=0, max_size=2))
    lengths = st.just(1) if one_row else st.integers(1, 5)
    groups = [draw(st.lists(lengths, min_size=n, max_size=n)) for n in [draw(st.integers(2, 4)), *sizes]]
    return _filled(groups, draw(st.integers(0, 10**6)), one_token=one_token, agents=agents)


NEEDED: dict[str, dict[str, Any]] = {  # options without which an estimator refuses these tables
    "bnpo": {"minimum": -16.0, "maximum": 16.0},
    "foresight": {"planner": "M", "by": ("group", "state_key")},
}


def _filled(groups: list[list[int]], seed: int, *, one_token: bool, agents: tuple[str, ...]) -> StepTable:
    """The table of these lengths, filled from `seed`."""
    dice = np.random.default_rng(seed)
    places = [(g, i, k) for g, lengths in enumerate(groups) for i, n in enumerate(lengths) for k in range(n)]
    size = len(places)
    trajectory = [f"{g}/{i}" for g, i, _ in places]
    drawn = dice.choice(agents, size).tolist()
    agent = [agents[0] if k == 0 else drawn[row] for row, (_, _, k) in enumerate(places)]  # it has peers in every group
    won = {name: float(dice.integers(0, 2)) for name in dict.fromkeys(trajectory)}
    count = np.ones(size, np.int64) if one_token else dice.integers(1, 4, size)
    value = dice.integers(-8, 9, size) / 4
    tokens = int(count.sum())
    columns: dict[str, Any] = {
        "group": [f"g{g}" for g, _, _ in places],
        "trajectory": trajectory,
        "agent": agent,
        "turn": [k for _, _, k in places],
        "reward": dice.integers(-8, 9, size) / 4 * dice.integers(0, 4).clip(max=1),  # sometimes none at all
        "outcome": [won[name] for name in trajectory],
        "state_key": dice.choice(["hall", "door", "yard"], size).tolist(),
        "token_count": count,
        "row_value": value,
        "bootstrap_value": dice.integers(-8, 9, size) / 4,
        "value_old": value if one_token else dice.integers(-8, 9, tokens) / 4,
        **_ends(trajectory, agent, str(dice.choice(["terminated", "truncated"]))),
    }
    for name in ("logprob_behavior", "logprob_old", "logprob_reference"):
        columns[name] = dice.integers(-8, 0, tokens) / 4
    columns["parent"] = _callers(trajectory, agent)
    columns["invocation"] = [caller or 0 for caller in columns["parent"]]
    columns["process"] = dice.integers(0, 5, size) / 4
    for name, choices in {"action_key": ("go", "take"), "next_key": ("hall", "door")}.items():
        columns[name] = dice.choice(choices, size).tolist()
    columns["row_entropy"] = dice.integers(0, 9, size) / 4
    columns["good"] = dice.integers(0, 2, size).astype(float)
    columns["game"] = [f"game {g % 2}" for g, _, _ in places]
    columns["team"] = ["blue" if name == "S" else "red" for name in agent]
    columns["node"] = [f"{g}:{i // 2}:{k}" for g, i, k in places]
    columns["entropy_old"] = dice.integers(0, 9, tokens) / 4
    calls = {name: f"{dice.integers(0, 3)} calls" for name in won}
    columns["stratum"] = [calls[name] for name in trajectory]
    for name in ("format", "executed", "judged"):
        columns[name] = dice.integers(0, 5, size) / 4
    state = random.getstate()  # run-time type checks draw from it, which hypothesis would take for ours
    table = StepTable(**columns)
    random.setstate(state)
    return table


def with_columns_of(part: Part, table: StepTable) -> StepTable:
    """The table with random numbers in the columns that the part must read and the table lacks."""
    dice = np.random.default_rng(len(table))
    names = [name for name in (*(part.reads or ()), *chain(*part.reads_if.values())) if name[-1] != "?"]
    sizes = {name: table.tokens if is_output(name) else len(table) for name in names if name not in table}
    return table.replace(**{name: dice.integers(0, 5, size) / 4 for name, size in sizes.items()})


def _callers(trajectory: list[str], agent: list[str]) -> list[int | None]:
    """Who is not M was called by the latest act of M in its trajectory, if there is one."""
    callers: list[int | None] = []
    latest: dict[str, int] = {}
    start = {name: place for place, name in reversed(list(enumerate(trajectory)))}
    for place, (name, who) in enumerate(zip(trajectory, agent, strict=True)):
        callers.append(None if who == "M" else latest.get(name))
        if who == "M":
            latest[name] = place - start[name]
    return callers


def _ends(trajectory: list[str], agent: list[str], flag: str) -> dict[str, list[bool]]:
    """Each agent's last row of a trajectory is terminated or truncated."""
    chains = list(zip(trajectory, agent, strict=True))
    last = {chain: place for place, chain in enumerate(chains)}
    ends = [last[chain] == place for place, chain in enumerate(chains)]
    other = "truncated" if flag == "terminated" else "terminated"
    return {flag: ends, other: [False] * len(chains)}


def shuffled(table: StepTable, seed: int) -> Tensor:
    """A permutation of the table's rows."""
    return torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))


def team_of_three() -> StepTable:
    """One task, two trajectories with returns 1 and 0: V once in both, S three times in the second, A once."""
    return StepTable(
        group=["g"] * 6,
        trajectory=["1", "1", "2", "2", "2", "2"],
        agent=["V", "A", "S", "S", "S", "V"],
        turn=[0, 1, 0, 1, 2, 3],
        reward=[0, 1, 0, 0, 0, 0],
    )


def close(found: Tensor, expected: Any, *, tolerance: float = 1e-4) -> bool:
    """Whether two vectors agree."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return found.shape == expected.shape and bool(torch.allclose(found.double(), expected, atol=tolerance, rtol=1e-5))
