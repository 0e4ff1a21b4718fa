"""Interface of a group's message router: messages on the loop, to their routes."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from allhands.engine.p2p.message import P2PRequest
from allhands.engine.p2p.over_shm import P2POverShm
from allhands.transport.frame import MessageKey


class P2PRouter(Protocol):
    """Messages of a group; event loop only, except for `shm_path`."""

    shm_path: P2POverShm | None
    """Where callers' threads begin messages over shared memory; None: not yet, or not at all."""

    @property
    def is_plain_links(self) -> bool:
        """Whether messages go over links, none is held, and the group has not failed."""

    def start(self, request: P2PRequest) -> None:
        """Start a message that was counted as queued."""

    def open_early(self) -> None:
        """Get ready for messages before the first, as far as their route is known."""

    def cancel(self, request: P2PRequest) -> None:
        """End a message early."""

    def fail(self) -> None:
        """End all messages, and all to come: the group has failed."""

    def on_peer_left(self, rank: int) -> None:
        """Handle the departure of a rank of the world, whose messages are all here by now."""

    def on_refused(self, peer: int, key: MessageKey, call: str) -> None:
        """Handle the refusal of a send over links by a receiver that expects another message."""

    async def wait_idle(self, run: Callable[[Callable[[], None]], "asyncio.Future[None]"]) -> None:
        """Return when every message begun so far has ended; `run` gives a thread to wait on."""

    def close(self) -> None:
        """Release the shared memory of messages; every message must have ended."""
