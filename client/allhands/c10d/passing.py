"""What c10d says of a monitored barrier that not all ranks have passed, beside who has not."""

from allhands.errors import CollectiveTimeout


def not_passed(error: CollectiveTimeout, rank: int, limit: float | None) -> CollectiveTimeout:
    """Return an error with what c10d says on a rank before what all ranks are told.

    `limit` are the seconds that were asked for.
    """
    if rank == 0 and limit == 0:
        text = "Rank 0 timed out in monitoredBarrier after 0 s"
    elif rank == 0 or rank in error.missing_ranks:
        return error
    else:
        text = (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
            "waiting for send/recv from rank 0"
        )
    return CollectiveTimeout(
        f"{text}: {error}",
        op=error.op,
        seq=error.seq,
        missing_ranks=error.missing_ranks,
        label=error.label,
        verdict=error.verdict,
    )
