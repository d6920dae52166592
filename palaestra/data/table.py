"""StepTable: a table of all steps with the columns that parts read, its sets of rows and their order in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from palaestra.data.columns import (
    factorize,
    hashable,
    label,
    numbers,
    numeric,
    pick,
    places,
)
from palaestra.data.keys import Key, compact
from palaestra.data.trajectory import MARKS, Step, Trajectory
from palaestra.errors import InvalidData, MissingColumn, nearest
from palaestra.registry.column_names import (
    COUNTS,
    FLAGS,
    KEYS,
    LABELS,
    NUMBERS,
    OF_TOKENS,
    REQUIRED,
    default_of,
    is_computed,
    is_output,
    may_be_missing,
)


class StepTable:
    """A table with one row per step. Keyword arguments are columns.

    Required: group, trajectory, agent, turn, reward. Optional: state_key, next_key, action_key,
    token_count, outcome, process, row_weight, row_value, bootstrap_value, row_entropy, terminated, truncated, policy,
    version, segment, invocation, parent, team, stratum, game, node, task, state_text, reads, without, and per token
    (flat, sum(token_count)) logprob_behavior, logprob_old, logprob_reference, entropy_old, value_old and other outputs
    of policies, advantage, weight, counts. Any other column is accepted, too: one of rows, or one of tokens if it has a
    value for each token. Trailing dimensions are allowed.

    Columns of labels (group, agent, state_key …) may hold strings, numbers or any hashable value. None in them means
    "unlike any other row". `row_weight` 0 marks padding, which changes no statistic.

    Raises: MissingColumn, if a required column is absent; InvalidData, for wrong lengths, numbers that are not finite,
        and a trajectory whose rows have different groups.
    """

    __slots__ = ("_cache", "_columns", "_labels", "_of_tokens", "rows")

    def __init__(self, **columns: Any) -> None:
        self._columns: dict[str, Tensor] = {}
        self._labels: dict[str, list[Any]] = {}
        self._of_tokens: frozenset[str] = frozenset()
        self._cache: dict[Any, Any] = {}
        for name in REQUIRED:
            if columns.get(name) is None:
                raise MissingColumn(where="StepTable(…)", what=f"the column `{name}` is required.", options=REQUIRED)
        self.rows = len(columns["reward"])
        counts = columns.pop("token_count", None)
        self._columns["token_count"] = torch.ones(self.rows, dtype=torch.int64)
        if counts is not None:
            self._add("token_count", counts)
        for name, values in columns.items():
            if values is not None:
                self._add(name, values)
        self._check(set(self._columns))

    # ---- columns ------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return self.rows

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Tensor:
        """The column as a tensor: int64 codes for a column of labels, else float32, int64 or bool.

        Raises: MissingColumn, with the nearest names.
        """
        if name not in self._columns:
            raise MissingColumn(
                where=f"table[{name!r}]",
                what=f"the table has no column `{name}`; it has {', '.join(self.names)}.",
                options=nearest(name, self.names),
                remedy="Give it as a keyword of StepTable, or as a number in `Step.info`.",
            )
        return self._columns[name]

    @property
    def names(self) -> list[str]:
        """The names of all columns, sorted."""
        return sorted(self._columns)

    def labels(self, name: str) -> list[Any]:
        """The labels of a column of labels: code i stands for item i. Raises: MissingColumn, with the nearest names."""
        _ = self[name]
        return self._labels[name]

    @property
    def row_weight(self) -> Float[Tensor, " rows"]:
        """How much each row counts: float32 (rows,), 1 if the column is absent."""
        return self._columns.get("row_weight", torch.ones(self.rows))

    def replace(self, **columns: Any) -> StepTable:
        """A table with these columns added or replaced; None removes a column. Other columns are shared, not copied.

        Raises: as the constructor, for the given columns.
        """
        changed = set(columns)
        for name in changed.intersection(REQUIRED):
            if columns[name] is None:
                raise MissingColumn(where="replace(…)", what=f"the column `{name}` is required.", options=REQUIRED)
        table = StepTable.__new__(StepTable)
        table.rows = self.rows
        table._columns = {name: column for name, column in self._columns.items() if name not in changed}
        table._labels = {name: labels for name, labels in self._labels.items() if name not in changed}
        table._of_tokens = self._of_tokens - changed
        table._cache = self._kept(changed)
        table._columns.setdefault("token_count", torch.ones(self.rows, dtype=torch.int64))
        for name in sorted(
            changed, key=lambda name: name != "token_count"
        ):  # first, since it gives the number of tokens
            if columns[name] is not None:
                table._add(name, columns[name])
        if "token_count" in changed:
            table._refuse_other_tokens()
        table._check(changed.intersection(table._columns))
        return table

    def _kept(self, changed: set[str]) -> dict[Any, Any]:
        """The cached keys and timelines that stay valid when these columns change. Keys depend on the row weights."""
        if changed & {"row_weight", "turn", "trajectory", "agent", "invocation", "token_count"}:
            return {}
        return {
            names: value for names, value in self._cache.items() if isinstance(names, str) or not changed & {*names}
        }

    def _refuse_other_tokens(self) -> None:
        """Refuse a column of tokens whose length does not fit `token_count`. Raises: InvalidData."""
        expected = int(self._columns["token_count"].sum())
        for name in sorted(self._of_tokens):
            if len(self._columns[name]) != expected:
                length = len(self._columns[name])
                raise InvalidData(where=f"column `{name}`", what=f"it has {length} values for {expected} tokens.")

    def take(self, rows: Int[Tensor, " kept"]) -> StepTable:
        """A table of these rows, in this order."""
        tokens = self._tokens_of(rows)
        chosen = {name: tokens if name in self._of_tokens else rows for name in self._columns}
        raw = {name: self._raw(name) for name in self._columns}
        return StepTable(**{name: pick(raw[name], chosen[name]) for name in raw})

    def _tokens_of(self, rows: Int[Tensor, " kept"]) -> Int[Tensor, " tokens"]:
        count = self["token_count"]
        start = count.cumsum(0) - count
        kept = count[rows]
        offset = torch.arange(int(kept.sum())) - torch.repeat_interleave(kept.cumsum(0) - kept, kept)
        return torch.repeat_interleave(start[rows], kept) + offset

    def _raw(self, name: str) -> Any:
        if name not in self._labels:
            return self._columns[name]
        labels = [*self._labels[name], None]
        return [labels[code] for code in self._columns[name].tolist()]

    def _add(self, name: str, values: Any) -> None:
        length, tokens = len(values), int(self._columns["token_count"].sum())
        known = name in (*NUMBERS, *COUNTS, *FLAGS, *KEYS)
        of_tokens = name in OF_TOKENS or is_output(name) or (not known and length == tokens != self.rows)
        expected = tokens if of_tokens else self.rows
        if length != expected:
            unit = "tokens" if of_tokens else "rows"
            raise InvalidData(where=f"column `{name}`", what=f"it has {length} values for {expected} {unit}.")
        is_number = numeric(values)
        if not is_number and (of_tokens or name in (*NUMBERS, *COUNTS, *FLAGS)):
            raise InvalidData(where=f"column `{name}`", what="it does not hold one number per row.")
        self._of_tokens |= {name} if of_tokens else set()
        if name in KEYS or not is_number:
            self._columns[name], self._labels[name] = factorize(values)
        else:
            self._columns[name] = numbers(name, values)

    def _check(self, names: set[str]) -> None:
        """Refuse values that these columns must not hold. Raises: InvalidData."""
        for name, column in self._columns.items():
            if name in names and column.is_floating_point() and not may_be_missing(name):
                _refuse_non_finite(name, column, self)
        for name in (name for name in ("group", "trajectory", "agent") if name in names):
            nameless = int((self[name] < 0).sum())
            if nameless:
                raise InvalidData(where=f"column `{name}`", what=f"{nameless} of {self.rows} rows have no value in it.")
        if "weight" in names and "counts" not in self:
            raise InvalidData(
                where="column `weight`",
                what="`weight` is the factor of a token's loss, and the table lacks `counts`, which belongs to it.",
                remedy="For weights of rows, call the column `row_weight`. For tokens, give `counts`, too.",
            )
        if "row_weight" in names and bool((self["row_weight"] < 0).any()):
            raise InvalidData(where="column `row_weight`", what="a weight is negative.", remedy="Use 0 for padding.")
        if "token_count" in names and bool((self["token_count"] < 1).any()):
            raise InvalidData(
                where="column `token_count`",
                what="a row has no response token.",
                remedy="An action without tokens counts as one token.",
            )
        if names & {"trajectory", "group"} and not self._agree("trajectory", "group"):
            raise InvalidData(
                where="columns `group` and `trajectory`",
                what="the rows of one trajectory have different groups.",
                remedy="Trajectory ids must be unique over the whole table, not only inside a group.",
            )
        if names & {"group", "task"} and "task" in self and not self._agree("group", "task"):
            raise InvalidData(
                where="columns `task` and `group`",
                what="the rows of one group belong to different tasks.",
                remedy="Trajectories of one group must start from the same task; give each task a group of its own.",
            )

    def refuse_duplicates(self) -> None:
        """Refuse acts that are in several rows, unless a column `row_weight` weighs the copies. Raises: InvalidData."""
        if "row_weight" in self:
            return
        acts = self.key("trajectory", "agent", "turn").size
        if acts < self.rows:
            raise InvalidData(
                where="StepTable",
                what=f"{self.rows - acts} rows repeat an act (trajectory, agent and turn) of another row.",
                remedy="Add a column `row_weight` that says how much each copy counts, or leave the copies out.",
            )

    def _agree(self, within: str, column: str) -> bool:
        """Whether rows with equal codes in `within` have equal codes in `column`."""
        sets, values = self[within], self[column]
        first = torch.zeros(int(sets.max()) + 1 if len(sets) else 0, dtype=torch.int64)
        first[sets] = values
        return torch.equal(first[sets], values)

    # ---- keys and order -----------------------------------------------------------------------------------
    def key(self, *names: str) -> Key:
        """The sets of rows that agree in all these columns; without a name, the whole table as one set.

        The name `act` is allowed without such a column and stands for the property `act`.

        Raises: MissingColumn, if a column is absent or holds no value at all.
        """
        if names not in self._cache:
            key = Key(torch.zeros(self.rows, dtype=torch.int64), 1, (), self.row_weight.double())
            for name in names:
                key = key & self._single(name)
            self._cache[names] = Key(key.codes, key.size, names, self.row_weight.double())
        return self._cache[names]  # type: ignore[no-any-return]

    def _single(self, name: str) -> Key:
        if name == "act" and name not in self._columns:
            return Key(*compact(self.act), (name,))
        if name not in self._labels:
            return Key(*compact(self[name]), (name,))  # numbers may be fractions or negative
        codes = self[name]
        missing = codes < 0
        if not bool(missing.any()):
            return Key(codes, max(len(self._labels[name]), 1), (name,))
        if bool(missing.all()):
            raise MissingColumn(where=f"column `{name}`", what="no row has a value in it.")
        alone = int(codes.max()) + torch.cumsum(missing, 0)  # unlike any other row
        return Key(torch.where(missing, alone, codes), int(alone[-1]) + 1, (name,))

    def unit(self, name: str) -> Key | None:
        """The key of what counts once in a statistic.

        "row" gives None. "token" gives each row a weight of its number of tokens. Any other name is that of a column.
        Invocations are numbered inside a trajectory, so a unit "invocation" is one of one agent in one trajectory.
        """
        if name == "row":
            return None
        if name == "token":
            rows = torch.arange(self.rows)
            return Key(rows, self.rows, ("token",), self.row_weight.double() * self["token_count"])
        return self.key("trajectory", "agent", name) if name == "invocation" else self.key(name)

    def timeline(self, *names: str) -> tuple[Int[Tensor, " rows"], Bool[Tensor, " rows"]]:
        """The rows in order of time inside each set of rows that agree in `names`, and which rows are last in a set.

        Padding (weight 0) comes after the other rows of its set, as a set of its own.

        Returns: order, int64 (rows,): positions of rows; last, bool (rows,), in that order.
        """
        cached = ("timeline", *names)
        if cached not in self._cache:
            codes = 2 * self.key(*names).codes + (self.row_weight == 0)
            order = torch.argsort(self["turn"], stable=True)
            order = order[torch.argsort(codes[order], stable=True)]
            ordered = codes[order]
            last = torch.ones(self.rows, dtype=torch.bool)
            last[:-1] = ordered[1:] != ordered[:-1]
            self._cache[cached] = (order, last)
        return self._cache[cached]  # type: ignore[no-any-return]

    @property
    def act(self) -> Int[Tensor, " rows"]:
        """How many acts of its agent in its trajectory, and invocation, came before each row: int64 (rows,)."""
        order, last = self.timeline("trajectory", "agent", *(("invocation",) if "invocation" in self else ()))
        return torch.empty_like(order).index_copy_(0, order, places(last))

    @property
    def tokens(self) -> int:
        """Number of response tokens of all rows."""
        return int(self["token_count"].sum())

    @property
    def token_row(self) -> Int[Tensor, " tokens"]:
        """The row of each response token: int64 (tokens,)."""
        if "token_row" not in self._cache:
            self._cache["token_row"] = torch.repeat_interleave(torch.arange(self.rows), self["token_count"])
        return self._cache["token_row"]  # type: ignore[no-any-return]

    def per_token(self, values: Tensor) -> Shaped[Tensor, " tokens *trailing"]:
        """Repeat each row's value for its tokens; values of tokens are returned as they are."""
        if len(values) == self.tokens:  # if there are as many rows as tokens, each row has one token
            return values
        if len(values) == self.rows:
            return values[self.token_row]
        raise InvalidData(
            where="per_token(…)", what=f"{len(values)} values fit neither {self.rows} rows nor {self.tokens} tokens."
        )

    # ---- from episodes ------------------------------------------------------------------------------------
    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory]) -> StepTable:
        """The table of finished episodes. Its rows are sorted by group, sample and turn."""
        pairs = [(row.trajectory, row.step) for row in rows_of(trajectories)]
        if not pairs:
            raise InvalidData(where="StepTable.from_trajectories(…)", what="these trajectories have no steps.")
        steps = [step for _, step in pairs]
        tasks = {trajectory.id: trajectory.task.content_hash for trajectory in trajectories}
        columns: dict[str, Any] = {
            "group": [t.group for t, _ in pairs],
            "trajectory": [t.id for t, _ in pairs],
            "agent": [s.agent for s in steps],
            "turn": [s.turn for s in steps],
            "reward": [s.reward for s in steps],
            "outcome": [np.nan if t.outcome is None else t.outcome for t, _ in pairs],
            "state_key": [s.observation.state_key for s in steps],
            "next_key": _next_keys(pairs),
            "action_key": [None if s.action.value is None else hashable(s.action.value) for s in steps],
            "token_count": [token_count(s) for s in steps],
            "policy": [s.policy for s in steps],
            "version": [s.version for s in steps],
            "segment": [s.segment for s in steps],
            "invocation": [s.invocation for s in steps],
            "parent": [s.parent for s in steps],
            "task": [tasks[t.id] for t, _ in pairs],
            "terminated": [s.terminated for s in steps],
            "truncated": [s.truncated for s in steps],
            "logprob_behavior": _behavior(steps),
            "version_behavior": _versions(steps),
            "seconds": [s.seconds for s in steps],
        }
        columns |= _marked(steps)
        numbers_told = {k for s in steps for k, v in s.info.items() if isinstance(v, bool | int | float)}
        for name in sorted(name for name in numbers_told - {*MARKS} if not is_computed(name)):
            columns.setdefault(name, [float(s.info.get(name, default_of(name))) for s in steps])
        for name in LABELS:
            columns[name] = [label(_said(name, t, s)) for t, s in pairs]
        columns["state_text"] = [s.observation.text for s in steps]
        unlabeled = [name for name in (*LABELS, "state_text") if all(value is None for value in columns[name])]
        return cls(**{name: column for name, column in columns.items() if name not in unlabeled})


