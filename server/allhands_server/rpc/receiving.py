"""Receiving of gRPC calls' messages, each when there is room for it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from allhands_proto.framing import LARGEST_FRAME
from allhands_proto.limited_log import LimitedLog
from allhands_proto.unproven import group_address
from allhands_server.access import CALLER
from allhands_server.addresses import parse_peer_host
from allhands_server.machine.refusals import Refused, Status
from allhands_server.resource_limits import WITHOUT_LIMIT, ResourceLimits
from allhands_server.rpc.receive_room import GRACE_SECONDS, STREAM_GRACE_SECONDS, ReceiveRoom

logger = logging.getLogger(__name__)

_PART = 32
"""One of so many bytes of the coordinator's memory may be messages that are being received."""
_FEWEST = 8
_MOST_WAITING = 20_000
"""As many calls as one connection has at most: all may come at the same moment."""
_OF_STRANGERS, _MOST_STRANGERS_WAITING = 4, 512
_LOOK_SECONDS = 0.1

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
END: Final = grpc.aio.EOF


class Reception:
    """A call with a message that is being received, or is to be."""

    __slots__ = ("admission", "connection", "context", "grace", "party")

    def __init__(self, context: Context, is_stranger: bool, is_stream: bool) -> None:
        self.context = context
        self.connection = context.peer()
        self.party = CALLER.get() or _name_host(self.connection, is_stranger)
        """The token, without one the host; of strangers the network."""
        self.grace = STREAM_GRACE_SECONDS if is_stream else GRACE_SECONDS
        self.admission: asyncio.Future[None] | None = None
        """Done when the call that waits has room, or is refused."""


class MessageReceiver:
    """Receiver of messages of calls on the running loop, each with room for the largest one.

    While calls wait for room, those that are slow to send are aborted.
    """

    def __init__(
        self,
        room: ReceiveRoom[Reception],
        remedy: str = "",
        on_call: Callable[[str], None] = lambda _peer: None,
        *,
        is_open: bool = False,
    ) -> None:
        """Take the room, and whether the calls need no token.

        Args:
            remedy: how there is more room.
            on_call: is called with the peer of each call, as gRPC writes it.
        """
        self.room = room
        self._on_call = on_call
        self._is_open = is_open
        self._bound = (
            f"{room.most:,} messages{' of callers without a token' if is_open else ''} are "
            f"received at a time{remedy}"
        )
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._suspects: set[Reception] = set()
        self._aborting: set[asyncio.Task[None]] = set()
        self._log = LimitedLog(logger, "aborted calls")

    async def take_room(self, context: Context, *, is_stream: bool = False) -> Reception:
        """Wait for room, in turns of tokens or hosts, and of their connections.

        A message of a stream has longer to come.

        Raises:
            Refused: too many calls wait.
        """
        reception = Reception(context, self._is_open, is_stream)
        self._on_call(reception.connection)
        if not self.room.request(reception, self._loop.time()):
            await self._wait(reception)
        return reception

    def give_room(self, reception: Reception) -> None:
        """Give room back: the message is whole and decoded, or will not be. Idempotent."""
        self.room.discard(reception)
        while (admitted := self.room.admit(self._loop.time())) is not None:
            assert admitted.admission is not None
            if not admitted.admission.done():  # else it is cancelled, and gives room back itself
                admitted.admission.set_result(None)

    async def _wait(self, reception: Reception) -> None:
        reception.admission = self._loop.create_future()
        if (surplus := self.room.remove_surplus()) is not None:
            _refuse(surplus, self._describe_surplus())
        self._watch()
        try:
            await reception.admission
        except BaseException:
            self.give_room(reception)
            raise

    def _watch(self) -> None:
        """Look for slow calls soon, and as long as others wait."""
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Abort calls that were slow at the last look too.

        So what came while this process was late has been read in between. The time by which it
        was late does not count.
        """
        assert self._timer is not None
        self.room.extend(max(self._loop.time() - self._timer.when(), 0.0))
        self._timer = None
        slow = self.room.list_slow(self._loop.time())
        for reception in slow:
            if reception in self._suspects:
                aborting = self._loop.create_task(self._abort(reception))
                self._aborting.add(aborting)
                aborting.add_done_callback(self._aborting.discard)
        self._suspects = set(slow)
        if self.room.waiting_count:
            self._watch()

    async def _abort(self, reception: Reception) -> None:
        if not self.room.has_room(reception):
            return
        text = self._describe_slow(reception)
        self._log.warning("aborted a call from %s: %s", reception.connection, text)
        # What reads for the call gets the AbortError as well. Who has gone cannot be told.
        with contextlib.suppress(grpc.aio.AbortError, grpc.aio.InternalError):
            await reception.context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    def _describe_slow(self, reception: Reception) -> str:
        return (
            f"the message did not come within {reception.grace:g} s, and others wait: {self._bound}"
        )

    def _describe_surplus(self) -> str:
        return f"{self.room.most_waiting:,} calls wait, the most that may: {self._bound}"


def make_receiver(limits: ResourceLimits, on_call: Callable[[str], None]) -> MessageReceiver:
    """Make the receiver of calls with a token; `on_call` is told their peers."""
    memory = limits.memory or WITHOUT_LIMIT
    most = max(memory // _PART // LARGEST_FRAME, _FEWEST)
    remedy = f", 1/{_PART} of the daemon's memory (`allhands serve --limit memory=SIZE`)"
    return MessageReceiver(ReceiveRoom(most, _MOST_WAITING), remedy, on_call)


def make_strangers_receiver() -> MessageReceiver:
    """Make the receiver of calls that need no token: health checks, which have room apart."""
    room = ReceiveRoom[Reception](_OF_STRANGERS, _MOST_STRANGERS_WAITING)
    return MessageReceiver(room, is_open=True)


def _refuse(reception: Reception, text: str) -> None:
    assert reception.admission is not None
    if not reception.admission.done():
        reception.admission.set_exception(Refused(Status.RESOURCE_EXHAUSTED, text))


def _name_host(peer: str, is_stranger: bool) -> str:
    try:
        host = parse_peer_host(peer)
    except ValueError:  # it went away, and has no address any more
        return peer
    return group_address(host) if is_stranger else host
