"""FakeDevice: a device that is none. It computes on the CPU and refuses what a GPU refuses, so that a forgotten move is
found on a machine without a GPU.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd import Function as Differentiable
from torch.nn import functional
from torch.utils import _pytree as tree
from torch.utils._device import _device_constructors
from torch.utils._mode_utils import no_dispatch

NAME = "privateuseone"  # the name that torch keeps free for devices of others
DEVICE = torch.device(NAME, 0)
LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}  # take indices of the CPU
COPYING = {"aten::copy_", "aten::_foreach_copy_"}


class FakeDevice:
    """While it is entered, torch has one more device; entering gives its name.

        with FakeDevice() as device:
            policy.module.to(device)
            policy.forward(samples, which, ("logprob", "value"))   # an input that stays behind raises

    A tensor on it has the numbers that it would have on the CPU, so a run there equals a run on the CPU. As with CUDA,
    an operation on tensors of both raises RuntimeError; scalar tensors and indices may be of the CPU. `numpy()` of a
    tensor on it raises TypeError, and so does saving one: a file is to be read on machines without the device.

    Random numbers come from the CPU's generators. It does not show what another order of sums would change, what a
    copy costs, or kernels that a GPU lacks.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> str:
        module = types.SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            manual_seed_all=lambda seed: None,
            _is_in_bad_fork=lambda: False,
        )
        self._stack.enter_context(mock.patch.object(torch, NAME, module, create=True))
        self._stack.callback(torch.get_device_module.cache_clear)
        makers = {maker.__name__ for maker in _device_constructors()} | set(LIKE)
        for name in sorted(makers):
            if hasattr(torch, name):  # those of torch.fft have other names
                self._stack.enter_context(mock.patch.object(torch, name, _makes(getattr(torch, name))))
        self._stack.enter_context(mock.patch.object(Tensor, "to", _to_either(Tensor.to)))
        return NAME

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class OnDevice(Tensor):
    """A tensor on the fake device, around one on the CPU with its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        """Around `held`, which shares its memory with it."""
        made: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.held})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        if id(self) not in memo:
            copied: Any = OnDevice(self.held.clone()).requires_grad_(self.requires_grad)
            memo[id(self)] = nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied
        found: OnDevice = memo[id(self)]
        return found

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a tensor on the fake device is saved or sent: bring it to the CPU first.")

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, Tensor], _: None, size: Any, stride: Any) -> OnDevice:
        return OnDevice(inner["held"])

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What Python asks: where a tensor is, and to move it."""
        kwargs = dict(kwargs or {})
        special = _SPECIAL.get(function)
        if special is not None:
            return special(*args, **kwargs)
        leaves = "device" in kwargs and kwargs["device"] is not None and not _is_ours(kwargs["device"])
        if "device" in kwargs:
            kwargs["device"] = None
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **kwargs)
        return _Leave.apply(made) if leaves and isinstance(made, OnDevice) else made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What is computed: on the CPU, if all tensors are here."""
        kwargs = kwargs or {}
        _refuse_mixed(function, args, kwargs)
        wraps = {id(one.held): one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, OnDevice)}
        made = function(*tree.tree_map(_held, args), **tree.tree_map(_held, kwargs))
        if function._schema.name in COPYING and not isinstance(args[0], OnDevice | list | tuple):
            return args[0]  # a copy from here to the CPU
        if torch.Tag.inplace_view in function.tags:  # `transpose_`: the shape outside follows
            with no_dispatch():
                function(*args, **kwargs)
        return tree.tree_map(lambda one: _wrapped(one, wraps), made)


def _held(one: Any) -> Any:
    return one.held if isinstance(one, OnDevice) else one


def _wrapped(one: Any, wraps: Mapping[int, OnDevice]) -> Any:
    if not isinstance(one, Tensor) or isinstance(one, OnDevice):
        return one
    return wraps[id(one)] if id(one) in wraps else OnDevice(one)


def _refuse_mixed(function: Any, args: Any, kwargs: Any) -> None:
    """Raises: RuntimeError, for tensors of both devices, as CUDA does."""
    name = function._schema.name
    if name in COPYING:
        return
    checked = (args[0], *args[2:]) if name in INDEXING else args
    tensors = [one for one in tree.tree_leaves((checked, kwargs)) if isinstance(one, Tensor)]
    behind = [one for one in tensors if not isinstance(one, OnDevice) and one.ndim > 0]
    if torch._C._current_graph_task_id() != -1:  # in a backward pass, torch itself makes zeros where nothing came back
        behind = [one for one in behind if bool(one.any())]
    if behind:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
            f"({name} with a tensor of shape {tuple(behind[0].shape)} on the CPU)"
        )


# ---- moving -----------------------------------------------------------------------------------------------
class _Enter(Differentiable):
    """From the CPU to the device."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Any:
        return OnDevice(tensor.detach().clone())

    @staticmethod
    def backward(ctx: Any, *gradient: Any) -> Any:
        return gradient[0].held.clone()


