"""Fork server of a launch: an interpreter that has imported what ranks need, and forks them.

Part of the ranks' interpreter, called in its start by `rank_site/sitecustomize.py`. It serves one
launch, has one thread, and ends when all ranks are forked: the kernel then makes them children of
the launcher, which has declared itself a subreaper, as if it had started each of them.
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from typing import TypeAlias

from allhands.launcher.pdeathsig_exec import die_with_parent
from allhands.runtime.module_teardown import KeptModules

VARIABLE = "ALLHANDS_FORK_SERVER"
"""Holds the descriptors of the socket and of the starting pipe, and the launcher's pid."""
READY = b"ready"
_LARGEST_REQUEST = 1 << 20
_USED_BY_RANKS = (
    *("init_process_group", "destroy_process_group", "get_rank", "new_group"),
    *("all_reduce", "barrier", "send"),
)


def serve(folder: str) -> None:
    """Fork a rank for each request; return in the ranks only.

    `folder` is the one on the path for this call, and is taken off it.
    """
    kept = KeptModules()
    try:
        sys.path.remove(folder)
        sys.path_importer_cache.pop(folder, None)
        control, start, launcher = map(int, os.environ.pop(VARIABLE).split(","))
        die_with_parent(launcher)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell lets background commands ignore it. A rank may be sent one.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with socket.socket(fileno=control) as channel:
            if obstacle := _preload(kept) or _find_obstacle():
                channel.send(obstacle.encode())
                os._exit(0)
            channel.send(READY)
            variables, has_input, stdout, stderr = _fork_ranks(channel)
            _leave_server(channel, has_input, stdout, stderr)
        _wait_start(start, launcher)
        _set_variables(variables)
    except SystemExit as reason:
        sys.stderr.write(f"{reason}\n")
        os._exit(1)
    except BaseException:
        # Not left to the interpreter, which would go on and run the program.
        traceback.print_exc()
        os._exit(1)


def _preload(kept: KeptModules) -> str:
    """Import what a rank needs to join a world and to make its first calls; return why not."""
    gc.disable()  # of new objects alone the collections would look at all that there are
    try:
        import allhands

        for name in _USED_BY_RANKS:
            getattr(allhands, name)
    except Exception as error:  # whatever a rank would meet, it meets by itself
        return f"imports failed: {type(error).__name__}: {error}"
    # What is there now stays: a collection in a rank need not write to it, and so copy its pages,
    # nor need the end of the rank. There is little garbage in it.
    kept.keep_loaded()
    gc.enable()
    return ""


def _find_obstacle() -> str:
    """Return why this process must not be forked; empty: nothing is in the way."""
    threads = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            threads.append(file.read().strip())
    if len(threads) > 1:
        return f"imports have started threads ({', '.join(threads)})"
    if "numpy.random" in sys.modules:
        return "numpy.random has been imported, and all ranks would draw the same numbers"
    return ""


Request: TypeAlias = tuple[dict[str, str | None], bool, int, int]
"""Variables of a rank's environment, None: it has none of that name; whether it keeps the server's
stdin; its stdout and stderr."""


def _fork_ranks(channel: socket.socket) -> Request:
    """Fork a rank for each request, and return its request there; end when no more come."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_REQUEST, 2)
        if not message:
            os._exit(0)
        stdout, stderr = descriptors
        if os.fork() == 0:
            variables, has_input = json.loads(message)
            return variables, has_input, stdout, stderr
        os.close(stdout)
        os.close(stderr)


def _leave_server(channel: socket.socket, has_input: bool, stdout: int, stderr: int) -> None:
    """Give this process a session, input and output of its own, and tell the launcher its pid."""
    os.setsid()
    targets = {1: stdout, 2: stderr}
    if not has_input:
        targets[0] = os.open(os.devnull, os.O_RDONLY)
    for target, source in targets.items():
        os.dup2(source, target)
        os.close(source)
    # Only now: from here on the launcher signals the group of that number.
    channel.send(str(os.getpid()).encode())


def _wait_start(start: int, launcher: int) -> None:
    """Wait until the launcher is the parent of this process, and die with it from then on.

    Raises:
        SystemExit: the launcher has ended, or has given the launch up.
    """
    if not os.read(start, 1):
        sys.exit("allhands: the launcher is gone")
    os.close(start)
    die_with_parent(launcher)


def _set_variables(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
