"""Packed sequences: several sequences in one row without padding, in which equal beginnings are computed once.

The sequences form a prefix tree. A token attends to itself and its ancestors, and its position is its depth. So every
token has the numbers that it has in its own sequence, and the gradients of a shared token add up. Models read such a
row through transformers' attention interface, with the masks (causal, sliding, chunked) that the model itself asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from palaestra.data.batches import common_beginning
from palaestra.models.low_attention import low_attention
from palaestra.models.own_head import base_of
from palaestra.models.quantized import hidden_weights

ATTENTION = "palaestra_packed"
# Costs are in pairs of a query and a key.
CALL = 2000  # a further call of the attention kernel
LARGEST_BLOCK = 2**25  # a block of more pairs is not made; its sequences are computed separately
OUTSIDE = ("s_aux", "position_bias", "cache")  # arguments of attention functions that are not implemented here


# ---- the tree ---------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class _Node:
    """Tokens `begin`:`end` of sequence `owner`, which several sequences may share."""

    owner: int
    begin: int
    end: int
    members: list[int]  # sequences that read these tokens
    children: list[_Node] = field(default_factory=list)
    size: int = 0  # tokens of this node and of all below

    @property
    def length(self) -> int:
        return self.end - self.begin


def _grow(ids: Sequence[np.ndarray], order: Sequence[int], lcp: Sequence[int], begin: int) -> _Node:
    """The tree of the sequences `order`, sorted, which agree beyond `begin`. lcp[i]: the beginning of i − 1 and i."""
    end = min([len(ids[order[0]]), *lcp[1:]])
    node = _Node(order[0], begin, end, list(order))
    start = next((i for i, n in enumerate(order) if len(ids[n]) > end), len(order))
    while start < len(order):
        stop = start + 1
        while stop < len(order) and lcp[stop] > end:
            stop += 1
        node.children.append(_grow(ids, order[start:stop], lcp[start:stop], end))
        start = stop
    node.size = node.length + sum(child.size for child in node.children)
    return node


def _trees(ids: Sequence[np.ndarray], *, token: float) -> Iterator[_Node]:
    """The roots of the sequences. What is cheaper without sharing is not shared. token: cost of a token."""
    order = sorted(range(len(ids)), key=lambda i: ids[i].astype(">i4").tobytes())
    lcp = [0, *(common_beginning(ids[a], ids[b]) for a, b in zip(order, order[1:], strict=False))]
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and lcp[stop] > 0:
            stop += 1
        root = _grow(ids, order[start:stop], lcp[start:stop], 0)
        apart = [_Node(i, 0, len(ids[i]), [i], size=len(ids[i])) for i in order[start:stop]]
        together = _attention_cost(root, 0)[0] + token * root.size
        yield from ([root] if together < sum(_attention_cost(n, 0)[0] + token * n.length for n in apart) else apart)
        start = stop


def _attention_cost(node: _Node, before: int) -> tuple[float, bool]:
    """The cost of attention in a subtree below `before` tokens, and whether it is one block."""
    length, size = node.length, node.size
    if not node.children:
        return CALL + length * (before + length) / (1 if before else 2), True
    block = CALL + size * (before + size) if size * (before + size) <= LARGEST_BLOCK else np.inf
    own = CALL + length * (before + length) / (1 if before else 2)
    apart = own + sum(_attention_cost(child, before + length)[0] for child in node.children)
    return min(block, apart), block <= apart


# ---- the row ----------------------------------------------------------------------------------------------
class PackedRow:
    """Sequences in one row.

    Args:
        ids: of each sequence.
        token: the cost of a token in all layers' linear maps, in pairs of a query and a key of one layer.

    Attributes:
        ids: int64 (tokens,), of the row. positions: int64 (tokens,), in the sequences.
        places: for each sequence, int64 (length,), where its tokens are in the row.
        sizes: of the pieces that the row is cut into. keys: for each piece, the pieces that its tokens attend to; the
            last is the piece itself.
    """

    def __init__(self, ids: Sequence[np.ndarray], *, token: float) -> None:
        self.sizes: list[int] = []
        self.keys: list[list[int]] = []
        self.places = [np.zeros(len(one), np.int64) for one in ids]
        self._given = ids
        roots = list(_trees(ids, token=token))
        total = sum(root.size for root in roots)
        self.ids, self.positions = np.zeros(total, np.int64), np.zeros(total, np.int64)
        self._last = np.zeros(total, np.int64)  # where the subtree of a token's node ends
        self._filled = 0
        for root in roots:
            self._cut(root, [], 0)
        starts = np.cumsum([0, *self.sizes])
        self.ranges = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.ids)

    def _cut(self, node: _Node, above: list[int], before: int) -> None:
        """Make the pieces of a subtree: one for all of it, or one for each node."""
        _, one = _attention_cost(node, before)
        mine = [*above, len(self.sizes)]
        self.keys.append(mine)
        self.sizes.append(node.size if one else node.length)
        if one:
            self._fill(node, deep=True)
            return
        self._fill(node, deep=False)
        for child in node.children:
            self._cut(child, mine, before + node.length)

    def _fill(self, node: _Node, *, deep: bool) -> None:
        start, depth = self._filled, slice(node.begin, node.end)
        here = slice(start, start + node.length)
        self.ids[here] = self._given[node.owner][depth]
        self.positions[here] = np.arange(node.begin, node.end)
        self._last[here] = start + node.size
        for member in node.members:
            self.places[member][depth] = np.arange(start, start + node.length)
        self._filled += node.length
        if deep:
            for child in node.children:
                self._fill(child, deep=True)

    def masks(self, visible: Callable[..., Any], *, dtype: torch.dtype, device: torch.device) -> Masks:
        """The mask of each piece: None for a causal one, else (1, 1, queries, keys), to be added to the logits.

        Args:
            visible: the model's mask function of (sample, head, query position, key position).
        """
        made = []
        positions, last = torch.from_numpy(self.positions).to(device), torch.from_numpy(self._last).to(device)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        for (start, stop), keys in zip(self.ranges, self.keys, strict=True):
            query = torch.arange(start, stop, device=device)[:, None]
            key = torch.cat([torch.arange(*self.ranges[piece], device=device) for piece in keys])
            seen = (key <= query) & (query < last[key])
            seen = seen & visible(zero, zero, positions[query], positions[key])
            causal = seen.shape[0] == seen.shape[1] and torch.equal(seen, torch.ones_like(seen).tril())
            made.append(
                None
                if causal
                else torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)[None, None]
            )
        return Masks(self, made)


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The masks of the pieces of a row, for the layers of one kind."""

    row: PackedRow
    of_pieces: list[Tensor | None]


