"""Frames of one key-value connection: those that arrive, and their calls until carried out."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from google.protobuf.message import DecodeError

from allhands_proto import framing
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.kv.receive_load import FREE_NBYTES, ReceiveLoad, Receiver, Room

_LARGEST_HELLO = 256
_DECODED_AT_ONCE = 64 * 1024
"""Frames above it are decoded call by call: small calls take 32 times their bytes when decoded."""
_CALL_NBYTES = 64
"""Of a decoded call beside its bytes."""
_CALLS_TAG = wire.Calls.CALLS_FIELD_NUMBER << 3 | 2
_VARINT_BITS = 35


class NoRoom(Exception):
    """So many frames wait for room that no more of this one can be kept."""


class IncomingFrames:
    """Decoder of a connection's frames, and queue of their calls."""

    def __init__(
        self, receiver: Receiver, load: ReceiveLoad, on_undecodable: Callable[[int], None]
    ) -> None:
        """`on_undecodable` is called with the id of a call that cannot be decoded."""
        self._receiver = receiver
        self._load = load
        self._on_undecodable = on_undecodable
        self._decoder = framing.FrameDecoder(_LARGEST_HELLO)
        self._calls: deque[tuple[Iterator[wire.Call], int]] = deque()
        self._reserved = 0
        """Room for the frame that is not complete."""
        self.awaits_room = False
        """Whether the connection is not to be read until there is room."""

    def __bool__(self) -> bool:
        """Whether there are calls to be carried out."""
        return bool(self._calls)

    def accept_calls(self) -> None:
        """Take in large frames: the peer has proven itself."""
        self._decoder.largest = framing.LARGEST_FRAME

    def on_room(self) -> None:
        """Note that the frame has the room that was asked for."""
        self._reserved = self._decoder.expected
        self.awaits_room = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies completed by these bytes.

        Raises:
            MalformedFrame: nothing that follows can be understood.
        """
        for body in self._decoder.feed(data):
            if self._reserved:
                self._load.release(self._reserved)
                self._reserved = 0
                self._load.note_prompt(self._receiver)
            yield body

    def reserve(self, party: str) -> None:
        """Ask for room for the frame that is not complete, if it is a large one.

        `awaits_room` says whether it has to wait, in the turns of the party.

        Raises:
            NoRoom: there is none, and none to wait in.
        """
        if self._reserved:
            self._load.note_bytes(self._receiver)
            return
        nbytes = self._decoder.expected
        if nbytes <= FREE_NBYTES or self.awaits_room:
            return
        match self._load.request(self._receiver, party, nbytes, self._decoder.held):
            case Room.TAKEN:
                self._reserved = nbytes
            case Room.AWAITED:
                self.awaits_room = True
            case Room.REFUSED:
                raise NoRoom(
                    f"others wait with {self._load.most:,} bytes of their frames, the most that "
                    "may be received at a time (`allhands serve --limit memory=SIZE`)"
                )

    def note_pause(self, *, is_of_peer: bool) -> None:
        """Note that the connection is not read, because of its peer or not."""
        self._load.note_prompt(self._receiver)
        if is_of_peer:
            self._load.note_slow(self._receiver)

    def note_reading(self) -> None:
        """Note that the connection is read again."""
        self._load.note_prompt(self._receiver)
        if self._reserved:
            self._load.note_slow(self._receiver)
            self._load.note_bytes(self._receiver)

    def add_calls(self, body: bytes) -> None:
        """Queue the calls of a frame.

        Raises:
            DecodeError: nobody can tell which calls these are.
        """
        if len(body) > _DECODED_AT_ONCE:
            self._add(self._decode_each(split_calls(body)), len(body))
            return
        try:
            calls = wire.Calls.FromString(body).calls
            self._add(iter(calls), len(body) + _CALL_NBYTES * len(calls))
        except DecodeError:
            self._add(self._decode_each(wire.EncodedCalls.FromString(body).calls), len(body))

    def iterate_first(self) -> Iterator[wire.Call]:
        """Return the calls that are left of the first frame; reading them removes them.

        Raises:
            DecodeError: later, nobody can tell which calls follow.
        """
        return self._calls[0][0]

    def drop_first(self) -> None:
        """Remove the first frame, all calls of which have been read."""
        self._load.release(self._calls.popleft()[1])

    def clear(self) -> None:
        """Forget calls and the incomplete frame of a connection that is over. Idempotent."""
        self._load.discard(self._receiver)
        self.awaits_room = False
        self._decoder.clear()
        reserved, self._reserved = self._reserved, 0
        nbytes = sum(nbytes for _, nbytes in self._calls)
        self._calls.clear()
        self._load.release(reserved + nbytes)

    def _add(self, calls: Iterator[wire.Call], nbytes: int) -> None:
        self._calls.append((calls, nbytes))
        self._load.add(nbytes)

    def _decode_each(self, encoded: Iterable[bytes]) -> Iterator[wire.Call]:
        for one in encoded:
            try:
                call = wire.Call.FromString(one)
            except DecodeError:
                self._on_undecodable(wire.CallId.FromString(one).id)
            else:
                yield call


def split_calls(body: bytes) -> Iterator[bytes]:
    """Yield the encoded calls of a message `Calls`, one by one and without decoding them.

    Raises:
        DecodeError: it is no such message from here on.
    """
    position = 0
    while position < len(body):
        tag, position = _read_varint(body, position)
        length, position = _read_varint(body, position)
        end = position + length
        if tag != _CALLS_TAG or end > len(body):
            raise DecodeError("a frame that is no list of calls")
        yield body[position:end]
        position = end


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a number of up to 35 bits, and the position behind it."""
    number = 0
    for shift in range(0, _VARINT_BITS, 7):
        if position >= len(body):
            break
        byte = body[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise DecodeError("a frame that is no list of calls")
