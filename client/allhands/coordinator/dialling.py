"""TCP connections to the first of several addresses that answers."""

import asyncio
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from allhands_proto.authority import format_authority
from allhands_proto.quick_dataclass import dataclass

STAGGER_SECONDS = 0.25
"""After which the next address is tried beside those that have not answered (RFC 8305)."""

HostPort = tuple[str, int]


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Address that could not be connected to."""

    where: str
    """`address:port`; of a name without an address: the name."""
    code: int | None
    """Of `errno`; None: there is no address."""
    reason: str


class NoConnection(OSError):
    """None of the addresses was connected to; the text has each, with its reason."""

    def __init__(self, attempts: Sequence[FailedAttempt]) -> None:
        super().__init__("; ".join(f"{one.where}: {one.reason}" for one in attempts))
        self.attempts = tuple(attempts)


class NoConnectionInTime(NoConnection, TimeoutError):
    """The same, where some have not answered in time."""


def connect_to_any(addresses: Sequence[HostPort], timeout: float) -> tuple[socket.socket, str]:
    """Connect to the first address that answers; return the socket, and the host as it was given.

    Names are resolved in their turn, which may block beyond the timeout in seconds.

    Raises:
        NoConnection: none of them does.
        NoConnectionInTime: none of them did in time.
    """
    attempts = _Attempts(addresses, time.monotonic() + timeout)
    try:
        return attempts.run()
    finally:
        attempts.close()


async def connect_on_thread(
    addresses: Sequence[HostPort], timeout: float
) -> tuple[socket.socket, str]:
    """Connect as `connect_to_any`, on a thread beside the loop.

    Cancelled, it closes the connection that the thread has made, or makes later.
    """
    handover = _Handover()
    try:
        return await asyncio.to_thread(lambda: handover.keep(*connect_to_any(addresses, timeout)))
    except BaseException:
        handover.give_up()
        raise


class _Handover:
    """A connection on its way from its thread to a task, which may be over by then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_given_up = False
        self._connection: socket.socket | None = None

    def keep(self, connection: socket.socket, host: str) -> tuple[socket.socket, str]:
        with self._lock:
            self._connection = connection
            if self._is_given_up:
                connection.close()
        return connection, host

    def give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
            if self._connection is not None:
                self._connection.close()


class _Attempts:
    """Connections under way, by descriptor."""

    def __init__(self, addresses: Sequence[HostPort], deadline: float) -> None:
        self._deadline = deadline
        self._failed: list[FailedAttempt] = []
        self._under_way: dict[int, tuple[socket.socket, str, str]] = {}
        self._poll = select.poll()
        self._left = _resolve(addresses, self._failed)

    def run(self) -> tuple[socket.socket, str]:
        """Connect; what is under way then is closed by `close`."""
        has_more, next_start = True, time.monotonic()
        while True:
            now = time.monotonic()
            if has_more and (now >= next_start or not self._under_way):
                if (row := next(self._left, None)) is None:
                    has_more = False
                else:
                    self._begin(*row)
                    next_start = now + STAGGER_SECONDS
                continue
            if not self._under_way:
                raise NoConnection(self._failed)
            if now >= self._deadline:
                for _, _, where in self._under_way.values():
                    self._failed.append(FailedAttempt(where, errno.ETIMEDOUT, "no answer"))
                raise NoConnectionInTime(self._failed)
            until = min(next_start, self._deadline) if has_more else self._deadline
            for descriptor, _ in self._poll.poll(max(until - now, 0.001) * 1000):
                if (found := self._finish(descriptor)) is not None:
                    found[0].setblocking(True)
                    return found

    def close(self) -> None:
        """Give the attempts up that are under way."""
        for sock, _, _ in self._under_way.values():
            sock.close()

    def _begin(self, host: str, row: "tuple[Any, ...]") -> None:
        family, kind, protocol, _, address = row
        where = format_authority(*address[:2])
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this host does not have
            self._failed.append(FailedAttempt(where, error.errno, error.strerror or str(error)))
            return
        sock.setblocking(False)
        if (code := sock.connect_ex(address)) not in (0, errno.EINPROGRESS):
            self._failed.append(FailedAttempt(where, code, os.strerror(code)))
            sock.close()
            return
        self._under_way[sock.fileno()] = sock, host, where
        self._poll.register(sock, select.POLLOUT)

    def _finish(self, descriptor: int) -> tuple[socket.socket, str] | None:
        sock, host, where = self._under_way.pop(descriptor)
        self._poll.unregister(descriptor)
        if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._failed.append(FailedAttempt(where, code, os.strerror(code)))
            sock.close()
            return None
        return sock, host


def _resolve(
    addresses: Sequence[HostPort], failed: list[FailedAttempt]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the rows of each address in turn; add those without an address to the failed ones."""
    for host, port in addresses:
        # As bytes, for a text brings the tables of international names in: a quarter of a MiB.
        name = host.encode() if host.isascii() else host
        try:
            rows = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            failed.append(FailedAttempt(host, None, f"no address: {reason}"))
            continue
        yield from ((host, row) for row in rows)
