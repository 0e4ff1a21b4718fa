"""The contract between the mesh and the networks below it.

A `Fabric` reaches the peers of one rank; a `Link` carries frames from this rank to one peer.
Incoming frames go to a `Receiver`. Implementations: `socket_stream`, `grpc_stream` and `inproc`;
all pass the conformance suite in `allhands.testing.link_suite`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from allhands.transport.frame import Frame

if TYPE_CHECKING:
    from allhands._native import LinkState


class LinkBroken(Exception):
    """The link to a peer is gone; frames under way may or may not have arrived."""


class Unreachable(LinkBroken):
    """The peer cannot be connected to this way; another way may work."""


class HandshakeStalled(LinkBroken):
    """The peer's host accepts connections but the process is silent: stopped or busy."""


class Link(Protocol):
    """Frames to one peer, in order, at most once."""

    def offer(self, frame: Frame) -> bool:
        """Send a frame now if possible without waiting; True: sent, the memory is free.

        Always False while a `send` is under way, and on a link that is closed or broken.
        """

    async def send(self, frame: Frame) -> None:
        """Send a frame; return when its memory is free and the link has room for the next.

        Raises:
            LinkBroken: the link is broken for good; every later call raises this too.
        """

    def let_go(self) -> None:
        """Copy the unsent rest of a `send` under way, so that the frame's memory is free."""

    async def close(self) -> None:
        """Return when the peer has taken in every frame sent; then the link is closed.

        Idempotent.

        Raises:
            LinkBroken: it cannot be known that all frames arrived.
        """

    def abort(self) -> None:
        """Drop the link now; frames under way may be lost. Idempotent."""


class Sink(Protocol):
    """Destination of the payload of one frame, in pieces; done with the last byte."""

    def room(self) -> memoryview | None:
        """Return the memory for all missing bytes; None: call `feed`.

        Ask anew whenever the loop has turned: the memory may have been taken away.
        """

    def filled(self, nbytes: int) -> None:
        """Report that the first `nbytes` of the buffer are written."""

    def feed(self, payload: memoryview) -> int:
        """Consume the next bytes; return the count, without a torn last element."""


class Receiver(Protocol):
    """Where a fabric delivers; called on the loop of the fabric, never concurrently."""

    def accept(self, peer: int, frame: bytes | memoryview) -> None:
        """Process a whole frame of `peer`; frames of one peer arrive in the order sent.

        The frame's memory is valid only during the call.

        Raises:
            FrameError: the fabric must break the frame's link.
        """

    def open(self, peer: int, header: bytes) -> Sink:
        """Begin a DATA frame whose payload follows through the returned sink, instead of `accept`.

        The methods of the sink may raise FrameError as well.

        Raises:
            FrameError: the fabric must break the frame's link.
        """

    def broken(self, peer: int, reason: str) -> None:
        """Handle the loss of the link from `peer` before an orderly close."""


class Fabric(Protocol):
    """All links of one rank."""

    async def dial(self, peer: int) -> Link:
        """Open the link to a peer.

        Raises:
            Unreachable: nobody answers there.
            Unanswered: the peer's process does not go on with the handshake.
            LinkBroken: somebody answers who cannot prove who it is.
        """

    def pump(self, seconds: float) -> bool:
        """Receive the first frames within `seconds` while the loop does not run.

        False: nothing came, or only the loop can tell.
        """

    async def aclose(self) -> None:
        """Drop every link and stop listening. Idempotent."""


@runtime_checkable
class ActivityReporter(Protocol):
    """A fabric that reports when a peer's system was last active, and how soon it answers.

    Optional: without it, frames handed over are assumed to have arrived.
    """

    def get_last_activity(self, peer: int) -> float:
        """Return when data or an acknowledgement last came from a peer, on the monotonic clock.

        -inf: that is not known of this peer.
        """

    def get_recovery_seconds(self, peer: int) -> float:
        """Return the seconds until a packet to a peer that gets lost is sent again and answered.

        0: that is not known of this peer.
        """


@runtime_checkable
class Lender(Protocol):
    """A fabric with connections that a call may read and write itself while the loop does not run.

    Optional: without it, every frame goes through links and receivers.
    """

    def lend(self, peer: int, state: "LinkState") -> bool:
        """Put the descriptors of a peer's connections into `state`, the same one for every call.

        False: one of them is not there, or is within a frame.
        """

    def deliver(self, peer: int, frame: bytes) -> None:
        """Pass on a frame that a call has read and is not for it, as if it had just come."""

    def read_ahead(self, peer: int) -> None:
        """Process the bytes in the peer's `state`, as if they had just come."""

    def send_rest(self, peer: int, rest: bytes) -> None:
        """Send the rest of a frame that a call has begun, before any other."""


class Gathering:
    """A sink that buffers a frame until complete."""

    def __init__(
        self,
        header: bytes,
        nbytes: int,
        deliver: Callable[[memoryview], None],
        retract: Callable[[], None] = lambda: None,
    ) -> None:
        """`retract` is called where the frame is taken back, and will be opened anew."""
        self._retract = retract
        self._frame = memoryview(bytearray(len(header) + nbytes))
        self._frame[: len(header)] = header
        self._missing = nbytes
        self._deliver = deliver

    def room(self) -> memoryview:
        return self._frame[len(self._frame) - self._missing :]

    def filled(self, nbytes: int) -> None:
        self._missing -= nbytes
        if not self._missing:
            self._deliver(self._frame)

    def feed(self, payload: memoryview) -> int:
        self.room()[: len(payload)] = payload
        self.filled(len(payload))
        return len(payload)

    @property
    def nbytes(self) -> int:
        """Bytes that have come."""
        return len(self._frame) - self._missing

    def take_back(self) -> bytes:
        """Return what has come, as if it had not; the sink is not used any more."""
        self._retract()
        return bytes(self._frame[: self.nbytes])
