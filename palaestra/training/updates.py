"""The updates of one policy in an iteration, by its loss, its regularizers and its optimizer.

Mini-batches are cut from all samples with a token that counts, and the denominators of the loss are those of the whole
mini-batch, so that the cuts into micro-batches do not change the gradient. After the mini-batches are cut, samples that
cannot change the policy or its critic are skipped; this does not change the gradient either.

A loss declares in `scope` the unit of tokens that it must see whole. A unit that fits into one micro-batch takes one
forward and backward pass. A larger unit takes two passes. The first pass evaluates the unit piece by piece without
gradient, and the loss gives its derivative by every output. The second pass repeats each piece with gradient and
backpropagates the sum of output times derivative. Memory then grows with a piece, not with the unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from palaestra.algebra import coefficients, kl_estimate
from palaestra.boundary.process import learning, protected
from palaestra.data import Batch, Iteration, StepTable, TokenBatch, derive
from palaestra.data.batches import micro_batches_of, mini_batches, token_index
from palaestra.data.ranks import OneProcess, Ranks
from palaestra.data.tokens import IDS, SCOPES
from palaestra.engines.heap import Growth
from palaestra.errors import ContractError, InvalidData, PalaestraError
from palaestra.models.devices import device_of
from palaestra.registry.bound import BoundPart
from palaestra.registry.column_names import is_output, output_of
from palaestra.training.passes import plan_passes, reader

PATIENCE = 3  # so many updates in a row without a finite gradient end the run
# The columns that the update itself reads: to skip samples, for metrics, and for losses that declare no `reads`.
COLUMNS = (
    "advantage",
    "weight",
    "counts",
    "value_target",
    "value_weight",
    "logprob_old",
    "logprob_behavior",
    "foreign",
)


@dataclass(slots=True, kw_only=True)
class Updater:
    """Improves one policy from batches.

    Attributes:
        optimizer: has step, zero, lr, metrics, state_dict and load_state_dict, as the slot `optimizer` demands.
        how, constant: how the losses of tokens become one number.
        several: an iteration makes several updates, or learns from episodes of older weights. An output `x_old` is then
            a column of the table; otherwise it is the current output without gradient.
        stop_kl: stop the iteration's updates once the KL from the old policy exceeds it. `policy/left_out` counts the
            updates that were not made. The KL is `policy/kl` of the loss; if the loss does not report it, it is
            measured here (k3, over the evaluated tokens that count).
        agent_gradients: measure the gradient norm of each agent's share of the loss; costs a pass per agent.
        agents: names of the agents of the last batch.
        made: optimizer steps of the last iteration.
        spoiled: updates in a row without a finite gradient.
        ranks: the processes that share the forward and backward passes.
    """

    policy: Any
    optimizer: Any
    loss: BoundPart
    regularizers: Sequence[BoundPart]
    how: str
    constant: float | None
    epochs: int
    minibatches: int
    token_budget: int
    several: bool = False
    stop_kl: float | None = None
    agent_gradients: bool = False
    agents: Sequence[str] = ()
    made: int = 0
    spoiled: int = 0
    ranks: Ranks = field(default_factory=OneProcess)

    @property
    def parts(self) -> tuple[BoundPart, ...]:
        """The loss and the regularizers."""
        return (self.loss, *self.regularizers)

    @property
    def scope(self) -> str:
        """The largest unit of tokens that the loss or a regularizer must see whole: a name in `SCOPES`."""
        return max((part.scope for part in self.parts), key=SCOPES.index)

    def update(self, batch: Batch, iteration: Iteration, *, seed: int) -> dict[str, float]:
        """Make the updates of one iteration. Returns metrics, averaged over mini-batches.

        Without anything to learn from, no update is made and there are no metrics.

        Raises: InvalidData, ContractError, for columns or losses that cannot be used; PalaestraError, after several
            updates in a row without a finite gradient.
        """
        name, self.made = self.policy.name, 0
        if not iteration.acted(name):
            return {}
        samples = iteration.samples(name)
        tokens = self._token_batch(batch.table)
        self.agents = [str(label) for label in batch.table.labels("agent")]
        together = _together(samples, tokens)
        useful = frozenset(self._useful(samples, tokens))
        if not useful:
            return {}
        self._refuse_missing(tokens, torch.from_numpy(samples.token_index))
        counting = self._counting(samples, tokens)
        minis = [
            mini
            for epoch in range(self.epochs)
            for mini in mini_batches(counting, self.minibatches, seed=derive(seed, name, epoch), together=together)
        ]
        totals: dict[str, list[float]] = defaultdict(list)
        for mini in minis:
            draw = derive(seed, name, "draw", self.made)
            chosen = _evaluated(mini, useful, together)
            metrics = self._step(samples, tokens.replace(seed=draw), mini, chosen, together=together)
            self.made += 1
            for key, value in metrics.items():
                totals[key].append(value)
            if self.stop_kl is not None and metrics.get("policy/kl", 0.0) > self.stop_kl:
                totals["policy/left_out"] = [float(len(minis) - self.made)]
                break
        self.optimizer.zero()  # frees the memory of the gradients before the next policy is updated
        return {key: float(np.mean(values)) for key, values in totals.items()}

    # ---- which samples ------------------------------------------------------------------------------------
    def _counting(self, samples: Any, batch: TokenBatch) -> list[int]:
        """Samples with a token that counts for the policy or its critic. Mini-batches are cut from these."""
        return _samples_with((batch["counts"] > 0) | self._judged(batch), samples, batch)

    def _useful(self, samples: Any, batch: TokenBatch) -> list[int]:
        """Of these samples, those with a token that can change the policy or its critic.

        A token can change them by its advantage, by its critic's target, or because the loss or a regularizer acts on
        all tokens. Tokens with a weight of 0 that count change nothing; they are evaluated for metrics.
        """
        counted = batch["counts"] > 0
        pulled = any(part.part.every_token for part in self.parts)
        pulled = pulled or any(_pulls(part, "policy") for part in self.regularizers)
        signal = counted if pulled or "advantage" not in batch else counted & (batch["advantage"] != 0)
        return _samples_with(signal | self._judged(batch), samples, batch)

    def _judged(self, batch: TokenBatch) -> Tensor:
        """Tokens that the critic of this policy learns from: bool (tokens,)."""
        learns = any(_pulls(part, "critic") for part in self.regularizers)
        if "value_weight" not in batch or not learns:
            return torch.zeros(len(batch), dtype=torch.bool)
        return batch["value_weight"] > 0

    def _refuse_missing(self, batch: TokenBatch, own: Tensor) -> None:
        """Raises: InvalidData, if an output of the policy that a part reads is NaN on a token that counts."""
        counted = own[batch["counts"][own] > 0]
        for part in self.parts:
            for column in (c for c in part.reads or () if is_output(c) and c in batch):
                if self._is_now(column):
                    continue
                missing = int(batch[column][counted].reshape(len(counted), -1).isnan().any(1).sum())
                if missing:
                    raise InvalidData(
                        where=f"{part.part.slot}: {part.part.name}, policy {self.policy.name}",
                        what=f"it reads `{column}`, and {missing} of {len(counted)} tokens that count have no value.",
                        remedy="Missing values are not filled in. Leave such rows out by a part of `selection`.",
                    )

    def _is_now(self, column: str) -> bool:
        """Whether the current output without gradient fills this column where it has no value."""
        return not self.several and output_of(column)[1] == "old"

    # ---- batches ------------------------------------------------------------------------------------------
    def _token_batch(self, table: StepTable) -> TokenBatch:
        """All tokens of the table as one batch, with the columns that the loss and the regularizers read."""
        row = table.token_row
        names = {name.removesuffix("?") for part in self.parts for name in part.reads or ()} | {*COLUMNS}
        for name in sorted(names & self.policy.outputs):
            if name in table:
                raise ContractError(
                    where=f"column `{name}`",
                    what=f"a part has written it, and policy {self.policy.name} has an output of the same name.",
                    remedy="Rename one of them.",
                )
        columns: dict[str, Any] = {
            name: table.per_token(table[name]) for name in sorted(names - {*IDS}) if name in table
        }
        for name in (name for name in names if output_of(name)[1] == "old"):
            columns.setdefault(name, torch.full((table.tokens,), torch.nan))
        calls = table.key("trajectory", "agent", *(("invocation",) if "invocation" in table else ()))
        return TokenBatch(
            row=row,
            trajectory=table["trajectory"][row],
            group=table["group"][row],
            agent=table["agent"][row],
            invocation=calls.codes[row],
            pair=table["pair"][row].long() if "pair" in table else None,
            scope=self.scope,
            **columns,
        )

    def _step(
        self, samples: Any, everything: TokenBatch, mini: Sequence[int], chosen: Sequence[int], *, together: Any
    ) -> dict[str, float]:
        """Make one optimizer step on one mini-batch. Only the samples `chosen` are evaluated.

        The coefficients of the loss are those of the whole mini-batch. Metrics are means over the evaluated tokens that
        count.
        """
        budget = self.token_budget
        order = [i for unit in micro_batches_of(samples, mini, budget=budget, together=together) for i in unit]
        units = [order]
        if self.scope != "minibatch":
            units = micro_batches_of(samples, chosen, budget=budget, together=together)
        cuts = [(unit, micro_batches_of(samples, unit, budget=budget)) for unit in units]
        cuts = [(unit, pieces if len(pieces) > 1 else [unit]) for unit, pieces in cuts]
        batch = everything.take(torch.from_numpy(token_index(samples, order)))
        evaluated = torch.zeros(len(batch)).index_fill_(0, _places(samples, order, chosen), 1.0)
        shares = _Shares(
            policy=coefficients(batch, how=self.how, constant=self.constant).float() * batch["weight"],  # type: ignore[arg-type]
            value=_share(batch, torch.ones_like(evaluated)),
            policy_mean=coefficients(batch.replace(counts=batch["counts"] * evaluated), how="token-mean").float(),
            value_mean=_share(batch, evaluated),
        )
        device = device_of(self.policy.module)  # of the policy's outputs, and so of the loss
        batch, shares = batch.to(device), shares.to(device)
        if any(part.part.frozen_minibatch for part in self.parts):
            batch = batch.replace(minibatch=batch)
        norms = _AgentNorms(self.policy.module, batch.agent) if self.agent_gradients else None
        metrics: dict[str, float] = defaultdict(float)
        self.optimizer.zero()
        growth = Growth()
        for place, counts in self._order(cuts):
            unit, pieces = cuts[place]
            places = _places(samples, order, [i for piece in pieces for i in piece]).to(device)
            tokens, own = batch.take(places), shares.take(places)
            with learning():  # a loss may have switched gradients off
                if len(pieces) > 1:
                    self._two_passes(samples, pieces, tokens, own, metrics, norms)
                elif counts:
                    self._one_pass(samples, unit, tokens, own, metrics, norms)
                else:
                    self._one_pass(samples, unit, tokens, own.none(), defaultdict(float), None)
            growth.bound()
        self.ranks.sum_gradients(self.policy.module.parameters())
        of_agents = {} if norms is None else norms.metrics(self.agents, self.ranks)
        return self._finish(self.ranks.sum_numbers(metrics)) | of_agents

    def _order(self, cuts: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> list[tuple[int, bool]]:
        """The units that this rank works on: its share of those with one pass, and all with two passes.

        Returns: position of a unit, and whether this rank's result counts. Ranks that must stay in step repeat units.
        """
        turns = self.ranks.turns([place for place, (_, pieces) in enumerate(cuts) if len(pieces) == 1])
        work = [*turns, *((place, True) for place, (_, pieces) in enumerate(cuts) if len(pieces) > 1)]
        return work if self.ranks.in_step else sorted(work)

    def _one_pass(
        self,
        samples: Any,
        which: Sequence[int],
        tokens: TokenBatch,
        shares: _Shares,
        metrics: dict[str, float],
        norms: _AgentNorms | None,
    ) -> None:
        """Evaluate a unit and backpropagate its loss."""
        tokens = self._with_outputs(tokens, self.policy.forward(samples, which, self._outputs).columns)
        loss, per_token = self._loss(tokens, shares, metrics)
        if norms is not None:
            norms.add(norms.losses(per_token, tokens))
        if loss.requires_grad:
            loss.backward()

    def _two_passes(
        self,
        samples: Any,
        pieces: Sequence[Sequence[int]],
        tokens: TokenBatch,
        shares: _Shares,
        metrics: dict[str, float],
        norms: _AgentNorms | None,
    ) -> None:
        """Evaluate a unit piece by piece without gradient, then repeat each piece and backpropagate its share.

        Each of several ranks works on its share of the pieces. All ranks compute the loss, and the main rank counts its
        metrics.
        """
        turns = self.ranks.turns(range(len(pieces)))
        with torch.no_grad():
            found = [(i, counts, self.policy.forward(samples, pieces[i], self._outputs).columns) for i, counts in turns]
        evaluated = self.ranks.exchange({i: columns for i, counts, columns in found if counts})
        device = tokens.row.device
        leaves = {
            name: torch.cat([evaluated[i][name].to(device) for i in range(len(pieces))]).requires_grad_()
            for name in evaluated[0]
        }
        counted = metrics if self.ranks.main else defaultdict(float)
        loss, per_token = self._loss(self._with_outputs(tokens, leaves), shares, counted)
        scalars = {} if norms is None else norms.losses(per_token, tokens)
        derivatives = _derivatives(loss, leaves, keep=bool(scalars))
        by_agent = {code: _derivatives(own, leaves, keep=True) for code, own in scalars.items()}
        lengths = [int(sum(samples.token_start[i + 1] - samples.token_start[i] for i in piece)) for piece in pieces]
        ends = np.cumsum(lengths).tolist()
        for i, counts in turns:
            cut = slice(ends[i] - lengths[i], ends[i])
            moves = any(bool(d[cut].any()) for found in (derivatives, *by_agent.values()) for d in found.values())
            if not moves and not self.ranks.in_step:
                continue
            outputs = self.policy.forward(samples, pieces[i], self._outputs).columns
            if norms is not None:
                norms.add({code: _product(outputs, found, cut) for code, found in by_agent.items()})
            share = _product(outputs, derivatives, cut) * counts
            if share.requires_grad:
                share.backward()

    @property
    def _outputs(self) -> frozenset[str]:
        """The outputs that a pass of the policy in training computes."""
        parts = [reader(part) for part in self.parts]
        return frozenset(plan_passes((), parts, gives=self.policy.outputs, several_updates=self.several).update)

    def _with_outputs(self, tokens: TokenBatch, outputs: Mapping[str, Tensor]) -> TokenBatch:
        """The tokens with the policy's outputs. Where an old output has no value, it is the current one, detached."""
        now: dict[str, Tensor] = dict(outputs)
        for name, column in tokens.columns.items():
            output, of = output_of(name)
            if of == "old" and output in outputs and not self.several:
                now[name] = torch.where(column.isfinite(), column, outputs[output].detach())
        return tokens.replace(**now)

    def _loss(self, tokens: TokenBatch, shares: _Shares, metrics: dict[str, float]) -> tuple[Tensor, Tensor]:
        """The loss of a unit, and the loss of each of its tokens without regularizers. Adds to the metrics."""
        values, shown = _computed(self.loss, tokens)
        per_token = shares.policy * values
        loss = per_token.sum()
        shown = {**shown, **_mismatch(tokens)}
        shown["policy/entropy"] = tokens["entropy"]
        if self.stop_kl is not None and "policy/kl" not in shown:
            moved = torch.where(tokens["counts"] > 0, tokens["logprob"].detach() - tokens["logprob_old"], 0.0)
            shown["policy/kl"] = kl_estimate(moved, torch.zeros_like(moved))
        for regularizer in self.regularizers:
            values, more = _computed(regularizer, tokens)
            if _of_critic(regularizer):
                loss = loss + (shares.value * values).sum()
                metrics.update({key: metrics[key] + float((shares.value_mean * more[key]).sum()) for key in more})
            else:
                loss = loss + (shares.policy * values).sum()
                shown = {**shown, **more}
        for key, value in shown.items():
            counted = shares.policy_mean > 0
            metrics[key] += float(torch.where(counted, shares.policy_mean * value.detach(), 0.0).sum())
        metrics["policy/loss"] += float(loss.detach())
        return loss, per_token

    def _finish(self, metrics: dict[str, float]) -> dict[str, float]:
        rate = self.optimizer.lr
        norm, loss = float(self.optimizer.step()), metrics["policy/loss"]
        finite = np.isfinite(norm) and np.isfinite(loss)
        self.spoiled = 0 if finite else self.spoiled + 1
        if self.spoiled >= PATIENCE:
            raise PalaestraError(
                where=f"policy {self.policy.name}",
                what=f"{PATIENCE} updates in a row had no finite gradient (loss {loss}, norm {norm}).",
                remedy="Lower optimizer.adamw.lr, clip the gradient, or check the rewards. The weights are those after "
                "the last update with a finite gradient.",
            )
        out = metrics | dict(self.optimizer.metrics)
        return out | {"policy/grad_norm": norm, "policy/lr": rate, "policy/skipped": 0.0 if finite else 1.0}


