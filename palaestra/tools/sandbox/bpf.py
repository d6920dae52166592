"""The filter of system calls that bubblewrap loads: a BPF program for the kernel, for x86-64 and 64-bit ARM.

A refused call gives EPERM. `clone3`, whose flags a filter cannot read, gives ENOSYS, so that libraries use `clone`.
"""

from __future__ import annotations

import platform
import struct
from errno import ENOSYS, EPERM

# ---- classic BPF: (operation, jump if true, jump if false, operand) -----------------------------------------
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER_AT, MACHINE_AT, FLAGS_AT = 0, 4, 16  # offsets in struct seccomp_data; flags: low half of the first argument

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000  # numbers from here on belong to the x32 interface of x86-64
NEW_NAMESPACES = 0x7E020080  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} and NEWTIME
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435  # from 424 on, all machines share their numbers

REFUSED = {
    #                    x86-64 64-bit ARM
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "personality": (135, 92),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
UNCOUNTED = {  # these hold memory that no limit of a process counts; only a control group does
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "vmsplice": (278, 75),
}


def known(machine: str | None = None) -> bool:
    """Whether there is a filter for this processor."""
    return (machine or platform.machine()) in MACHINES


def refusing(machine: str | None = None, *, counted: bool = True) -> bytes:
    """The filter as the kernel reads it: an array of `struct sock_filter`.

    Args:
        counted: whether a control group counts all memory. False: the calls in `UNCOUNTED` are refused too.

    Raises: KeyError, for a processor that is not `known`.
    """
    machine = machine or platform.machine()
    column = list(MACHINES).index(machine)
    refused = REFUSED if counted else REFUSED | UNCOUNTED
    numbers = sorted({pair[column] for pair in refused.values()})
    lines = [
        (LOAD, 0, 0, MACHINE_AT),
        (EQUAL, 1, 0, MACHINES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if machine == "x86_64":
        lines += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, REFUSE | EPERM)]
    lines += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, REFUSE | ENOSYS)]
    lines += [(EQUAL, 0, 4, CLONE[machine]), (LOAD, 0, 0, FLAGS_AT), (ANY_BIT, 0, 1, NEW_NAMESPACES)]
    lines += [(RETURN, 0, 0, REFUSE | EPERM), (RETURN, 0, 0, ALLOW)]
    for number in numbers:
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | EPERM)]
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
