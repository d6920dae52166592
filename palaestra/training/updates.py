"""Updates: one policy, its optimizer, its loss and regularizers.

Mini-batches are cut over all samples with a token that counts, and denominators come from the whole mini-batch, so that
micro-batches change nothing. Samples that can move nothing are skipped only afterwards, which changes no gradient.
Knows losses by signature. Knows no method's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from palaestra.algebra import coefficients, kl_estimate
from palaestra.data import StepTable, TokenBatch, derive
from palaestra.data.batches import micro_batches, mini_batches, token_index
from palaestra.errors import PalaestraError
from palaestra.models.devices import device_of
from palaestra.training.bound import Bound
from palaestra.training.experience import Experience

# Options and abilities of a loss for which a trajectory, or a group, must stay in one batch.
OF_TRAJECTORIES = {"trajectory", "invocation", "sequence", "whole_trajectory"}
OF_GROUPS = {"group", "whole_group"}
KNOWN_AS = {"token_logprob", "token_proximal", "token_reference", "token_value"}  # fields under other names
PATIENCE = 3  # updates in a row whose gradient is not finite


@dataclass(slots=True, kw_only=True)
class Updater:
    """Improves one policy from experience.

    Attributes:
        optimizer: as parts of the slot give it: step, zero, lr, state_dict, load_state_dict.
        how, constant: aggregation of per-token losses.
        stop_kl: an update that finds the policy farther than this from where the experience came from is the
            iteration's last; `policy/left_out` counts the others. The distance is `policy/kl`, which is measured here
            (k3, over the evaluated tokens that count) where the loss does not report it.
        made: optimizer steps of the last iteration.
        agent_gradients: measure the gradient norm of each agent's share of the loss; costs a pass per agent.
    """

    policy: Any
    optimizer: Any
    loss: Bound
    regularizers: Sequence[Bound]
    how: str
    constant: float | None
    epochs: int
    minibatches: int
    token_budget: int
    stop_kl: float | None = None
    agent_gradients: bool = False
    agents: Sequence[str] = ()
    made: int = 0
    spoiled: int = 0

    @property
    def learns_without_advantage(self) -> bool:
        """Whether the loss itself moves tokens that have no advantage; regularizers do not count."""
        return "every_token" in self.loss.part.uses

    def update(self, experience: Experience, *, seed: int) -> dict[str, float]:
        """One iteration's updates. Returns metrics, averaged over mini-batches; empty if nothing can be learned."""
        name, self.made = self.policy.name, 0
        if name not in experience.samples:
            return {}
        samples = experience.samples[name]
        batch = self._batch(experience)
        self.agents = [str(label) for label in experience.table.labels("agent")]
        together = _together(samples, batch)
        # Another policy's critic may have made the column; what counts is whether this policy's tokens are in it.
        recorded = bool(torch.isfinite(batch.proximal[torch.from_numpy(samples.token_index)]).all())
        recorded = recorded and "token_proximal" in experience.table
        useful = frozenset(self._useful(samples, batch))
        if not useful:
            return {}
        counting = self._counting(samples, batch)
        minis = [
            mini
            for epoch in range(self.epochs)
            for mini in mini_batches(counting, self.minibatches, seed=derive(seed, name, epoch), together=together)
        ]
        totals: dict[str, list[float]] = defaultdict(list)
        for mini in minis:
            draw = derive(seed, name, "draw", self.made)
            which = _evaluated(mini, useful, together)
            found = self._step(samples, batch.replace(seed=draw), mini, which, recorded=recorded, together=together)
            self.made += 1
            for key, value in found.items():
                totals[key].append(value)
            if self.stop_kl is not None and found.get("policy/kl", 0.0) > self.stop_kl:
                totals["policy/left_out"] = [float(len(minis) - self.made)]
                break
        self.optimizer.zero()  # gradients are as large as the weights, and the other policies' turn comes
        return {key: float(np.mean(values)) for key, values in totals.items()}

    def _counting(self, samples: Any, batch: TokenBatch) -> list[int]:
        """Samples with a token that counts for the policy or its critic: what mini-batches are cut over."""
        return _samples_with((_counted(batch) > 0) | self._judged(batch), samples, batch)

    def _useful(self, samples: Any, batch: TokenBatch) -> list[int]:
        """Of these, samples with a token that can move something; none at all if no token has an advantage.

        A token moves something by its advantage, by its critic's target, or because the loss or a regularizer pulls at
        all tokens. What is rejected (counted, with a weight of 0) moves nothing and is evaluated for its metrics.
        """
        counted = _counted(batch) > 0
        pulled = self._wants("every_token") or any(_pulls(part, "policy") for part in self.regularizers)
        signal = counted if pulled else counted & (batch.advantage != 0)
        return _samples_with(signal | self._judged(batch), samples, batch)

    def _judged(self, batch: TokenBatch) -> Tensor:
        """Tokens whose value a critic of this policy learns: bool (tokens,)."""
        learns = any(_pulls(part, "critic") for part in self.regularizers)
        if batch.value_weight is None or not learns:
            return torch.zeros(len(batch), dtype=torch.bool)
        return batch.value_weight > 0

    def _batch(self, experience: Experience) -> TokenBatch:
        """All tokens of the table as one batch; `take` cuts it."""
        table, credit = experience.table, experience.credit
        assert credit is not None and experience.weight is not None
        row = table.token_row

        def column(name: str) -> Tensor | None:
            return table[name] if name in table else None

        nothing = torch.zeros(table.tokens)
        proximal = column("token_proximal")
        calls = table.key("trajectory", "agent", *(("invocation",) if "invocation" in table else ()))
        trained = 1.0 if experience.trained is None else experience.trained
        counts = table.per_token(table.weight * trained) > 0
        wanted = {self.loss.options.get("ratio"), self.loss.options.get("level")}
        wanted |= {use for part in (self.loss, *self.regularizers) for use in part.part.uses}
        whole = {"row", "sequence"}
        whole |= {"trajectory", "invocation"} if wanted & (OF_TRAJECTORIES | OF_GROUPS) else set()
        whole |= {"group"} if wanted & OF_GROUPS else set()
        return TokenBatch(
            advantage=credit.advantage,
            logprob=nothing,
            proximal=torch.full_like(nothing, torch.nan) if proximal is None else proximal,
            weight=experience.weight,
            row=row,
            sequence=row,
            trajectory=table["trajectory"][row],
            group=table["group"][row],
            agent=table["agent"][row],
            invocation=calls.codes[row],
            behavior=column("token_logprob"),
            reference=column("token_reference"),
            value_old=column("token_value"),
            value_target=credit.target,
            value_weight=None if credit.target_weight is None else credit.target_weight * counts,
            foreign=table["foreign"].float()[row] if "foreign" in table else None,
            counted=experience.counted,
            whole=frozenset(whole),
            more=self._further(table),
        )

    def _further(self, table: StepTable) -> dict[str, Tensor]:
        """Columns that the loss or a regularizer reads and that are no field of a batch, per token."""
        own = {f.name for f in fields(TokenBatch)} | set(KNOWN_AS)
        names = {name for part in (self.loss, *self.regularizers) for name in part.part.reads} - own
        return {name: table.per_token(table[name]) for name in sorted(names) if name in table}

    def _step(
        self,
        samples: Any,
        whole: TokenBatch,
        mini: Sequence[int],
        which: Sequence[int],
        *,
        recorded: bool,
        together: np.ndarray | None,
    ) -> dict[str, float]:
        """One optimizer step on one mini-batch, of which the samples `which` are evaluated.

        Coefficients of the loss are those of the whole mini-batch; metrics are means over the evaluated tokens that
        count.
        """
        budget = self.token_budget
        everything = micro_batches(samples.cost, mini, budget=budget, together=together)
        micros = micro_batches(samples.cost, which, budget=budget, together=together)
        order = [i for micro in everything for i in micro]
        batch = whole.take(torch.from_numpy(token_index(samples, order)))
        cuts = _places(samples, order, micros)
        seen = torch.zeros(len(batch)).index_fill_(0, torch.cat(cuts), 1.0)
        even = coefficients(batch.replace(counted=_counted(batch) * seen), how="token-mean").float()
        policy_share = coefficients(batch, how=self.how, constant=self.constant).float() * batch.weight  # type: ignore[arg-type]
        value_share, value_even = (_share(batch.value_weight, of) for of in (torch.ones_like(seen), seen))
        device = device_of(self.policy.module)  # the loss is where the policy's outputs are
        batch, even, value_even = batch.to(device), even.to(device), value_even.to(device)
        policy_share, value_share = policy_share.to(device), value_share.to(device)
        cuts = [cut.to(device) for cut in cuts]
        norms = _AgentNorms(self.policy.module, batch.agent) if self.agent_gradients else None
        metrics: dict[str, float] = defaultdict(float)
        self.optimizer.zero()
        mini_batch = batch if self._wants("mini_columns") else None
        if self._wants("mini_batch"):
            mini_batch = self._now(samples, everything, batch, recorded=recorded)
        for micro, cut in zip(micros, cuts, strict=True):
            tokens = self._forward(samples, micro, batch.take(cut), recorded=recorded)
            tokens = tokens if mini_batch is None else tokens.replace(mini=mini_batch, place=cut)
            shares = {"policy": policy_share[cut], "value": value_share[cut]}
            loss = self._loss(tokens, shares, {"policy": even[cut], "value": value_even[cut]}, metrics)
            if norms is not None:
                norms.add(tokens, policy_share[cut] * self.loss(tokens)[0])
            if loss.requires_grad:
                loss.backward()
            metrics["loss"] += float(loss.detach())
        return self._finish(metrics) | ({} if norms is None else norms.metrics(self.agents))

    def _forward(self, samples: Any, micro: Sequence[int], tokens: TokenBatch, *, recorded: bool) -> TokenBatch:
        wants = {use for regularizer in self.regularizers for use in regularizer.part.uses}
        now = self.policy.forward(samples, micro, values="critic" in wants, entropy=True)
        # Without a recorded pass there is a single update, and the old policy is the present one; of replayed tokens
        # it may be the one that sampled them.
        before = tokens.proximal
        proximal = before if recorded else torch.where(before.isfinite(), before, now.logprob.detach())
        return tokens.replace(logprob=now.logprob, entropy=now.entropy, value=now.value, proximal=proximal)

    def _wants(self, ability: str) -> bool:
        return any(ability in part.part.uses for part in (self.loss, *self.regularizers))

    def _now(self, samples: Any, micros: Sequence[Sequence[int]], batch: TokenBatch, *, recorded: bool) -> TokenBatch:
        """The whole mini-batch as the policy sees it now, without gradient: a pass of its own."""
        columns: dict[str, list[Tensor]] = defaultdict(list)
        start = 0
        for micro in micros:
            length = int(sum(samples.token_start[i + 1] - samples.token_start[i] for i in micro))
            with torch.no_grad():
                cut = torch.arange(start, start + length, device=batch.row.device)
                tokens = self._forward(samples, micro, batch.take(cut), recorded=recorded)
            start += length
            for name in ("logprob", "entropy", "proximal"):
                columns[name].append(getattr(tokens, name))
        return batch.replace(**{name: torch.cat(pieces) for name, pieces in columns.items()})

    def _loss(
        self, tokens: TokenBatch, shares: Mapping[str, Tensor], even: Mapping[str, Tensor], metrics: dict[str, float]
    ) -> Tensor:
        """The micro-batch's part of the loss, by `shares`; adds its part of the metrics, by `even`."""
        values, seen = self.loss(tokens)
        loss = (shares["policy"] * values).sum()
        seen = {**seen, **_mismatch(tokens)}
        if tokens.entropy is not None:
            seen["policy/entropy"] = tokens.entropy
        if self.stop_kl is not None and "policy/kl" not in seen:
            moved = torch.where(_counted(tokens) > 0, tokens.logprob.detach() - tokens.proximal, 0.0)
            seen["policy/kl"] = kl_estimate(moved, torch.zeros_like(moved))
        for regularizer in self.regularizers:
            kind = "value" if "critic" in regularizer.part.uses else "policy"
            values, more = regularizer(tokens)
            loss = loss + (shares[kind] * values).sum()
            if kind == "value":
                metrics.update({key: metrics[key] + float((even[kind] * more[key]).sum()) for key in more})
            else:
                seen = {**seen, **more}
        for key, value in seen.items():
            metrics[key] += float((even["policy"] * value.detach()).sum())
        return loss

    def _finish(self, metrics: dict[str, float]) -> dict[str, float]:
        rate = self.optimizer.lr
        norm = float(self.optimizer.step())
        finite = np.isfinite(norm) and np.isfinite(metrics["loss"])
        self.spoiled = 0 if finite else self.spoiled + 1
        if self.spoiled >= PATIENCE:
            raise PalaestraError(
                where=f"policy {self.policy.name}",
                what=f"{PATIENCE} updates in a row had no finite gradient (loss {metrics['loss']}, norm {norm}).",
                remedy="Lower optimizer.adamw.lr, clip the gradient, or look at the rewards. The weights are those of "
                "the last good update.",
            )
        out = {f"policy/{key}" if key == "loss" else key: value for key, value in metrics.items()}
        out |= getattr(self.optimizer, "metrics", {})
        return out | {"policy/grad_norm": norm, "policy/lr": rate, "policy/skipped": 0.0 if finite else 1.0}


