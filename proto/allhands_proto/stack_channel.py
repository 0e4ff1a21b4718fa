"""Python stacks of other processes of the host, even with a blocked interpreter.

A rank lets `faulthandler` write its main thread's stack into anonymous memory whenever it gets a
real-time signal of its choice. Its C handler runs on that thread itself and needs no lock of the
interpreter. Others of the same user send the signal and read the memory through /proc. Linux only.
"""

import asyncio
import faulthandler
import fcntl
import functools
import os
import re
import signal
import time
from pathlib import Path

from allhands_proto import process

_NAME = "python-stack"
READ_SECONDS = 0.2
"""For which a reader waits: a thread deep in the kernel may not take the signal before."""
_POLL_SECONDS = 0.01
_LARGEST = 1 << 16
# A text: `re` compiles it when it is first needed, which few starts of a job pay for.
_FRAME = r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$'


def open_channel() -> str:
    """Publish this process's stack to its user from now on; return the channel; "": impossible.

    For the life of the process: without its handler the signal would end it, and a reader may be
    about to send one. It costs one descriptor.
    """
    return _open_once(os.getpid())


@functools.cache
def _open_once(pid: int) -> str:
    try:
        number = _free_signal()
        memory = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        # So that a reader can empty it.
        flags = fcntl.fcntl(memory, fcntl.F_GETFL) | os.O_APPEND
        fcntl.fcntl(memory, fcntl.F_SETFL, flags)
        faulthandler.register(number, file=memory, all_threads=False)
    except (OSError, AttributeError):  # no /proc, no such calls
        return ""
    return f"{number}:{memory}"


async def read(pid: int, born: str, channel: str) -> str:
    """Return the main thread's stack of a process, innermost call last; "": unknown.

    `born` and `channel` are as it gave them when it joined.
    """
    number, _, memory = channel.partition(":")
    if not (number.isdecimal() and memory.isdecimal()) or not _is_real_time(int(number)):
        return ""
    path = Path(f"/proc/{pid}/fd/{memory}")
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return ""
        if not _catches(pid, int(number)) or process.inspect_process(pid, born) != "running":
            return ""
        os.truncate(path, 0)
        os.kill(pid, int(number))
        until = time.monotonic() + READ_SECONDS
        text = ""
        # Nothing tells of the end of what is written: it is over when it does not grow.
        while time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)
            text, before = _read(path), text
            if text and text == before:
                break
    except OSError:  # it has ended, or is another user's
        return ""
    return _format_stack(text)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LARGEST).decode(errors="replace")


def _format_stack(text: str) -> str:
    """Convert faulthandler's output into the form of a traceback."""
    frames = [found for line in text.splitlines() if (found := re.match(_FRAME, line))]
    return "".join(
        f'  File "{file}", line {line}, in {name}\n'
        for file, line, name in (found.groups() for found in reversed(frames))
    )


def _free_signal() -> int:
    """Choose a real-time signal not caught, ignored or blocked in this process."""
    status = _status(os.getpid())
    taken = status["SigCgt"] | status["SigIgn"] | status["SigBlk"]
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1:
            return number
    raise OSError("every real-time signal is taken")


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    return bool(_status(pid)["SigCgt"] >> (number - 1) & 1)


def _status(pid: int) -> dict[str, int]:
    """Return the kernel's signal sets of a process, by their names."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = dict(line.split(":\t", 1) for line in lines if line.startswith("Sig"))
    return {name: int(told[name], 16) for name in ("SigCgt", "SigIgn", "SigBlk")}


def _is_real_time(number: int) -> bool:
    return signal.SIGRTMIN <= number <= signal.SIGRTMAX
