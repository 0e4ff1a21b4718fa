"""Ranks started by launchers, mostly without collectives.

This is a script: its first argument names a function, the others are for that.
"""

import atexit
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


def show_environment(names: str, *arguments: str) -> None:
    """Print variables of the environment, named in a list with commas."""
    print(*(os.environ[name] for name in names.split(",")), *arguments)


def show_interpreter(*arguments: str) -> None:
    print(os.environ["RANK"], sys.executable, *arguments)


def show_input() -> None:
    """Print the standard input, to its end."""
    print(repr(sys.stdin.read()))


def show_modules(names: str) -> None:
    """Print which modules, named in a list with commas, have been imported."""
    print(*(name in sys.modules for name in names.split(",")))


def show_the_end() -> None:
    """Print what the interpreter still runs and frees when the program has ended."""
    import numpy  # a forked rank has it from before

    def on_exit() -> None:
        import allhands.errors

        print("handler", allhands.errors.__name__ in sys.modules)

    atexit.register(on_exit)
    own = types.ModuleType("own")
    sys.modules["own"] = own
    own.marker = _Marker("module of the program")  # type: ignore[attr-defined]
    sys.marker = _Marker("module of Python")  # type: ignore[attr-defined]
    numpy.marker = _Marker("module of a package")  # type: ignore[attr-defined]
    socket.marker = _Marker("module of the library")  # type: ignore[attr-defined]
    globals()["marker"] = _Marker("program")


class _Marker:
    """An object that prints that it is freed."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __del__(self, write: Callable[[int, bytes], int] = os.write) -> None:
        write(1, f"freed in {self._place}\n".encode())


def show_cpus() -> None:
    print(sorted(os.sched_getaffinity(0)))


def show_a_word() -> None:
    print("ran")


def end_with(*statuses: str) -> NoReturn:
    """End each rank with its status of the list."""
    sys.exit(int(statuses[int(os.environ["RANK"])]))


def keep_a_key(value: str) -> None:
    """Set a key of the world's job, and print the variable of the folder."""
    import allhands as ah

    ah.init_process_group()
    ah.store().set("kept", value)
    print(os.environ.get("ALLHANDS_DATA_DIR", "unset"))
    ah.destroy_process_group()


def wait_to_end() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    show_environment("ALLHANDS_URL,ALLHANDS_TOKEN")
    signal.pause()


def write_pieces_of_lines() -> None:
    for _ in range(200):
        for piece in (b"half ", b"\xff", b"\rline", b"\n"):
            os.write(1, piece)
    os.write(2, b"to stderr\n")
    os.write(1, b"no line end")


def write_both_streams() -> None:
    print("out", os.environ["RANK"])
    print("err", file=sys.stderr)


def write_much_and_end(fifo: str) -> None:
    fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # more than waits elsewhere on the way
    Path(fifo).write_text(str(os.getpid()))
    for number in range(600):
        os.write(1, b"%d %s\n" % (number, bytes(1000)))


def write_for_ever() -> NoReturn:
    print(os.getpid())
    while True:
        print("more")


def write_long_lines_for_ever() -> NoReturn:
    while True:
        print("x" * 1000)


def hang() -> NoReturn:
    """Refuse to end, with a child in the rank's group and a child outside."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = [
        subprocess.Popen(["sleep", "600"], start_new_session=detached) for detached in (False, True)
    ]
    print("pids", os.getpid(), *(child.pid for child in children))
    while True:
        signal.pause()


def fail_beside_one_that_hangs(fifo: str) -> None:
    if os.environ["RANK"] == "0":
        open(fifo).close()
        raise SystemExit(5)
    hang()


def fail_beside_one_that_complains(fifo: str) -> None:
    def complain(*_: object) -> None:
        print("the other complains", file=sys.stderr)
        sys.exit(4)

    signal.signal(signal.SIGTERM, complain)
    if os.environ["RANK"] == "1":
        open(fifo, "w").close()  # waits until the other is ready
        raise ValueError("the reason")
    open(fifo).close()
    signal.pause()


def kill_rank_two() -> None:
    if os.environ["RANK"] == "2":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def end_one_after_the_other(fifo: str) -> None:
    if os.environ["RANK"] == "1":
        open(fifo).close()
    print("done", os.getpid())


def fail_and_let_the_victim_end_first(
    ready: str, failing: str, first: str = "0", go: str = ""
) -> NoReturn:
    """Fail rank `first` once somebody has written to `go`, and then the other, which ends first."""
    from allhands.runtime.exit_notice import send_end_notice

    if os.environ["RANK"] == first:
        if go:
            Path(go).read_text()
        victim = os.pidfd_open(int(Path(ready).read_text()))
        print("the reason", file=sys.stderr)
        send_end_notice(os.environ, is_failing=True)
        Path(failing).write_text("")
        select.select([victim], [], [])
        print("more of the reason", file=sys.stderr)
        os._exit(3)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    Path(ready).write_text(str(os.getpid()))
    Path(failing).read_text()
    print("a victim", file=sys.stderr)
    send_end_notice(os.environ, is_failing=True)
    os._exit(1)


def tidy_up_at(signum: str) -> None:
    def tidy(*_: object) -> None:
        print("tidied up")
        sys.exit(0)

    signal.signal(int(signum), tidy)
    print("ready")
    signal.pause()


def stay_after_signals() -> NoReturn:
    signal.signal(signal.SIGINT, lambda *_: print("interrupted"))
    signal.signal(signal.SIGTERM, lambda *_: print("asked to end"))
    print("ready")
    while True:
        signal.pause()


def leave_children() -> None:
    for detached in (False, True):
        child = subprocess.Popen(["sleep", "600"], start_new_session=detached)
        print(child.pid)
        child.returncode = 0  # or Python warns that it still runs


def send_as_another_user(path: str) -> None:
    """Exit with 7 where another user may not send to a socket."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"leaving", path)
    except PermissionError:
        sys.exit(7)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