def _pulls(regularizer: Bound, at: Literal["policy", "critic"]) -> bool:
    """Whether a regularizer moves the policy, or its critic; one whose coefficient is 0 moves nothing."""
    kind = "critic" if "critic" in regularizer.part.uses else "policy"
    return kind == at and regularizer.options.get("coefficient") != 0


def _counted(batch: TokenBatch) -> Tensor:
    """Positive on tokens that count in denominators."""
    return batch.weight if batch.counted is None else batch.counted


def _samples_with(tokens: Tensor, samples: Any, batch: TokenBatch) -> list[int]:
    """Samples that hold one of these tokens, and those that must stay in one batch with them."""
    unit = _unit(batch)
    if unit is not None:
        tokens = torch.isin(unit, unit[tokens])
    start, index = samples.token_start, samples.token_index
    return [i for i in range(len(start) - 1) if bool(tokens[index[start[i] : start[i + 1]]].any())]


def _evaluated(mini: Sequence[int], useful: frozenset[int], together: np.ndarray | None) -> list[int]:
    """Samples of a mini-batch that are evaluated.

    Where none can move anything, its first unit is, so that the optimizer makes the same step, with a gradient of 0,
    as if all were.
    """
    chosen = [i for i in mini if i in useful]
    if chosen or together is None:
        return chosen or list(mini[:1])
    return [i for i in mini if together[i] == together[mini[0]]]


