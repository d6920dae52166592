"""GiGPO (arXiv 2505.10978) addresses long episodes, in which GRPO gives all steps of a trajectory the same advantage.
Trajectories of one group often pass through the same states. GiGPO adds a second comparison: the discounted reward to
go of a step is compared with that of all steps of the group that started from the same state. It needs neither a
critic nor further episodes. Two states are the same if their keys are equal or, in the variant `gigpo_similar.yaml`,
if the texts of their observations are similar. Here clusters of similar texts are formed in the order of turns; in
the authors' code it is the order of rows.

This file is the estimator. `similarity.py` clusters similar texts.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, reward_to_go, total_return
from palaestra.data import StepTable
from palaestra.registry import Discount, NonNegative, Scale, register
from palaestra.systems.gigpo.similarity import similar_texts

Similarity = Annotated[float, pydantic.Field(gt=0, lt=1)]


@register(
    "advantage",
    "gigpo",
    reads=("state_key",),
    reads_if={"similarity": ("state_text?",)},
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2505.10978",
)
def gigpo(
    table: StepTable,
    *,
    gamma: Discount = 0.95,
    step_weight: NonNegative = 1.0,
    scale: Scale = "none",
    clock: Literal["row", "turn"] = "row",
    similarity: Similarity | None = None,
    peers: Peers = Peers(),
) -> Float[Tensor, " rows"]:
    """Credit a step with its episode's result and with its result among steps from the same state.

        A_k = E_i + step_weight · S_k
        E_i = R_i − mean of R over the trajectories of the group          (each trajectory once)
        S_k = D_k − mean of D over rows of the group with equal state_key (each row once)
        D_k = r_k + gamma · D_{k+1}                                       (reward to go)

    Args:
        table: columns group, trajectory, turn, reward, state_key, each (rows,).
        gamma: in (0, 1]. Higher: late rewards reach early steps. Usual: 0.95.
        step_weight: ≥ 0. Higher: same-state comparison counts more; 0 is GRPO without scale. Usual: 1.
        scale: "std" divides E and S by their sample deviation. Safe choice: "none" — where the results of a state are
            nearly equal the deviation is tiny, and one wasted turn gets a huge advantage.
        clock: "row" discounts once per row, "turn" by the difference of turns, for agents that act together.
        similarity: in (0, 1). If set, states are the same if the texts of their observations (column `state_text`) have
            at least this difflib ratio, in the order of turns (`similar_texts`); the state key is not read. Higher:
            texts may differ less. Usual: 0.9–0.95; None: states are the same if their keys are equal.
        peers: the options of `Peers`; unit and singleton are for E; a state with a single row always gives S = 0.
        by: columns whose equal values make trajectories peers; for S the state key is added. ("group", "agent") for
            teams.

    Returns: float32 (rows,); multiply by the row's tokens yourself or let `aggregate` do it.
    Raises: MissingColumn, if no row has a state key (or text); InvalidData, if no group has two trajectories, or for
        similarity of values that are not texts.
    Differs from the authors' code: clusters of similar texts open in the order of turns, not of rows.

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x"] * 4, turn=[1, 2, 1, 2],
    ...                   reward=[0, 1, 0, 0], state_key=["door", "hall", "door", "yard"])
    >>> gigpo(table, gamma=0.5).tolist()      # a: .5 + .25, .5 + 0;  b: −.5 − .25, −.5 + 0
    [0.75, 0.5, -0.75, -0.5]
    """
    episode = peers.standardize(total_return(table), table, scale=scale)
    if similarity is None:
        states = table.key(*peers.by, "state_key")
    else:
        states = similar_texts(table, by=peers.by, threshold=similarity)
    step = peers.inside(reward_to_go(table, gamma=gamma, clock=clock), states, scale=scale)
    return episode + step_weight * step
