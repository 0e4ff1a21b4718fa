"""A process that has imported everything and forks the processes of tests.

Importing takes most of the time of a short job, so it is done once. A child has descriptors, an
environment and an end of its own, as if it had been started alone.
"""

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

_LARGEST_REQUEST = 1 << 17
_PR_SET_PDEATHSIG = 1


def _preload() -> None:
    import numpy  # noqa: F401
    import psutil  # noqa: F401

    import allhands.aio
    import allhands.api.collectives
    import allhands.cli.serve
    import allhands.runtime.native_core
    import allhands_server.daemon  # noqa: F401
    import programs.protocol  # noqa: F401
    import support.arrays.collective_cases  # noqa: F401

    allhands.runtime.native_core.find()


def _serve(door: socket.socket) -> dict[str, Any] | None:
    """Fork children on request; return each child's task in the child, None at the end."""
    hearing, alarm = socket.socketpair()
    hearing.setblocking(False)
    alarm.setblocking(False)
    signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([door, hearing], [], [])
        if hearing in ready:
            hearing.recv(4096)
            _report(door)
        if door not in ready:
            continue
        text, descriptors, _, _ = socket.recv_fds(door, _LARGEST_REQUEST, 3)
        if not text:
            return None
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # so that it can be ended with all that it starts
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # tests may be killed
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (door, hearing, alarm):
                own.close()
            for place, descriptor in enumerate(descriptors):
                os.dup2(descriptor, place)
                os.close(descriptor)
            request: dict[str, Any] = json.loads(text)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # whichever of the two is first
        door.send(json.dumps({"started": pid}).encode())


def _join_namespaces(holder: int) -> None:
    """Move to the host, as a network namespace is, that this process holds."""
    library = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "uts"):
        with open(f"/proc/{holder}/ns/{kind}") as namespace:
            if library.setns(namespace.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"cannot join the {kind} namespace of {holder}")


def _report(door: socket.socket) -> None:
    """Report the ended children."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        door.send(json.dumps({"ended": pid, "status": code}).encode())


if __name__ == "__main__":
    _preload()
    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if _request is not None:
        os.environ.clear()
        os.environ.update(_request["environment"])
        if _request.get("holder") is not None:
            _join_namespaces(_request["holder"])
        if "module" in _request:
            sys.argv = ["-m", *_request["arguments"]]
            runpy.run_module(_request["module"], run_name="__main__", alter_sys=True)
        else:
            # At this level: an exception that leaves the program ends the interpreter as usual.
            _module, _function = _request["program"]
            getattr(importlib.import_module(_module), _function)(*_request["arguments"])
