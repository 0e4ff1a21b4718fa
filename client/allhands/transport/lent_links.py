"""Links lent to calls that read and write connections themselves, while the loop does not run.

What such a call reads beside its own messages comes back here: whole frames at once, and what it
has read ahead when the loop runs again, or when the next one to look at the link is not such a
call.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from allhands.runtime import native_core
from allhands.transport.digests import FrameVerifier
from allhands.transport.early_calls import EarlyMessage
from allhands.transport.frame import Frame
from allhands.transport.inbox import Inbox
from allhands.transport.link import Lender
from allhands.transport.peer_calls import PeerCallTracker
from allhands.transport.peer_sender import PeerSender

if TYPE_CHECKING:
    from allhands._native import LinkState

_CREDIT_STEP = 256 << 10
"""Bytes that a call has taken in which are given back to the sender at once."""


class LentLinks:
    """Lends the links of a mesh. Owned by the holder of the loop."""

    def __init__(
        self,
        fabric: Lender,
        senders: Mapping[int, PeerSender],
        inbox: Inbox,
        peer_calls: PeerCallTracker,
        verifier: FrameVerifier,
        on_heard: Callable[[int], None],
    ) -> None:
        """`on_heard` is told of a peer from which a call has received messages."""
        self._fabric = fabric
        self._senders = senders
        self._inbox = inbox
        self._peer_calls = peer_calls
        self._verifier = verifier
        self._on_heard = on_heard
        self._loop = asyncio.get_running_loop()
        self._states: dict[int, LinkState] = {}
        self._unread: set[int] = set()
        """Peers of which something was read ahead that the loop is to process."""

    def get_state(self, peer: int) -> "LinkState | None":
        """Return the state of a peer's links; None: there is no link, or no native core."""
        if (state := self._states.get(peer)) is not None:
            return state
        core, _ = native_core.find()
        sender = self._senders.get(peer)
        if core is None or sender is None or not isinstance(sender.outbox.state, core.LinkState):
            return None
        found: LinkState = sender.outbox.state
        self._states[peer] = found
        return found

    def lend(self, peers: Collection[int], group: int, sequence: int) -> bool:
        """Lend the links of some peers to a call; False: that is not possible now.

        What has come of the call already goes to the front of what is read ahead.
        """
        for peer in peers:
            sender, state = self._senders[peer], self._states[peer]
            if sender.is_over or not sender.outbox.is_clear or not self._fabric.lend(peer, state):
                return False
        early = self._inbox.take_early(group, range(sequence, sequence + 1), peers)
        if early is None:
            return False
        for peer, frames in self._join(early).items():
            self._states[peer].unread(frames)
        return True

    def are_lendable(self, peers: Collection[int]) -> bool:
        """Say whether the links to and from all of some peers can be lent now."""
        return all(map(self.is_lendable, peers))

    def is_lendable(self, peer: int) -> bool:
        """Say whether the links to and from a peer with a state can be lent now."""
        return not self._senders[peer].is_over and self._fabric.lend(peer, self._states[peer])

    def lend_all(self, has_left: Callable[[int], bool]) -> None:
        """Note in every state whether the links could be lent, until the loop runs again."""
        for peer, state in self._states.items():
            sender = self._senders.get(peer)
            state.is_lent = (
                sender is not None
                and not sender.is_over
                and not has_left(peer)
                and sender.outbox.is_clear
                and self._fabric.lend(peer, state)
            )

    def take_messages(self, group: int) -> bool:
        """Put the messages of a group that wait for a receive back to what is read ahead.

        False: somebody waits for messages, or not all could be put back.
        """
        early = self._inbox.take_early_messages(group, self._list_lent())
        if early is None:
            return False
        self._put_back(self._number(early))
        return True

    def limit_early(self, group: int, sequences: range) -> range:
        """Return those of some calls to come whose messages may be put back at once."""
        return self._inbox.limit_early(group, sequences)

    def take_calls(self, group: int, sequences: range) -> bool:
        """Put the messages of a group's calls to come back to what is read ahead.

        False: not all could be put back, or peers are known by more than those to be in the calls.
        """
        early = self._inbox.take_early(group, sequences, self._list_lent())
        if early is None:
            return False
        self._put_back(self._join(early))
        # The messages that told of the peers will be read again.
        told = ((one.header.key.sequence, one.peer) for one in early)
        self._peer_calls.forget_early(group, told)
        return not self._peer_calls.has_early(group, sequences)

    def has_early(self, group: int) -> bool:
        """Say whether anything of a group's calls to come is still known here."""
        return self._inbox.has_early(group) or self._peer_calls.has_early(group)

    def get_own_signatures(self, group: int) -> dict[int, int]:
        """Return the signatures of this rank's latest calls; the native core adds its own."""
        return self._peer_calls.get_own_signatures(group)

    @property
    def completed_calls(self) -> dict[int, int]:
        """The latest call of each group that has ended; the native core notes its own."""
        return self._inbox.completed_calls

    def _list_lent(self) -> list[int]:
        return [peer for peer, state in self._states.items() if state.is_lent]

    def _put_back(self, early: Mapping[int, bytes]) -> None:
        for peer, frames in early.items():
            self._states[peer].unread(frames)
            self._note(peer, self._states[peer])

    def _join(self, messages: Iterable[EarlyMessage]) -> dict[int, bytes]:
        """Return messages as the bytes that came of them, by peer."""
        frames: dict[int, list[Frame]] = {}
        for one in messages:
            assert one.payload is not None
            frames.setdefault(one.peer, []).append((one.header.pack(), memoryview(one.payload)))
        return self._number(frames)

    def _number(self, frames: Mapping[int, list[Frame]]) -> dict[int, bytes]:
        """Return the bytes of frames that have come, by peer, as if they came next."""
        return {peer: self._verifier.take_back(peer, found) for peer, found in frames.items()}

    @property
    def received_counts(self) -> dict[tuple[int, int], int]:
        """Messages from point to point seen, by (peer, group)."""
        return self._inbox.p2p_counts

    def deliver(self, peer: int, frame: bytes) -> None:
        """Pass on a frame which a call has read and is not for it."""
        self._fabric.deliver(peer, frame)

    def deliver_first(self, peer: int, nbytes: int) -> None:
        """Pass on the frame that is the first of what a call has read ahead."""
        self._fabric.deliver(peer, self._states[peer].take(nbytes))

    def take_back(self, peers: Collection[int]) -> None:
        """Take the links back from a call that has ended."""
        for peer in peers:
            state = self._states[peer]
            self._on_heard(peer)
            if state.consumed >= _CREDIT_STEP:
                consumed, state.consumed = state.consumed, 0
                self._inbox.return_credit(peer, consumed)
            if state.pending or state.has_stopped:
                self._note(peer, state)

    def withdraw(self, peers: Collection[int]) -> None:
        """Take the links back from a call that goes on elsewhere, with what has come of it."""
        for peer in peers:
            self._on_heard(peer)
            self._fabric.read_ahead(peer)

    def send_rest(self, peer: int, rest: bytes) -> None:
        """Send the rest of a frame that a call has begun, before any other."""
        self._fabric.send_rest(peer, rest)

    def send_kept_rest(self, peer: int) -> None:
        """Send the rest of a frame that the state of a peer's links holds."""
        self._fabric.send_rest(peer, self._states[peer].take_rest())

    def read_all_ahead(self) -> None:
        """Process all that was read ahead: somebody else is about to look at the links."""
        for peer in list(self._unread):
            self._fabric.read_ahead(peer)

    def _note(self, peer: int, state: "LinkState") -> None:
        """Have the loop process what was read ahead, when it runs."""
        state.is_noted = True
        if peer not in self._unread:
            self._unread.add(peer)
            self._loop.call_soon(self._read_ahead, peer)

    def _read_ahead(self, peer: int) -> None:
        self._unread.discard(peer)
        self._states[peer].is_noted = False
        self._fabric.read_ahead(peer)
