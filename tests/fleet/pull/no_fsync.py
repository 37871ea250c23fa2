"""Runs a program on whose machine nothing can be fsynced: the kernel answers EINVAL, as some file systems do.

    python -m tests.fleet.pull.no_fsync PROGRAM ARGUMENT...

A seccomp filter, which every child inherits: the answer comes from the kernel, to whoever asks, sqlite included.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

FSYNC = {"x86_64": (74, 75), "aarch64": (82, 83)}
"""Numbers of fsync and fdatasync."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid_fsync() -> None:
    """From now on fsync and fdatasync fail with EINVAL in this process and its children; raises OSError."""
    fsync, fdatasync = FSYNC[platform.machine()]
    code = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (_LOAD_NUMBER, 0, 0, 0),
            (_JUMP_IF_EQUAL, 1, 0, fsync),
            (_JUMP_IF_EQUAL, 0, 1, fdatasync),
            (_RETURN, 0, 0, _ERRNO | errno.EINVAL),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(code) // 8, code)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    forbid_fsync()
    os.execvp(sys.argv[1], sys.argv[1:])
