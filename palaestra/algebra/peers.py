"""Comparison with peers: mean, deviation and leave-one-out over the rows of a set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra.returns import Credit
from palaestra.algebra.segments import segment_count, segment_equal, segment_mean, segment_std
from palaestra.data.keys import Key
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData
from palaestra.registry.options import Columns, Degrees, OptionGroup, Scale, Singleton, Unit, ZeroVariance

EPS = 1e-6  # added to a deviation, never to a mean


# ---- options ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Peers(OptionGroup):
    """Options of group estimators: which rows are compared, and what a row gets that has no peers.

    Args:
        by: columns in which peers agree. More columns: fairer comparisons, fewer peers, noisier baselines. Usual:
            ("group",), the trajectories of one task; ("group", "agent") in teams.
        unit: what counts once in mean and deviation. "trajectory": each trajectory once. "row": each row once, so that
            long trajectories weigh more, as in several public trainers. "token": each token once. Or the name of a
            column. Usual: "trajectory".
        ddof: degrees of freedom taken off the deviation: 1 gives the sample deviation, as public code does, and 0 the
            population's. Higher: smaller advantages, most of all in small groups. Usual: 1.
        singleton: what a member without peers gets. "zero": 0, so that it changes nothing. "raw": its own value, as in
            several public trainers. "error": the run stops. Usual: "zero".
        zero_variance: what the members of a set get if all are equal. "zero": exactly 0. "keep": the rounding error of
            their differences, which the division by a tiny deviation makes larger. Usual: "zero".
        fixed: as in `OptionGroup`.
    """

    by: Columns = ("group",)
    unit: Unit = "trajectory"
    ddof: Degrees = 1
    singleton: Singleton = "zero"
    zero_variance: ZeroVariance = "zero"

    def standardize(
        self,
        values: Float[Tensor, " rows"],
        table: StepTable,
        *,
        center: Literal["mean", "leave_one_out"] = "mean",
        scale: Scale = "none",
        by: Key | None = None,
        unit: Key | None = None,
    ) -> Float[Tensor, " rows"]:
        """(values − baseline) / scale among the peers, as `standardize` computes it.

        Args:
            center, scale: as in `standardize`.
            by, unit: keys that replace those that the options name.

        Raises: InvalidData, if no set of peers has two members, or for a lone member with singleton="error".
        """
        return standardize(
            values,
            by=table.key(*self.by) if by is None else by,
            unit=table.unit(self.unit) if unit is None else unit,
            center=center,
            scale=scale,
            ddof=self.ddof,
            singleton=self.singleton,
            zero_variance=self.zero_variance,
            need_peers=True,
        )

    def inside(
        self,
        values: Float[Tensor, " rows"],
        sets: Key,
        *,
        scale: Scale = "none",
        unit: Key | None = None,
        singleton: Singleton = "zero",
    ) -> Float[Tensor, " rows"]:
        """As `standardize`, in other sets, such as the rows of one state. Sets with one member are allowed.

        Args:
            unit: what counts once; None: each row.
            singleton: what the only member of a set gets. The option `self.singleton` is not used here.

        Raises: InvalidData, for a lone member with singleton="error".
        """
        return standardize(
            values,
            by=sets,
            unit=unit,
            scale=scale,
            ddof=self.ddof,
            singleton=singleton,
            zero_variance=self.zero_variance,
        )


# ---- baseline and scale -----------------------------------------------------------------------------------
def standardize(
    values: Float[Tensor, " rows"],
    *,
    by: Key,
    unit: Key | None = None,
    center: Literal["mean", "leave_one_out", "none"] = "mean",
    scale: Literal["none", "std"] = "none",
    ddof: int = 1,
    singleton: Literal["zero", "raw", "error"] = "zero",
    zero_variance: Literal["zero", "keep"] = "zero",
    need_peers: bool = False,
) -> Float[Tensor, " rows"]:
    """(values − baseline) / scale, both over the row's peer set.

    Args:
        by: the peer sets; its weights say how much each row counts.
        unit: what counts once inside a set, such as a trajectory; None: each row once.
        center: "leave_one_out" takes the mean of the others as baseline: n/(n−1) · (value − mean).
        scale: "std" divides by deviation + 1e-6, with `ddof` degrees of freedom taken off the deviation.
        singleton: what the member of a set with one member gets: 0, its raw value, or an error.
        zero_variance: "zero": the rows of a set whose members are all equal, up to the rounding of sums (see
            `segment_equal`), get exactly 0. With a scale, so do the rows of a set whose units are all equal or too few
            for a deviation. "keep": these rows get what rounding leaves.
        need_peers: raise if no set has two members, since nothing could be compared.

    Returns: float32 (rows,); 0 on padding rows.
    Raises: InvalidData, for a lone member with singleton="error" or when need_peers is not met.
    """
    members, owner = (by, None) if unit is None else _units(by, unit)
    x = values.double() if owner is None else _unit_values(values, by, unit, owner, len(members.codes))
    count = segment_count(by=members)
    distinct = torch.zeros(by.size, dtype=torch.int64).index_add_(0, members.codes, (members.weights > 0).long())
    alone = distinct <= 1
    if center == "leave_one_out":
        alone = alone | (count <= 1)  # two members of weight ½ are one in sum, which leaves no other to compare with
    _refuse_lone(alone & (distinct > 0), distinct, by, singleton=singleton, need_peers=need_peers)
    out = values.double() - (segment_mean(x, by=members)[by.codes] if center != "none" else 0.0)
    if center == "leave_one_out":
        out = out * (count / (count - 1).clamp_min(1e-300))[by.codes]
    same = segment_equal(x, by=members)
    flat = same & segment_equal(values, by=by)
    if scale == "std":
        deviation = segment_std(x, by=members, ddof=ddof)
        out = out / (deviation + EPS)[by.codes]
        flat = same | (deviation == 0)
    if zero_variance == "zero" and center != "none":
        out = torch.where(flat[by.codes], 0.0, out)
    lone = alone[by.codes]
    out = torch.where(lone, values.double() if singleton == "raw" else torch.zeros_like(out), out)
    return torch.where(by.weights > 0, out, 0.0).float()


def _units(by: Key, unit: Key) -> tuple[Key, Tensor]:
    """The key of the units, each counted once or by its tokens, and the unit of each row."""
    pair = Key(by.codes, by.size, by.names, by.weight) & unit
    size = pair.size
    sets = torch.zeros(size, dtype=torch.int64)
    sets[pair.codes] = by.codes
    weight = torch.zeros(size, dtype=torch.float64)
    if unit.names == ("token",):
        weight.index_add_(0, pair.codes, unit.weights)
    else:
        weight[pair.codes[by.weights > 0]] = 1.0
    return Key(sets, by.size, by.names, weight), pair.codes


def _unit_values(values: Tensor, by: Key, unit: Key | None, owner: Tensor, size: int) -> Tensor:
    return segment_mean(values, by=Key(owner, size, (), by.weight))


def _refuse_lone(lone: Tensor, distinct: Tensor, by: Key, *, singleton: str, need_peers: bool) -> None:
    what = f"key ({', '.join(by.names) or 'whole table'})"
    if singleton == "error" and bool(lone.any()):
        raise InvalidData(
            where=what,
            what=f"{int(lone.sum())} peer sets have a single member.",
            remedy="Choose another `singleton` than `error`, or compare by fewer columns (`by`).",
        )
    if need_peers and bool((distinct > 0).any()) and not bool((distinct > 1).any()):
        raise InvalidData(
            where=what,
            what="no peer set has two members, so nothing can be compared and every advantage would be 0.",
            remedy="Sample at least 2 trajectories of each task (`rollout.group`), or use reinforce_plus_plus, "
            "which needs no peers.",
        )


def whiten(
    values: Float[Tensor, " units"],
    *,
    weight: Tensor | None = None,
    floor: Literal["variance", "deviation"] = "variance",
) -> Float[Tensor, " units"]:
    """(x − mean) / sqrt(variance + 1e-8) over all units, with the sample variance. Padding (weight 0) gets 0.

    Args:
        floor: what the 1e-8 is added to. "deviation": (x − mean) / (sqrt(variance) + 1e-8). The two differ visibly
            only where the deviation is below 0.001.

    Units that are all equal, up to the rounding of sums (see `segment_equal`), give exactly 0.

    Raises: InvalidData, for fewer than 2 units.
    """
    counts = torch.ones(len(values), dtype=torch.bool) if weight is None else weight > 0
    if int(counts.sum()) < 2:
        raise InvalidData(where="whiten(…)", what=f"{int(counts.sum())} units cannot be whitened; 2 are needed.")
    x = values.double()
    everyone = Key(torch.zeros(len(values), dtype=torch.int64), 1, (), counts.double())
    if bool(segment_equal(x, by=everyone)):  # rounding must not look like a signal
        return torch.zeros_like(x).float()
    variance, mean = torch.var_mean(x[counts], correction=1)
    deviation = torch.sqrt(variance + 1e-8) if floor == "variance" else torch.sqrt(variance) + 1e-8
    return torch.where(counts, (x - mean) / deviation, 0.0).float()


def whitened(estimate: Credit, *, floor: Literal["variance", "deviation"] = "variance") -> Credit:
    """The estimate with its advantages whitened over the units that have a target. The targets do not change."""
    return estimate._replace(advantage=whiten(estimate.advantage, weight=estimate.judged, floor=floor))


# ---- pool ---------------------------------------------------------------------------------------------------
def pool(values: Float[Tensor, " rows"], *, by: Key) -> Float[Tensor, " rows"]:
    """Replace each row's value by the mean of its set: float32 (rows,)."""
    return segment_mean(values, by=by)[by.codes].float()
