"""Origins of requests, as they come over the wire."""

from typing import Any

from google.protobuf.message import DecodeError

from allhands_proto.call_metadata import ORIGIN_KEY
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.machine.events import Origin
from allhands_server.machine.refusals import Refused, Status

_LONGEST_NAME = 64


def decode_origin(message: wire.Origin) -> Origin:
    """Return where a request comes from.

    Raises:
        Refused: it makes no sense.
    """
    if not 0 < len(message.client) <= _LONGEST_NAME or not message.number:
        text = f"an origin has a client of 1 to {_LONGEST_NAME} bytes, and numbers from 1 on"
        raise Refused(Status.INVALID_ARGUMENT, text)
    return Origin(message.client, message.number, message.oldest, message.is_repeated)


def find_origin(metadata: Any) -> Origin | None:
    """Return the origin in the metadata of an RPC; None: there is none.

    Raises:
        Refused: it makes no sense.
    """
    for key, value in metadata or ():
        if key == ORIGIN_KEY:
            try:
                return decode_origin(wire.Origin.FromString(value))
            except DecodeError as error:
                text = "the origin of the call cannot be decoded"
                raise Refused(Status.INVALID_ARGUMENT, text) from error
    return None