class Row(NamedTuple):
    """A row of a table with its trajectory and step. `start`: position of its first token in the table's flat order."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    trajectory: Trajectory
    step: Step
    start: int


def rows_of(trajectories: Sequence[Trajectory]) -> list[Row]:
    """The rows of the table that `StepTable.from_trajectories` makes of the same trajectories."""
    rows: list[Row] = []
    start = 0
    for trajectory in sorted(trajectories, key=lambda t: (t.group, t.sample)):
        for step in sorted(trajectory.steps, key=lambda s: s.turn):
            rows.append(Row(len(rows), trajectory, step, start))
            start += token_count(step)
    return rows


def tokens_of(rows: Sequence[Row]) -> int:
    """The number of response tokens of all rows of a table."""
    return rows[-1].start + token_count(rows[-1].step) if rows else 0


def token_count(step: Step) -> int:
    """The number of response tokens of a step; an action without tokens counts as one token."""
    return max(len(step.action.tokens), 1)


def _marked(steps: list[Step]) -> dict[str, list[float]]:
    """The columns of the marks that at least one step has. Steps without the mark get 1 for `row_weight`, else 0."""
    found: dict[str, list[float]] = {}
    for name in (name for name in MARKS if name not in LABELS):
        given = [getattr(step.marks, name) for step in steps]
        if any(value is not None for value in given):
            absent = 1.0 if name == "row_weight" else 0.0
            found[name] = [absent if value is None else float(value) for value in given]
    return found


def _said(name: str, trajectory: Trajectory, step: Step) -> Any:
    """A label of a step: its mark, else the entry of the step's `info`, else that of the trajectory's `info`."""
    marked = getattr(step.marks, name, None)
    return step.info.get(name, trajectory.info.get(name)) if marked is None else marked


def _next_keys(pairs: list[tuple[Trajectory, Step]]) -> list[str | None]:
    following: dict[tuple[str, str], str | None] = {}
    keys: list[str | None] = []
    for trajectory, step in reversed(pairs):
        last = trajectory.last.get(step.agent)
        own = (trajectory.id, step.agent)
        keys.append(following.get(own, last.state_key if last else None))
        following[own] = step.observation.state_key
    return keys[::-1]


def _behavior(steps: list[Step]) -> np.ndarray | None:
    """Log-probabilities that the engine gave when it sampled; NaN for steps without them, as of scripted policies."""
    given = [step.action.logprobs for step in steps]
    if all(logprobs is None for logprobs in given):
        return None
    width = [token_count(step) for step in steps]
    filled = [np.full(w, np.nan) if g is None else np.asarray(g).reshape(-1) for g, w in zip(given, width, strict=True)]
    return np.concatenate(filled).astype(np.float32)


def _versions(steps: list[Step]) -> np.ndarray | None:
    """The version of the weights that drew each token; None if no step recorded versions of its tokens."""
    if all(step.action.versions is None for step in steps):
        return None
    given = [
        np.full(token_count(s), s.version) if s.action.versions is None else np.asarray(s.action.versions)
        for s in steps
    ]
    return np.concatenate(given)


def _refuse_non_finite(name: str, column: Tensor, table: StepTable) -> None:
    finite = torch.isfinite(column)
    if bool(finite.all()):
        return
    first = int((~finite).nonzero()[0])
    where = f"column `{name}`"
    if len(column) == table.rows:
        trajectory = table.labels("trajectory")[int(table["trajectory"][first])]
        where += f", trajectory {trajectory}, turn {int(table['turn'][first])}"
    raise InvalidData(
        where=where,
        what=f"{int((~finite).sum())} of {len(column)} values are not finite; the first is {float(column[first])}.",
        remedy="Correct the environment or reward that gave it: one NaN makes every statistic of its set NaN.",
    )
