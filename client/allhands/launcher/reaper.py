"""End every process of a launch, also when the launcher itself was killed.

Runs as a program of its own (`python -I -S reaper.py NAME=VALUE`), and therefore imports nothing
but the standard library, and of that what takes no time: `signal` or `contextlib` would add half of
what the whole program takes. Standard input tells of the process groups of the ranks: `+PGID` when
one begins, `-PGID` when it has ended. When it closes, for whatever reason, all that is left is
killed: the groups, and each process that has NAME=VALUE in its environment, which children of ranks
keep also when they move to a session of their own. VALUE is the directory of the launch: that is
removed at last.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys


def kill_all(groups: set[int], mark: str) -> None:
    """Kill the process groups and every process of this user with the mark."""
    for group in groups:
        try:
            os.killpg(group, _signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    killed: set[int] = set()
    # One pass may miss a child that is being forked meanwhile, so look until nobody new is found.
    # A killed process is seen again until it is reaped: its number does not count as new.
    while found := _find_marked(mark) - killed:
        for pid in found:
            try:
                os.kill(pid, _signal.SIGKILL)
            except ProcessLookupError:
                pass
        killed |= found


def _find_marked(mark: str) -> set[int]:
    wanted = mark.encode()
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or somebody else's
        if wanted in variables.split(b"\0"):
            found.add(int(name))
    return found


def main() -> None:
    # Whoever ends the launcher may aim at all its relatives; this one must outlive it.
    for signum in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(signum, _signal.SIG_IGN)
    groups = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    kill_all(groups, sys.argv[1])
    directory = sys.argv[1].partition("=")[2]
    try:
        for file in os.listdir(directory):
            os.unlink(os.path.join(directory, file))
        os.rmdir(directory)
    except FileNotFoundError:  # the launcher has removed it
        pass


if __name__ == "__main__":
    main()
