"""Making a failed call once more."""

from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, PeerFailed


def retry(error: AllhandsError, timeout: float | None = None) -> object:
    """Repeat the failed call on the remaining ranks, and return its output.

    For calls of groups with `retryable=True`, whose arrays are as they were. The group shrinks: all
    ranks that are left must retry. `timeout` is in seconds, from when it has shrunk.

    Raises:
        ValueError: the call cannot be made again, because it was not made on such a group, or
            because no rank was lost; make it anew.
        AllhandsError: it failed again.
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
