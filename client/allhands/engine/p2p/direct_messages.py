"""Blocking messages over links, on their callers' threads.

The native core borrows the event loop for each, as `runtime.loop_thread` has it, and reads and
writes the connections itself. What it cannot judge, or has to wait for too long, it declines: the
message goes through the queue then, and what was read ahead comes back to the mesh.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from allhands.collectives.request import name_dtype
from allhands.collectives.signature import CallSignature
from allhands.engine.numbering import Numbering
from allhands.runtime import native_core
from allhands.runtime.loop_thread import LoopThread
from allhands.transport.lent_links import LentLinks
from allhands.transport.mesh import Mesh

if TYPE_CHECKING:
    from allhands._native import LinkMessages, MessageRow

_DONE, _BUSY = 1, 2


class DirectMessages:
    """Messages of one group; any thread."""

    def __init__(
        self,
        thread: LoopThread,
        order: Numbering,
        mesh: Mesh,
        lent_links: LentLinks,
        group: int,
        ranks: Sequence[int],
        rank: int,
        caller_ranks: Sequence[int],
        is_plain: Callable[[], bool],
        has_left: Callable[[int], bool],
        records: int,
    ) -> None:
        """`is_plain` says whether messages go over links, and nothing speaks against that.

        `has_left` says it of a rank of the world.
        """
        core, _ = native_core.find()
        assert core is not None, "links are lent to the native core only"
        self._thread = thread
        self._mesh = mesh
        self._links = lent_links
        self._group = group
        self._is_plain = is_plain
        self._has_left = has_left
        self._missing = {
            caller_rank: (place, world_rank)
            for place, (caller_rank, world_rank) in enumerate(zip(caller_ranks, ranks, strict=True))
            if place != rank
        }
        """Ranks that the core does not know yet, because there is no link."""
        self._world_ranks = dict(zip(caller_ranks, ranks, strict=True))
        self._native: LinkMessages = core.LinkMessages(
            thread=thread,
            owner=self,
            order=order,
            sent=mesh.p2p_counts,
            received=lent_links.received_counts,
            group=group,
            digests=mesh.has_digests(group),
            records=records,
        )

    def send(
        self, x: object, dst: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> bool:
        said = self._native.send(x, dst, tag, timeout, label)
        if said == _BUSY and self._thread.take_loop():
            said = self._native.send(x, dst, tag, timeout, label)
        return said == _DONE

    def recv(
        self, x: object, src: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> int:
        return self._receive(self._native.recv, x, src, tag, timeout, label)

    def try_recv(
        self, x: object, src: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> int:
        """Receive what comes within moments, as `recv` does; an event loop may call it."""
        return self._receive(self._native.try_recv, x, src, tag, timeout, label)

    def _receive(self, receive: Callable[..., int], *arguments: object) -> int:
        sender = receive(*arguments)
        if sender == -_BUSY and self._thread.take_loop():
            sender = receive(*arguments)
        return sender

    def records(self, last: int, /) -> "list[MessageRow]":
        return self._native.records(last)

    def totals(self) -> tuple[int, float]:
        return self._native.totals()

    # ------------------------------------------------------------ for the core, which has the loop

    def prepare(self) -> bool:
        """Say whether messages may go by the core until the loop runs again."""
        with self._thread.enter():
            if not self._is_plain():
                return False
            for caller_rank, (place, world_rank) in list(self._missing.items()):
                if (state := self._links.get_state(world_rank)) is not None:
                    del self._missing[caller_rank]
                    key = (world_rank, self._group)
                    self._native.add_peer(caller_rank, place, state, key)
            self._links.lend_all(self._has_left)
            self._native.may_receive = self._links.take_messages(self._group)
            return True

    def sign(self, dtype: "np.dtype[np.generic]", count: int) -> int:
        """Return the signature of a message."""
        return CallSignature("message", name_dtype(dtype), count).signature

    def deliver(self, caller_rank: int, nbytes: int) -> None:
        """Take the frame that was read before the message."""
        with self._change():
            self._links.deliver_first(self._world_ranks[caller_rank], nbytes)

    def send_rest(self, caller_rank: int) -> None:
        """Send the rest of a message."""
        with self._change():
            self._links.send_kept_rest(self._world_ranks[caller_rank])

    def take_back(self, caller_rank: int) -> None:
        """Look after the credit and what was read ahead of a peer."""
        with self._change():
            self._links.take_back([self._world_ranks[caller_rank]])

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Let a block change the mesh: what any group's core knows of it has to be asked anew."""
        with self._thread.enter():
            self._thread.turns += 1
            yield
