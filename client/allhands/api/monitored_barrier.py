"""Module-level barrier over the coordinator that names missing ranks."""

from datetime import timedelta

from allhands.api.calls import resolve_group, wait_or_return
from allhands.api.default_world import AnyGroup
from allhands.tracebacks import trim_traceback


def monitored_barrier(
    group: AnyGroup = None,
    timeout: float | timedelta | None = None,
    wait_all_ranks: bool = False,
    *,
    label: str | None = None,
) -> None:
    """Wait for every rank, or name the missing ones on all ranks.

    It goes by the coordinator and is slow: for debugging, and where a rank may well be missing. All
    ranks are told the same, the late ones too, whichever they are.

    Args:
        timeout: seconds; of the first rank that has waited for so long.
        wait_all_ranks: name every rank that did not pass in the error, not only the first; its
            `verdict` has all of them in any case.

    Raises:
        CollectiveTimeout: ranks did not come in time.
        CoordinatorUnavailable: there is no coordinator any more.
    """
    try:
        if (found := resolve_group(group, True, "monitored_barrier")) is None:
            return
        limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        wait_or_return(found.monitored_barrier(limit, wait_all_ranks, label=label), False)
    except Exception as error:
        trim_traceback(error)
        raise
