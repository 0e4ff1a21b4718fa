"""Entry of a rank's process: die with the launcher, then exec the program.

Runs as `python -I -S pdeathsig_exec.py LAUNCHER_PID PROGRAM ARGUMENTS...`, and therefore imports
nothing but the standard library. A program of its own rather than a `preexec_fn`, because Python
code between fork and exec may deadlock where the launcher has threads, and gRPC has some.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


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
    launcher, *program = sys.argv[1:]
    die_with_parent(int(launcher))
    # A shell lets background commands ignore SIGINT; to a rank the launcher may want to send one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
