"""Memory of this process, and of the host or container that it runs in."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OF_PROCESS = Path("/proc/self/cgroup")
_STATM = Path("/proc/self/statm")


def find_memory() -> int:
    """Return the bytes of memory that this process may take: the host's, or its container's."""
    pages, page_nbytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return min((pages * page_nbytes, *_list_group_limits()))


def find_resident() -> int:
    """Return the bytes of memory that this process has; 0 where that cannot be known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _list_group_limits(groups: Path = _GROUPS, of_process: Path = _OF_PROCESS) -> Iterator[int]:
    """Yield the limits of this process's control groups, of either version."""
    with contextlib.suppress(OSError):
        for line in of_process.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _read_up(groups, path, "memory.max")
            elif "memory" in controllers.split(","):
                yield from _read_up(groups / "memory", path, "memory.limit_in_bytes")


def _read_up(root: Path, path: str, name: str) -> Iterator[int]:
    """Yield the limits in a group's file and in those of the groups around it."""
    group = root / path.strip("/")
    for one in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
            yield int((one / name).read_text())
        if one == root:
            return
