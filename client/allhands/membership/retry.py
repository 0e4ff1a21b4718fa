"""Making a failed call once more."""

from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, PeerFailed


def retry(error: AllhandsError, timeout: float | None = None) -> object:
    """Repeat the failed call on the remaining ranks, and return its output.

    For calls of groups with `retryable=True`, whose arrays a failure leaves unchanged. The group
    shrinks: all remaining ranks must retry. `timeout` is in seconds, from the end of the shrinking.

    Raises:
        ValueError: the call cannot be repeated, because its group was not retryable or no rank was
            lost; make a new call.
        MembershipChanged: the call has an item for each rank: the group has shrunk, make a new
            call with an item for each remaining rank.
        AllhandsError: the call failed again.
    """
    again = error.again if isinstance(error, PeerFailed) else None
    if again is None:
        raise ValueError(
            "this call cannot be made again: only one that lost ranks on a group with "
            f"retryable=True can, and this is {type(error).__name__}: {error}"
        )
    work = again()
    assert isinstance(work, Work)
    work.wait(timeout)
    return work.result()
