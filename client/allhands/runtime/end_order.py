"""Order in which failing ranks end: one that fails because of another ends after that one.

Launchers take the process for the cause that they see fail first. A rank that leaves has told its
peers before its interpreter ends, so that they would often be gone before it, and be blamed.
"""

import os
import select
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

from allhands.errors import GroupAborted, PeerFailed
from allhands.verdicts import Verdict

_MOST_SECONDS = 2.0
"""For which a process may stay after it has left its job, on the way to its end."""


def find_causes(error: BaseException | None) -> set[int]:
    """Return the ranks because of which an exception was raised, or those that led to it."""
    return {rank for one in _follow(error) for rank in _name_ranks(one)}


def wait_ended(pids: Iterable[int]) -> None:
    """Wait until processes of this host have ended, 2 s at most."""
    deadline = time.monotonic() + _MOST_SECONDS
    with ExitStack() as stack:
        poll, waiting = select.poll(), 0
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                continue  # it has ended; or the system has no such descriptors
            stack.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)
            waiting += 1
        while waiting and (rest := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(rest * 1000):
                poll.unregister(descriptor)
                waiting -= 1


def _follow(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _name_ranks(error: BaseException) -> tuple[int, ...]:
    match error:
        case PeerFailed():
            return error.failed_ranks
        case GroupAborted(verdict=Verdict(ranks=ranks)):
            return ranks
    return ()
