"""Recorder of one group's calls on all routes; read by any thread."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from allhands.collectives.request import read_call_signature
from allhands.collectives.signature import CallSignature
from allhands.engine.numbering import CallNumbering, DirectP2P
from allhands.recorder.call_samples import CallSampler
from allhands.recorder.call_totals import CallTotals
from allhands.recorder.merge import merge
from allhands.recorder.record import (
    OUTCOMES,
    OperationRecord,
    classify_outcome,
    format_source,
    sort_by_time,
)
from allhands.recorder.ring_buffer import OperationEntry, RingBuffer

if TYPE_CHECKING:
    from allhands._native import CallRow, LinkCallRow, LinkCollectives, MessageRow, ShmComm

DEFAULT_SIZE = 2048
"""Operations of a group that are remembered if nobody says otherwise."""


class GroupRecorder:
    """Three rings: two of the core, of calls and messages on callers' threads, and this one's."""

    def __init__(self, name: str, ranks: Sequence[int], order: CallNumbering, size: int) -> None:
        self.size = size
        self._name = name
        self._ranks = tuple(ranks)
        self._order = order
        self._start_samples = CallSampler()
        self._ring = RingBuffer(size, self.report_failure, self._is_counted)
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        """Hears of every error in which an operation of the group ends."""
        self.list_awaited: Callable[[], Sequence[int]] = tuple
        """Says for which ranks of the group the call from the queue waits that runs now."""

    # ------------------------------------------------------------ written

    def record_call(
        self, operation: str, sequence: int, nbytes: int, call: CallSignature, label: str | None
    ) -> OperationEntry | None:
        """Record a queued collective."""
        return self._ring.add(operation, sequence, nbytes, call, label)

    def record_message(
        self,
        operation: str,
        nbytes: int,
        call: CallSignature,
        peer: int | None,
        tag: int,
        label: str | None,
    ) -> OperationEntry | None:
        """Record a message that is not completed on its caller's thread."""
        place = -1 if peer is None else self._ranks.index(peer)
        signature = _MessageSignature(operation, call.dtype, call.count or 0, place, tag)
        entry = self._ring.add(operation, 0, nbytes, signature, label, peer)
        if entry is not None:
            entry.start()
        return entry

    def record_start(self, entry: OperationEntry | None) -> None:
        """Record the start of a queued call."""
        if entry is None:
            return
        entry.start()
        if self._order.comm is None:  # which counts for itself
            self._start_samples.note(entry.sequence, entry.started / 1e9)

    def failed_inline(self, comm: "ShmComm", sequence: int, error: BaseException) -> None:
        """Record the error of a call on its caller's thread."""
        comm.set_outcome(sequence, OUTCOMES.index(classify_outcome(error)))
        self.report_failure(error)

    def report_failure(self, error: BaseException) -> None:
        """Record the failure of an operation of the group."""
        self.on_failure(error)

    # ------------------------------------------------------------ read

    def take_started(self) -> Sequence[tuple[int, float]]:
        """Return which calls began since this was last asked, and when; for a heartbeat."""
        direct = self._order.direct_calls
        # A call may have been noted before there was a communicator, which knows it better.
        noted = dict(self._start_samples.take())
        return list({**noted, **dict(direct.start_times() if direct else ())}.items())

    def read_totals(self) -> CallTotals:
        """Return the bytes and seconds of the operations that ended well; for a heartbeat."""
        here = self._ring.totals
        parts = [one.totals() for one in self._list_native_logs()]
        return CallTotals(
            here.nbytes + sum(nbytes for nbytes, _ in parts),
            here.seconds + sum(seconds for _, seconds in parts),
        )

    def _list_native_logs(self) -> "list[ShmComm | LinkCollectives | DirectP2P]":
        found = (self._order.direct_calls, self._order.direct_p2p)
        return [one for one in found if one is not None]

    def _is_counted(self, entry: OperationEntry) -> bool:
        # Queued collectives of a communicator are counted there.
        return entry.sequence == 0 or self._order.comm is None

    def find_call_site(self, sequence: int) -> str:
        """Return which line of the program made a call, as "train.py:31 in step"; "": unknown."""
        entry = self._ring.find(sequence)
        if entry is not None:
            return format_source(*entry.location)
        direct = self._order.direct_calls
        source = None if direct is None else direct.call_site(sequence)
        return "" if source is None else format_source(*source)

    def list_records(self, last: int | None = None) -> list[OperationRecord]:
        """Return the latest operations, `last` at most, in the order of their being asked for."""
        most = self.size if last is None else min(last, self.size)
        comm, links, p2p = self._order.comm, self._order.links, self._order.direct_p2p
        way = "links" if self._order.p2p is None else "shared memory"
        core = [] if comm is None else [self._of_inline_call(row) for row in comm.records(most)]
        if links is not None:
            core += [(False, self._of_link_call(row)) for row in links.records(most)]
        waits_for = self._list_awaited()
        queue = [
            one.to_record(self._name, waits_for if one.peer is None else (one.peer,))
            for one in self._ring.list_entries()
        ]
        messages = [] if p2p is None else [self._of_message(row, way) for row in p2p.records(most)]
        found = sort_by_time([*merge(core, queue), *messages])
        return found[-most:] if most else []

    def _list_awaited(self) -> tuple[int, ...]:
        # What a call waits for changes on the loop; where it does so this moment, nobody is named.
        with contextlib.suppress(RuntimeError):
            return tuple(sorted({self._ranks[rank] for rank in self.list_awaited()}))
        return ()

    def _of_inline_call(self, row: "CallRow") -> tuple[bool, OperationRecord]:
        sequence, kind, dtype, count, nbytes, op, root = row[:7]
        started, finished, outcome, variant, queued, source, label, waiting, shape = row[7:]
        file, line, function = source or ("", 0, "")
        if outcome and not finished:  # its error is being raised
            finished = time.monotonic_ns()
        waits_for = [self._ranks[at] for at in range(waiting.bit_length()) if waiting >> at & 1]
        return queued, OperationRecord(
            group=self._name,
            sequence=sequence,
            operation=kind,
            nbytes=nbytes,
            signature=str(read_call_signature(kind, dtype, count, op, root, None, shape, label)),
            created=started,
            started=started,
            finished=finished,
            outcome=OUTCOMES[outcome],
            label=label or "",
            file=file,
            line=line,
            function=function,
            how=f"shared memory, {variant}" if finished else "shared memory",
            waits_for=tuple(waits_for),
        )

    def _of_link_call(self, row: "LinkCallRow") -> OperationRecord:
        sequence, call, how, nbytes, started, finished, source = row
        file, line, function = source or ("", 0, "")
        return OperationRecord(
            group=self._name,
            sequence=sequence,
            operation=call.operation,
            nbytes=nbytes,
            signature=str(call),
            created=started,
            started=started,
            finished=finished,
            outcome="ok" if finished else "running",
            label=call.label,
            file=file,
            line=line,
            function=function,
            how=how,
            waits_for=(),
        )

    def _of_message(self, row: "MessageRow", medium: str) -> OperationRecord:
        receives, dtype, count, nbytes, peer, tag, started, finished, outcome, way = row[:10]
        source, label = row[10:]
        file, line, function = source or ("", 0, "")
        operation = "recv" if receives else "send"
        known = outcome if outcome in OUTCOMES else "failed"
        told = known if finished else "running"
        waits_for = (self._ranks[peer],) if peer >= 0 and not finished else ()
        return OperationRecord(
            group=self._name,
            sequence=0,
            operation=operation,
            nbytes=nbytes,
            signature=str(_MessageSignature(operation, str(dtype), count, peer, tag)),
            created=started,
            started=started,
            finished=finished,
            outcome=told,
            label=label or "",
            file=file,
            line=line,
            function=function,
            how=f"{medium}, {way}" if finished else medium,
            waits_for=waits_for,
        )


class _MessageSignature:
    """The signature of a message, formatted when read."""

    __slots__ = ("_count", "_dtype", "_operation", "_peer", "_tag")

    def __init__(self, operation: str, dtype: str, count: int, peer: int, tag: int) -> None:
        self._operation = operation
        self._dtype = dtype
        self._count = count
        self._peer = peer
        self._tag = tag

    def __str__(self) -> str:
        direction = "from" if self._operation.endswith("recv") else "to"
        other = "any rank" if self._peer < 0 else f"rank {self._peer}"
        return (
            f"{self._operation}({self._dtype}[{self._count}], {direction} {other}, tag {self._tag})"
        )
