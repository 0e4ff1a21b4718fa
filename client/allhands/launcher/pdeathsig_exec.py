"""Entry of a rank's process: die with the launcher, bind to CPUs, then exec the program.

Runs as `python -I -S pdeathsig_exec.py LAUNCHER_PID CPUS PROGRAM ARGUMENTS...`, with CPUS as `0,1`
or `-` for all, and therefore imports nothing but the standard library. Exits with a shell's
statuses if it cannot exec. A program of its own rather than a `preexec_fn`, because Python code
between fork and exec may deadlock where the launcher has threads, and gRPC has some.
"""

import ctypes
import errno
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # as in POSIX, XCU 2.8.2


def die_with_parent(launcher: int) -> None:
    """Let the kernel kill this process when its parent ends, which has to be the launcher.

    Raises:
        SystemExit: the launcher has ended already.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != launcher:
        sys.exit("allhands: the launcher is gone")  # it died before the leash was on


def main() -> None:
    launcher, cpus, *program = sys.argv[1:]
    die_with_parent(int(launcher))
    if cpus != "-":
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    # A shell lets background commands ignore SIGINT; to a rank the launcher may want to send one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execv(program[0], program)
    except OSError as error:
        more = "; its first line names no interpreter" if error.errno == errno.ENOEXEC else ""
        sys.stderr.write(f"allhands: {program[0]} cannot be run: {error.strerror}{more}\n")
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


if __name__ == "__main__":
    main()