def _places(samples: Any, order: Sequence[int], micros: Sequence[Sequence[int]]) -> list[Tensor]:
    """Where the tokens of each micro-batch stand among those of the samples in `order`: int64."""
    length = np.diff(samples.token_start)
    first = dict(zip(order, np.cumsum([0, *(length[i] for i in order)]).tolist(), strict=False))
    pieces = [[np.arange(first[i], first[i] + length[i]) for i in micro] for micro in micros]
    return [torch.from_numpy(np.concatenate(own)) for own in pieces]


def _unit(batch: TokenBatch) -> Tensor | None:
    """What must stay in one batch: the group or the trajectory of each token; None: nothing beyond a sample."""
    if "group" in batch.whole:
        return batch.group
    return batch.trajectory if "trajectory" in batch.whole else None


def _together(samples: Any, batch: TokenBatch) -> np.ndarray | None:
    """The unit of each sample; a sample without response tokens (a next prompt) is by itself."""
    unit = _unit(batch)
    if unit is None:
        return None
    start, index = samples.token_start, torch.from_numpy(samples.token_index)
    codes = unit[index].numpy()
    alone = len(batch.trajectory) + np.arange(len(start) - 1)
    return np.array([codes[start[i]] if start[i + 1] > start[i] else alone[i] for i in range(len(start) - 1)], np.int64)


