"""Messages between driver and ranks: lines of JSON over a Unix socket."""

import json
import socket
import time
from typing import Any

Message = dict[str, Any]

_READ_BYTES = 1 << 16


class JsonConnection:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            OSError: the other end has gone.
        """
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float | None = None) -> Message | None:
        """Wait for the next message; None: the connection was closed.

        Raises:
            TimeoutError: nothing came within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._received:
            if deadline is not None:
                self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                more = self._connection.recv(_READ_BYTES)
            except ConnectionError:
                return None
            if not more:
                return None
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        self._connection.close()
