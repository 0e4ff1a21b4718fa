"""Point-to-point messages of one group over shared memory; safe from any thread."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Registry
from allhands.engine.failures.losses import Losses
from allhands.engine.p2p.message import Exchange, add_intact, named, sent, signed
from allhands.engine.work import explanations
from allhands.errors import AllhandsError

if TYPE_CHECKING:
    from allhands._native import Message, ShmP2P


class Mailing:
    """Words what becomes of messages, and tells it to those who hold works.

    A message is carried on by whoever waits for it; a thread of its own sees to the others.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        registry: Registry,
        make: Callable[..., "ShmP2P"],
        failed: Callable[[BaseException], None],
        losses: Losses,
    ) -> None:
        self._name = name
        self._ranks = tuple(ranks)
        self._rank = rank
        self._others = [one for one in self._ranks if one != self._ranks[rank]]
        self._registry = registry
        self._failed = failed
        self._losses = losses
        self.p2p = make(on_failure=self._on_failure)
        self._lock = threading.Lock()
        self._server: threading.Thread | None = None

    def begin(self, exchange: Exchange) -> bool:
        """Start a message; False: not in this process, which is no member."""
        peer = -1 if exchange.peer is None else self._ranks.index(exchange.peer)
        message = self.p2p.start(
            exchange.receives, exchange.array, peer, exchange.tag, exchange.deadline, exchange
        )
        if message is None:
            return False
        exchange.message = message
        if message.outcome != "under way" and message.claim():
            self._settle(message)
            return True
        self._serve()
        exchange.work.own(lambda: self.cancel(exchange))
        exchange.work.helped(lambda seconds: self._help(message, seconds))
        return True

    def cancel(self, exchange: Exchange) -> None:
        """End a message early."""
        if (message := exchange.message) is not None:
            message.cancel()
            self._settle_once(message)

    def fail(self) -> None:
        """End all messages, and all to come, but for those that are here already."""
        self.p2p.fail()

    def peer_left(self, rank: int) -> None:
        """Learn that a rank of the world left: what it sent before is here already."""
        if rank in self._others:
            self.p2p.remove_peer(self._ranks.index(rank))

    def idle(self) -> None:
        """Return when every message begun so far has ended."""
        self.p2p.wait_idle()

    def close(self) -> None:
        """Let the thread go; every message has ended."""
        self.p2p.close()

    # ------------------------------------------------------------ inside

    def _serve(self) -> None:
        with self._lock:
            if self._server is None:
                name = f"allhands messages {self._name}"
                self._server = threading.Thread(target=self._settle_all, name=name, daemon=True)
                self._server.start()

    def _settle_all(self) -> None:
        while (ended := self.p2p.serve()) is not None:
            for message in ended:
                self._settle_once(message)

    def _help(self, message: "Message", seconds: float) -> bool:
        """Carry a message on for some time, on the thread that waits for it."""
        if not message.wait(seconds):
            return False
        self._settle_once(message)
        return True

    def _settle_once(self, message: "Message") -> None:
        if message.claim():
            self._settle(message)

    def _settle(self, message: "Message") -> None:
        exchange: Exchange = message.context
        work = exchange.work
        if message.outcome == "delivered":
            if exchange.receives:
                work.received_from(message.source)
            work.explained(explanations.mailed(work.operation, exchange.array.nbytes, message.way))
            work.succeed(exchange.result)
            return
        try:
            self._raise(
                message.outcome,
                work.operation,
                exchange.peer,
                message.source,
                exchange.tag,
                str(exchange.call),
                message.sent_nbytes,
                message.sent_signature,
                message.expected,
                exchange.timeout,
                work.label,
            )
        except AllhandsError as error:
            add_intact(error, exchange.receives, message.touched)
            work.fail(error)

    def _on_failure(
        self,
        outcome: str,
        receives: bool,
        peer: int,
        source: int,
        tag: int,
        dtype: str,
        count: int,
        unlike: int,
        signature: int,
        told: str | None,
        timeout: float,
        label: str | None,
        touched: bool,
    ) -> None:
        """Raise what the failure of a message means; on the thread that waited for it."""
        operation = "recv" if receives else "send"
        world = None if peer < 0 else self._ranks[peer]
        mine = f"message({dtype}[{count}])"
        try:
            self._raise(
                outcome,
                operation,
                world,
                source,
                tag,
                mine,
                unlike,
                signature,
                told,
                timeout,
                label,
            )
        except AllhandsError as error:
            add_intact(error, receives, touched)
            self._failed(error)
            raise

    def _raise(
        self,
        outcome: str,
        operation: str,
        peer: int | None,
        source: int,
        tag: int,
        mine: str,
        unlike: int,
        signature: int,
        told: str | None,
        timeout: float,
        label: str | None,
    ) -> NoReturn:
        what = named(operation, self._ranks, peer, tag)
        if outcome == "unlike":
            if operation == "recv":
                table = {source: sent(unlike, signature, signed)}
            else:
                assert peer is not None
                table = {self._ranks.index(peer): told or "a message of another dtype or shape"}
            raise call_errors.mismatch(what, self._rank, {**table, self._rank: mine})
        if outcome == "late":
            raise call_errors.timed_out(
                what=what,
                operation=operation,
                sequence=0,
                label=label,
                timeout=timeout,
                found=None,
                waiting_on=[] if peer is None else [peer],
                registry=self._registry,
            )
        if outcome == "cancelled":
            raise AllhandsError(f"{what} was cancelled by this rank")
        if (failure := self._losses.reason_of_message(peer, self._others)) is not None:
            raise failure(what)
        raise AllhandsError(f"{what} ended as {outcome}")
