"""The table of adapters with the versions that they were tested with, made from the code."""

from __future__ import annotations

from site_pages.markdown import code, table

from palaestra.envs.adapters.versions import TESTED

MARK = "<!-- made: tested versions -->"
HEADER = ("environment", "package", "tested with", "installed by")


def adapters_table() -> str:
    """One line for each adapter."""
    return table(HEADER, [_line(name, one.package, one.version, one.extra) for name, one in sorted(TESTED.items())])


def _line(name: str, package: str, version: str, extra: str) -> tuple[str, ...]:
    own = "not needed" if name == "trl_class" else "Palaestra itself"
    return (f"[{code(name)}](../parts/environment.md#{name})", package, version, code(f"palaestra[{extra}]") or own)
