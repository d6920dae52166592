"""The filter as a program: (1) a refused call gives EPERM, `clone3` gives ENOSYS, all else is allowed; (2) a call for
another processor kills; (3) the flags of `clone` show new namespaces; (4) every jump stays inside the program.

An interpreter in this file executes the program with the few operations that it uses.
"""

from __future__ import annotations

import struct
from errno import ENOSYS, EPERM

import pytest

from palaestra.tools.sandbox import bpf

MACHINES = list(bpf.MACHINES)


def answer(machine: str, number: int, first: int = 0, audit: int | None = None, *, counted: bool = True) -> int:
    lines = list(struct.iter_unpack("=HBBI", bpf.refusing(machine, counted=counted)))
    data = struct.pack("=iIQ6Q", number, bpf.MACHINES[machine] if audit is None else audit, 0, first, *[0] * 5)
    place, value = 0, 0
    while True:
        operation, yes, no, operand = lines[place]
        place += 1
        if operation == bpf.RETURN:
            return operand
        if operation == bpf.LOAD:
            value = struct.unpack_from("=I", data, operand)[0]
            continue
        holds = {bpf.EQUAL: value == operand, bpf.AT_LEAST: value >= operand, bpf.ANY_BIT: bool(value & operand)}
        place += yes if holds[operation] else no


@pytest.mark.parametrize("machine", MACHINES)
def test_1_refusals(machine: str) -> None:
    column = MACHINES.index(machine)
    refused = {pair[column] for pair in bpf.REFUSED.values()}
    for number in range(460):
        expected = bpf.REFUSE | EPERM if number in refused else bpf.ALLOW
        assert answer(machine, number) == (bpf.REFUSE | ENOSYS if number == bpf.CLONE3 else expected), number
    assert {"ptrace", "mount", "bpf", "keyctl", "unshare", "io_uring_setup"} <= bpf.REFUSED.keys()


@pytest.mark.parametrize("machine", MACHINES)
def test_1_what_no_limit_counts(machine: str) -> None:
    for name, pair in bpf.UNCOUNTED.items():
        number = pair[MACHINES.index(machine)]
        assert answer(machine, number) == bpf.ALLOW, name
        assert answer(machine, number, counted=False) == bpf.REFUSE | EPERM, name


def test_1_the_second_interface_is_refused() -> None:
    assert answer("x86_64", bpf.X32 + 1) == bpf.REFUSE | EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_2_other_machines(machine: str) -> None:
    assert answer(machine, 0, audit=0x40000003) == bpf.KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_3_clone(machine: str) -> None:
    number = bpf.CLONE[machine]
    threads = 0x3D0F00  # what a library asks for a thread
    assert answer(machine, number, threads) == answer(machine, number, 17) == bpf.ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, number, 17 | flag) == bpf.REFUSE | EPERM


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
def test_4_jumps(machine: str, counted: bool) -> None:
    lines = list(struct.iter_unpack("=HBBI", bpf.refusing(machine, counted=counted)))
    assert len(lines) < 4096
    for place, (operation, yes, no, _) in enumerate(lines):
        assert place + 1 + max(yes, no) < len(lines) or operation == bpf.RETURN
    assert not bpf.known("riscv64")
