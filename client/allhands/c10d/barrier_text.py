"""Text of c10d for a monitored barrier with missing ranks."""

import copy
from collections.abc import Sequence

from allhands.engine.failures.call_errors import format_ranks
from allhands.errors import AllhandsError, CollectiveTimeout, PeerFailed


def to_c10d_error(
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
