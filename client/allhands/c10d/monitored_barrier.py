"""Monitored barrier with c10d's text for missing ranks."""

import copy
from collections.abc import Sequence
from typing import Final

from allhands.deadlines import Timeout, to_seconds
from allhands.engine.failures.call_errors import format_ranks
from allhands.errors import AllhandsError, CollectiveTimeout, PeerFailed
from allhands.group.group import Group
from allhands.runtime.termination import INTERRUPTIONS, get_cancel_reason

_MIN_TIMEOUT: Final = 0.001
"""Seconds for a monitored barrier that may take none: the others must hear that it was made."""


def run_monitored_barrier(
    group: Group, timeout: Timeout | None, wait_all_ranks: bool, label: str | None = None
) -> None:
    """Wait for every rank of a group; see `ProcessGroup.monitored_barrier`."""
    limit = None if timeout is None else to_seconds(timeout)
    given = None if limit is None else max(limit, _MIN_TIMEOUT)
    work = group.monitored_barrier(given, wait_all_ranks, label=label)
    try:
        work.wait()
    except (CollectiveTimeout, PeerFailed) as error:
        told = _to_c10d_error(error, group.rank, group.ranks, limit, wait_all_ranks)
        if told is error:
            raise
        raise told from error
    except INTERRUPTIONS as interruption:
        work.abandon(get_cancel_reason(type(interruption).__name__))
        raise


def _to_c10d_error(
    error: CollectiveTimeout | PeerFailed,
    rank: int,
    ranks: Sequence[int],
    timeout: float | None,
    names_all: bool,
) -> AllhandsError:
    """Return an error with c10d's text for this rank before the common text.

    `ranks` are those of the group, as ranks of the world, `limit` the seconds that were asked for.
    """
    absent = error.failed_ranks if isinstance(error, PeerFailed) else error.missing_ranks
    if rank == 0 and timeout == 0:
        text = "Rank 0 timed out in monitoredBarrier after 0 s"
    elif rank == 0 and isinstance(error, PeerFailed):
        named = absent if names_all else absent[:1]
        text = f"{format_ranks(named).capitalize()} failed to pass monitoredBarrier"
    elif rank == 0 or ranks[rank] in absent:
        return error
    else:
        text = (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
            "waiting for send/recv from rank 0"
        )
    told = copy.copy(error)
    told.args = (f"{text}: {error}", *error.args[1:])
    return told
