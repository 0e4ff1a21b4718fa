"""The latest operations that went through Python: those of the queue, and messages."""

import time
from collections import deque
from collections.abc import Callable
from types import CodeType

from allhands.recorder.record import OperationRecord, outcome_of
from allhands.recorder.source import caller, place


class Entry:
    """An operation, from when it was asked for until it has ended; written by one thread a time."""

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
        ring: "Ring",
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
        self._code, self._instruction = caller()

    def made_by(self, source: "tuple[CodeType | None, int]") -> None:
        """Say where the program asked for it, if it did so elsewhere; see `source.caller`."""
        self._code, self._instruction = source

    def began(self) -> None:
        self.started = time.monotonic_ns()

    def end(self, error: BaseException | None, how: str) -> None:
        """Say how it ended; what is said later does not count."""
        if self.finished:
            return
        self.finished = time.monotonic_ns()
        self.outcome = outcome_of(error)
        self.how = how
        if error is not None:
            self._ring.failed(error)

    @property
    def place(self) -> tuple[str, int, str]:
        """File, line and function that asked for it."""
        return place(self._code, self._instruction)

    def record(self, group: str, waits_for: tuple[int, ...]) -> OperationRecord:
        file, line, function = self.place
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


class Ring:
    """The last `size` entries; any thread may append and read."""

    def __init__(self, size: int, failed: Callable[[BaseException], None]) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)
        self.failed = failed
        """Hears of every error in which an entry ends."""

    def add(
        self,
        operation: str,
        sequence: int,
        nbytes: int,
        signature: object,
        label: str | None,
        peer: int | None = None,
    ) -> Entry | None:
        """Remember an operation that the caller asks for; None: nothing is remembered.

        `signature` is put into words when somebody reads. `peer` is the rank of the world that a
        message goes to or comes from.
        """
        if not self._entries.maxlen:
            return None
        entry = Entry(self, operation, sequence, nbytes, signature, label, peer)
        self._entries.append(entry)
        return entry

    def entries(self) -> list[Entry]:
        """Return all of them, oldest first."""
        return list(self._entries)

    def find(self, sequence: int) -> Entry | None:
        """Return the collective of that number."""
        return next((one for one in reversed(self.entries()) if one.sequence == sequence), None)
