"""Numbers of a client's requests, by which the coordinator knows one that is sent again."""

import contextlib
import os
import threading
from collections.abc import Iterator

from allhands_proto import forks
from allhands_proto.v1 import coordinator_pb2 as wire

"""Metadata of a gRPC call with its serialised Origin."""


class RequestNumbers:
    """Requests of one client that have no answer yet, for any thread."""

    def __init__(self) -> None:
        self._begin()
        forks.hold(self)

    def forked(self) -> None:
        """Be another client in a forked child."""
        self._begin()

    def _begin(self) -> None:
        self._client = os.urandom(16)
        self._lock = threading.Lock()
        self._last = 0
        self._open: dict[int, None] = {}  # in order

    @contextlib.contextmanager
    def open(self) -> Iterator[wire.Origin]:
        """Number a request within a block: it is sent no more after its end."""
        with self._lock:
            self._last += 1
            number = self._last
            self._open[number] = None
            oldest = next(iter(self._open))
        try:
            yield wire.Origin(client=self._client, number=number, oldest=oldest)
        finally:
            with self._lock:
                self._open.pop(number, None)  # not there in a forked child
