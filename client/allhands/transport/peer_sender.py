"""Sending side of a rank's links: per peer an outbox, a task and a link."""

import asyncio
import math

from allhands.transport.digests import FrameSigner
from allhands.transport.frame import Frame
from allhands.transport.link import Link
from allhands.transport.outbox import Outbox


class PeerSender:
    """Sender to one peer: an outbox, and the task that empties the outbox over a link."""

    def __init__(self, signer: FrameSigner) -> None:
        self.outbox = Outbox(self.offer, signer.state)
        self.signer = signer
        self.wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.link: Link | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_over = False
        """Whether nothing goes any more, so that `drain` need not wait for it."""
        self.last_sent = -math.inf
        """When the link last made room for the next frame, on the monotonic clock."""

    def offer(self, frame: Frame) -> bool:
        return self.link is not None and self.signer.offer(frame, self.link.offer)

    def end(self) -> None:
        """Send nothing from here on; a drain does not wait for the queued messages."""
        self.is_over = True
        self.idle.set()

    def refresh(self) -> None:
        """Wake the task if the outbox has a frame; mark the sender idle if empty."""
        if self.is_over:
            return
        if self.outbox.is_idle:
            self.idle.set()
            return
        self.idle.clear()
        if self.outbox.has_next:
            self.wake.set()
