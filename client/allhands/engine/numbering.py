"""Order: the numbers of a group's calls, and whether one may run at once."""

import math
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

from allhands.deadlines import clip_timeout
from allhands.engine.work.work import Work
from allhands.errors import ForkedProcess
from allhands.options import DEFAULT_TIMEOUT
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import CallCollector, LinkCollectives, MessageRow, ShmComm, ShmP2P


@dataclass(frozen=True, slots=True)
class Clash:
    """A call in which another thread of this rank is."""

    thread: int
    """As `threading.get_ident` has it."""
    sequence: int
    operation: str


class _ForkedLock:
    """The lock of a numbering in a forked child: never acquired."""

    def __enter__(self) -> NoReturn:
        raise ForkedProcess

    def __exit__(self, *_: object) -> None:
        pass


class DirectP2P(Protocol):
    """Plain messages on their callers' threads; what is not plain or not possible is declined."""

    def send(
        self, x: object, dst: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> bool:
        """Send, or decline by False."""

    def recv(
        self, x: object, src: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> int:
        """Receive, and return the sender's rank in the world; or decline by a negative number."""

    def records(self, last: int, /) -> "list[MessageRow]":
        """Return the latest messages."""

    def totals(self) -> tuple[int, float]:
        """Return the bytes and the seconds of the messages that ended well."""


class QueueOnlyNumbering:
    """Numbering that hides the communicator: every call goes through the queue."""

    comm: "ShmComm | None" = None
    direct_calls: "ShmComm | LinkCollectives | None" = None
    vector_calls: "ShmComm | None" = None
    links: "LinkCollectives | None" = None

    def __init__(self, order: "Numbering") -> None:
        self._order = order
        self.take: Callable[[], int] = order.take
        self.resolve_timeout: Callable[[float | None], float] = order.resolve_timeout
        self.clip_timeout: Callable[[float | None], float] = order.clip_timeout
        self.find_clash: Callable[[str | None], Clash | None] = order.find_clash
        self.set_latest: Callable[[Work], None] = order.set_latest

    @property
    def lock(self) -> AbstractContextManager[object]:
        return self._order.lock

    @property
    def latest_sequence(self) -> int:
        return self._order.latest_sequence

    @property
    def timeout(self) -> float:
        return self._order.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._order.timeout = seconds

    @property
    def p2p(self) -> "ShmP2P | None":
        return self._order.p2p

    @property
    def direct_p2p(self) -> "DirectP2P | None":
        return self._order.direct_p2p

    @direct_p2p.setter
    def direct_p2p(self, direct: "DirectP2P | None") -> None:
        self._order.direct_p2p = direct

    @property
    def queued_messages(self) -> int:
        return self._order.queued_messages

    @queued_messages.setter
    def queued_messages(self, count: int) -> None:
        self._order.queued_messages = count


class SingleCallNumbering(QueueOnlyNumbering):
    """Numbering of a group that verifies: its communicator takes no call of several steps."""

    @property
    def comm(self) -> "ShmComm | None":  # type: ignore[override]
        return self._order.comm

    @property
    def direct_calls(self) -> "ShmComm | LinkCollectives | None":  # type: ignore[override]
        return self._order.direct_calls

    @property
    def links(self) -> "LinkCollectives | None":  # type: ignore[override]
        return self._order.links


class SuccessiveNumbering(SingleCallNumbering):
    """Numbering of a group that goes on as one plain group after another: messages are theirs."""

    def __init__(self, order: "Numbering", get_current: "Callable[[], Numbering]") -> None:
        """`get_current` returns the numbering of the plain group as it is now."""
        super().__init__(order)
        self._get_current = get_current

    @property
    def timeout(self) -> float:
        return self._order.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._order.timeout = self._get_current().timeout = seconds

    @property
    def p2p(self) -> "ShmP2P | None":
        return self._get_current().p2p

    @property
    def direct_p2p(self) -> "DirectP2P | None":
        return self._get_current().direct_p2p

    @direct_p2p.setter
    def direct_p2p(self, direct: "DirectP2P | None") -> None:
        self._get_current().direct_p2p = direct

    @property
    def queued_messages(self) -> int:
        return self._get_current().queued_messages

    @queued_messages.setter
    def queued_messages(self, count: int) -> None:
        self._get_current().queued_messages = count


class CollectingNumbering(QueueOnlyNumbering):
    """Numbering of a group whose calls are collected: plain functions offer theirs to `comm`."""

    # What every plain call reads is in slots.
    __slots__ = ("comm", "direct_calls")

    # Nobody but plain functions has this numbering, and they need no more than a collector has.
    comm: "CallCollector | None"  # type: ignore[assignment]
    direct_calls: "CallCollector | None"  # type: ignore[assignment]

    def __init__(self, order: "Numbering", comm: "CallCollector | None") -> None:
        super().__init__(order)
        self.comm = self.direct_calls = comm


class HookedNumbering(QueueOnlyNumbering):
    """Numbering of a group with call hooks: plain functions and messages go the checked way.

    Persistent calls keep it; `release` gives them the communicator again.
    """

    def __init__(self, order: "Numbering") -> None:
        super().__init__(order)
        self._hides = True

    def release(self) -> None:
        """Stop hiding the communicator: the hooks are removed."""
        self._hides = False

    @property
    def comm(self) -> "ShmComm | None":  # type: ignore[override]
        return None if self._hides else self._order.comm

    @property
    def p2p(self) -> "ShmP2P | None":
        return None if self._hides else self._order.p2p

    @property
    def direct_p2p(self) -> "DirectP2P | None":
        return None if self._hides else self._order.direct_p2p

    @direct_p2p.setter
    def direct_p2p(self, direct: "DirectP2P | None") -> None:
        self._order.direct_p2p = direct


class CallNumbering:
    """Numbers calls in the order in which they will run; safe from any thread.

    A call that took its number here waits for those before it. Once a group has a communicator,
    that counts, so that a call on the caller's own thread needs no other lock.
    """

    # What every plain call reads is in slots.
    __slots__ = ("__dict__", "__weakref__", "direct_calls", "direct_p2p", "vector_calls")

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.lock: AbstractContextManager[object] = threading.Lock()
        """Held while a call takes its number and its place in the queue, in one step."""
        self._timeout = timeout
        self._comm: ShmComm | None = None
        self.vector_calls: ShmComm | None = None
        """What plain v-variants try before all else: `comm`, or nothing."""
        self.direct_calls: ShmComm | LinkCollectives | None = None
        """What plain functions try before all else: `comm`, or `links`."""
        self.links: LinkCollectives | None = None
        """The way of plain collectives over links; None as soon as there is a communicator."""
        self._p2p: ShmP2P | None = None
        self.direct_p2p: DirectP2P | None = None
        """What plain messages try before all else: `p2p`, or the links."""
        self.queued_messages = 0
        """Messages on their way to the loop, or held there: who comes later must not pass them."""
        self.last_number = 0
        """Of the calls that have one, without a communicator; set with `lock` held."""
        self._queued_count = 0
        self._get_latest: Callable[[], Work | None] = lambda: None
        """The call with the latest number, as long as somebody has it."""

    @property
    def comm(self) -> "ShmComm | None":
        """The communicator of a group whose ranks share memory."""
        return self._comm

    @comm.setter
    def comm(self, comm: "ShmComm | None") -> None:
        self._comm = self.direct_calls = self.vector_calls = comm
        self.links = None

    def offer_links(self, links: "LinkCollectives | None") -> None:
        """Let plain functions try the links, unless a communicator has come meanwhile."""
        with self.lock:
            if self.comm is None:
                self.direct_calls = self.links = links

    @property
    def p2p(self) -> "ShmP2P | None":
        """The way of messages over shared memory that have no others before them to wait for."""
        return self._p2p

    @p2p.setter
    def p2p(self, p2p: "ShmP2P | None") -> None:
        self._p2p = self.direct_p2p = p2p

    def forked(self) -> None:
        """Refuse all calls in a forked child, which has no membership of its own."""
        self.lock = _ForkedLock()

    @property
    def timeout(self) -> float:
        """Default timeout of the group's calls in seconds, on every route."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        with self.lock:
            self._timeout = seconds
            self.propagate_timeout()

    def resolve_timeout(self, timeout: float | None) -> float:
        """Return the seconds of a call: its own, else those of the group.

        Raises:
            ValueError: they are not positive, or endless.
        """
        return self._timeout if timeout is None else check_timeout(float(timeout))

    def clip_timeout(self, timeout: float | None) -> float:
        """Return the seconds left for a call made now; 0 or less: expired."""
        return clip_timeout(self._timeout if timeout is None else check_timeout(float(timeout)))

    def propagate_timeout(self) -> None:
        """Let the ways of calls that come by nothing here know the timeout, with `lock` held."""
        if self.comm is not None:
            self.comm.timeout = self._timeout
        if self.p2p is not None:
            self.p2p.timeout = self._timeout

    @property
    def latest_sequence(self) -> int:
        """Number of the latest numbered call; 0 before the first."""
        return self.comm.last_number if self.comm is not None else self.last_number

    def find_clash(self, label: str | None) -> Clash | None:
        """Return a labelled call that another thread is blocked in; None: there is none.

        With `lock` held.
        """
        inside = None if self.direct_calls is None else self.direct_calls.inline_call()
        if inside is not None and inside[0] != get_ident() and (inside[3] or "") == (label or ""):
            return Clash(*inside[:3])
        work = self._get_latest()
        if work is None or work.waiting_thread in (0, get_ident()) or work.has_ended:
            return None
        if (work.label or "") != (label or ""):
            return None
        return Clash(work.waiting_thread, work.sequence, work.operation)

    def set_latest(self, work: Work) -> None:
        """Take in which call has the latest number, with `lock` held."""
        self._get_latest = weakref.ref(work)

    def take(self) -> int:
        """Return the next number, with `lock` held."""
        if self.comm is not None:
            return self.comm.take_number()
        self.last_number += 1
        self._queued_count += 1
        return self.last_number

    def adopt(self, work: Work) -> None:
        """Take in a call that has the latest number and goes on in the queue."""
        with self.lock:
            self._queued_count += 1
            self.set_latest(work)

    def release(self) -> None:
        """Mark a numbered call as ended."""
        with self.lock:
            if self.comm is not None:
                self.comm.release()
            else:
                self._queued_count -= 1

    def get_counts(self) -> tuple[int, int]:
        """Return the numbers taken and the calls that have not ended, with `lock` held."""
        return self.last_number, self._queued_count


Numbering: TypeAlias = CallNumbering | QueueOnlyNumbering


def check_timeout(timeout: float) -> float:
    """Return the seconds of a call, checked.

    Raises:
        ValueError: they are not positive, or endless.
    """
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
    return timeout
