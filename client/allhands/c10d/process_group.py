"""ProcessGroup: a group with the methods of c10d, on lists of arrays, with options.

Every method checks all that it is given before anything happens, with c10d's texts, and returns a
`Work` whose result is a list of arrays as c10d's is. Ranks are ranks of the group. Arrays that are
written must be C-contiguous, and belong to the call until its work has ended; what is only read
may have any layout. A refused call has changed nothing and has taken no number.

Raises, all methods:
    InvalidArgument: also a ValueError: what the lists hold does not fit.
    InvalidType: also a TypeError: the operation is not defined for the dtype.
    TypeError: no array, or no list, where one is wanted.
    ValueError: an array to be written is not contiguous, or read-only, or shares memory.
"""

from datetime import timedelta

from allhands.c10d import checks
from allhands.c10d.argument_forms import Arrays
from allhands.c10d.barrier_text import to_c10d_error
from allhands.c10d.collectives import Collectives
from allhands.c10d.fixed_result import FixedResultCollectives
from allhands.c10d.options import BarrierOptions, GroupOptions, merge_options
from allhands.deadlines import Timeout, to_seconds
from allhands.engine.work.work import Work
from allhands.errors import CollectiveTimeout, PeerFailed
from allhands.runtime.termination import INTERRUPTIONS, get_cancel_reason

_MIN_TIMEOUT = 0.001
"""Seconds for a monitored barrier that may take none: the others must hear that it was made."""


class ProcessGroup(Collectives):
    """A `Group` with c10d's interface; several may wrap the same group."""

    def name(self) -> str:
        """Return the name of the backend; `group_name` names the group."""
        return "allhands"

    @property
    def group_name(self) -> str:
        return self.group.name

    @property
    def options(self) -> GroupOptions:
        return GroupOptions(timedelta(seconds=self.group.timeout))

    def _set_default_timeout(self, timeout: Timeout) -> None:
        """Set the default timeout of later calls of the group."""
        self.group.timeout = to_seconds(timeout)

    def _get_sequence_number_for_group(self) -> int:
        return self.group.sequence

    def __repr__(self) -> str:
        return f"ProcessGroup({self.group!r})"

    # ------------------------------------------------------------ messages

    def send(
        self, tensors: Arrays, dstRank: int, tag: int = 0, *, timeout: Timeout | None = None
    ) -> Work:
        """Send a single array; ends when the array may be changed."""
        array = checks.check_message("send", tensors)
        return FixedResultCollectives(self.group, [array]).send(
            array, dstRank, tag, _to_seconds(timeout)
        )

    def recv(
        self, tensors: Arrays, srcRank: int, tag: int = 0, *, timeout: Timeout | None = None
    ) -> Work:
        """Overwrite a single array with the next message of a rank under `tag`."""
        array = checks.check_message("recv", tensors)
        return FixedResultCollectives(self.group, [array]).recv(
            array, srcRank, tag, _to_seconds(timeout)
        )

    def recv_anysource(
        self, tensors: Arrays, tag: int = 0, *, timeout: Timeout | None = None
    ) -> Work:
        """Overwrite a single array with a message of any rank: `Work.source_rank()`."""
        array = checks.check_message("recv_anysource", tensors)
        return FixedResultCollectives(self.group, [array]).recv(
            array, None, tag, _to_seconds(timeout)
        )

    # ------------------------------------------------------------ barriers

    def barrier(
        self, opts: BarrierOptions | None = None, *, timeout: Timeout | None = None
    ) -> Work:
        """End when every rank has called `barrier`; earlier calls have ended by then."""
        options = merge_options(BarrierOptions, opts, timeout=timeout)
        ended = self._try_inline(options, None, "barrier")
        if ended is not None:
            return ended
        return self._select_group(options).barrier(timeout=options.seconds, label=options.label)

    def monitored_barrier(
        self,
        timeout: Timeout | None = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> None:
        """Wait for every rank, or name the missing ranks on all ranks.

        With `wait_all_ranks` the error names every rank that is missing, not only the first.

        Raises:
            CollectiveTimeout: ranks did not come in time; c10d's text is before our own.
            PeerFailed: ranks died or left, likewise.
        """
        limit = _to_seconds(timeout)
        given = None if limit is None else max(limit, _MIN_TIMEOUT)
        work = self.group.monitored_barrier(given, wait_all_ranks, label=label)
        try:
            work.wait()
        except (CollectiveTimeout, PeerFailed) as error:
            ranks = self.group.ranks
            told = to_c10d_error(error, self.rank(), ranks, limit, wait_all_ranks)
            if told is error:
                raise
            raise told from error
        except INTERRUPTIONS as interruption:
            work.abandon(get_cancel_reason(type(interruption).__name__))
            raise


def _to_seconds(timeout: Timeout | None) -> float | None:
    return None if timeout is None else to_seconds(timeout)