class _AgentNorms:
    """Gradient norm of each agent's share of the policy loss, summed over micro-batches."""

    def __init__(self, module: torch.nn.Module, agent: Tensor | None) -> None:
        assert agent is not None
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._sums = {int(code): [torch.zeros_like(p) for p in self._parameters] for code in agent.unique()}

    def add(self, tokens: TokenBatch, loss: Tensor) -> None:
        """Add one micro-batch's per-token loss."""
        assert tokens.agent is not None
        for code, sums in self._sums.items():
            own = loss[tokens.agent == code].sum()
            if own.requires_grad:
                found = torch.autograd.grad(own, self._parameters, retain_graph=True, allow_unused=True)
                for total, gradient in zip(sums, found, strict=True):
                    if gradient is not None:
                        total += gradient

    def metrics(self, names: Sequence[str]) -> dict[str, float]:
        """`policy/agent/<name>/grad_norm`."""
        return {
            f"policy/agent/{names[code]}/grad_norm": float(torch.sqrt(sum(s.square().sum() for s in sums)))  # type: ignore[arg-type]
            for code, sums in self._sums.items()
        }


def _share(value_weight: Tensor | None, seen: Tensor) -> Tensor:
    """Coefficients of the value loss over the tokens that are `seen`."""
    if value_weight is None:
        return torch.zeros_like(seen)
    own = value_weight * seen
    return own / own.sum().clamp_min(1e-12)


def _mismatch(tokens: TokenBatch) -> dict[str, Tensor]:
    """How far the engine's log-probabilities are from the trainer's: k3 and the difference's size.

    Under a prompt that the engine did not have they differ by right, and such tokens have none.
    """
    if tokens.behavior is None:
        return {}
    difference = (tokens.proximal - tokens.behavior).detach()
    if tokens.foreign is not None:
        difference = torch.where(tokens.foreign > 0, 0.0, difference)
    return {"mismatch/kl": torch.expm1(difference) - difference, "mismatch/abs": difference.abs()}
