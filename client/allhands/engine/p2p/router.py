"""Router of one group's point-to-point messages: shared memory or links, in order.

All messages take the same route, which all ranks of the group determine alike. Until the route is
known, messages are held here, each no longer than its deadline.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory, PeerDirectory
from allhands.engine.failures.losses import FailureLog
from allhands.engine.message_routes import MessageRoute, choose_message_route
from allhands.engine.numbering import CallNumbering
from allhands.engine.p2p.interface import P2PRouter
from allhands.engine.p2p.message import P2PRequest, add_intact, name_message
from allhands.engine.p2p.over_links import P2POverLinks
from allhands.engine.p2p.over_shm import P2POverShm
from allhands.engine.shm.group_channel import GroupChannel
from allhands.errors import AllhandsError
from allhands.runtime.helper_threads import HelperThreads
from allhands.transport.frame import MessageKey


class ShmOrLinksRouter(P2PRouter):
    """Messages of a group, on the loop; over shared memory they need not come by here."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        order: CallNumbering,
        channel: GroupChannel,
        links: P2POverLinks,
        directory: PeerDirectory,
        failure_log: FailureLog,
        get_last_ended: Callable[[], int],
        caller_ranks: Sequence[int],
        threads: HelperThreads,
    ) -> None:
        self.shm_path: P2POverShm | None = None
        self._name = name
        self._ranks = tuple(ranks)
        self._rank = rank
        self._order = order
        self._channel = channel
        self._links = links
        self._directory = directory
        self._get_last_ended = get_last_ended
        self._caller_ranks = caller_ranks
        self._threads = threads
        self._p2p_over_shm: P2POverShm | None = None
        self._held: dict[P2PRequest, asyncio.TimerHandle] = {}
        self._negotiation: asyncio.Task[None] | None = None
        self._failure_log = failure_log
        self._is_closed = False

    @property
    def is_plain_links(self) -> bool:
        return not (
            self._held
            or self._is_closed
            or self._p2p_over_shm is not None
            or self._channel.is_undecided
            or self._failure_log.has_failed
        )

    def start(self, request: P2PRequest) -> None:
        is_undecided = bool(self._held) or self._channel.is_undecided
        if self._choose_route(is_undecided=is_undecided) is MessageRoute.HELD:
            self._hold(request)
        else:
            self._forward(request)

    def open_early(self) -> None:
        """Open shared memory before the first message, if all ranks are known to have it."""
        with self._order.lock:
            if self._order.queued_messages == 0:
                self._open_shm()
                self._skip_queue()

    def cancel(self, request: P2PRequest) -> None:
        if request in self._held:
            self._end_held(
                request, lambda what: AllhandsError(f"{what} was cancelled by this rank")
            )
        elif request.shm_message is not None:
            assert self._p2p_over_shm is not None
            self._p2p_over_shm.cancel(request)
        else:
            self._links.cancel(request)

    def fail(self) -> None:
        self._review_held()
        self._links.fail_unreachable()
        if self._p2p_over_shm is not None:
            self._p2p_over_shm.fail()

    def on_peer_left(self, rank: int) -> None:
        self._links.fail_unreachable()
        if self._p2p_over_shm is not None:
            self._p2p_over_shm.on_peer_left(rank)
        if rank in self._list_undecided():
            self._review_held()

    def on_refused(self, peer: int, key: MessageKey, call: str) -> None:
        self._links.on_refused(peer, key, call)

    async def wait_idle(self, run: Callable[[Callable[[], None]], "asyncio.Future[None]"]) -> None:
        while self._negotiation is not None and self._held:
            await asyncio.wait([self._negotiation])
        await self._links.wait_idle()
        shm = self._p2p_over_shm
        if shm is not None and not self._is_closed and not shm.is_idle:
            await run(shm.wait_idle)

    def close(self) -> None:
        self._is_closed = True
        self._order.p2p = self.shm_path = None
        if self._negotiation is not None:
            self._negotiation.cancel()
        if self._p2p_over_shm is not None:
            self._p2p_over_shm.close()
            self._p2p_over_shm = None

    # ------------------------------------------------------------ until the way is known

    def _hold(self, request: P2PRequest) -> None:
        loop = asyncio.get_running_loop()
        late = max(request.deadline - time.monotonic(), 0)
        self._held[request] = loop.call_later(late, self._expire, request)
        if self._negotiation is None:
            self._negotiation = asyncio.create_task(self._negotiate(), name=f"way of {self._name}")

    async def _negotiate(self) -> None:
        try:
            await self._channel.negotiate(self._get_last_ended)
        finally:
            self._negotiation = None
        held = list(self._held)
        for exchange in held:
            self._held.pop(exchange).cancel()
            self._forward(exchange)

    def _review_held(self) -> None:
        """Fail the held messages that cannot complete on any route."""
        others = [one for one in self._ranks if one != self._ranks[self._rank]]
        for exchange in list(self._held):
            failure = self._failure_log.find_message_failure(exchange.peer, others)
            if failure is not None:
                self._end_held(exchange, failure)

    def _expire(self, request: P2PRequest) -> None:
        missing = self._list_undecided()

        def build_error(what: str) -> AllhandsError:
            return call_errors.build_timeout_error(
                what=what,
                operation=request.work.operation,
                sequence=0,
                label=request.work.label,
                timeout=request.timeout,
                verdict=None,
                awaited_ranks=missing,
                directory=self._directory,
            )

        self._end_held(request, build_error)

    def _end_held(self, request: P2PRequest, failure: ErrorFactory) -> None:
        self._held.pop(request).cancel()
        self._finish_queued()
        what = name_message(request.work.operation, self._ranks, request.peer, request.tag)
        error = failure(what)
        add_intact(error, request.receives, has_touched=False)
        request.work.fail(error)

    def _list_undecided(self) -> list[int]:
        """Return the ranks of the world that have not said which way the group goes."""
        return [self._ranks[rank] for rank in self._channel.list_missing()]

    # ------------------------------------------------------------ after

    def _forward(self, request: P2PRequest) -> None:
        """Pass a message on to its route, behind all earlier messages."""
        self._open_shm()
        try:
            p2p, route = self._p2p_over_shm, self._choose_route(is_undecided=False)
            if p2p is not None and route is MessageRoute.SHARED_MEMORY and p2p.begin(request):
                return
            start = self._links.receive if request.receives else self._links.send
            start(request)
        except Exception as error:  # whatever it is belongs to the caller, not to the loop
            request.work.fail(error)
        finally:
            self._finish_queued()

    def _choose_route(self, *, is_undecided: bool) -> MessageRoute:
        return choose_message_route(
            is_undecided=is_undecided,
            has_failed=self._failure_log.has_failed,
            has_p2p=self._p2p_over_shm is not None,
        )

    def _open_shm(self) -> None:
        """Open shared memory, if that is the route and it is not open."""
        if self._p2p_over_shm is not None or self._is_closed or self._failure_log.has_failed:
            return
        if (make := self._channel.p2p_maker()) is None:
            return
        self._p2p_over_shm = P2POverShm(
            self._name,
            self._ranks,
            self._rank,
            self._directory,
            partial(make, ranks=self._caller_ranks),
            self._channel.recorder.report_failure,
            self._failure_log,
            self._threads,
        )
        for rank in self._failure_log.list_departed():
            self._p2p_over_shm.on_peer_left(rank)

    def _finish_queued(self) -> None:
        """Count a queued message as ended; after the last, messages need not queue."""
        with self._order.lock:
            self._order.queued_messages -= 1
            self._skip_queue()

    def _skip_queue(self) -> None:
        """Let messages go over shared memory at once if none is queued, with the order's lock."""
        if (
            self._order.queued_messages == 0
            and self._p2p_over_shm is not None
            and not self._is_closed
        ):
            self.shm_path = self._p2p_over_shm
            self._order.p2p = self._p2p_over_shm.p2p
            self._order.propagate_timeout()
