"""Runs a program with the system calls that a container engine's usual profile leaves it.

    container.py [--also CALL,...] PROGRAM ARGUMENT...

Of that profile these are the refusals that matter here: no namespaces and mounts, no userfaultfd,
no io_uring; clone3 does not exist, since a filter cannot see its flags.
"""

import ctypes
import errno
import os
import struct
import sys

# System calls of x86-64.
REFUSED = {
    "pivot_root": 155,
    "mount": 165,
    "umount2": 166,
    "unshare": 272,
    "perf_event_open": 298,
    "setns": 308,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
}
# What other profiles refuse too.
MORE = {"process_vm_readv": 310, "memfd_create": 319, "seccomp": 317, "membarrier": 324}
CLONE, CLONE3 = 56, 435
NEW_NAMESPACES = 0x7E020000

LOAD, EQUAL, ANY, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


def program(refused):
    """The filter: instructions of classic BPF on a struct seccomp_data."""
    yield LOAD, 0, 0, 0
    yield EQUAL, 0, 1, CLONE3
    yield RETURN, 0, 0, REFUSE | errno.ENOSYS
    for number in refused:
        yield EQUAL, 0, 1, number
        yield RETURN, 0, 0, REFUSE | errno.EPERM
    yield EQUAL, 0, 3, CLONE
    yield LOAD, 0, 0, 16
    yield ANY, 0, 1, NEW_NAMESPACES
    yield RETURN, 0, 0, REFUSE | errno.EPERM
    yield RETURN, 0, 0, ALLOW


def main():
    words = sys.argv[1:]
    refused = list(REFUSED.values())
    if words[0] == "--also":
        refused += [MORE[name] for name in words[1].split(",")]
        words = words[2:]
    code = [struct.pack("=HBBI", *instruction) for instruction in program(refused)]
    instructions = ctypes.create_string_buffer(b"".join(code))
    filter_ = struct.pack("HP", len(code), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, filter_):
        sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
