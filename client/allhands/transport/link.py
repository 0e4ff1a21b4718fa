"""The contract between the mesh and the networks below it.

A `Fabric` reaches the peers of one rank; a `Link` is the way from this rank to one peer. What
comes in goes to a `Receiver`. Implementations: `grpc_stream` and `inproc`; the conformance suite
in `allhands.testing.link_suite` holds for every one.
"""

from typing import Protocol


class LinkBroken(Exception):
    """The way to a peer is gone; what was under way may or may not have arrived."""


class Link(Protocol):
    """Frames to one peer, in order, each once or not at all."""

    async def send(self, frame: bytes) -> None:
        """Hand over one frame; return when the link has room for the next.

        Raises:
            LinkBroken: and so does every later call.
        """

    async def close(self) -> None:
        """Return when the peer has taken in every frame sent; then the link is closed.

        Idempotent.

        Raises:
            LinkBroken: it cannot be known that all frames arrived.
        """

    def abort(self) -> None:
        """Drop the link now; frames under way may be lost. Idempotent."""


class Receiver(Protocol):
    """Where a fabric delivers; called on the loop of the fabric, never concurrently."""

    def accept(self, peer: int, frame: bytes) -> None:
        """Take one frame from `peer`; frames of one peer come in the order sent.

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
            LinkBroken: nobody answers there, or somebody who cannot prove who it is.
        """

    async def aclose(self) -> None:
        """Drop every link and stop listening. Idempotent."""
