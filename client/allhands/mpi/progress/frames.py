"""Layout of frames: what ranks send one another, of one size, with small data inside."""

import enum
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

FRAME_BYTES = 512
HEAD = struct.Struct("<10q")
INLINE_BYTES = FRAME_BYTES - HEAD.size
"""Data up to this size travels in the frame; more follows in a message of its own."""
FRAME_TAG = 0
_PAYLOAD_TAGS = (1 << 31) - 2


class FrameKind(enum.IntEnum):
    """Purposes of frames."""

    MESSAGE = 1
    """A message; fields: tag, rank of the sender in its group, whether an ACK is wanted."""
    ACK = 2
    """The message of that number was matched; fields: the number."""
    RMA = 3
    """An operation on a window, or its answer."""
    FILE = 4
    """Something about a file."""
    REVOKE = 5
    """The communicator was revoked."""


class FrameHead(NamedTuple):
    """Head of a frame."""

    kind: int
    context: int
    """Number of the communicator, window or file that it belongs to."""
    nbytes: int
    """Size of the data, inside or behind."""
    number: int
    """Number among the frames of the sender: also the tag of data behind it."""
    sender: int
    """Rank in the world."""
    f0: int
    f1: int
    f2: int
    f3: int
    f4: int

    @property
    def fields(self) -> tuple[int, int, int, int, int]:
        """The fields whose meaning the kind gives."""
        return self[5:]


def payload_tag(number: int) -> int:
    """Return the tag of the data behind a frame, which differs among those under way."""
    return 1 + number % _PAYLOAD_TAGS
