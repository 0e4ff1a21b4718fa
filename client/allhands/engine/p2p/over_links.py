"""Point-to-point messages of one group over links: each runs for itself, beside the queue."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from allhands.collectives.buffer import view_as_bytes
from allhands.collectives.signature import CallSignature
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory, PeerDirectory
from allhands.engine.failures.losses import FailureLog
from allhands.engine.links.pings import PING_AFTER
from allhands.engine.p2p.message import P2PRequest, add_intact, describe_sent, name_message
from allhands.errors import AllhandsError
from allhands.transport.frame import MessageKey
from allhands.transport.inbox import MessageMismatch, PostedReceive
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import PendingSend

logger = logging.getLogger(__name__)

_MAX_PINGED = 64
"""Ranks that a receive from any source pings; in larger groups none of them."""


class P2POverLinks:
    """Sends and receives of a group over links, on the loop."""

    def __init__(
        self,
        group: int,
        ranks: Sequence[int],
        rank: int,
        mesh: Mesh,
        directory: PeerDirectory,
        failure_log: FailureLog,
    ) -> None:
        self._group = group
        self._ranks = tuple(ranks)
        self._rank = rank
        self._mesh = mesh
        self._directory = directory
        self._pending: dict[P2PRequest, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends: dict[tuple[int, int], P2PRequest] = {}
        self._failure_log = failure_log

    def send(self, request: P2PRequest) -> None:
        """Start a send; complete when the memory may be reused."""
        assert request.peer is not None
        peer = request.peer
        count = self._mesh.next_count(peer, self._group)
        key = MessageKey(self._group, count, 0, request.tag, is_p2p=True)
        if (failure := self._find_failure(request)) is not None:
            request.work.fail(failure(self._name_message(request)))
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(is_like: bool) -> None:
            if is_like and not future.done():
                future.set_result(None)  # unlike ones are told apart by the REFUSE that follows

        message = PendingSend(key, [view_as_bytes(request.array)], request.call.signature, done)
        self._sends[peer, count] = request

        def clean_up() -> None:
            self._sends.pop((peer, count), None)
            self._mesh.cancel_send(peer, message)

        self._mesh.send(peer, message)
        self._watch(request, future, clean_up)

    def receive(self, request: P2PRequest) -> None:
        """Start a receive into the exchange's array."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        view = view_as_bytes(request.array)

        def land(offset: int, payload: memoryview) -> None:
            request.has_touched = True
            view[offset : offset + len(payload)] = payload

        def done(unlike: MessageMismatch | None) -> None:
            if future.done():
                return
            sender = self._ranks.index(incoming.peer)
            incoming.land = incoming.done = _ignore  # they have it, and it the array
            if unlike is None:
                request.work.received_from(sender)
                future.set_result(None)
                request.work.succeed(request.result)  # who waits may have lent this thread
                return
            self._mesh.send_nack(incoming.peer, unlike.key, str(request.call))
            message = describe_sent(unlike.total, unlike.signature, _sign_message)
            table = {sender: message, self._rank: str(request.call)}
            future.set_exception(
                call_errors.build_mismatch_error(self._name_message(request), self._rank, table)
            )

        incoming = PostedReceive(request.array.nbytes, request.call.signature, land, done)
        self._mesh.post_p2p(request.peer, self._group, request.tag, incoming)
        # Only now: what a peer sent before it left can still be received.
        if not future.done() and (failure := self._find_failure(request)) is not None:
            future.set_exception(failure(self._name_message(request)))
        self._watch(request, future, lambda: self._mesh.cancel_receive(incoming))

    def cancel(self, request: P2PRequest) -> None:
        """End an exchange early."""
        self._end(request, lambda what: AllhandsError(f"{what} was cancelled by this rank"))

    def fail_unreachable(self) -> None:
        """Fail messages that can no longer complete; departed ranks' data has arrived by now."""
        for exchange in list(self._pending):
            if (failure := self._find_failure(exchange)) is not None:
                self._end(exchange, failure)

    def on_refused(self, peer: int, key: MessageKey, call: str) -> None:
        """Handle the refusal of a send by a receiver that expects another message."""
        exchange = self._sends.get((peer, key.sequence))
        if exchange is not None:
            table = {self._ranks.index(peer): call, self._rank: str(exchange.call)}
            self._end(
                exchange, lambda what: call_errors.build_mismatch_error(what, self._rank, table)
            )
        else:
            logger.warning(
                "a message to rank %d (tag %d) had gone when it was turned down: %s was expected",
                self._ranks.index(peer),
                key.part,
                call,
            )

    async def wait_idle(self) -> None:
        """Return when every exchange begun so far has ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    # ------------------------------------------------------------ inside

    def _watch(
        self, request: P2PRequest, future: "asyncio.Future[None]", clean_up: Callable[[], None]
    ) -> None:
        self._pending[request] = future
        task = asyncio.create_task(self._complete(request, future, clean_up))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _complete(
        self, request: P2PRequest, future: "asyncio.Future[None]", clean_up: Callable[[], None]
    ) -> None:
        work = request.work
        unwatch: Callable[[], None] | None = None
        try:
            remaining = request.deadline - time.monotonic()
            await asyncio.wait([future], timeout=min(PING_AFTER, remaining / 4))
            if not future.done():
                peers = self._list_peers(request)
                unwatch = self._directory.watch_links(lambda: peers)
                await asyncio.wait([future], timeout=request.deadline - time.monotonic())
            if not future.done():
                raise call_errors.build_timeout_error(
                    what=self._name_message(request),
                    operation=work.operation,
                    sequence=work.sequence,
                    label=work.label,
                    timeout=request.timeout,
                    verdict=None,
                    awaited_ranks=[] if request.peer is None else [request.peer],
                    directory=self._directory,
                )
            future.result()
        except asyncio.CancelledError:
            work.fail(AllhandsError(f"{self._name_message(request)} was cancelled: closing"))
            raise
        except Exception as error:
            add_intact(error, request.receives, request.has_touched)
            work.fail(error)
        else:
            if not work.has_ended:
                work.succeed(request.result)
        finally:
            if unwatch is not None:
                unwatch()
            future.cancel()
            self._pending.pop(request, None)
            clean_up()

    def _end(self, request: P2PRequest, failure: ErrorFactory) -> None:
        future = self._pending.get(request)
        if future is not None and not future.done():
            future.set_exception(failure(self._name_message(request)))

    def _find_failure(self, request: P2PRequest) -> ErrorFactory | None:
        """Return the known reason why a message cannot complete; None: none is known."""
        others = [rank for rank in self._ranks if rank != self._ranks[self._rank]]
        return self._failure_log.find_message_failure(request.peer, others)

    def _list_peers(self, request: P2PRequest) -> list[int]:
        """Return the ranks of the world that an exchange may be held up by; of many, none."""
        if request.peer is not None:
            return [request.peer]
        others = [rank for rank in self._ranks if rank != self._ranks[self._rank]]
        return others if len(others) <= _MAX_PINGED else []

    def _name_message(self, request: P2PRequest) -> str:
        return name_message(request.work.operation, self._ranks, request.peer, request.tag)


def _sign_message(name: str, count: int) -> int:
    return CallSignature("message", name, count).signature


def _ignore(*_: object) -> None:
    pass