# ---- transformers' interface ------------------------------------------------------------------------------
class _Unfit(TypeError):
    """A model asks for something that packed rows do not have."""


_row: ContextVar[PackedRow | None] = ContextVar("palaestra_packed_row", default=None)


@contextmanager
def packed(row: PackedRow | None) -> Iterator[None]:
    """Inside this block, models read `row`; with None, they read ordinary batches."""
    token = _row.set(row)
    try:
        yield
    finally:
        _row.reset(token)


def read_packed(model: Any, row: PackedRow) -> Tensor:
    """The last hidden states (tokens, width) of a row, by a model that `enable` has prepared."""
    device = model.get_input_embeddings().weight.device
    ids, positions = (torch.from_numpy(array)[None].to(device) for array in (row.ids, row.positions))
    with packed(row):
        # With a mask of two dimensions, transformers does not look for sequences by their positions.
        mask = torch.ones_like(ids)
        out = base_of(model)(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)
    return out.last_hidden_state[0]  # type: ignore[no-any-return]


def _packed_mask(*args: Any, mask_function: Callable[..., Any], dtype: torch.dtype, device: Any, **options: Any) -> Any:
    """transformers' mask function. It gets the mask of the layers of one kind as a function of positions."""
    row = _row.get()
    if row is None:
        return sdpa_mask(*args, **{**options, "mask_function": mask_function, "dtype": dtype, "device": device})
    if options.get("use_vmap"):
        raise _Unfit("its masks are not functions of positions alone")
    return row.masks(mask_function, dtype=dtype, device=torch.device(device))


