"""ProcessGroup: a group with the methods of c10d, on lists of arrays, with options.

Every method checks all that it is given before anything happens, with c10d's texts, and returns a
`Work` whose result is a list of arrays as c10d's is. Ranks are ranks of the group. Arrays that are
written must be C-contiguous, but for coalesced calls, and belong to the call until its work has
ended; what is only read may have any layout. A refused call has changed nothing and has taken no
number.

Raises, all methods:
    InvalidArgument: also a ValueError: what the lists hold does not fit.
    InvalidType: also a TypeError: the operation is not defined for the dtype.
    TypeError: no array, or no list, where one is wanted.
    ValueError: an array to be written is not contiguous, or read-only, or shares memory.
"""

from datetime import timedelta

from allhands.c10d.buffer_adapter import ARRAYS
from allhands.c10d.collectives import Collectives
from allhands.c10d.messages import Messages
from allhands.c10d.monitored_barrier import run_monitored_barrier
from allhands.c10d.options import GroupOptions
from allhands.collectives.arguments import AnyArray
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import Timeout, to_seconds
from allhands.engine.work.work import Work
from allhands.group.group import Group


class ProcessGroup(Collectives[AnyArray, AnyArray | SparseArray, Work], Messages[AnyArray, Work]):
    """A `Group` with c10d's interface; several may wrap the same group."""

    def __init__(self, group: Group) -> None:
        super().__init__(group, ARRAYS)

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
        run_monitored_barrier(self.group, timeout, wait_all_ranks, label)
