"""Point-to-point messages of one group over shared memory; safe from any thread."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import PeerDirectory
from allhands.engine.failures.losses import FailureLog
from allhands.engine.p2p.message import (
    P2PRequest,
    add_intact,
    describe_sent,
    name_message,
)
from allhands.engine.work import explanations
from allhands.errors import AllhandsError
from allhands.runtime.helper_threads import HelperThreads
from allhands.tracebacks import hide_traceback

if TYPE_CHECKING:
    from allhands._native import Message, ShmP2P
    from allhands.shm.failures import MessageFailure


class P2POverShm:
    """Point to point over shared memory: completes the works of messages, with their errors.

    A message is progressed by the thread that waits for it; a dedicated thread progresses the rest.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        directory: PeerDirectory,
        make: Callable[..., "ShmP2P"],
        on_failed: Callable[[BaseException], None],
        failure_log: FailureLog,
        threads: HelperThreads,
    ) -> None:
        self._name = name
        self._ranks = tuple(ranks)
        self._rank = rank
        self._others = [one for one in self._ranks if one != self._ranks[rank]]
        self._directory = directory
        self._on_failed = on_failed
        self._failure_log = failure_log
        self._threads = threads
        self.p2p = make(on_failure=self._on_failure, on_first=self._start_server)

    def begin(self, request: P2PRequest) -> bool:
        """Start a message; False: not in this process, which is no member."""
        peer = -1 if request.peer is None else self._ranks.index(request.peer)
        message = self.p2p.start(
            request.receives, request.array, peer, request.tag, request.deadline, request
        )
        if message is None:
            return False
        request.shm_message = message
        if message.outcome != "running" and message.claim():
            self._complete(message)
            return True
        request.work.own(lambda: self.cancel(request))
        request.work.helped(lambda seconds: self._progress(message, seconds))
        if request.work.has_ended:  # meanwhile
            request.shm_message = None
        return True

    def cancel(self, request: P2PRequest) -> None:
        """End a message early."""
        if (message := request.shm_message) is not None:
            message.cancel()
            self._complete_once(message)

    def fail(self) -> None:
        """End all messages, and all to come, but for those that are here already."""
        self.p2p.fail()

    def on_peer_left(self, rank: int) -> None:
        """Handle the departure of a rank of the world, whose messages are all here by now."""
        if rank in self._others:
            self.p2p.remove_peer(self._ranks.index(rank))

    @property
    def is_idle(self) -> bool:
        """Whether every message begun so far has ended."""
        return self.p2p.is_idle

    def wait_idle(self) -> None:
        """Return when every message begun so far has ended."""
        self.p2p.wait_idle()

    def close(self) -> None:
        """Let the thread go; every message has ended."""
        self.p2p.close()

    # ------------------------------------------------------------ inside

    def _start_server(self) -> None:
        self._threads.start(f"allhands messages {self._name}", self._serve)

    def _serve(self) -> None:
        while self._complete_next():
            pass

    def _complete_next(self) -> bool:
        """Complete the next messages that end; False: there will be none.

        Of messages and their arrays nothing is held when this has returned.
        """
        if (ended := self.p2p.serve()) is None:
            return False
        for message in ended:
            self._complete_once(message)
        return True

    def _progress(self, message: "Message", seconds: float) -> bool:
        """Progress a message for some time, on the thread that waits for it."""
        if not message.wait(seconds):
            return False
        self._complete_once(message)
        return True

    def _complete_once(self, message: "Message") -> None:
        if message.claim():
            self._complete(message)

    def _complete(self, message: "Message") -> None:
        exchange: P2PRequest = message.context
        exchange.shm_message = None  # which has it, and its array
        work = exchange.work
        if message.outcome == "ok":
            if exchange.receives:
                work.received_from(message.source)
            work.explained(
                explanations.explain_shm_p2p(work.operation, exchange.array.nbytes, message.way)
            )
            work.succeed(exchange.result)
            return
        from allhands.shm.failures import MessageFailure  # not before one fails

        failure = MessageFailure(
            outcome=message.outcome,
            operation=work.operation,
            peer=-1 if exchange.peer is None else self._ranks.index(exchange.peer),
            source=message.source,
            tag=exchange.tag,
            described=str(exchange.call),
            sent_nbytes=message.sent_nbytes,
            sent_signature=message.sent_signature,
            expected=message.expected,
            timeout=exchange.timeout,
            label=work.label,
            touched=message.touched,
        )
        try:
            self._raise(failure)
        except AllhandsError as error:
            add_intact(error, exchange.receives, message.touched)
            work.fail(error)

    def _on_failure(self, failure: "MessageFailure") -> None:
        """Raise the error of a failed message, on the thread that waited for it."""
        try:
            self._raise(failure)
        except AllhandsError as error:
            add_intact(error, failure.operation == "recv", failure.touched)
            self._on_failed(error)
            hide_traceback(error)
            raise

    def _raise(self, failure: "MessageFailure") -> NoReturn:
        peer = None if failure.peer < 0 else self._ranks[failure.peer]
        what = name_message(failure.operation, self._ranks, peer, failure.tag)
        if failure.outcome == "mismatch":
            if failure.operation == "recv":
                row = describe_sent(failure.sent_nbytes, failure.sent_signature, self.p2p.signature)
                table = {failure.source: row}
            else:
                table = {failure.peer: failure.expected or "a message of another dtype or shape"}
            table[self._rank] = failure.described
            raise call_errors.build_mismatch_error(what, self._rank, table)
        if failure.outcome == "timeout":
            raise call_errors.build_timeout_error(
                what=what,
                operation=failure.operation,
                sequence=0,
                label=failure.label,
                timeout=failure.timeout,
                verdict=None,
                awaited_ranks=[] if peer is None else [peer],
                directory=self._directory,
            )
        if failure.outcome == "cancelled":
            raise AllhandsError(f"{what} was cancelled by this rank")
        if (loss := self._failure_log.find_message_failure(peer, self._others)) is not None:
            raise loss(what)
        raise AllhandsError(f"{what} ended as {failure.outcome}")
