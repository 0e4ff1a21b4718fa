"""Progress of messages of one process: frames that come are matched, or given to their handlers.

One thread at a time receives frames; others that wait are told when something has ended. Data
behind a frame is received where the frame is handled: its sender has begun to send it.
"""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from allhands.engine.work.work import Work
from allhands.errors import AllhandsError
from allhands.mpi import errors
from allhands.mpi.constants import ERR_OTHER, ERR_REVOKED
from allhands.mpi.progress.channel import NOTHING, Channel
from allhands.mpi.progress.deadlines import Deadline, name_ranks
from allhands.mpi.progress.frames import (
    FRAME_BYTES,
    HEAD,
    INLINE_BYTES,
    Bytes,
    FrameHead,
    FrameKind,
    payload_tag,
)
from allhands.mpi.progress.matching import MatchTable
from allhands.mpi.progress.transfers import Completed, Receive, Send, Transfer
from allhands_proto.quick_dataclass import dataclass

Handler = Callable[[int, int, tuple[int, int, int, int, int], Bytes], None]

_HEAD_BYTES = HEAD.size
_SLICE_SECONDS = 0.05
"""Between two looks for lost ranks and at the deadline."""
_SHARED_SLICE_SECONDS = 0.001
"""While other things than frames are awaited too."""
_BACKGROUND_IDLE_SECONDS = 0.002
_TAKE_OVER_SECONDS = 0.01
"""For the thread beside to handle the frame that it has received."""
_EMPTY: Bytes = np.empty(0, np.uint8)
_FRAMES_BETWEEN_CHECKS = 64
"""Between two looks for lost ranks and at the deadline, while frames of others come."""
_RECEIVED, _HANDLED = 1, 0
"""What `ShmP2P.receive_frame` returns."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A message that has come before its receive."""

    source: int
    """Rank of the sender in its group of the communicator."""
    tag: int
    sender: int
    """Rank of the sender in the world."""
    number: int
    nbytes: int
    data: Bytes | None
    """The data, if it was in the frame."""
    wants_ack: bool
    local: Send | None = None
    """The send, if it is of this process, and waits for its match."""


