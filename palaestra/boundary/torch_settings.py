"""Reads and sets what holds for all of torch in this process, or in this thread.

Each pair of functions is one setting: the first gives its value, which can be compared, and the second sets it. Those
that are read after each call of an environment take a fraction of a microsecond while nobody has set anything.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch.nn.modules import module
from torch.utils import _device
from torch.utils import _python_dispatch as dispatch

_C, _autograd = torch._C, torch._C._autograd
_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia", "privateuseone")  # those that torch.autocast knows
_KERNELS = tuple(
    (getattr(_C, f"_get_{name}_sdp_enabled"), getattr(_C, f"_set_sdp_use_{name}"))
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
)
_MODULE_HOOKS = tuple(name for name in vars(module) if name.startswith("_global_"))
_KINDS = tuple((backend, kind) for backend in ("cuda", "mkldnn") for kind in ("all", "matmul", "conv", "rnn"))
_PRODUCTS = (("generic", "all"), *_KINDS) if "_get_fp32_precision_getter" in vars(_C) else ()  # torch 2.9 has them


# ---- autocast ---------------------------------------------------------------------------------------------
def autocast() -> tuple[Any, ...]:
    """The devices for which it is on, with their dtypes."""
    if not _C._is_any_autocast_enabled():
        return ()
    return tuple((device, torch.get_autocast_dtype(device)) for device in _DEVICES if torch.is_autocast_enabled(device))


def set_autocast(wanted: tuple[Any, ...]) -> None:
    """Switch it on for these devices alone."""
    dtypes = dict(wanted)
    for device in _DEVICES:
        torch.set_autocast_enabled(device, device in dtypes)
        if device in dtypes:
            torch.set_autocast_dtype(device, dtypes[device])


def autocast_rest() -> tuple[Any, ...]:
    """How many of its contexts are entered, whether it keeps copies of weights, and the dtypes that it would take."""
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    return depth, torch.is_autocast_cache_enabled(), tuple(torch.get_autocast_dtype(device) for device in _DEVICES)


def set_autocast_rest(wanted: tuple[Any, ...]) -> None:
    """Set what `autocast_rest` gave."""
    depth, keeps, dtypes = wanted
    torch.clear_autocast_cache()  # the next update changes the weights that it has copies of
    for _ in range(depth, autocast_rest()[0]):
        torch.autocast_decrement_nesting()
    for _ in range(autocast_rest()[0], depth):
        torch.autocast_increment_nesting()
    torch.set_autocast_cache_enabled(keeps)
    for device, dtype in zip(_DEVICES, dtypes, strict=True):
        torch.set_autocast_dtype(device, dtype)


# ---- what stands between a call and its function ----------------------------------------------------------
def modes() -> tuple[Any, ...]:
    """The modes that change functions of torch, the outermost first. The default device is one of them."""
    if not _C._len_torch_function_stack() and not _C._len_torch_dispatch_stack():
        return ()
    default = vars(torch._GLOBAL_DEVICE_CONTEXT).get("device_context")
    functions = tuple(map(_C._get_function_stack_at, range(_C._len_torch_function_stack())))
    return functions, tuple(dispatch._get_current_dispatch_mode_stack()), _device.CURRENT_DEVICE, default


def set_modes(wanted: tuple[Any, ...]) -> None:
    """Set what `modes` gave."""
    functions, dispatches, device, default = wanted or ((), (), None, None)
    for _ in range(_C._len_torch_function_stack()):
        _C._pop_torch_function_stack()
    for mode in reversed(dispatch._get_current_dispatch_mode_stack()):
        dispatch._pop_mode(vars(type(mode)).get("_mode_key") or vars(mode).get("_mode_key"))
    for mode in functions:
        _C._push_on_torch_function_stack(mode)
    for mode in dispatches:
        dispatch._push_mode(mode)
    _device.CURRENT_DEVICE, torch._GLOBAL_DEVICE_CONTEXT.device_context = device, default


def saved_hooks() -> tuple[Any, ...]:
    """The hooks of tensors that are saved for gradients, the outermost first, and the message that refuses them."""
    refusal = _autograd._saved_tensors_hooks_get_disabled_error_message()
    if refusal is None and _autograd._top_saved_tensors_default_hooks(True) is None:
        return ()
    now = _pop_saved_hooks(), refusal
    set_saved_hooks(now)
    return now


def _pop_saved_hooks() -> tuple[Any, ...]:
    """Take all of them away, and allow new ones."""
    pairs: list[Any] = []
    _autograd._saved_tensors_hooks_enable()
    while (pair := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        _autograd._pop_saved_tensors_default_hooks()
        pairs.append(pair)
    return tuple(pairs[::-1])


def set_saved_hooks(wanted: tuple[Any, ...]) -> None:
    """Set what `saved_hooks` gave."""
    pairs, refusal = wanted or ((), None)
    _pop_saved_hooks()
    for pair in pairs:
        _autograd._push_saved_tensors_default_hooks(*pair)
    if refusal is not None:
        _autograd._saved_tensors_hooks_disable(refusal, False)


def module_hooks() -> tuple[Any, ...]:
    """The hooks that torch calls for all modules."""
    values = [vars(module)[name] for name in _MODULE_HOOKS]
    if not any(values):
        return ()
    return tuple(dict(value) if isinstance(value, dict) else value for value in values)


def set_module_hooks(wanted: tuple[Any, ...]) -> None:
    """Set what `module_hooks` gave."""
    for name, value in zip(_MODULE_HOOKS, wanted or [None] * len(_MODULE_HOOKS), strict=True):
        if isinstance(vars(module)[name], dict):  # others hold the same dictionary
            vars(module)[name].clear()
            vars(module)[name].update(value or {})
        else:
            vars(module)[name] = value


# ---- which code computes ----------------------------------------------------------------------------------
def attention() -> tuple[Any, ...]:
    """Which kernels of attention torch may choose, and in which order it tries them."""
    return (*[enabled() for enabled, _ in _KERNELS], _C._get_sdp_priority_order())


def set_attention(wanted: tuple[Any, ...]) -> None:
    """Set what `attention` gave."""
    *enabled, order = wanted
    for (_, allow), on in zip(_KERNELS, enabled, strict=True):
        allow(on)
    _C._set_sdp_priority_order(order)


def precision() -> tuple[Any, ...]:
    """One setting for all products, and newer ones by device and kind.

    torch refuses to read the first if the others contradict it. Then it is None.
    """
    common: str | None = None
    with suppress(RuntimeError):
        common = torch.get_float32_matmul_precision()
    return common, tuple(_C._get_fp32_precision_getter(*product) for product in _PRODUCTS)


def set_precision(wanted: tuple[Any, ...]) -> None:
    """Set what `precision` gave."""
    common, kinds = wanted
    if common is not None:
        torch.set_float32_matmul_precision(common)
    for product, one in zip(_PRODUCTS, kinds, strict=True):
        _C._set_fp32_precision_setter(*product, one)


def anomalies() -> tuple[bool, bool]:
    """Whether torch looks for anomalies in gradients, and for NaN."""
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def set_anomalies(wanted: tuple[bool, bool]) -> None:
    """Set what `anomalies` gave."""
    torch.autograd.set_detect_anomaly(*wanted)


def cudnn() -> tuple[bool, bool]:
    """Two flags."""
    return torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic


def set_cudnn(flags: tuple[bool, bool]) -> None:
    """Set what `cudnn` gave."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = flags
