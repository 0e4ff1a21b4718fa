"""Messages from point to point of one group: which way they go, and in what order they set out.

All go one way, over shared memory or over links, as all ranks of the group find out alike. Until
that is known they wait here, each no longer than its deadline.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Failure, Registry
from allhands.engine.failures.losses import Losses
from allhands.engine.numbering import Order
from allhands.engine.p2p.message import Exchange, add_intact, named
from allhands.engine.p2p.over_links import Exchanges
from allhands.engine.p2p.over_shm import Mailing
from allhands.engine.shm.group_channel import Shared
from allhands.errors import AllhandsError
from allhands.transport.frame import Key


class Messages:
    """Messages of a group, on the loop; over shared memory they need not come by here."""

    shm_path: Mailing | None = None
    """Where callers' threads begin messages over shared memory; None: not yet, or not at all."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        order: Order,
        shared: Shared,
        links: Exchanges,
        registry: Registry,
        losses: Losses,
        ended: Callable[[], int],
        named: Sequence[int],
    ) -> None:
        self._name = name
        self._ranks = tuple(ranks)
        self._rank = rank
        self._order = order
        self._shared = shared
        self._links = links
        self._registry = registry
        self._ended = ended
        self._named = named
        self._mailing: Mailing | None = None
        self._held: dict[Exchange, asyncio.TimerHandle] = {}
        self._settling: asyncio.Task[None] | None = None
        self._losses = losses
        self._closed = False

    def start(self, exchange: Exchange) -> None:
        """Take a message that was counted as a detour."""
        if not self._losses.has_failed and (self._held or self._shared.is_open):
            self._hold(exchange)
            return
        self._pass_on(exchange)

    def cancel(self, exchange: Exchange) -> None:
        """End an exchange early."""
        if exchange in self._held:
            self._end_held(
                exchange, lambda what: AllhandsError(f"{what} was cancelled by this rank")
            )
        elif exchange.message is not None:
            assert self._mailing is not None
            self._mailing.cancel(exchange)
        else:
            self._links.cancel(exchange)

    def fail(self) -> None:
        """End all messages, and all to come: the group has failed."""
        self._review_held()
        self._links.review()
        if self._mailing is not None:
            self._mailing.fail()

    def peer_left(self, rank: int) -> None:
        """Learn that a rank of the world left: what it sent before is here already."""
        self._links.review()
        if self._mailing is not None:
            self._mailing.peer_left(rank)
        if rank in self._shared_missing():
            self._review_held()

    def refused(self, peer: int, key: Key, call: str) -> None:
        """Learn that the receiver of a send over links expects another message."""
        self._links.refused(peer, key, call)

    async def idle(self, run: Callable[[Callable[[], None]], "asyncio.Future[None]"]) -> None:
        """Return when every message begun so far has ended; `run` gives a thread to wait on."""
        while self._settling is not None and self._held:
            await asyncio.wait([self._settling])
        await self._links.idle()
        if self._mailing is not None and not self._closed:
            await run(self._mailing.idle)

    def close(self) -> None:
        """Give up what messages have of shared memory; every one has ended."""
        self._closed = True
        self._order.p2p = self.shm_path = None
        if self._settling is not None:
            self._settling.cancel()
        if self._mailing is not None:
            self._mailing.close()
            self._mailing = None

    # ------------------------------------------------------------ until the way is known

    def _hold(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        late = max(exchange.deadline - time.monotonic(), 0)
        self._held[exchange] = loop.call_later(late, self._expire, exchange)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle(), name=f"way of {self._name}")

    async def _settle(self) -> None:
        try:
            await self._shared.settle(self._ended)
        finally:
            self._settling = None
        held = list(self._held)
        for exchange in held:
            self._held.pop(exchange).cancel()
            self._pass_on(exchange)

    def _review_held(self) -> None:
        """End the messages that wait for their way and cannot arrive on any."""
        others = [one for one in self._ranks if one != self._ranks[self._rank]]
        for exchange in list(self._held):
            failure = self._losses.reason_of_message(exchange.peer, others)
            if failure is not None:
                self._end_held(exchange, failure)

    def _expire(self, exchange: Exchange) -> None:
        missing = self._shared_missing()

        def late(what: str) -> AllhandsError:
            return call_errors.timed_out(
                what=what,
                operation=exchange.work.operation,
                sequence=0,
                label=exchange.work.label,
                timeout=exchange.timeout,
                found=None,
                waiting_on=missing,
                registry=self._registry,
            )

        self._end_held(exchange, late)

    def _end_held(self, exchange: Exchange, failure: Failure) -> None:
        self._held.pop(exchange).cancel()
        self._arrive()
        what = named(exchange.work.operation, self._ranks, exchange.peer, exchange.tag)
        error = failure(what)
        add_intact(error, exchange.receives, touched=False)
        exchange.work.fail(error)

    def _shared_missing(self) -> list[int]:
        """Return the ranks of the world that have not said which way the group goes."""
        return [self._ranks[rank] for rank in self._shared.missing()]

    # ------------------------------------------------------------ after

    def _pass_on(self, exchange: Exchange) -> None:
        """Let a message set out, behind those that came before it."""
        if self._mailing is None and not self._closed and not self._losses.has_failed:
            self._open()
        try:
            if self._mailing is not None and self._mailing.begin(exchange):
                return
            start = self._links.receive if exchange.receives else self._links.send
            start(exchange)
        except Exception as error:  # whatever it is belongs to the caller, not to the loop
            exchange.work.fail(error)
        finally:
            self._arrive()

    def _open(self) -> None:
        make = self._shared.p2p_maker()
        if make is None:
            return
        self._mailing = Mailing(
            self._name,
            self._ranks,
            self._rank,
            self._registry,
            partial(make, ranks=self._named),
            self._shared.recording.failed,
            self._losses,
        )
        for rank in self._losses.left():
            self._mailing.peer_left(rank)

    def _arrive(self) -> None:
        """Count a detour as ended; with the last one, others need not make any."""
        with self._order.lock:
            self._order.detours -= 1
            if self._order.detours == 0 and self._mailing is not None and not self._closed:
                self.shm_path = self._mailing
                self._order.p2p = self._mailing.p2p
                self._order.tell_timeout()
