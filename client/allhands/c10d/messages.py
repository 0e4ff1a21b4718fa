"""Messages from point to point of c10d, each of a list with a single buffer."""

from collections.abc import Sequence
from typing import Generic

from allhands.c10d import checks
from allhands.c10d.buffer_adapter import Buffer, CallWork
from allhands.c10d.fixed_result import FixedResultCollectives
from allhands.c10d.group_calls import GroupCalls
from allhands.deadlines import Timeout, to_seconds


class Messages(GroupCalls[CallWork], Generic[Buffer, CallWork]):
    """Messages of a process group; errors are listed at `process_group`."""

    def send(
        self,
        tensors: Sequence[Buffer],
        dstRank: int,
        tag: int = 0,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Send a single array; ends when the array may be changed."""
        views = self.adapter.open_views("send")
        array = checks.check_message("send", views.view_inputs(tensors))
        calls = FixedResultCollectives(self._get_group(), [array])
        work = calls.send(array, dstRank, tag, _to_seconds(timeout))
        return self.adapter.to_work(work, views, tensors)

    def recv(
        self,
        tensors: Sequence[Buffer],
        srcRank: int,
        tag: int = 0,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite a single array with the next message of a rank under `tag`."""
        return self._start_recv("recv", tensors, srcRank, tag, timeout)

    def recv_anysource(
        self, tensors: Sequence[Buffer], tag: int = 0, *, timeout: Timeout | None = None
    ) -> CallWork:
        """Overwrite a single array with a message of any rank: `Work.source_rank()`."""
        return self._start_recv("recv_anysource", tensors, None, tag, timeout)

    def _start_recv(
        self,
        operation: str,
        tensors: Sequence[Buffer],
        src: int | None,
        tag: int,
        timeout: Timeout | None,
    ) -> CallWork:
        views = self.adapter.open_views(operation)
        array = checks.check_message(operation, views.view_inouts(tensors))
        calls = FixedResultCollectives(self._get_group(), [array])
        work = calls.recv(array, src, tag, _to_seconds(timeout))
        return self.adapter.to_work(work, views, tensors)


def _to_seconds(timeout: Timeout | None) -> float | None:
    return None if timeout is None else to_seconds(timeout)
