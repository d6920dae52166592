"""Find the sandboxes that this machine has, and choose one that is strong enough. No weaker one is used instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from palaestra.errors import PalaestraError, RecipeError, nearest
from palaestra.tools.sandbox.bubblewrap import BubblewrapSandbox
from palaestra.tools.sandbox.docker import DockerSandbox
from palaestra.tools.sandbox.protocol import Guarantees, Isolation, Sandbox
from palaestra.tools.sandbox.subprocesses import SubprocessSandbox
from palaestra.tools.sandbox.wasm import WasmSandbox

BACKENDS: dict[str, Callable[..., Sandbox]] = {
    "bubblewrap": BubblewrapSandbox,
    "docker": DockerSandbox,
    "wasmtime": WasmSandbox,
    "subprocess": SubprocessSandbox,
}
ANY_PROGRAM = ("bubblewrap", "docker", "subprocess")  # "auto" tries these in order; wasmtime runs WebAssembly only
LEVELS: tuple[Isolation, ...] = ("isolation", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A back end on this machine: its guarantees, or the reason why it cannot be used."""

    name: str
    guarantees: Guarantees | None
    reason: str = ""


def detect() -> list[Found]:
    """Try every back end on this machine, with its default options."""
    found = []
    for name, make in BACKENDS.items():
        try:
            sandbox = make()
        except PalaestraError as fault:
            found.append(Found(name=name, guarantees=None, reason=" ".join((fault.what, fault.remedy)).strip()))
            continue
        found.append(Found(name=name, guarantees=sandbox.guarantees()))
        sandbox.close()
    return found


def choose(*, require: str = "isolation", backend: str = "auto", **options: Any) -> Sandbox:
    """Make a sandbox that is at least as strong as required.

    Args:
        require: "isolation" for code that a model or a stranger wrote, "none" for code that you trust.
        backend: a name takes that back end and no other. "auto" takes the strongest one that runs any program.
        options: options of the back end. With "auto", use only `max_output`, `disk_mb` and `processes`, which all have.

    Raises: PalaestraError, if there is none. It says what is missing and how to get it.
    """
    if require not in LEVELS:
        raise RecipeError(where=f"sandbox.require: {require}", what="no such level of isolation.", options=LEVELS)
    if backend != "auto" and backend not in BACKENDS:
        raise RecipeError(
            where=f"sandbox.backend: {backend}",
            what=f"no sandbox `{backend}`.",
            options=nearest(backend, ("auto", *BACKENDS)),
        )
    reasons = []
    for name in ANY_PROGRAM if backend == "auto" else (backend,):
        if name == "subprocess" and require == "isolation":
            reasons.append("subprocess: it does not isolate.")
            continue
        try:
            return BACKENDS[name](**options)
        except PalaestraError as fault:
            if backend != "auto":
                raise
            reasons.append(f"{name}: {fault.what}\n{fault.remedy}".strip())
    raise PalaestraError(
        where=f"sandbox.require: {require}, backend: {backend}",
        what="no sandbox here is strong enough.",
        options=[name for name in ANY_PROGRAM if name != "subprocess"],
        remedy="\n".join(reasons) + '\nFor code that you trust completely, set `require` to "none".',
    )
