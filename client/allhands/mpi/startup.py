"""Joining of the world: as told by the environment, or alone."""

import math
import os
import platform

from allhands.api import default_world, groups
from allhands.group.group import Group

_TIMEOUT = "ALLHANDS_MPI_TIMEOUT"
_SECONDS = 1800.0
"""Of a call, where the variable is not set: programs of MPI know no deadlines, and compute long."""
_JOIN_SECONDS = 300.0
"""At most, until all ranks have joined."""
MESSAGES = "mpi messages"
"""Tag of the group that carries messages from point to point."""


def join_world() -> tuple[Group, bool]:
    """Join the world that the environment names; return its group, and whether it was joined here.

    A process that was started alone is a world of one.
    """
    if default_world.is_initialized():
        return default_world.default_group(), False
    seconds = _read_seconds(os.environ.get(_TIMEOUT))
    default_world.init_process_group(timeout=min(seconds, _JOIN_SECONDS))
    group = default_world.default_group()
    group.timeout = seconds
    return group, True


def _read_seconds(text: str | None) -> float:
    if text is None:
        return _SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{_TIMEOUT}={text} is no positive number of seconds")
    return seconds


def open_messages() -> Group:
    """Return the group that carries messages from point to point."""
    made = groups.new_group(None, MESSAGES)
    assert isinstance(made, Group)
    return made


def leave_world() -> None:
    """Leave the world that was joined here."""
    default_world.destroy_process_group()


def abort_world(reason: str) -> None:
    """Have the calls of all ranks fail."""
    default_world.abort(reason)


def name_host() -> str:
    """Return a name of this host that differs from those of others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return platform.node()
