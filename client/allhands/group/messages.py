"""Submission of messages from point to point, which have no number."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from allhands.collectives.buffer import Array
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.signature import CallSignature, Result
from allhands.collectives.staging import Staging
from allhands.deadlines import clip_timeout
from allhands.engine.failures import call_errors
from allhands.engine.group_engine import GroupEngine
from allhands.engine.inline_limits import BEGUN_MESSAGE_BYTES, MESSAGE_SECONDS
from allhands.engine.message_routes import MessageRoute, list_message_starts
from allhands.engine.numbering import Numbering
from allhands.engine.p2p.message import P2PRequest, name_message
from allhands.engine.work.completed import CompletedSend
from allhands.engine.work.work import Work
from allhands.group.interfaces import LoopExecutor
from allhands.runtime.loop_thread import LoopThread

_Begin: TypeAlias = Callable[[P2PRequest], bool]
"""Begins a message by one route; False: not possible now."""


class MessageSubmitter:
    """Starts messages on their callers' threads where possible, else on the loop."""

    def __init__(self, engine: GroupEngine, executor: LoopExecutor, order: Numbering) -> None:
        self.engine = engine
        self.executor = executor
        self.order = order
        attempts = {MessageRoute.EAGER: self._send_eagerly}
        begins: Mapping[MessageRoute, _Begin] = {
            MessageRoute.SHARED_MEMORY: self._begin_over_shm,
            MessageRoute.LENT_LOOP: self._post_on_lent_loop,
            MessageRoute.QUEUE: self._queue_message,
        }
        self._message_starts = {
            operation: (
                tuple(attempts[one] for one in list_message_starts(sends=sends, has_work=False)),
                tuple(begins[one] for one in list_message_starts(sends=sends, has_work=True)),
            )
            for operation, sends in (("send", True), ("recv", False))
        }

    def start_p2p(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: CallTimeout,
        label: str | None,
        staging: Staging | None = None,
    ) -> Work:
        """Start a message by the first of its routes that takes it."""
        attempts, begins = self._message_starts[operation]
        limit = self.order.resolve_timeout(timeout)
        for attempt in attempts:
            if (sent := attempt(array, result, peer, tag, limit, label)) is not None:
                return sent
        seconds = clip_timeout(limit)
        call = CallSignature("message", str(array.dtype), array.size)
        work = Work(CallSignature(operation), 0, label, self.engine.name, self.executor.callbacks)
        work.staging = staging
        work.entry = self.engine.recorder.record_message(
            operation, array.nbytes, call, peer, tag, label
        )
        if seconds <= 0:
            what = name_message(operation, self.engine.caller_ranks, peer, tag)
            work.fail(call_errors.build_expired_error(what, work, seconds))
            return work
        request = P2PRequest(
            work, call, array, result, peer, tag, seconds, time.monotonic() + seconds
        )
        for begin in begins:
            if begin(request):
                return work
        raise AssertionError("the queue takes every message")

    def _send_eagerly(
        self,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        limit: float,
        label: str | None,
    ) -> Work | None:
        """Send a message at once; None: too large, without credit, or behind others."""
        if peer is None:
            return None
        place = self.engine.ranks.index(peer)
        p2p, direct = self.order.p2p, self.order.direct_p2p
        if p2p is not None:
            is_sent = p2p.try_send(array, place, tag, limit, label)
        elif direct is None or array.nbytes > BEGUN_MESSAGE_BYTES:
            return None
        else:
            is_sent = direct.send(array, self.engine.caller_ranks[place], tag, limit, label)
        if not is_sent:
            return None
        path = None if p2p is None else "eager"
        return CompletedSend(array.nbytes, label, self.engine.name, result, path)

    def _begin_over_shm(self, request: P2PRequest) -> bool:
        path = self.engine.p2p_router.shm_path
        return path is not None and path.begin(request)

    def _post_on_lent_loop(self, request: P2PRequest) -> bool:
        """Post a receive over links here; False: large, behind others, or the loop is not lent."""
        order, router, work = self.order, self.engine.p2p_router, request.work
        is_small = request.array.nbytes <= BEGUN_MESSAGE_BYTES
        if (
            order.direct_p2p is None
            or order.p2p is not None
            or not is_small
            or not request.receives
        ):
            return False
        is_posted = False

        def post() -> bool:
            nonlocal is_posted
            with order.lock:
                is_posted = order.queued_messages == 0 and router.shm_path is None
                order.queued_messages += is_posted
            if is_posted:
                work.own(lambda: self.executor.call(router.cancel, request))
                work.helped(partial(self._receive, work))
                router.start(request)
            return False

        self.executor.run_on_caller_thread(post)
        return is_posted

    def _receive(self, work: Work, seconds: float) -> bool:
        """Read the links for moments on a thread that waits for a message; it then just waits."""

        def pump() -> bool:
            self.engine.pump(lambda: work.has_ended, min(seconds, MESSAGE_SECONDS))
            return not work.has_ended

        self.executor.run_on_caller_thread(pump)
        return True

    def _queue_message(self, request: P2PRequest) -> bool:
        """Hand a message over to the loop, unless those before it have left there meanwhile."""
        router = self.engine.p2p_router
        with self.order.lock:
            if (path := router.shm_path) is None:
                self._post_to_loop(request.work, router.start, router.cancel, request)
                self.order.queued_messages += 1
                if self.order.direct_p2p is None and isinstance(self.executor, LoopThread):
                    # For the next ones, once they go over links.
                    self.order.direct_p2p = self.engine.make_direct_messages(self.executor)
                return True
        path.begin(request)
        return True

    def _post_to_loop(
        self,
        work: Work,
        start: Callable[..., None],
        cancel: Callable[..., None],
        item: object,
    ) -> None:
        work.own(lambda: self.executor.call(cancel, item))
        if isinstance(self.executor, LoopThread):
            work.helped(self.executor.help_waiting)
        self.executor.call(start, item)
