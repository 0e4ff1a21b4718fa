"""Point-to-point messages of one group over links: each runs for itself, beside the queue."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from allhands.collectives.buffer import octets
from allhands.collectives.signature import Call
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Failure, Registry
from allhands.engine.failures.losses import Losses
from allhands.engine.links.pings import PING_AFTER
from allhands.engine.p2p.message import Exchange, add_intact, named, sent
from allhands.errors import AllhandsError
from allhands.transport.frame import Key
from allhands.transport.inbox import Incoming, Unlike
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import Outgoing

logger = logging.getLogger(__name__)

_MOST_PINGED = 64
"""Ranks that a receive from any source pings; in larger groups none of them."""


class Exchanges:
    """Sends and receives of a group over links, on the loop."""

    def __init__(
        self,
        group: int,
        ranks: Sequence[int],
        rank: int,
        mesh: Mesh,
        registry: Registry,
        losses: Losses,
    ) -> None:
        self._group = group
        self._ranks = tuple(ranks)
        self._rank = rank
        self._mesh = mesh
        self._registry = registry
        self._pending: dict[Exchange, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends: dict[tuple[int, int], Exchange] = {}
        self._losses = losses

    def send(self, exchange: Exchange) -> None:
        """Start a send; complete when the memory may be reused."""
        assert exchange.peer is not None
        peer = exchange.peer
        count = self._mesh.next_count(peer, self._group)
        key = Key(self._group, count, 0, exchange.tag, point_to_point=True)
        if (failure := self._reason(exchange)) is not None:
            exchange.work.fail(failure(self._what(exchange)))
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(is_like: bool) -> None:
            if is_like and not future.done():
                future.set_result(None)  # unlike ones are told apart by the REFUSE that follows

        message = Outgoing(key, [octets(exchange.array)], exchange.call.signature, done)
        self._sends[peer, count] = exchange

        def ended() -> None:
            self._sends.pop((peer, count), None)
            self._mesh.withdraw(peer, message)

        self._mesh.send(peer, message)
        self._watch(exchange, future, ended)

    def receive(self, exchange: Exchange) -> None:
        """Start a receive into the exchange's array."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        view = octets(exchange.array)

        def land(offset: int, payload: memoryview) -> None:
            exchange.has_touched = True
            view[offset : offset + len(payload)] = payload

        def done(unlike: Unlike | None) -> None:
            if future.done():
                return
            sender = self._ranks.index(incoming.peer)
            if unlike is None:
                exchange.work.received_from(sender)
                future.set_result(None)
                return
            self._mesh.refuse(incoming.peer, unlike.key, str(exchange.call))
            message = sent(unlike.total, unlike.signature, _signed)
            table = {sender: message, self._rank: str(exchange.call)}
            future.set_exception(call_errors.mismatch(self._what(exchange), self._rank, table))

        incoming = Incoming(exchange.array.nbytes, exchange.call.signature, land, done)
        self._mesh.post_open(exchange.peer, self._group, exchange.tag, incoming)
        # Only now: what a peer sent before it left can still be received.
        if not future.done() and (failure := self._reason(exchange)) is not None:
            future.set_exception(failure(self._what(exchange)))
        self._watch(exchange, future, lambda: self._mesh.retract(incoming))

    def cancel(self, exchange: Exchange) -> None:
        """End an exchange early."""
        self._end(exchange, lambda what: AllhandsError(f"{what} was cancelled by this rank"))

    def review(self) -> None:
        """End the exchanges that cannot end well; what a rank that left had sent is here."""
        for exchange in list(self._pending):
            if (failure := self._reason(exchange)) is not None:
                self._end(exchange, failure)

    def refused(self, peer: int, key: Key, call: str) -> None:
        """Learn that the receiver of a send expects another message."""
        exchange = self._sends.get((peer, key.sequence))
        if exchange is not None:
            table = {self._ranks.index(peer): call, self._rank: str(exchange.call)}
            self._end(exchange, lambda what: call_errors.mismatch(what, self._rank, table))
        else:
            logger.warning(
                "a message to rank %d (tag %d) had gone when it was turned down: %s was expected",
                self._ranks.index(peer),
                key.part,
                call,
            )

    async def idle(self) -> None:
        """Return when every exchange begun so far has ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    # ------------------------------------------------------------ inside

    def _watch(
        self, exchange: Exchange, future: "asyncio.Future[None]", ended: Callable[[], None]
    ) -> None:
        self._pending[exchange] = future
        task = asyncio.create_task(self._settle(exchange, future, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(
        self, exchange: Exchange, future: "asyncio.Future[None]", ended: Callable[[], None]
    ) -> None:
        work = exchange.work
        unwatch: Callable[[], None] | None = None
        try:
            remaining = exchange.deadline - time.monotonic()
            await asyncio.wait([future], timeout=min(PING_AFTER, remaining / 4))
            if not future.done():
                peers = self._peers_of(exchange)
                unwatch = self._registry.watch_links(lambda: peers)
                await asyncio.wait([future], timeout=exchange.deadline - time.monotonic())
            if not future.done():
                raise call_errors.timed_out(
                    what=self._what(exchange),
                    operation=work.operation,
                    sequence=work.sequence,
                    label=work.label,
                    timeout=exchange.timeout,
                    found=None,
                    waiting_on=[] if exchange.peer is None else [exchange.peer],
                    registry=self._registry,
                )
            future.result()
        except asyncio.CancelledError:
            work.fail(AllhandsError(f"{self._what(exchange)} was cancelled: closing"))
            raise
        except Exception as error:
            add_intact(error, exchange.receives, exchange.has_touched)
            work.fail(error)
        else:
            work.succeed(exchange.result)
        finally:
            if unwatch is not None:
                unwatch()
            future.cancel()
            self._pending.pop(exchange, None)
            ended()

    def _end(self, exchange: Exchange, failure: Failure) -> None:
        future = self._pending.get(exchange)
        if future is not None and not future.done():
            future.set_exception(failure(self._what(exchange)))

    def _reason(self, exchange: Exchange) -> Failure | None:
        """Return why an exchange cannot end well, if that is known."""
        others = [rank for rank in self._ranks if rank != self._ranks[self._rank]]
        return self._losses.reason_of_message(exchange.peer, others)

    def _peers_of(self, exchange: Exchange) -> list[int]:
        """Return the ranks of the world that an exchange may be held up by; of many, none."""
        if exchange.peer is not None:
            return [exchange.peer]
        others = [rank for rank in self._ranks if rank != self._ranks[self._rank]]
        return others if len(others) <= _MOST_PINGED else []

    def _what(self, exchange: Exchange) -> str:
        return named(exchange.work.operation, self._ranks, exchange.peer, exchange.tag)


def _signed(name: str, count: int) -> int:
    return Call("message", name, count).signature
