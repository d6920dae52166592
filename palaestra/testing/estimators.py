"""`check_estimator`: users check with it that their own advantage estimator keeps the rules of estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from palaestra.algebra import Credit
from palaestra.data import Iteration, StepTable
from palaestra.errors import ContractError, InvalidData
from palaestra.registry import Part, registration

TOLERANCE = 1e-4  # most |difference| / (1 + |value|), for sums in another order


def check_estimator(
    estimator: Callable[..., Any],
    table: StepTable,
    *,
    iteration: Iteration | None = None,
    after: Callable[[StepTable], Any] | None = None,
    order: Sequence[int] | Tensor | None = None,
    **options: Any,
) -> None:
    """Call an estimator on a table and refuse it if it breaks a rule.

        check_estimator(my_part, table, gamma=0.9)

    1. It gives a float32 tensor of shape (rows,) or (tokens,), or a Credit of one or two such tensors. Further columns
       of a Credit have one value for each row or token.
    2. Advantages are finite. Targets are finite, or NaN where there is no value to learn.
    3. The same table gives the same numbers, and the table is not changed.
    4. The order of the rows does not matter: only the column `turn` says what came first.
    5. Rows of weight 0 get 0 and do not change the other rows.
    6. An estimator that compares peers (uses "group") gives 0 everywhere if all rewards and all step rewards in
       `process` are 0. This does not hold for one that reads "good", since a judge's flags are another signal.
    7. An estimator that compares peers raises InvalidData if no set of peers has two members, such as when each group
       has one trajectory. Its advantages would be 0, and a run would learn nothing without notice.

    Only `register` says whether an estimator compares peers. Rules 6 and 7 are not checked for a function that is not
    registered, such as a lambda around a part, and a warning says so.

    Args:
        estimator: the part: a function, or a class with state, of which each call makes a new object.
        table: a table with the columns that the estimator reads.
        iteration: for a part that takes it. None: the first iteration of a run with the seed 0.
        after: for a filter, the estimator before it.
        order: a permutation of the rows for rule 4. None: the reverse order.
        options: of the part, checked as in a recipe.

    Raises: ContractError, naming the rule; RecipeError, for a wrong option.
    """
    check = _Check(estimator, iteration or Iteration(), after, options)
    reward = table["reward"].clone()
    first = check.run(table)
    check.same(first, check.run(table), table, "3", "a second call with the same table gives other numbers")
    if not torch.equal(reward, table["reward"]):
        check.broken("3", "it changed the rewards in the table")
    permutation = torch.arange(len(table)).flip(0) if order is None else torch.as_tensor(list(order))
    shuffled = check.run(table.take(permutation))
    check.same(_taken(first, table, permutation), shuffled, table, "4", "another order of rows gives other numbers")
    _check_padding(check, first, table)
    if check.declared is None:
        warnings.warn(
            f"check_estimator: rules 6 and 7 were not checked, because `{check.name}` is not registered. Only "
            "`register` says whether an estimator compares peers. Pass a registered part and its options: "
            "check_estimator(part, table, gamma=0.9).",
            stacklevel=2,
        )
        return
    if "group" not in check.declared.uses:
        return
    if "good" not in (check.declared.reads or ()):
        none = {name: torch.zeros(len(table)) for name in ("reward", "process") if name in table}
        nothing = check.run(table.replace(**none))
        if bool((nothing[0] != 0).any()):
            check.broken("6", "without any reward some advantages are not 0")
    _check_lone_members(check, table)


class _Check:
    """Runs one estimator and checks its results."""

    def __init__(
        self,
        estimator: Callable[..., Any],
        iteration: Iteration,
        after: Callable[[StepTable], Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.declared = registration(estimator)
        name = self.declared.name if self.declared is not None else getattr(estimator, "__name__", repr(estimator))
        self.name = name
        part = self.declared or Part(slot="advantage", name=name, target=estimator)
        if options:  # defaults stay out: a `functools.partial` has options of its own
            part.check(options, where=f"check_estimator({name})")
        self._estimator, self._options, self._after = estimator, dict(options), after
        self._holds_state = part.holds_state
        self._further = {"iteration": iteration} if part.takes_iteration else {}

    def credit(self, table: StepTable) -> Any:
        """What the estimator returns for a table."""
        data = [table] if self._after is None else [table, self._after(table)]
        if self._holds_state:
            return self._estimator(**self._options)(*data, **self._further)
        return self._estimator(*data, **self._further, **self._options)

    def broken(self, rule: str, what: str, *, remedy: str = "") -> NoReturn:
        raise ContractError(
            where=f"advantage: {self.name}, rule {rule}",
            what=f"{what}.",
            remedy=f"{remedy} `help(palaestra.testing.check_estimator)` lists the rules.".lstrip(),
        )

    def run(self, table: StepTable) -> list[Tensor]:
        """The advantage, and the target if there is one."""
        result = self.credit(table)
        credit = result if isinstance(result, Credit) else Credit(result)
        parts = [credit.advantage] if credit.target is None else [credit.advantage, credit.target]
        for name, column in credit.columns.items():
            if not isinstance(column, Tensor) or len(column) not in (len(table), table.tokens):
                self.broken("1", f"its column `{name}` fits neither {len(table)} rows nor {table.tokens} tokens")
        for part in parts:
            if not isinstance(part, Tensor) or part.dtype != torch.float32:
                self.broken("1", f"it gave {getattr(part, 'dtype', type(part).__name__)}, not a float32 tensor")
            if part.shape not in ((len(table),), (table.tokens,)) or part.shape != parts[0].shape:
                what = f"it gave the shape {tuple(part.shape)} for {len(table)} rows and {table.tokens} tokens"
                self.broken("1", what)
        if not bool(parts[0].isfinite().all()) or bool(torch.cat(parts).isinf().any()):
            self.broken("2", "an advantage or target is not finite")
        return parts

    def same(self, one: list[Tensor], other: list[Tensor], table: StepTable, rule: str, what: str) -> None:
        for a, b in zip(one, other, strict=True):
            both_missing = a.isnan() & b.isnan()
            gap = torch.where(both_missing, 0.0, (a - b).abs() / (1 + a.abs()))
            if not bool((gap <= TOLERANCE).all()):  # NaN on one side only counts as a difference
                unit = int((~(gap <= TOLERANCE)).nonzero()[0, 0])
                self.broken(rule, f"{what}: {float(a[unit]):.6g}, then {float(b[unit]):.6g} at unit {unit}")


def _check_padding(check: _Check, first: list[Tensor], table: StepTable) -> None:
    """Rule 5: add copies of rows with weight 0, extreme rewards and no values."""
    size = len(table)
    extra = torch.arange(0, size, 2)
    index = torch.cat([extra, torch.arange(size)])
    padding = torch.arange(len(index)) < len(extra)
    both = table.take(index)
    wild: dict[str, Tensor] = {
        "row_weight": torch.where(padding, 0.0, both.row_weight),
        "reward": torch.where(padding, 1e3, both["reward"]),
    }
    for name in ("row_value", "bootstrap_value"):
        if name in both:
            wild[name] = torch.where(padding, torch.nan, both[name])
    padded = both.replace(**wild)
    found = check.run(padded)
    rows = torch.arange(len(extra), len(index))
    check.same(first, _taken(found, padded, rows), table, "5", "rows of weight 0 change the others")
    if bool((_taken(found, padded, torch.arange(len(extra)))[0] != 0).any()):
        what = "a row of weight 0 is padding, and it has an advantage"
        check.broken("5", what, remedy="Multiply the result by `(table.row_weight > 0)`.")


def _check_lone_members(check: _Check, table: StepTable) -> None:
    """Rule 7: take the first counted row of each trajectory, in a group of its own, so that no row has a peer."""
    order, _ = table.timeline("trajectory")
    order = order[table.row_weight[order] > 0]
    first = {int(code): int(row) for row, code in zip(order.flip(0), table["trajectory"][order].flip(0), strict=True)}
    if not first:
        return
    lone = table.take(torch.tensor(sorted(first.values())))
    ended = torch.ones(len(lone), dtype=torch.bool)
    ends = {name: ended if name == "terminated" else ~ended for name in ("terminated", "truncated") if name in lone}
    lone = lone.replace(group=[f"group of {row}" for row in range(len(lone))], **ends)
    remedy = "Pass `need_peers=True` to `standardize`, or raise InvalidData. An estimator that needs no peers does not "
    remedy += 'declare uses=("group",).'
    try:
        check.credit(lone)
    except InvalidData:
        return
    except Exception as error:
        what = f"if no set of peers has two members, it raises {type(error).__name__} instead of InvalidData"
        check.broken("7", what, remedy=remedy)
    what = "if no set of peers has two members, it gives advantages instead of raising InvalidData"
    check.broken("7", what, remedy=remedy)


def _taken(parts: list[Tensor], table: StepTable, rows: Tensor) -> list[Tensor]:
    """The values of these rows, in their order."""
    if len(parts[0]) == len(table):
        return [part[rows] for part in parts]
    pieces = torch.arange(table.tokens).split(table["token_count"].tolist())
    index = torch.cat([pieces[row] for row in rows.tolist()])
    return [part[index] for part in parts]