def _only(tokens: TokenBatch, part: BoundPart) -> TokenBatch:
    """The batch with only the columns that a part reads; with all columns, if it declares no `reads`."""
    if part.reads is None:
        return tokens
    names = {name.removesuffix("?") for name in part.reads}
    return tokens.replace(**{name: None for name in tokens.columns if name not in names})


def _computed(part: BoundPart, tokens: TokenBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The result of a loss or a regularizer. Raises: ContractError, unless it is a loss for each token and metrics."""
    with protected(f"{part.part.slot} {part.name}"):
        given = part(_only(tokens, part))
    if not isinstance(given, tuple) or len(given) != 2 or not _per_token(given[0], tokens):
        raise ContractError(
            where=f"{part.part.slot}: {part.name}",
            what=f"it did not give a loss of shape ({len(tokens)},) and metrics.",
            remedy="Return `loss, metrics`: one number for each token, and a dict of such columns, which may be empty.",
        )
    return given


def _per_token(loss: object, tokens: TokenBatch) -> bool:
    return isinstance(loss, Tensor) and loss.shape == (len(tokens),)


def _of_critic(regularizer: BoundPart) -> bool:
    """Whether it is the loss of a critic, which is averaged over the tokens with a target."""
    return "value" in (regularizer.reads or ())


def _pulls(regularizer: BoundPart, at: Literal["policy", "critic"]) -> bool:
    """Whether a regularizer changes the policy, or its critic. With a coefficient of 0 it changes nothing."""
    kind = "critic" if _of_critic(regularizer) else "policy"
    return kind == at and regularizer.options.get("coefficient") != 0


def _derivatives(loss: Tensor, leaves: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The derivative of the loss by every output; zeros for an output that it does not depend on."""
    if not loss.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(
        loss, list(leaves.values()), retain_graph=keep, allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def _product(outputs: Mapping[str, Tensor], derivatives: Mapping[str, Tensor], cut: slice) -> Tensor:
    """Σ output · derivative. The gradient of this sum is the gradient of the loss through these tokens."""
    return torch.stack([(values * derivatives[name][cut]).sum() for name, values in outputs.items()]).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """Coefficients of tokens, each (tokens,).

    Attributes:
        policy, value: for the loss of the policy and of its critic.
        policy_mean, value_mean: for the means of their metrics.
    """

    policy: Tensor
    value: Tensor
    policy_mean: Tensor
    value_mean: Tensor

    def take(self, index: Tensor) -> _Shares:
        return _Shares(
            policy=self.policy[index],
            value=self.value[index],
            policy_mean=self.policy_mean[index],
            value_mean=self.value_mean[index],
        )

    def none(self) -> _Shares:
        """The coefficients 0, for tokens that do not count."""
        return _Shares(
            policy=torch.zeros_like(self.policy),
            value=torch.zeros_like(self.value),
            policy_mean=torch.zeros_like(self.policy_mean),
            value_mean=torch.zeros_like(self.value_mean),
        )

    def to(self, device: torch.device) -> _Shares:
        return _Shares(
            policy=self.policy.to(device),
            value=self.value.to(device),
            policy_mean=self.policy_mean.to(device),
            value_mean=self.value_mean.to(device),
        )


def _share(batch: TokenBatch, evaluated: Tensor) -> Tensor:
    """Coefficients of the critic's loss: `value_weight` over the evaluated tokens, with the sum 1."""
    if "value_weight" not in batch:
        return torch.zeros_like(evaluated)
    weight = batch["value_weight"] * evaluated
    return weight / weight.sum().clamp_min(1e-12)


def _mismatch(tokens: TokenBatch) -> dict[str, Tensor]:
    """The difference between the log-probabilities of the engine and the trainer: k3 and the absolute value.

    It is 0 for tokens that no engine sampled, and for tokens under a prompt that the engine did not have.
    """
    if "logprob_behavior" not in tokens:
        return {}
    difference = (tokens["logprob_old"] - tokens["logprob_behavior"]).detach()
    difference = torch.where(tokens["logprob_behavior"].isnan(), 0.0, difference)
    if "foreign" in tokens:
        difference = torch.where(tokens["foreign"] > 0, 0.0, difference)
    return {"mismatch/kl": torch.expm1(difference) - difference, "mismatch/abs": difference.abs()}


def _samples_with(tokens: Tensor, samples: Any, batch: TokenBatch) -> list[int]:
    """Samples that hold one of these tokens, and samples that must stay in one batch with them."""
    unit = _unit(batch)
    if unit is not None:
        tokens = torch.isin(unit, unit[tokens])
    start, index = samples.token_start, samples.token_index
    return [i for i in range(len(start) - 1) if bool(tokens[index[start[i] : start[i + 1]]].any())]


def _evaluated(mini: Sequence[int], useful: frozenset[int], together: np.ndarray | None) -> list[int]:
    """The samples of a mini-batch that are evaluated.

    If none of them can change anything, the first unit is evaluated. The optimizer then makes a step with a gradient of
    0, as it would if all samples were evaluated.
    """
    chosen = [i for i in mini if i in useful]
    if chosen or together is None:
        return chosen or list(mini[:1])
    return [i for i in mini if together[i] == together[mini[0]]]


def _places(samples: Any, order: Sequence[int], which: Sequence[int]) -> Tensor:
    """Positions of these samples' tokens among the tokens of the samples in `order`: int64."""
    length = np.diff(samples.token_start)
    first = dict(zip(order, np.cumsum([0, *(length[i] for i in order)]).tolist(), strict=False))
    pieces = [np.arange(first[i], first[i] + length[i]) for i in which]
    return torch.from_numpy(np.concatenate(pieces) if pieces else np.zeros(0, np.int64))


def _unit(batch: TokenBatch) -> Tensor | None:
    """For each token, the number of the unit that must stay in one mini-batch; None, if a sample is enough."""
    if batch.scope in ("group", "pair"):
        return batch.group
    return batch.trajectory if batch.scope in ("trajectory", "invocation") else None


def _together(samples: Any, batch: TokenBatch) -> np.ndarray | None:
    """The unit of each sample. A sample without response tokens, such as a next prompt, is a unit of its own."""
    unit = _unit(batch)
    if unit is None:
        return None
    start, index = samples.token_start, torch.from_numpy(samples.token_index)
    codes = unit[index].numpy()
    alone = len(batch.trajectory) + np.arange(len(start) - 1)
    return np.array([codes[start[i]] if start[i + 1] > start[i] else alone[i] for i in range(len(start) - 1)], np.int64)


class _AgentNorms:
    """Measures the gradient norm of each agent's share of the policy loss, over all micro-batches."""

    def __init__(self, module: torch.nn.Module, agent: Tensor | None) -> None:
        assert agent is not None
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._sums = {int(code): [torch.zeros_like(p) for p in self._parameters] for code in agent.unique()}

    def losses(self, per_token: Tensor, tokens: TokenBatch) -> dict[int, Tensor]:
        """Each agent's share of the loss of these tokens."""
        agent = tokens.unit("agent", where="training.agent_gradients")
        return {code: per_token[agent == code].sum() for code in self._sums}

    def add(self, losses: Mapping[int, Tensor]) -> None:
        """Add the gradient of each agent's share."""
        for code, own in losses.items():
            if own.requires_grad:
                found = torch.autograd.grad(own, self._parameters, retain_graph=True, allow_unused=True)
                for total, gradient in zip(self._sums[code], found, strict=True):
                    if gradient is not None:
                        total += gradient

    def metrics(self, names: Sequence[str], ranks: Ranks) -> dict[str, float]:
        """`policy/agent/<name>/grad_norm`, from the gradients of all ranks."""
        ranks.sum_tensors([total for sums in self._sums.values() for total in sums])
        return {
            f"policy/agent/{names[code]}/grad_norm": float(torch.sqrt(sum(s.square().sum() for s in sums)))  # type: ignore[arg-type]
            for code, sums in self._sums.items()
        }