class Engine:
    """Messages of this process with all ranks of its world, itself included; for any thread."""

    def __init__(self, channel: Channel, get_timeout: Callable[[], float]) -> None:
        self.rank, self.size = channel.rank, channel.size
        self.lock = threading.RLock()
        self.table: MatchTable[Arrival, Receive] = MatchTable()
        self._channel = channel
        self._get_timeout = get_timeout
        self._leader = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._waiting = 0
        self._in: Any = np.zeros(FRAME_BYTES, np.uint8)
        self._out: Any = np.zeros(FRAME_BYTES, np.uint8)
        self._numbers = itertools.count(1)
        self._plain_out: Bytes = np.zeros(FRAME_BYTES, np.uint8)
        """Frame of `try_send`, which native code fills and sends without a pause for threads."""
        self._unacknowledged: dict[int, Send] = {}
        self._handlers: dict[int, Handler] = {}
        self._unhandled: collections.deque[tuple[int, FrameHead, Bytes]] = collections.deque()
        self._is_handling = False
        self.services = 0
        """Windows that are open: their frames may come at any time."""
        self.revoked: set[int] = set()
        """Numbers of revoked communicators."""
        self._loose_sends: list[Send] = []
        """Frames of no request that have not left, and their data."""
        self._background: threading.Thread | None = None
        self._background_error: BaseException | None = None
        self._stops = threading.Event()

    @property
    def channel_ranks(self) -> Sequence[int]:
        """Ranks of the world among which messages go."""
        return self._channel.ranks

    # ------------------------------------------------------------ messages

    @property
    def is_idle(self) -> bool:
        """Whether nothing but the call under way needs frames: no receive, no window."""
        return self.table.posted_count == 0 and not self.services

    def start_send(
        self,
        dst: int,
        context: int,
        source: int,
        tag: int,
        data: Bytes,
        *,
        awaits_match: bool = False,
    ) -> Transfer | None:
        """Begin to send to a rank of the world; None: it has gone, and the data may be changed.

        Args:
            source: this rank's number in its group of the communicator.
            data: packed and contiguous; it belongs to the send until its end.
        """
        with self.lock:
            number = next(self._numbers)
            if dst == self.rank:
                return self._send_to_self(context, source, tag, data, awaits_match)
            nbytes = data.size
            out = self._out
            HEAD.pack_into(
                out, 0, 1, context, nbytes, number, self.rank, tag, source, awaits_match, 0, 0
            )  # 1: FrameKind.MESSAGE
            works: list[Work] = []
            if nbytes <= INLINE_BYTES:
                out[_HEAD_BYTES : _HEAD_BYTES + nbytes] = data
            if awaits_match:
                send = self._unacknowledged[number] = Send(dst, works, True, data)
            if (work := self._channel.send_frame(out, dst)) is not None:
                works.append(work)
            if nbytes > INLINE_BYTES and not self._channel.try_send(data, dst, payload_tag(number)):
                works.append(self._channel.start_send(data, dst, payload_tag(number)))
            if awaits_match:
                return send
            return Send(dst, works, False, data) if works else None

    def send(self, dst: int, context: int, source: int, tag: int, data: Bytes) -> None:
        """Send, and return when the data may be changed."""
        nbytes = data.size
        is_inline = nbytes <= INLINE_BYTES
        if dst == self.rank or not (is_inline or self.is_idle):
            transfer = self.start_send(dst, context, source, tag, data)
            if transfer is not None:
                self._finish(transfer)
            return
        with self.lock:
            number = next(self._numbers)
            out = self._out
            HEAD.pack_into(out, 0, 1, context, nbytes, number, self.rank, tag, source, 0, 0, 0)
            if is_inline:
                out[_HEAD_BYTES : _HEAD_BYTES + nbytes] = data
            work = self._channel.send_frame(out, dst)
        if not is_inline:
            try:
                self._channel.send(data, dst, payload_tag(number))
            except AllhandsError as error:
                raise errors.translate(error) from None
        if work is not None:
            self._finish(Send(dst, [work], False, None))

    def _finish(self, transfer: Transfer) -> None:
        """Wait for a transfer, and raise its error."""
        self.wait(transfer)
        if transfer.error is not None:
            raise errors.translate(transfer.error)

    def _send_to_self(
        self, context: int, source: int, tag: int, data: Bytes, awaits_match: bool
    ) -> Transfer | None:
        send = Send(self.rank, [], True, None) if awaits_match else None
        arrival = Arrival(source, tag, self.rank, 0, data.size, None, False, send)
        receive = self.table.match_message(context, arrival)
        if receive is None:
            arrival.data = data.copy()
        else:
            arrival.data = data
            self._deliver(arrival, receive)
        return send

    def start_receive(self, receive: Receive) -> Receive:
        """Begin a receive, which belongs to the engine until it has ended."""
        with self.lock:
            arrival = self.table.match_receive(receive.context, receive)
            if arrival is not None:
                self._deliver(arrival, receive)
        return receive

    def try_send(
        self, dst: int, context: int, source: int, tag: int, buf: object, waits: bool
    ) -> bool:
        """Send what the native core reads, if it can go at once; a shorter way.

        Args:
            waits: whether data behind the frame may be waited for.

        Returns:
            False: nothing has happened, and `buf` is anything that a program may send.
        """
        channel = self._channel
        shm = channel.shm
        if shm is None or (self.revoked and context // 4 in self.revoked):
            return False
        waits = waits and self.table.posted_count == 0 and not self.services
        place, number = channel.places.get(dst, -1), next(self._numbers)
        try:
            return shm.send_frame(
                self._plain_out, buf, place, context, self.rank, tag, source, number, waits
            )
        except AllhandsError as error:
            raise errors.translate(error) from None

    def receive_next(self, context: int, source: int, tag: int, buf: object) -> bool:
        """Receive a message where the native core can, if the next frame brings it; a shorter way.

        Args:
            source: rank of the sender in its group, or ANY_SOURCE.

        Returns:
            False: it has not come so, and `start_receive` is to be called; `buf` is anything that
            a program may receive into.
        """
        if not self.is_idle or self.table.has_unexpected(context) or context // 4 in self.revoked:
            return False
        return self._receive_directly(context, source, tag, buf, None) == _RECEIVED

    def _receive_directly(
        self, context: int, source: int, tag: int, buf: object, posted: Receive | None
    ) -> int:
        """Receive a message by the native core, if the next frame brings it.

        Args:
            posted: the receive of that message, if one is posted: the first of its context.

        Returns:
            _RECEIVED; _HANDLED: the frame brought something else; or a number below: nothing came.
        """
        shm = self._channel.shm
        if shm is None or self._channel.has_posted or not self._leader.acquire(blocking=False):
            return NOTHING
        try:
            frame = self._in
            frame[0] = 0
            if posted is not None:
                # Else the handling of a frame might end it while the core receives its message.
                with self.lock:
                    if not self.table.withdraw(context, posted):
                        return _HANDLED  # another thread was sooner
            try:
                found = shm.receive_frame(frame, buf, context, source, tag, _SLICE_SECONDS)
            except BaseException as error:
                self._restore(posted)
                self._raise(error)
            if found == _RECEIVED:
                if posted is not None:
                    posted.complete(FrameHead._make(HEAD.unpack_from(frame)))
                return found
            self._restore(posted)
            if found == _HANDLED:
                with self.lock:
                    self._take_frame(frame)
            return found
        finally:
            self._release_leader()

    def _restore(self, posted: Receive | None) -> None:
        """Post a receive again that was withdrawn, or deliver what this rank has sent to itself."""
        if posted is None:
            return
        with self.lock:
            arrival = self.table.restore(posted.context, posted)
            if arrival is not None:
                self._deliver(arrival, posted)

    def _receive_posted(self, receive: Receive) -> bool:
        """Wait for a posted receive by the native core while frames come; say whether it ended."""
        context, target = receive.context, receive.target
        memory = None if target is None else target.target()
        source, tag = receive.wanted_source, receive.wanted_tag
        for _ in range(_FRAMES_BETWEEN_CHECKS):
            if (
                memory is None
                or self.services
                or context // 4 in self.revoked
                # The first is the one that a frame is for which fits several.
                or not self.table.is_first(context, receive)
                or self._receive_directly(context, source, tag, memory, receive) != _HANDLED
            ):
                break
        return receive.done

    def deliver(self, arrival: Arrival, receive: Receive) -> None:
        """Let a receive have a message that was taken out of the table."""
        with self.lock:
            self._deliver(arrival, receive)

    def cancel_receive(self, receive: Receive) -> None:
        """End a receive that has no message yet."""
        with self.lock:
            if self.table.withdraw(receive.context, receive):
                receive.cancelled = True
                receive.end()

    def _deliver(self, arrival: Arrival, receive: Receive) -> None:
        try:
            target = receive.accept(arrival.source, arrival.tag, arrival.nbytes)
            if arrival.data is not None:
                if target is not None:
                    receive.store(arrival.data)
            else:
                whole = np.empty(arrival.nbytes, np.uint8) if target is None else target
                self._channel.receive(whole, arrival.sender, payload_tag(arrival.number))
                if target is not None:
                    receive.store_apart(whole)
        except Exception as error:
            receive.error = receive.error or error
        if arrival.wants_ack:
            self._send_ack(arrival)
        elif arrival.local is not None:
            arrival.local.awaits_match = False
        receive.end()
        if self._waiting:
            self._changed.notify_all()

    def _send_ack(self, arrival: Arrival) -> None:
        self.send_frame(arrival.sender, FrameKind.ACK, 0, (arrival.number,), None)

    # ------------------------------------------------------------ frames of other kinds

    def set_handler(self, kind: FrameKind, handler: Handler) -> None:
        """Set the function that gets frames of a kind, one at a time, in order of each sender.

        It must not wait. It gets the sender's rank in the world, the context, the fields and the
        data, which it may keep.
        """
        with self.lock:
            self._handlers[kind] = handler

    def send_frame(
        self,
        dst: int,
        kind: FrameKind,
        context: int,
        fields: Iterable[int],
        payload: Bytes | None,
        *,
        keep: bool = False,
    ) -> None:
        """Send a frame to the handler of its kind at a rank of the world, without waiting.

        Args:
            fields: up to 5 numbers of 64 bits.
            payload: copied where it does not go at once, unless `keep` says that it stays as it is.
        """
        with self.lock:
            number = next(self._numbers)
            five = (*fields, 0, 0, 0, 0, 0)[:5]
            data = _EMPTY if payload is None else payload
            nbytes = data.size
            if dst == self.rank:
                head = FrameHead(kind, context, nbytes, number, self.rank, *five)
                self._handle(dst, head, data if keep else data.copy())
                return
            out = self._out
            HEAD.pack_into(out, 0, kind, context, nbytes, number, self.rank, *five)
            if nbytes <= INLINE_BYTES:
                out[_HEAD_BYTES : _HEAD_BYTES + nbytes] = data
            works: list[Work] = []
            if (work := self._channel.send_frame(out, dst)) is not None:
                works.append(work)
            tag = payload_tag(number)
            if nbytes > INLINE_BYTES and not self._channel.try_send(data, dst, tag):
                kept = data if keep else data.copy()
                works.append(self._channel.start_send(kept, dst, tag))
            if works:
                self._loose_sends = [one for one in self._loose_sends if not one.poll()]
                self._loose_sends.append(Send(dst, works, False, None))

    def _handle(self, sender: int, head: FrameHead, data: Bytes) -> None:
        """Call the handler of a frame, or once the handler under way has returned."""
        self._unhandled.append((sender, head, data))
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._unhandled:
                sender, head, data = self._unhandled.popleft()
                handler = self._handlers.get(head.kind)
                if handler is None:
                    raise errors.make_error(
                        ERR_OTHER, f"rank {sender} sent a frame of kind {head.kind}, unknown here"
                    )
                handler(sender, head.context, head.fields, data)
        finally:
            self._is_handling = False
        if self._waiting:
            self._changed.notify_all()

    # ------------------------------------------------------------ progress

    def progress(self) -> None:
        """Handle the frames that have come, unless another thread does.

        Raises:
            Exception: none can come any more, as after a loss.
        """
        if not self._leader.acquire(blocking=False) and not self._take_over():
            return
        try:
            while self._receive_frame(0.0):
                pass
        finally:
            self._release_leader()

    def _take_over(self) -> bool:
        """Become the leader in place of the thread beside, which may have a frame in hand."""
        if self._background is None:
            return False
        with self.lock:
            self._waiting += 1
        is_leader = self._leader.acquire(timeout=_TAKE_OVER_SECONDS)
        with self.lock:
            self._waiting -= 1
        return is_leader

    def wait(self, transfer: Transfer, seconds: float | None = None) -> None:
        """Return when a transfer has ended.

        Raises:
            Exception: it has not ended within the time of a call, or a rank that it waits for is
                lost; it is cancelled.
        """
        if transfer.poll() or (isinstance(transfer, Receive) and self._receive_posted(transfer)):
            return
        if not transfer.needs_frames and (self.is_idle or self._background is not None):
            # Nothing else needs this thread: frames come to the one beside it.
            deadline = Deadline(self._get_timeout() if seconds is None else seconds)
            while not transfer.wait_briefly(_SLICE_SECONDS):
                self._check(transfer.describe, transfer.list_awaited, deadline)
            if transfer.poll():
                deadline.end(transfer.describe)
                return
        self._wait_until(transfer.poll, transfer.describe, transfer.list_awaited, transfer, seconds)

    def wait_until(
        self, predicate: Callable[[], bool], what: str, ranks: Callable[[], Sequence[int]]
    ) -> None:
        """Make progress until `predicate` is true, which the handling of a frame makes it.

        Raises:
            Exception: the time of a call is over, or one of `ranks`, of the world, is lost.
        """
        self._wait_until(predicate, lambda: what, ranks, None, None)

    def _wait_until(
        self,
        predicate: Callable[[], bool],
        describe: Callable[[], str],
        ranks: Callable[[], Sequence[int]],
        transfer: Transfer | None,
        seconds: float | None,
    ) -> None:
        deadline = Deadline(self._get_timeout() if seconds is None else seconds)
        next_check = time.monotonic() + _SLICE_SECONDS
        while not predicate():
            if self._leader.acquire(blocking=False):
                try:
                    while not predicate():
                        span = _SLICE_SECONDS
                        if transfer is not None and not transfer.needs_frames:
                            if transfer.wait_briefly(_SHARED_SLICE_SECONDS):
                                break
                            span = 0.0
                        if not self._receive_frame(span) and time.monotonic() >= next_check:
                            self._check(describe, ranks, deadline, transfer)
                            next_check = time.monotonic() + _SLICE_SECONDS
                finally:
                    self._release_leader()
            else:
                with self._changed:
                    if predicate():
                        break
                    self._waiting += 1
                    self._changed.wait(_SLICE_SECONDS)
                    self._waiting -= 1
                if time.monotonic() >= next_check:
                    self._check(describe, ranks, deadline, transfer)
                    next_check = time.monotonic() + _SLICE_SECONDS
        deadline.end(describe)

    def _release_leader(self) -> None:
        self._leader.release()
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def _receive_frame(self, seconds: float) -> bool:
        """Receive and handle a frame, if one comes within some time; the leader calls this."""
        if not self._poll_frame(seconds):
            return False
        with self.lock:
            self._take_frame(self._in)
        return True

    def _poll_frame(self, seconds: float) -> bool:
        """Receive a frame, if one comes within some time; the leader calls this."""
        frame = self._in
        frame[0] = 0
        try:
            return self._channel.poll(frame, seconds) != NOTHING
        except BaseException as error:
            self._raise(error)

    def _raise(self, error: BaseException) -> NoReturn:
        """Take a frame that came in the instant of a signal, and raise an error of MPI."""
        if self._in[0]:
            with self.lock:
                self._take_frame(self._in)
        translated = errors.translate(error)
        if translated is error:
            raise error
        raise translated from error

    def _take_frame(self, frame: Any) -> None:
        head = FrameHead._make(HEAD.unpack_from(frame))
        kind, context, nbytes, number, sender, tag, source, wants_ack, _, _ = head
        if kind == 1:  # FrameKind.MESSAGE
            arrival = Arrival(source, tag, sender, number, nbytes, None, bool(wants_ack))
            if nbytes <= INLINE_BYTES:
                arrival.data = frame[_HEAD_BYTES : _HEAD_BYTES + nbytes]
            receive = self.table.match_message(context, arrival)
            if receive is not None:
                self._deliver(arrival, receive)
            else:
                if arrival.data is not None:
                    arrival.data = arrival.data.copy()
                if self._waiting:
                    self._changed.notify_all()
        elif kind == FrameKind.REVOKE:
            self.revoked.add(context)
        elif kind == FrameKind.ACK:
            send = self._unacknowledged.pop(tag, None)
            if send is not None:
                send.awaits_match = False
            if self._waiting:
                self._changed.notify_all()
        else:
            if nbytes <= INLINE_BYTES:
                data = frame[_HEAD_BYTES : _HEAD_BYTES + nbytes].copy()
            else:
                data = np.empty(nbytes, np.uint8)
                self._channel.receive(data, sender, payload_tag(number))
            self._handle(sender, head, data)

    def _check(
        self,
        describe: Callable[[], str],
        ranks: Callable[[], Sequence[int]],
        deadline: Deadline,
        transfer: Transfer | None = None,
    ) -> None:
        """Raise if the time is over, or what is awaited cannot come any more."""
        if self._background_error is not None:
            raise self._background_error
        awaited = [rank for rank in ranks() if rank != self.rank]
        failure: BaseException | None = None
        lost = [
            loss
            for rank in awaited
            if (loss := self._channel.find_loss(rank, describe())) is not None
        ]
        if transfer is not None and transfer.context // 4 in self.revoked:
            failure = errors.make_error(ERR_REVOKED, f"{describe()}: the communicator was revoked")
        elif lost and (len(lost) == len(awaited)):
            failure = errors.translate(lost[0])
        elif deadline.has_passed:
            named = f" ({name_ranks(awaited)})" if awaited else ""
            failure = errors.make_error(
                ERR_OTHER,
                f"{describe()}{named} has not ended within {deadline.seconds:g} s on rank "
                f"{self.rank} of the world: see `allhands diagnose`",
            )
        if failure is not None:
            if transfer is not None:
                transfer.cancel()
                transfer.error, transfer.done = failure, True
            raise failure
        deadline.warn(describe, awaited)

    def has_lost(self, rank: int) -> bool:
        """Say whether a rank of the world is known to be lost."""
        return rank != self.rank and self._channel.find_loss(rank, "a message") is not None

    # ------------------------------------------------------------ life

    def start_background(self) -> None:
        """Have a thread make progress from now on where no other does."""
        with self.lock:
            if self._background is None and self.size > 1:
                self._background = threading.Thread(
                    target=self._serve, name="allhands mpi progress", daemon=True
                )
                self._background.start()

    def _serve(self) -> None:
        while not self._stops.is_set():
            if self._waiting or not self._leader.acquire(blocking=False):
                self._stops.wait(_BACKGROUND_IDLE_SECONDS)
                continue
            try:
                while not self._waiting and not self._stops.is_set():
                    self._receive_frame(_BACKGROUND_IDLE_SECONDS)
            except Exception as error:
                if not self._stops.is_set():
                    self._background_error = error
                return
            finally:
                self._release_leader()

    def replace_channel(self, channel: Channel) -> None:
        """Go on by another way, to the ranks that remain; what was under way is lost."""
        with self._leader, self.lock:
            self._channel.close()
            self._channel = channel

    def flush(self) -> None:
        """Return when all frames have left."""
        with self.lock:
            sends, self._loose_sends = self._loose_sends, []
        for send in sends:
            self.wait(send)

    def close(self) -> None:
        """End the progress; nothing is under way."""
        self._stops.set()
        if self._background is not None:
            self._background.join(timeout=1.0)
        self._channel.close()


def wait_all(engine: Engine, transfers: Sequence[Transfer]) -> None:
    """Return when all have ended."""
    for transfer in transfers:
        engine.wait(transfer)


__all__ = ["Arrival", "Completed", "Engine", "FrameKind", "wait_all"]
