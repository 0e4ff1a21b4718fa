"""Mesh of one rank: all messages in and out, over any fabric."""

import asyncio
import contextlib
import logging
import math
import struct
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from allhands.runtime import native_core
from allhands.transport.digests import DigestListener, FrameSigner, FrameVerifier, LinkKey
from allhands.transport.frame import (
    HEADER_BYTES,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    unpack,
    unpack_header,
)
from allhands.transport.inbox import Inbox, PostedReceive
from allhands.transport.lent_links import LentLinks
from allhands.transport.link import (
    ActivityReporter,
    Fabric,
    Gathering,
    HandshakeStalled,
    Lender,
    Link,
    LinkBroken,
    Sink,
)
from allhands.transport.link_state import LinkState, PlainLinkState
from allhands.transport.outbox import PendingSend, make_state
from allhands.transport.peer_calls import PeerCallTracker
from allhands.transport.peer_sender import PeerSender

logger = logging.getLogger(__name__)

_KINDS_OF_CALLS = (FrameKind.DATA, FrameKind.CTS, FrameKind.RTS, FrameKind.CALL)
"""Frames that carry the signature of the call which they belong to."""
_LINK = struct.Struct("<ii")
_RECOVERIES = 2
"""Losses in a row that are not taken for silence: the system knows a growing delay late."""


class MeshListener(Protocol):
    """Listener to events that concern whole calls; never called concurrently."""

    def on_nack(self, peer: int, key: MessageKey, call: str) -> None:
        """Handle a NACK: `peer` made another call, named by `call`, under that key."""

    def on_mismatch(self, peer: int, key: MessageKey) -> None:
        """Handle a frame of `peer` from a different call of the same number."""

    def on_link_broken(self, peer: int, reason: str) -> None:
        """Handle the end of all traffic with `peer`; called once per peer."""

    def pong_payload(self) -> bytes:
        """Return the state of this rank for a pong."""

    def on_pong(self, peer: int, payload: bytes) -> None:
        """`peer` has answered a ping."""

    def on_control(self, peer: int, kind: FrameKind, key: MessageKey, payload: bytes) -> None:
        """Handle a control frame: a call given up, an aborted group, a relayed verdict."""


class ArrivalWait:
    """Peers not yet heard in a call of this rank."""

    def __init__(self, missing: set[int], done: Callable[[], None]) -> None:
        self.missing = missing
        self.done = done


