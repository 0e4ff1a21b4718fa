"""Sessions: the leases of a client to which its places in queues are bound."""

import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.records import KeyRecord
from allhands.coordinator.kv.requests import AnyKvRequest
from allhands.coordinator.kv.transactions import Put
from allhands.escapes import escape_line
from allhands_proto.quick_dataclass import dataclass

_SESSIONS = "_allhands/sessions/"


class _User(Protocol):
    def note_lost(self) -> None: ...


class Session:
    """A lease of the client that is kept alive, with those that depend on it; for any thread."""

    def __init__(self, number: int, ttl: float) -> None:
        self.number = number
        """Number of the lease."""
        self.ttl = ttl
        """Seconds."""
        self.users: set[_User] = set()
        self.was_used = True
        """Whether there was a user since this was asked for."""
        self.is_lost = False
        self._cancels: set[Callable[[], object]] = set()
        self._numbers = itertools.count(1)

    def add(self, user: _User) -> None:
        """Note a user."""
        self.users.add(user)
        self.was_used = True

    def make_number(self) -> int:
        """Return a number that no other place of this session has."""
        return next(self._numbers)

    def lose(self) -> None:
        """Tell the users that the lease is lost, and end what waits. Idempotent."""
        self.is_lost = True
        for user in list(self.users):
            user.note_lost()
        for cancel in list(self._cancels):
            cancel()

    @contextlib.contextmanager
    def hold(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Let `cancel` be called with the loss of the lease, within a block."""
        self._cancels.add(cancel)
        try:
            if self.is_lost:
                cancel()
            yield
        finally:
            self._cancels.discard(cancel)


def make_lease_number() -> int:
    """Return a number for a lease that no other has, also at a coordinator without a log.

    There a restart begins the coordinator's own numbers again, and a keep-alive of the lease before
    it must not find the lease of another.
    """
    return int.from_bytes(os.urandom(8)) >> 1 | 1


def make_identity(job: str, session: Session) -> AnyKvRequest[Any]:
    """Return the request to say whose a session is, for as long as it lives."""
    identity = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
    put = Put(make_session_key(session.number), json.dumps(identity), session.number)
    return requests.make_put(job, put)


def describe_process() -> str:
    """Name this process, for people."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def make_session_key(number: int) -> str:
    """Return the key that says whose a session is."""
    return f"{_SESSIONS}{number}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Process of a session."""

    host: str = ""
    pid: int = 0


def read_identity(record: KeyRecord | None) -> Identity:
    """Return the process of a session's record; host empty: it does not say."""
    found = {} if record is None else read_fields(record.value)
    host, pid = found.get("host"), found.get("pid")
    if not isinstance(host, str) or not isinstance(pid, int):
        return Identity()
    return Identity(escape_line(host[:256]), pid)


def read_fields(value: bytes) -> dict[str, Any]:
    """Return the fields in a value of a recipe's key; none: another wrote it."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(value)
        if isinstance(found, dict):
            return found
    return {}