class _Leave(Differentiable):
    """From the device to the CPU."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return tensor.held.detach().clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Any) -> Any:
        return OnDevice(gradient[0].clone())


def _is_ours(device: Any) -> bool:
    return isinstance(device, str | torch.device) and torch.device(device).type == NAME


def _wish(*args: Any, device: Any = None, dtype: Any = None, other: Any = None, **kwargs: Any) -> tuple[Any, Any, bool]:
    """What `to` is asked for: a device and a type (None: as it is), and whether to copy in any case."""
    for one in args:
        if isinstance(one, str | torch.device):
            device = one
        elif isinstance(one, torch.dtype):
            dtype = one
        elif isinstance(one, Tensor):
            other = one
    if other is not None:
        device, dtype = other.device, other.dtype
    return device, dtype, bool(kwargs.get("copy", False))


def _to_either(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(plain)
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, OnDevice):
            return _moved(self, *args, **kwargs)
        device, dtype, _ = _wish(*args, **kwargs)
        if not _is_ours(device):
            return plain(self, *args, **kwargs)
        return _Enter.apply(self if dtype is None else plain(self, dtype))

    return to


def _moved(self: OnDevice, *args: Any, **kwargs: Any) -> Any:
    device, dtype, copies = _wish(*args, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        here = self if dtype is None else _PLAIN_TO(self, dtype)
        here = here.clone() if copies and here is self else here
    return here if device is None or _is_ours(device) else _Leave.apply(here)


def _makes(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes tensors, also on the device."""

    @functools.wraps(plain)
    def make(*args: Any, **kwargs: Any) -> Any:
        here = _is_ours(kwargs.get("device"))
        if not here or any(isinstance(one, OnDevice) for one in args):  # a tensor of the device sees to it by itself
            return plain(*args, **kwargs)
        gradient = kwargs.pop("requires_grad", False)
        made = OnDevice(plain(*args, **{**kwargs, "device": "cpu"}))
        return made.requires_grad_(gradient)

    return make


def _no_numpy(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy it to the CPU first."
    )


def _one_hot(ids: OnDevice, num_classes: int = -1) -> OnDevice:
    return OnDevice(functional.one_hot(ids.held, num_classes))  # it makes a tensor inside, which nothing sees here


def _gru(*args: Any, **kwargs: Any) -> Any:
    """As cuDNN: what a GRU gives in evaluation mode has no gradient."""
    with torch._C.DisableTorchFunctionSubclass():
        made, last = torch.gru(*args, **kwargs)
    if args[-3] is False and made.requires_grad:
        made.register_hook(_refuse_gradient)
    return made, last


def _refuse_gradient(_: Tensor) -> NoReturn:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")


_PLAIN_TO = Tensor.to
_SPECIAL: dict[Any, Callable[..., Any]] = {
    Tensor.device.__get__: lambda tensor: DEVICE,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda tensor: False,  # type: ignore[attr-defined]
    Tensor.get_device: lambda tensor: 0,
    Tensor.to: _moved,
    Tensor.cpu: lambda tensor, **_: _Leave.apply(tensor),
    Tensor.numpy: _no_numpy,
    Tensor.__array__: _no_numpy,
    Tensor.tolist: lambda tensor: tensor.held.tolist(),
    functional.one_hot: _one_hot,
    torch.gru: _gru,
    Tensor.data_ptr: lambda tensor: tensor.held.data_ptr(),
    Tensor.untyped_storage: lambda tensor: tensor.held.untyped_storage(),
    Tensor.__deepcopy__: OnDevice.__deepcopy__,
}
