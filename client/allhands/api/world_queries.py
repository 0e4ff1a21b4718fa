"""Queries of the default world: rank and size, backend, timeouts, shared arrays, latest calls."""

from datetime import timedelta

import numpy as np
import numpy.typing as npt

from allhands.api.default_world import AnyGroup, require_world
from allhands.collectives.arguments import AnyArray
from allhands.deadlines import to_seconds
from allhands.group.non_member import NonMember
from allhands.recorder.record import OperationRecord


def get_rank(group: AnyGroup = None) -> int:
    """Return this process's rank in the group; -1 outside the group."""
    return -1 if isinstance(group, NonMember) else (group or require_world().group).rank


def get_world_size(group: AnyGroup = None) -> int:
    """Return the number of ranks in the group; -1 outside the group."""
    return -1 if isinstance(group, NonMember) else (group or require_world().group).size


def is_available() -> bool:
    """Return True: where the package does not run, importing it fails and says why."""
    return True


def get_backend(group: AnyGroup = None) -> str:
    """Return the backend of the world, and so of each group: "auto", "shm", "socket" or others.

    It is what `init_process_group` was given; `group.explain()` says which way calls take.

    Raises:
        ValueError: this rank is not in the group.
        RuntimeError: `init_process_group` has not been called.
    """
    if isinstance(group, NonMember):
        raise ValueError(f"this rank does not belong to group {group.name!r}")
    return require_world().backend


def set_timeout(timeout: float | timedelta, group: AnyGroup = None) -> None:
    """Set the default timeout of this rank's later calls on the group.

    It is the group's `timeout`, which may be set as well. Nothing outside the group.

    Raises:
        ValueError: it is not positive, or endless.
    """
    if not isinstance(group, NonMember):
        (group or require_world().group).timeout = to_seconds(timeout)


def empty(
    shape: int | tuple[int, ...],
    dtype: npt.DTypeLike = np.float64,
    group: AnyGroup = None,
) -> AnyArray:
    """Return an array of zeros in memory shared by the ranks of this host.

    Collectives copy such an array least. Each rank owns one, and other ranks only read it, within
    calls that are given it. Its memory goes back when nobody holds it or a view of it, also after
    the world has been left. Where there is no shared memory it is ordinary memory. `group` says in
    which world.

    Raises:
        TypeError: elements that are Python objects.
        MemoryError: there is no such piece of memory.
    """
    return require_world().empty(shape, dtype)


def flight_recorder() -> list[OperationRecord]:
    """Return this process's latest calls, oldest first, running calls included.

    It remembers 2,048 operations of each group (ALLHANDS_RECORDER_SIZE, a power of two; 0: none).
    """
    return require_world().get_records()
