"""`with coalescing():` collects the calls of a block and submits all at its end."""

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from allhands.api.default_world import AnyGroup, require_world
from allhands.engine.work.work import Work
from allhands.group.coalescing import coalesce
from allhands.group.group import Group
from allhands.group.non_member import NonMember


class CoalescingResult:
    """Works of the calls of a block, available after its end."""

    def __init__(self) -> None:
        self._make_works: Callable[[], Sequence[Work]] = tuple

    @functools.cached_property
    def works(self) -> Sequence[Work]:
        """One for each call, in their order; those that travelled together share theirs."""
        return self._make_works()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all calls have ended, each for `timeout` seconds at most."""
        for work in self.works:
            work.wait(timeout)


class CoalescingBlock(AbstractContextManager[CoalescingResult]):
    """The block of `coalescing`; with its own methods, so that its calls are made by its caller."""

    def __init__(self, group: Group | None, async_ops: bool) -> None:
        """Collect calls on the group; None: on none, outside of a group."""
        self._group = group
        self._async_ops = async_ops
        self._result = CoalescingResult()

    def __enter__(self) -> CoalescingResult:
        if self._group is not None:
            self._submitter = coalesce(self._group, threading.get_ident())
        return self._result

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._group is None:
            return
        self._submitter.end()
        if error is not None:
            return
        made = None if self._async_ops else self._submitter.run_at_once()
        if made is not None:
            self._result._make_works = made
            return
        self._result.works = self._submitter.submit_all(waits=not self._async_ops)
        if not self._async_ops:
            self._result.wait()


def coalescing(
    group: AnyGroup = None, async_ops: bool = False
) -> AbstractContextManager[CoalescingResult]:
    """Collect this thread's collectives on the group until the block ends.

    They return at once, and are made at the end of the block: what is alike, one after the other,
    travels together, so that many small arrays cost what a large one does. The block ends when they
    have, or at once with `async_ops=True`: `wait()` then. Their arrays belong to them until then.
    Where the block raises, none of them is made.

    Raises:
        RuntimeError: within such a block on the same group.
    """
    found = None if isinstance(group, NonMember) else group or require_world().group
    return CoalescingBlock(found, async_ops)