class Mesh:
    """Messages between this rank and its peers; a `Receiver` for its fabric.

    Links are dialled when first needed. Everything runs on one loop. `secret` is the job's secret,
    the key of frame digests.
    """

    def __init__(self, listener: MeshListener, secret: bytes = b"", rank: int = 0) -> None:
        self._listener = listener
        self._fabric: Fabric | None = None
        self._activity_reporter: ActivityReporter | None = None
        self.lent_links: LentLinks | None = None
        """Links that the native core may read and write; None: the fabric has none, or no core."""
        self._senders: dict[int, PeerSender] = {}
        self._broken_links: dict[int, str] = {}
        self._closing_links: dict[int, asyncio.Task[None]] = {}
        self.p2p_counts: dict[tuple[int, int], int] = {}
        """Point to point: messages sent, by (peer, group)."""
        self._inbox = Inbox(self._push_control)
        self._peer_calls = PeerCallTracker()
        self._arrival_waits: dict[tuple[int, int], ArrivalWait] = {}
        self._queriers: dict[tuple[int, int], set[int]] = {}
        """Peers that want to hear of a call, by group and number, when it begins here."""
        self._informed: dict[tuple[int, int], set[int]] = {}
        """Peers that have heard of a call of this rank because it, or they, asked."""
        self._pending_pings: dict[int, float] = {}
        """Peers that have sent nothing since they were pinged, and when that was."""
        self._digest_listeners: dict[int, DigestListener] = {}
        self._secret = secret
        self._rank = rank
        self._peer_links: dict[int, tuple[LinkKey, LinkState]] = {}
        self._verifier = FrameVerifier(self._digest_listeners, self._find_link)

    def attach(self, fabric: Fabric) -> None:
        """Set the fabric; required before any send."""
        self._fabric = fabric
        if isinstance(fabric, ActivityReporter):
            self._activity_reporter = fabric
        if isinstance(fabric, Lender) and native_core.find()[0] is not None:
            self.lent_links = LentLinks(
                fabric,
                self._senders,
                self._inbox,
                self._peer_calls,
                self._verifier,
                self._on_heard,
            )

    def send(self, peer: int, message: PendingSend) -> None:
        """Start sending a message; `done` is called when the memory may be reused."""
        sender = self._get_sender(peer)
        if not sender.is_over:
            sender.outbox.push(message)
            sender.refresh()

    def cancel_send(self, peer: int, message: PendingSend) -> None:
        """Cancel a message whose call ended early."""
        sender = self._senders.get(peer)
        if sender is None:
            return
        if sender.link is not None and sender.outbox.is_in_flight(message):
            sender.link.let_go()
        sender.outbox.cancel(message)
        sender.refresh()

    def next_count(self, peer: int, group: int) -> int:
        """Number the point-to-point messages to a peer."""
        count = self.p2p_counts.get((peer, group), 0) + 1
        self.p2p_counts[peer, group] = count
        return count

    def post(self, peer: int, key: MessageKey, incoming: PostedReceive) -> None:
        """Wait for a message of a collective."""
        self._inbox.post(peer, key, incoming)

    def post_p2p(self, source: int | None, group: int, tag: int, incoming: PostedReceive) -> None:
        """Post a point-to-point receive; source None: any."""
        self._inbox.post_p2p(source, group, tag, incoming)

    def cancel_receive(self, incoming: PostedReceive) -> None:
        """Cancel a receive whose call ended early."""
        self._inbox.cancel_receive(incoming)

    def send_nack(self, peer: int, key: MessageKey, call: str) -> None:
        """Refuse a peer's message: `call` is this rank's different call under that key."""
        payload = call.encode()[:4096]
        header = Header(FrameKind.NACK, key, 0, 0, 0, len(payload))
        self._push_control(peer, header, payload)

    def ping(self, peer: int, *, again: bool = False, dial: bool = True) -> None:
        """Ping a peer, unless a pong is still due; `again`: in any case.

        Without `dial` only where there is a link to it.
        """
        if (again or peer not in self._pending_pings) and (dial or peer in self._senders):
            self._pending_pings.setdefault(peer, time.monotonic())
            self._push_control(peer, Header(FrameKind.PING, MessageKey(0, 0), 0, 0))

    def find_silent(self, seconds: float, *, behind_data: bool = False) -> dict[int, float]:
        """Return the peers from which nothing has come for so long since a ping: for how long.

        A ping that waits behind data is not taken for lost as long as the data gets on, nor one
        whose packet the network may still have to send again, unless `behind_data` asks for those
        too.
        """
        now = time.monotonic()
        silent = {}
        for peer, pinged in self._pending_pings.items():
            silence, patience = now - pinged, seconds
            if silence >= seconds and not behind_data:
                silence = now - max(pinged, self._get_last_activity(peer))
                patience = max(seconds, _RECOVERIES * self._get_recovery_seconds(peer))
            if silence >= patience:
                silent[peer] = silence
        return dict(sorted(silent.items()))

    def restart_ping_timers(self) -> None:
        """Restart the timeout of every pending ping."""
        self._pending_pings = dict.fromkeys(self._pending_pings, time.monotonic())

    def stop_pinging(self, peers: Iterable[int]) -> None:
        """Expect no more answers of these peers."""
        for peer in peers:
            self._pending_pings.pop(peer, None)

    @property
    def awaiting_pong(self) -> Collection[int]:
        """Peers with a pending ping."""
        return self._pending_pings.keys()

    def send_control(
        self, peers: Iterable[int], kind: FrameKind, key: MessageKey, payload: bytes, dial: bool
    ) -> None:
        """Send a control frame to peers; to those without a link only with `dial`."""
        for peer in peers:
            if dial or peer in self._senders:
                self._push_control(peer, Header(kind, key, 0, 0, 0, len(payload)), payload)

    def enable_digests(self, group: int, listener: DigestListener) -> None:
        """Send the frames of a group with a digest, and accept none without."""
        if group not in self._digest_listeners:
            for peer in self._inbox.drop_unchecked(group):
                reason = "it sent a frame without digest of a group that this rank wants verified"
                # Once the group is open: its calls fail by that.
                asyncio.get_running_loop().call_soon(self.broken, peer, reason)
        self._digest_listeners[group] = listener

    def report_corruption(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None:
        """Report to a peer that data of a call was corrupted on a link of the world."""
        payload = _LINK.pack(*link)
        self._push_control(peer, Header(FrameKind.CORRUPT, key, 0, 0, 0, len(payload)), payload)

    def begin_call(self, group: int, sequence: int, signature: int) -> bool:
        """Say which call of a group this rank is in; return whether peers are known in another."""
        is_other = not self._peer_calls.begin_call(group, sequence, signature)
        if self._queriers:
            for peer in self._queriers.pop((group, sequence), ()):
                self._answer_call(peer, MessageKey(group, sequence), signature)
        return is_other

    def send_call(self, peer: int, key: MessageKey, signature: int) -> None:
        """Send a peer the signature of the call in which this rank waits for the peer."""
        self._push_control(peer, Header(FrameKind.CALL, key, signature, 0))

    def watch_arrivals(
        self, key: MessageKey, signature: int, peers: Sequence[int], done: Callable[[], None]
    ) -> ArrivalWait | None:
        """Wait until all peers have been heard in the call which this rank begins.

        `done` is called then, not before this has returned; None: all have been heard already.
        """
        place = key.group, key.sequence
        missing = set(peers) - self._peer_calls.get_early_peers(*place)
        told = self._informed.setdefault(place, set())
        for peer in peers:
            if peer in missing or peer not in told:
                self._push_control(peer, Header(FrameKind.CALL, key, signature, peer in missing))
        told.update(peers)
        if not missing:
            return None
        self._arrival_waits[place] = ArrivalWait(missing, done)
        return self._arrival_waits[place]

    def stop_awaiting(self, key: MessageKey, peer: int) -> None:
        """Do not wait any longer to hear a peer in a call."""
        waiting = self._arrival_waits.get((key.group, key.sequence))
        if waiting is not None:
            waiting.missing.discard(peer)
            if not waiting.missing:
                self.forget_arrivals(key)
                waiting.done()

    def forget_arrivals(self, key: MessageKey) -> None:
        """Stop waiting for arrivals in a call. Idempotent."""
        self._arrival_waits.pop((key.group, key.sequence), None)

    def finish_calls(self, group: int, sequence: int) -> None:
        """Close calls of a group up to `sequence`: late messages are drained."""
        self._inbox.forget(group, sequence)
        for sender in self._senders.values():
            sender.outbox.forget(group, sequence)
        for kept in (self._queriers, self._informed):
            if kept:
                for place in [at for at in kept if at[0] == group and at[1] <= sequence]:
                    del kept[place]

    def pump(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Receive until `is_over()` or for `seconds`, while the loop does not run.

        What cannot go out at once waits for the loop.
        """
        assert self._fabric is not None
        if self.lent_links is not None:
            self.lent_links.read_all_ahead()
        until = time.monotonic() + seconds
        while not is_over() and self._fabric.pump(until - time.monotonic()):
            pass

    def accept(self, peer: int, frame: bytes | memoryview) -> None:
        if not self._verifier.verify(peer, frame):
            self._on_corrupt_frame(peer, frame)
            return
        header = unpack(frame)
        if self._pending_pings:
            self._pending_pings.pop(peer, None)
        if header.kind in _KINDS_OF_CALLS and not header.key.is_p2p:
            self._note_call(peer, header)
        match header.kind:
            case FrameKind.DATA | FrameKind.RTS | FrameKind.CANCEL:
                self._inbox.accept(peer, header, memoryview(frame)[HEADER_BYTES:])
            case FrameKind.CTS:
                sender = self._get_sender(peer)
                if not sender.is_over:
                    sender.outbox.on_cts(header)
                    sender.refresh()
            case FrameKind.CREDIT:
                self._get_sender(peer).outbox.add_credit(header.total)
            case FrameKind.NACK:
                text = bytes(frame[HEADER_BYTES:]).decode(errors="replace")
                self._listener.on_nack(peer, header.key, text)
            case FrameKind.CALL:
                if header.total:  # it wants to hear from this rank as well
                    self._answer_call_query(peer, header)
            case FrameKind.PING:
                said = self._listener.pong_payload()
                self._push_control(
                    peer, Header(FrameKind.PONG, MessageKey(0, 0), 0, 0, 0, len(said)), said
                )
            case FrameKind.PONG:
                self._listener.on_pong(peer, bytes(frame[HEADER_BYTES:]))
            case FrameKind.GIVE_UP | FrameKind.ABORT | FrameKind.RELAY:
                self._listener.on_control(
                    peer, header.kind, header.key, bytes(frame[HEADER_BYTES:])
                )
            case FrameKind.CORRUPT:
                self._on_corruption_report(peer, header, frame[HEADER_BYTES:])
            case FrameKind.BYE:
                raise FrameError("the end of a link is for its fabric")

    def open(self, peer: int, header: bytes) -> Sink:
        begun = unpack_header(header)
        if self._pending_pings:
            self._pending_pings.pop(peer, None)
        if begun.has_digest:  # nothing of it is used before all of it has been looked at
            return Gathering(header, begun.length, lambda frame: self.accept(peer, frame))
        if not begun.key.is_p2p:
            self._note_call(peer, begun)
        arrival = self._inbox.open(peer, begun)
        if arrival is not None:
            return arrival
        return Gathering(
            header,
            begun.length,
            lambda frame: self._inbox.accept(peer, begun, frame[HEADER_BYTES:]),
            lambda: self._peer_calls.forget_early(begun.key.group, [(begun.key.sequence, peer)]),
        )

    def broken(self, peer: int, reason: str) -> None:
        if peer not in self._broken_links:
            self._broken_links[peer] = reason
            self._listener.on_link_broken(peer, reason)

    async def drain(self) -> None:
        """Return when all peers have received all data; links are closed then.

        A link that breaks meanwhile has nothing more to drain.
        """
        await asyncio.gather(*(self._drain(peer, sender) for peer, sender in self._senders.items()))

    def close_link(self, peer: int) -> None:
        """Close the link to a leaving peer, which waits for the close."""
        sender = self._senders.get(peer)
        if sender is not None and sender.task is not None and peer not in self._closing_links:
            sender.task.cancel()
            sender.end()  # what is still queued is for nobody
            self._closing_links[peer] = asyncio.create_task(
                self._close_link(sender), name=f"part from {peer}"
            )

    async def aclose(self) -> None:
        """Drop all links. Idempotent."""
        senders = list(self._senders.values())
        tasks = [sender.task for sender in senders if sender.task is not None]
        tasks += self._closing_links.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sender in senders:
            if sender.link is not None:
                sender.link.abort()
        self._senders.clear()
        if self._fabric is not None:
            await self._fabric.aclose()

    def is_asked_for(self, group: int) -> bool:
        """Say whether peers wait to hear of a call of the group that has not begun here."""
        return any(at[0] == group for at in self._queriers)

    def has_digests(self, group: int) -> bool:
        """Say whether the frames of a group have digests."""
        return group in self._digest_listeners

    def _on_heard(self, peer: int) -> None:
        self._pending_pings.pop(peer, None)

    def _get_last_activity(self, peer: int) -> float:
        """Return the time of the last progress of the link to a peer, as far as known."""
        reporter = self._activity_reporter
        heard = -math.inf if reporter is None else reporter.get_last_activity(peer)
        return self._get_sender(peer).last_sent if heard == -math.inf else heard

    def _get_recovery_seconds(self, peer: int) -> float:
        """Return the seconds until a lost packet to a peer is sent again and answered, if known."""
        reporter = self._activity_reporter
        return 0.0 if reporter is None else reporter.get_recovery_seconds(peer)

    def _note_call(self, peer: int, header: Header) -> None:
        key = header.key
        if not self._peer_calls.note_call(peer, key.group, key.sequence, header.signature):
            self._listener.on_mismatch(peer, key)
        elif self._arrival_waits:
            self.stop_awaiting(key, peer)

    def _answer_call_query(self, peer: int, header: Header) -> None:
        """Send the signature of this rank's call, now or once begun."""
        group, sequence = header.key.group, header.key.sequence
        signature = self._peer_calls.get_own_signature(group, sequence)
        if signature is None and self._peer_calls.is_past(group, sequence):
            signature = header.signature  # so long ago that nobody knows what it was
        if signature is None:
            self._queriers.setdefault((group, sequence), set()).add(peer)
        elif peer not in self._informed.get((group, sequence), ()):
            self._answer_call(peer, header.key, signature)

    def _answer_call(self, peer: int, key: MessageKey, signature: int) -> None:
        self._informed.setdefault((key.group, key.sequence), set()).add(peer)
        self._push_control(peer, Header(FrameKind.CALL, key, signature, 0))

    def _on_corrupt_frame(self, peer: int, frame: bytes | memoryview) -> None:
        """Pass a corrupt frame to the group of its header, or break the link."""
        try:
            header = unpack(frame)
        except FrameError as error:
            raise FrameError(f"a frame was changed on its way (digest): {error}") from error
        checker = self._digest_listeners.get(header.key.group)
        if checker is None or header.key.is_p2p:
            # Nobody could tell which message has gone, and the next would take its place.
            raise FrameError("a frame was changed on its way (digest)")
        checker.on_corrupt_frame(peer, header.key)
        self._inbox.credit_unused(peer, header)

    def _on_corruption_report(self, peer: int, header: Header, payload: bytes | memoryview) -> None:
        if len(payload) != _LINK.size:
            raise FrameError(f"{len(payload)} bytes name no link")
        checker = self._digest_listeners.get(header.key.group)
        if checker is not None:
            start, end = _LINK.unpack(payload)
            checker.on_corruption_report(peer, header.key, (start, end))

    def _push_control(self, peer: int, header: Header, payload: bytes = b"") -> None:
        sender = self._get_sender(peer)
        if not sender.is_over:
            sender.outbox.push_control(header, payload)
            sender.refresh()

    def _get_sender(self, peer: int) -> PeerSender:
        """Return the sender to a peer, dialled on first use."""
        sender = self._senders.get(peer)
        if sender is None:
            key = LinkKey(self._secret, self._rank, peer)
            verifying_key, state = self._find_link(peer)
            if not isinstance(state, PlainLinkState):
                state.set_digesters(
                    key.compute_digest,
                    verifying_key.compute_digest,
                    key.derive_keys(),
                    verifying_key.derive_keys(),
                )
            sender = self._senders[peer] = PeerSender(
                FrameSigner(self._digest_listeners, key, state)
            )
            sender.task = asyncio.create_task(
                self._run_sender(peer, sender), name=f"link to rank {peer}"
            )
        return sender

    def _find_link(self, peer: int) -> tuple[LinkKey, LinkState]:
        """Return the key of the link from a peer, and the state of the links with it."""
        if (found := self._peer_links.get(peer)) is None:
            key = LinkKey(self._secret, peer, self._rank)
            found = self._peer_links[peer] = key, make_state()
        return found

    async def _run_sender(self, peer: int, sender: PeerSender) -> None:
        """Dial the peer, then send the outbox's frames until the link breaks."""
        try:
            sender.link = await self._dial(peer)
            while True:
                frame = sender.outbox.next_frame()
                if frame is not None:
                    await sender.link.send(sender.signer.sign(frame))
                    sender.last_sent = time.monotonic()
                    sender.outbox.finish_frame()
                    await asyncio.sleep(0)  # others want their turn, above all who reads
                    continue
                sender.refresh()
                sender.wake.clear()
                await sender.wake.wait()
        except LinkBroken as error:
            sender.end()
            self.broken(peer, str(error))

    async def _dial(self, peer: int) -> Link:
        """Open the link to a peer; retry while the peer's process is stalled."""
        assert self._fabric is not None
        while True:
            try:
                return await self._fabric.dial(peer)
            except HandshakeStalled as error:
                logger.info("the link to rank %d is tried again: %s", peer, error)

    async def _drain(self, peer: int, sender: PeerSender) -> None:
        await sender.idle.wait()
        if sender.link is None or peer in self._broken_links:
            return
        try:
            await sender.link.close()
        except LinkBroken as error:
            logger.debug("link to rank %d broke while closing: %s", peer, error)

    async def _close_link(self, sender: PeerSender) -> None:
        if sender.link is not None:
            with contextlib.suppress(LinkBroken):
                await sender.link.close()
