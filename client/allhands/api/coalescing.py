"""`with coalescing():` collects the calls of a block and submits all at its end."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from allhands.api.default_world import AnyGroup, require_world
from allhands.engine.work.work import Work
from allhands.group.coalescing import coalesce
from allhands.group.non_member import NonMember


class CoalescingResult:
    """Works of the calls of a block, available after its end."""

    def __init__(self) -> None:
        self.works: Sequence[Work] = ()
        """One for each call, in their order; those that travelled together share theirs."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all calls have ended, each for `timeout` seconds at most."""
        for work in self.works:
            work.wait(timeout)


@contextlib.contextmanager
def coalescing(group: AnyGroup = None, async_ops: bool = False) -> Iterator[CoalescingResult]:
    """Collect this thread's collectives on the group until the block ends.

    They return at once, and are made at the end of the block: what is alike, one after the other,
    travels together, so that many small arrays cost what a large one does. The block ends when they
    have, or at once with `async_ops=True`: `wait()` then. Their arrays belong to them until then.
    Where the block raises, none of them is made.

    Raises:
        RuntimeError: within such a block on the same group.
    """
    coalesced = CoalescingResult()
    if isinstance(group, NonMember):
        yield coalesced
        return
    found = group or require_world().group
    with coalesce(found, threading.get_ident()) as collecting:
        yield coalesced
    coalesced.works = collecting.submit_all()
    if not async_ops:
        coalesced.wait()
