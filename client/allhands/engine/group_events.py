"""Events at the peers of one group, and their effect on its calls."""

import logging
from collections.abc import Callable

from allhands.engine.context import EngineContext
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.operation import GroupProgress
from allhands.engine.p2p.interface import P2PRouter
from allhands.engine.watchdog import Watchdog
from allhands.transport.frame import MessageKey
from allhands.verdicts import CallCancellation

logger = logging.getLogger(__name__)


class GroupEvents:
    """Receiver of peer events; event loop only."""

    def __init__(
        self,
        context: EngineContext,
        watchdog: Watchdog,
        p2p_router: P2PRouter,
        get_progress: Callable[[], GroupProgress],
    ) -> None:
        self._name = context.name
        self._ranks = context.ranks
        self._rank = context.rank
        self._hash = context.hash
        self._mesh = context.mesh
        self._failures = context.failures
        self._channel = context.channel
        self._watchdog = watchdog
        self._p2p_router = p2p_router
        self._get_progress = get_progress

    def on_given_up(self, sequence: int, give_up: CallCancellation) -> None:
        """Learn that a rank of the group gave a call up on purpose."""
        if sequence <= self._get_progress().last_ended:
            return
        failure = self._failures.record_give_up(sequence, give_up)
        if self._watchdog.current is not None and sequence == self._watchdog.current.work.sequence:
            self._watchdog.interrupt_current(failure)
        else:
            self._channel.interrupt_next(sequence)

    def on_peer_left(
        self, rank: int, completed: int, failure: ErrorFactory, *, is_fault: bool = False
    ) -> None:
        """Handle the departure of a rank of the world after its call number `completed`.

        Calls up to that number can still complete here; no later call can. `is_fault`: the rank
        left because of an error.
        """
        self._failures.record_departure(rank, completed, failure, is_fault=is_fault)
        self._p2p_router.on_peer_left(rank)
        if self._watchdog.current is not None:
            gone = self._failures.find_failure(self._watchdog.current.work.sequence)
            if gone is not None:
                self._watchdog.interrupt_current(gone)
            else:  # it was in the current call, and cannot say so any more
                self._mesh.stop_awaiting(
                    MessageKey(self._hash, self._watchdog.current.work.sequence), rank
                )
        self._channel.limit(completed)

    def precede_by_mismatch(self, failure: ErrorFactory, completed: int | None) -> ErrorFactory:
        """Return the factory of a loss, extended to tell a mismatch that the loss may follow from.

        `completed`: number of the last call that ended well there; None: unknown, so as here.
        """
        if completed is None:  # the latest may have ended well here alone
            completed = self._get_progress().last_completed - 1
        return self._failures.precede_by_mismatch(failure, completed)

    def on_peer_silent(self) -> None:
        """Handle the silence of a rank of the group that still lives."""
        self._failures.on_peer_silent()

    def on_refused(self, peer: int, key: MessageKey, call: str) -> None:
        """Learn that a peer made another call than this rank, under the same number."""
        rank = self._ranks.index(peer)
        if key.is_p2p:
            self._p2p_router.on_refused(peer, key, call)
            return
        if key.sequence > self._get_progress().last_ended:
            self._failures.record_peer_call(rank, key.sequence, call)
        else:
            mine = self._find_own_call(key.sequence) or "a call long ago"
            logger.warning(
                "call #%d of group %r has ended here as %s, but rank %d called %s",
                key.sequence,
                self._name,
                mine,
                rank,
                call,
            )
            self._failures.note_mismatch(key.sequence, {rank: call, self._rank: mine})
        self.on_mismatch(peer, key)

    def on_mismatch(self, peer: int, key: MessageKey) -> None:
        """Handle a peer's different call under the number of a call of this rank."""
        if (mine := self._find_own_call(key.sequence)) is not None:
            # Also if the call is about to end well here.
            self._failures.send_own_call(peer, key.sequence, mine)
        elif key.sequence > self._get_progress().sequence:
            self._failures.send_own_call_soon(peer, key.sequence, self._find_own_call)
        if (
            self._watchdog.current is not None
            and key.sequence == self._watchdog.current.work.sequence
        ):
            self._watchdog.interrupt_current(None)
        else:
            self._channel.interrupt_current(key.sequence)

    def _find_own_call(self, sequence: int) -> str | None:
        """Return this rank's recent call under a number; None: unknown or too old."""
        return self._channel.find_own_call(sequence) or self._failures.find_own_call(sequence)
