"""Sharding: the weights of a module spread over several processes, by FSDP2 of torch.

Each process keeps a slice of every weight, of its gradient and of its optimizer state. Torch gathers the whole weights
of one block just before that block is evaluated, and frees them afterwards. All processes must therefore evaluate, and
backpropagate, equally often. FSDP2 is imported where it is used, since its import takes long.
"""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn

from palaestra.errors import RecipeError
from palaestra.models.quantized import is_quantized

MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}  # states with the shape of their parameter


def shard(module: nn.Module, *, returns: type) -> None:
    """Spread the weights of a module over all processes of torch's process group, in place.

    The blocks of a transformer are gathered one at a time, and all other weights together. After a backward pass, the
    gradients are the sums over all processes.

    Args:
        returns: the dataclass that `forward` returns.

    Raises: RecipeError, for a model with quantized weights: torch spreads weights of one type only, and codes beside
        other weights are of two.
    """
    if is_quantized(module):
        raise RecipeError(
            where="training.shard",
            what="a model whose weights are held in 4 or 8 bits cannot be spread over processes.",
            remedy="Leave `training.shard` out: each process then holds the codes of all weights. "
            "Or leave `quantize` out.",
        )
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    _find_tensors_in(returns)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # no caller changes outputs in place
    first = next(module.parameters())
    mesh = init_device_mesh(first.device.type, (dist.get_world_size(),))
    # Torch gathers weights of one type together: a value head has float32 beside a model in bfloat16.
    others = [part for part in module.modules() if any(p.dtype != first.dtype for p in part.parameters(recurse=False))]
    for part in (*others, *blocks(module), module):
        fsdp.fully_shard(part, mesh=mesh)
    for part in module.modules():
        if isinstance(part, fsdp.FSDPModule):
            part.set_gradient_divide_factor(1.0)  # the sum, not the mean
            part.set_force_sum_reduction_for_comms(True)  # gloo supports sums only


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The repeated blocks of the models of transformers in a module, as these models name them."""
    models = [part for part in module.modules() if isinstance(part, transformers.PreTrainedModel)]
    names = {name for model in models for name in model._no_split_modules or ()}
    return (part for part in module.modules() if type(part).__name__ in names)


def copied(module: nn.Module, change: Callable[[Tensor], Tensor] = torch.clone) -> nn.Module:
    """A copy of a module with its own weights. That of a sharded one, which torch cannot copy, has the same slices; it
    shares all else with the module and serves optimizers, which read names, kinds and weights.

    Args:
        change: makes each weight of the copy from a weight of the module, such as one of another type.
    """
    if not any(is_spread(p) for p in module.parameters()):
        made = copy.deepcopy(module)
        for parameter in made.parameters():
            parameter.data = change(parameter.data)
        return made
    # A spread tensor keeps its slice if another one is assigned to its `data`.
    weights = {id(p): nn.Parameter(change(p.detach()).clone(), p.requires_grad) for p in module.parameters()}
    return _like(module, weights)


def _like(module: nn.Module, weights: Mapping[int, nn.Parameter]) -> nn.Module:
    from torch.distributed.fsdp import FSDPModule

    kinds = type(module).__mro__
    kind = kinds[2] if isinstance(module, FSDPModule) else kinds[0]  # torch puts two classes before the module's own
    made: nn.Module = object.__new__(kind)
    made.__dict__.update(module.__dict__)
    made._parameters = {name: None if p is None else weights[id(p)] for name, p in module._parameters.items()}
    made._modules = {name: None if part is None else _like(part, weights) for name, part in module._modules.items()}
    return made


def is_spread(tensor: Tensor) -> bool:
    """Whether each process holds only a slice of the tensor."""
    kinds = sys.modules.get("torch.distributed.tensor")  # as long as it is not imported, no tensor is spread
    return kinds is not None and isinstance(tensor, kinds.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The complete tensor. A spread one is gathered from all processes, which must call this together."""
    return tensor.full_tensor() if is_spread(tensor) else tensor  # type: ignore[no-any-return, attr-defined]


def spread_like(tensor: Any, target: Any) -> Any:
    """Spread a complete tensor like `target`, if that is spread and as large. All processes call this together."""
    if not is_spread(target) or is_spread(tensor) or tensor.shape != target.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, target.device_mesh, target.placements)


def load_weights(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load complete weights into a module, whether it is spread or not.

    Raises: RuntimeError, if names or shapes differ.
    """
    there = module.state_dict()
    module.load_state_dict({name: spread_like(tensor, there.get(name)) for name, tensor in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load the complete state of an optimizer, whether its parameters are spread or not.

    Raises: ValueError, if a moment has another shape than its parameter; torch would notice that only in an update.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, of_parameter in state["state"].items():
        for name in MOMENTS & of_parameter.keys():
            there, here = tuple(of_parameter[name].shape), tuple(parameters[place].shape)
            if there != here:
                raise ValueError(f"`{name}` of parameter {place} has the shape {there}, and the parameter has {here}")
    slices = {
        place: {name: spread_like(value, parameters[place]) for name, value in of_parameter.items()}
        for place, of_parameter in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": slices})


@functools.cache
def _find_tensors_in(kind: type) -> None:
    """Register the dataclass, so that torch finds the tensors in its objects."""
    from torch.export import register_dataclass

    register_dataclass(kind)
