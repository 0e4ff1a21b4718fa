"""Frames of the key-value port, see coordinator.proto: length and body."""

from collections.abc import Iterator

PREFACE = b"allhands-calls/1\n"
LARGEST_FRAME = 8 * 1024 * 1024
"""Bytes of a body; what the coordinator's gRPC port takes as well."""

HEADER = 4


class MalformedFrame(ValueError):
    """Data that is no frame, or too large a frame."""


def encode_frame(body: bytes) -> bytes:
    """Return the frame of `body`."""
    return len(body).to_bytes(HEADER, "big") + body


def read_body_length(header: bytes | bytearray, largest: int) -> int:
    """Read the length at the start of a frame.

    Raises:
        Malformed: it is more than `largest`.
    """
    length = int.from_bytes(header[:HEADER], "big")
    if length > largest:
        raise MalformedFrame(f"a frame of {length:,} bytes; {largest:,} is the most")
    return length


class FrameDecoder:
    """Incremental decoder: yields bodies of frames from arriving bytes.

    Of a frame that is not complete it holds what has come, and takes no memory for the rest: a
    length by itself costs nothing. `largest` may be changed between two bodies.
    """

    def __init__(self, largest: int = LARGEST_FRAME) -> None:
        self.largest = largest
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes that have come of the frame that is not complete."""
        return len(self._held)

    @property
    def expected(self) -> int:
        """Bytes of the body that is not complete, as its frame says; 0: not known yet."""
        return int.from_bytes(self._held[:HEADER], "big") if len(self._held) >= HEADER else 0

    def clear(self) -> None:
        """Forget what has come of the frame that is not complete, and its memory."""
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies completed by these bytes; to be read to the end.

        Raises:
            Malformed: nothing that follows can be understood.
        """
        if not self._held and len(data) >= HEADER:
            length = read_body_length(data, self.largest)
            if length == len(data) - HEADER:
                yield data[HEADER:]  # one frame and nothing else: what comes mostly
                return
        self._held += data
        begin = 0
        while len(self._held) - begin >= HEADER:
            length = read_body_length(self._held[begin : begin + HEADER], self.largest)
            end = begin + HEADER + length
            if end > len(self._held):
                break
            yield bytes(memoryview(self._held)[begin + HEADER : end])
            begin = end
        del self._held[:begin]
