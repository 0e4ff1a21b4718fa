"""Trial of shared memory: two processes, as two ranks are, of which one looks into the other.

Neither is the parent of the other: the kernel lets parents look into children where it lets nobody
else.
"""

import ctypes
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping

from allhands.doctor.machine import MemoryTrial
from allhands.runtime import native_core

_SECONDS = 20.0
_NBYTES = 1 << 20
_WORD = b"allhands"


def run_trial(seconds: float = _SECONDS) -> MemoryTrial:
    """Start two processes, and return whether one can map and read memory of the other."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(
        [*command, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        # It ends when it reads the end of its input, on leaving the block at the latest.
        assert holder.stdout is not None
        if not select.select([holder.stdout], [], [], seconds)[0]:
            holder.kill()
        announced = holder.stdout.readline()
        if not announced:
            text = f"the process that was to share it ended with {holder.wait(seconds)}"
            return MemoryTrial(text, text)
        try:
            told = subprocess.run(
                [*command, "look", announced],
                capture_output=True,
                text=True,
                timeout=seconds,
                check=True,
            ).stdout
        except subprocess.SubprocessError as error:
            return MemoryTrial(str(error), str(error))
    return MemoryTrial(**json.loads(told))


def _hold() -> None:
    """Share memory, say where it is, and wait for the end of the input."""
    core, problem = native_core.find()
    held = ctypes.create_string_buffer(_WORD)
    nonce = os.urandom(16)
    segment = None
    if core is not None:
        try:
            segment = core.Segment.create(_NBYTES, nonce)
        except OSError as error:
            problem = f"no shared memory can be made: {error}"
    told = {
        "pid": os.getpid(),
        "fd": -1 if segment is None else segment.fd,
        "nonce": nonce.hex(),
        "problem": problem,
        "address": ctypes.addressof(held),
    }
    _say(told)
    sys.stdin.read()


def _look(announced: str) -> None:
    told = json.loads(announced)
    pid: int = told["pid"]
    _say(
        {
            "map_problem": told["problem"] or _map(pid, told["fd"], told["nonce"]),
            "attach_problem": _read_word(pid, told["address"]),
        }
    )


def _say(told: Mapping[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def _map(pid: int, fd: int, nonce: str) -> str:
    """Map memory as ranks do; return the problem, or nothing."""
    core, problem = native_core.find()
    if core is None:
        return problem
    try:
        core.Segment.open(f"/proc/{pid}/fd/{fd}", _NBYTES, bytes.fromhex(nonce))
    except OSError as error:
        return str(error)
    return ""


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def _read_word(pid: int, address: int) -> str:
    """Read memory of another process; return the problem, or nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        read = libc.process_vm_readv
    except AttributeError:
        return "this C library has no process_vm_readv"
    out = ctypes.create_string_buffer(len(_WORD))
    here, there = _Span(ctypes.addressof(out), len(_WORD)), _Span(address, len(_WORD))
    one = ctypes.c_ulong(1)
    done = read(pid, ctypes.byref(here), one, ctypes.byref(there), one, ctypes.c_ulong(0))
    if done < 0:
        return f"process_vm_readv: {os.strerror(ctypes.get_errno())}"
    return "" if out.raw == _WORD else "process_vm_readv read something else than what is there"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hold"]:
            _hold()
        case ["look", text]:
            _look(text)
