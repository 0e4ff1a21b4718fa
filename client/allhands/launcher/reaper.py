"""End every process of a launch, also when the launcher itself was killed.

Runs as a program of its own (`python -I -S reaper.py NAME=VALUE`), and therefore imports nothing
but the standard library, and of that what takes no time. Standard input tells of the process groups
of the ranks: `+PGID` when one begins, `-PGID` when it has ended. When it closes, for whatever
reason, all that is left is killed: the groups, and each process that has NAME=VALUE in its
environment, which children of ranks keep also when they move to a session of their own. VALUE is
the directory of the launch: that is removed at last.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator


def kill_all(groups: Iterable[int], mark: str) -> None:
    """Kill the process groups and every process of this user with the mark."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    killed: set[int] = set()
    # One pass may miss a child that is being forked meanwhile, so look until nobody new is found.
    # A killed process is seen again until it is reaped: its number does not count as new.
    while found := set(_find_marked(mark)) - killed:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found


def _find_marked(mark: str) -> Iterator[int]:
    wanted = mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        # Gone meanwhile, or somebody else's.
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError),
            open(f"/proc/{name}/environ", "rb") as file,
        ):
            if wanted in file.read().split(b"\0"):
                yield int(name)


def main() -> None:
    # Whoever ends the launcher may aim at all its relatives; this one must outlive it.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    kill_all(groups, sys.argv[1])
    directory = sys.argv[1].partition("=")[2]
    with contextlib.suppress(FileNotFoundError):  # the launcher has removed it
        for file in os.listdir(directory):
            os.unlink(os.path.join(directory, file))
        os.rmdir(directory)


if __name__ == "__main__":
    main()
