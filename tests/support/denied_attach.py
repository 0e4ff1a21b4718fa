"""`python denied_attach.py COMMAND...`: run a command that may not read memory of others.

A seccomp filter denies process_vm_readv, as the profiles of container engines do.
"""

import ctypes
import os
import platform
import struct
import sys

CALLS = {"x86_64": 310, "aarch64": 270}
"""Number of process_vm_readv, by machine."""
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_MODE_FILTER = 2
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM = 1


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny(call: int) -> None:
    """Have a system call fail with EPERM in this process and its children.

    Raises:
        OSError: the kernel takes no filters.
    """
    steps = (
        (_LOAD_WORD, 0, 0, 0),  # the number of the call
        (_JUMP_EQUAL, 0, 1, call),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    )
    text = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), text)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    deny(CALLS[platform.machine()])
    os.execvp(sys.argv[1], sys.argv[1:])
