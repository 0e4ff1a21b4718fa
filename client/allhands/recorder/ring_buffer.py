"""Ring buffer of the latest operations in Python: queued calls and messages.

What ends on its caller's thread is in the rings of the core, which belong to a communicator and
cost a call no Python code. Groups over links have no communicator, and a queued operation is
recorded when it is asked for, with its call site, before the core knows of it: so these are here,
and `merge` joins both records of a queued call over shared memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from types import CodeType

from allhands.recorder.call_totals import CallTotals
from allhands.recorder.record import OperationRecord, classify_outcome
from allhands.recorder.source import find_caller, locate


class OperationEntry:
    """An operation from submission to completion; written by one thread at a time."""

    __slots__ = (
        "_code",
        "_instruction",
        "_ring",
        "_signature",
        "created",
        "finished",
        "how",
        "label",
        "nbytes",
        "operation",
        "outcome",
        "peer",
        "sequence",
        "started",
    )

    def __init__(
        self,
        ring: "RingBuffer",
        operation: str,
        sequence: int,
        nbytes: int,
        signature: object,
        label: str | None,
        peer: int | None,
    ) -> None:
        self._ring = ring
        self._signature = signature
        self.operation = operation
        self.sequence = sequence
        self.nbytes = nbytes
        self.label = label
        self.peer = peer
        self.created = time.monotonic_ns()
        self.started = 0
        self.finished = 0
        self.outcome = "running"
        self.how = ""
        self._code: CodeType | None
        self._code, self._instruction = find_caller()

    def set_source(self, source: "tuple[CodeType | None, int]") -> None:
        """Set the call site in the program, if not the current frame; see `source.caller`."""
        self._code, self._instruction = source

    def start(self) -> None:
        self.started = time.monotonic_ns()

    def end(self, error: BaseException | None, how: str) -> None:
        """Set the outcome, once; later outcomes are ignored."""
        if self.finished:
            return
        self.finished = time.monotonic_ns()
        self.outcome = classify_outcome(error)
        self.how = how
        if error is None:
            self._ring.count(self)
        else:
            self._ring.on_failure(error)

    @property
    def location(self) -> tuple[str, int, str]:
        """File, line and function of the call site."""
        return locate(self._code, self._instruction)

    def to_record(self, group: str, waits_for: tuple[int, ...]) -> OperationRecord:
        file, line, function = self.location
        return OperationRecord(
            group=group,
            sequence=self.sequence,
            operation=self.operation,
            nbytes=self.nbytes,
            signature=str(self._signature),
            created=self.created,
            started=self.started,
            finished=self.finished,
            outcome=self.outcome,
            label=self.label or "",
            file=file,
            line=line,
            function=function,
            how=self.how,
            waits_for=waits_for if self.outcome == "running" else (),
        )


class RingBuffer:
    """The last `size` entries; any thread may append and read."""

    def __init__(
        self,
        size: int,
        on_failure: Callable[[BaseException], None],
        is_counted: Callable[[OperationEntry], bool],
    ) -> None:
        """`is_counted` says whether an operation that ended well is part of the totals here."""
        self._entries: deque[OperationEntry] = deque(maxlen=size)
        self._is_counted = is_counted
        self._lock = threading.Lock()
        self._nbytes = self._nanoseconds = 0
        self.on_failure = on_failure
        """Hears of every error in which an entry ends."""

    def add(
        self,
        operation: str,
        sequence: int,
        nbytes: int,
        signature: object,
        label: str | None,
        peer: int | None = None,
    ) -> OperationEntry | None:
        """Add an operation at its submission; None: the recorder is off.

        `signature` is formatted when read. `peer` is the world rank of a message's other end.
        """
        if not self._entries.maxlen:
            return None
        entry = OperationEntry(self, operation, sequence, nbytes, signature, label, peer)
        self._entries.append(entry)
        return entry

    def count(self, entry: OperationEntry) -> None:
        """Add an operation that ended well to the totals."""
        if self._is_counted(entry):
            with self._lock:
                self._nbytes += entry.nbytes
                self._nanoseconds += entry.finished - (entry.started or entry.created)

    @property
    def totals(self) -> CallTotals:
        """Sums over the counted operations, those too that are no longer in the buffer."""
        with self._lock:
            return CallTotals(self._nbytes, self._nanoseconds / 1e9)

    def list_entries(self) -> list[OperationEntry]:
        """Return all entries, oldest first."""
        return list(self._entries)

    def find(self, sequence: int) -> OperationEntry | None:
        """Return the collective of that number."""
        return next(
            (one for one in reversed(self.list_entries()) if one.sequence == sequence), None
        )
