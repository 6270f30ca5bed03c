"""A seccomp filter for drafted code: no new processes, no sockets, nothing of the kernel's administration.

`RLIMIT_NPROC` does not bind the superuser, and a sandbox may well be started by one; a filter binds everybody. Threads
stay allowed: torch needs them.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _GREATER_EQUAL, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000

_CALLS = {
    "x86_64": {
        "audit": 0xC000003E,
        "clone": 56,
        "clone3": 435,
        # fork, vfork, socket, socketpair, connect, bind, listen, ptrace, process_vm_readv, process_vm_writev, kill,
        # tkill, mount, umount2, pivot_root, chroot, setns, unshare, bpf, perf_event_open, keyctl, add_key, request_key,
        # userfaultfd, init_module, finit_module, delete_module, kexec_load, open_by_handle_at, io_uring_setup
        "refused": [57, 58, 41, 53, 42, 49, 50, 101, 310, 311, 62, 200, 165, 166, 155, 161, 308, 272, 321, 298, 250,
                    248, 249, 323, 175, 313, 176, 246, 304, 425],
    },
    "aarch64": {
        "audit": 0xC00000B7,
        "clone": 220,
        "clone3": 435,
        # socket, socketpair, connect, bind, listen, ptrace, process_vm_readv, process_vm_writev, kill, tkill, mount,
        # umount2, pivot_root, chroot, setns, unshare, bpf, perf_event_open, keyctl, add_key, request_key, userfaultfd,
        # init_module, finit_module, delete_module, kexec_load, open_by_handle_at, io_uring_setup
        "refused": [198, 199, 203, 200, 201, 117, 270, 271, 129, 130, 40, 39, 41, 51, 268, 97, 280, 241, 219, 217, 218,
                    282, 105, 273, 106, 104, 265, 425],
    },
}  # fmt: skip


def filter_program() -> bytes | None:
    """The filter as `struct sock_filter[]`, None on an architecture that it does not know."""
    known = _CALLS.get(platform.machine())
    if known is None:
        return None
    audit, clone, clone3, refused = (known[name] for name in ("audit", "clone", "clone3", "refused"))
    assert isinstance(refused, list)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_GREATER_EQUAL, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        # glibc asks for clone3 first and takes clone, whose flags a filter can read, when there is none.
        (_EQUAL, 0, 1, clone3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number in refused:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code += [
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_BITS, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