def _packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention function: query (1, heads, tokens, width) to (1, tokens, heads, width)."""
    row = _row.get()
    if row is None:
        return _usual(module, query, key, value, attention_mask, **options)
    refused = [name for name in OUTSIDE if options.get(name) is not None]
    if refused or not isinstance(attention_mask, Masks) or attention_mask.row is not row:
        raise _Unfit(f"its attention needs {', '.join(refused) or 'another mask'}")
    queries, keys, values = (tensor.split(row.sizes, 2) for tensor in (query, key, value))
    out = []
    for mine, pieces, mask in zip(queries, row.keys, attention_mask.of_pieces, strict=True):
        near = [
            torch.cat([some[i] for i in pieces], 2) if len(pieces) > 1 else some[pieces[0]] for some in (keys, values)
        ]
        out.append(_attended(mine, near[0], near[1], mask, options))
    return torch.cat(out, 2).transpose(1, 2), None


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor:
    """Attention of (1, heads, queries, width) to (1, groups of heads, keys, width)."""
    scaling, cap, dropout = options.get("scaling"), options.get("softcap"), options.get("dropout") or 0.0
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if cap is None and dropout == 0.0 and query.dtype == torch.bfloat16 and query.device.type == "cpu":
        return low_attention(query, key, value, mask, scaling)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if cap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, dropout_p=dropout
        )
    scores = query @ key.transpose(2, 3) * scaling
    scores = torch.tanh(scores / cap) * cap
    if mask is None:
        mask = torch.full(scores.shape[2:], -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    weights = F.dropout((scores + mask).softmax(-1, dtype=torch.float32).to(query.dtype), dropout)
    return weights @ value


def _usual(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
    """The attention of an ordinary batch: sdpa, or the model's own where logits are capped."""
    if options.get("softcap") is None:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **options)
    if mask is None:
        tokens = query.shape[2]
        mask = torch.full((tokens, tokens), -torch.inf, dtype=query.dtype, device=query.device).triu(1)
    elif mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min  # finite, since padding sees nothing
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, lowest)
    return _attended(query, key, value, mask, options).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _packed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, _packed_mask)


def enable(model: Any) -> str:
    """Let a model read packed rows, if its numbers are the same in such a row.

    A model is tried on three short sequences, of which two begin alike. Weights of low precision are compared by the
    median over the tokens of a sequence.

    Returns: why the model cannot, and then nothing has changed; empty, if it reads packed rows from now on.
    """
    usual = model.config._attn_implementation
    caps = getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None
    if usual not in (("sdpa", "eager") if caps else ("sdpa",)):
        return f"its kernel of attention is `{usual}`, and only `sdpa` reads such rows"
    size = model.config.get_text_config().vocab_size
    some = [(37 * number + 101) % size for number in range(16)]  # the first ids are often special tokens
    ids = [np.array(one, np.int32) for one in (some[:7], [*some[:3], *some[7:10]], some[10:])]
    with torch.no_grad():
        try:
            row = PackedRow(ids, token=1e6)
            device = model.get_input_embeddings().weight.device
            alone = [
                base_of(model)(input_ids=torch.from_numpy(one)[None].long().to(device), use_cache=False)
                .last_hidden_state[0]
                .float()
                for one in ids
            ]
            _set(model, ATTENTION)
            found = read_packed(model, row).float()
        except Exception as error:  # whatever its code does with a row or a mask that it does not know
            _set(model, usual)
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            return said if isinstance(error, _Unfit) else f"its code fails there, {type(error).__name__}: {said}"
    apart = [
        (found[torch.from_numpy(places).to(device)] - own).norm(dim=-1) / own.norm(dim=-1)
        for places, own in zip(row.places, alone, strict=True)
    ]
    if model.dtype in (torch.float32, torch.float64):
        same = all(float(each.max()) <= 1e-3 for each in apart)
    else:  # with few digits, rounding alone may turn a token's state into another one
        same = all(float(each.median()) <= 0.1 for each in apart)
    if not same:
        _set(model, usual)
    return "" if same else "its numbers are others there, as where a layer keeps a state of its own"


def is_enabled(model: Any) -> bool:
    """Whether a model reads packed rows. Code that sets another attention, for instance to measure it, ends that."""
    return model.config.get_text_config()._attn_implementation == ATTENTION  # type: ignore[no-any-return]


def _set(model: Any, implementation: str) -> None:
    model.config._attn_implementation = implementation


def cost_of_token(model: Any) -> float:
    """The cost of a token in the linear maps of one layer, in pairs of a query and a key."""
    config = model.config.get_text_config()
    weights = sum(p.numel() for p in base_of(model).parameters() if p.ndim == 2) + hidden_weights(base_of(model))
    weights -= model.get_input_embeddings().weight.numel()
    return 2 * weights / config.num_hidden_layers / (4 * config.hidden_size)
