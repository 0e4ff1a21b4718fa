"""The contract between the mesh and the networks below it.

A `Fabric` reaches the peers of one rank; a `Link` is the way from this rank to one peer. What
comes in goes to a `Receiver`. Implementations: `socket_stream`, `grpc_stream` and `inproc`; the
conformance suite in `allhands.testing.link_suite` holds for every one.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from allhands.transport.frame import Frame


class LinkBroken(Exception):
    """The way to a peer is gone; what was under way may or may not have arrived."""


class Unreachable(LinkBroken):
    """Nobody could be connected to there; on another way the peer may be found."""


class HandshakeStalled(LinkBroken):
    """The peer's host takes connections, its process says nothing: it may be stopped or held up."""


class Link(Protocol):
    """Frames to one peer, in order, each once or not at all."""

    def offer(self, frame: Frame) -> bool:
        """Take a frame now if that needs no waiting, and say whether; its memory is free then.

        Always False while a `send` is under way, and on a link that is closed or broken.
        """

    async def send(self, frame: Frame) -> None:
        """Hand over one frame; return when its memory is free and the link has room for the next.

        Raises:
            LinkBroken: and so does every later call.
        """

    def let_go(self) -> None:
        """Copy what a `send` under way has left in its frame's memory, which is free then."""

    async def close(self) -> None:
        """Return when the peer has taken in every frame sent; then the link is closed.

        Idempotent.

        Raises:
            LinkBroken: it cannot be known that all frames arrived.
        """

    def abort(self) -> None:
        """Drop the link now; frames under way may be lost. Idempotent."""


class Sink(Protocol):
    """Where the payload of one frame goes, piece by piece; done with its last byte."""

    def room(self) -> memoryview | None:
        """Return where all that is missing may be written to; None: it must be fed.

        Ask anew whenever the loop has turned: the memory may have been taken away.
        """

    def filled(self, nbytes: int) -> None:
        """Learn that the first `nbytes` of its room have been written."""

    def feed(self, payload: memoryview) -> int:
        """Take in what comes next; return how much of it, all but a torn element at its end."""


class Receiver(Protocol):
    """Where a fabric delivers; called on the loop of the fabric, never concurrently."""

    def accept(self, peer: int, frame: bytes | memoryview) -> None:
        """Take one frame from `peer`; frames of one peer come in the order sent.

        The frame's memory is valid only during the call.

        Raises:
            FrameError: the fabric then breaks the link it came from.
        """

    def open(self, peer: int, header: bytes) -> Sink:
        """Begin a frame of data whose payload is still to come; it stands for an `accept`.

        The methods of the sink may raise FrameError as well.

        Raises:
            FrameError: the fabric then breaks the link it came from.
        """

    def broken(self, peer: int, reason: str) -> None:
        """Learn that the way from `peer` broke before `peer` had closed it."""


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
        """Take in what comes first within `seconds`, while the loop does not run.

        False: nothing came, or only the loop can tell.
        """

    async def aclose(self) -> None:
        """Drop every link and stop listening. Idempotent."""


@runtime_checkable
class ActivityReporter(Protocol):
    """A fabric that can tell what has come from a peer's system, whatever its program does.

    A fabric need not be one: what it has handed over is taken for what has arrived.
    """

    def get_last_activity(self, peer: int) -> float:
        """Return when data or an acknowledgement last came from a peer, on the monotonic clock.

        -inf: that is not known of this peer.
        """


class Gathering:
    """A sink that delivers its frame once it is whole."""

    def __init__(self, header: bytes, nbytes: int, deliver: Callable[[memoryview], None]) -> None:
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
