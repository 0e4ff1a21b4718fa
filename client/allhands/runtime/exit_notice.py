"""Exit notices: datagrams to the launcher, sent before a rank leaves the job.

When a rank ends early, its peers learn that from the coordinator, fail in turn, and may even be
gone before it. The order of exits then blames a victim. So a rank that is about to leave says so
first, in a datagram to its launcher: that is in the launcher's hands before anything that
follows from it. A rank that is killed says nothing, but it ends before its peers can notice.

A rank of which calls fail says of whose loss: that may be a rank that left early, and ended well.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from allhands_proto.quick_dataclass import dataclass

LAUNCH_VARIABLE = "ALLHANDS_LAUNCH"
"""Holds the directory of its launch in every process of one launch, and in no other process."""

_FAILING, _LEAVING = b"failing", b"leaving"
_CAUSE = b"cause "
_MAX_BYTES = 16384
_MAX_TEXT = 1024
_SEND_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_SOCKET = "announcements"
_LONGEST_DIRECTORY = 107 - len(f"/{_SOCKET}")  # what a struct sockaddr_un holds


def choose_directory() -> str:
    """Return the directory of a new launch, which is not there yet."""
    name = f"allhands-launch-{secrets.token_hex(16)}"
    directory = os.path.join(tempfile.gettempdir(), name)
    return directory if len(os.fsencode(directory)) <= _LONGEST_DIRECTORY else f"/tmp/{name}"


def send_end_notice(environ: Mapping[str, str], *, is_failing: bool) -> None:
    """Notify the launcher, if any, that this process leaves its job, normally or with a failure.

    Call this before the coordinator or a peer can know. Never fails, and blocks 1 s at most.
    """
    _send_notice(environ, _FAILING if is_failing else _LEAVING)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A lost or departed rank, as the cause of failures elsewhere."""

    rank: int
    host: str
    pid: int
    state: str
    """As in verdicts."""
    text: str


def send_cause_notice(environ: Mapping[str, str], cause: FailureCause | None) -> None:
    """Notify the launcher of the lost rank that makes calls fail here; None withdraws the notice.

    Call this before a call fails. Never fails, and blocks 1 s at most.
    """
    if cause is None:
        told = None
    else:
        told = [cause.rank, cause.host, cause.pid, cause.state, cause.text[:_MAX_TEXT]]
    _send_notice(environ, _CAUSE + json.dumps(told).encode())


def _send_notice(environ: Mapping[str, str], message: bytes) -> None:
    launch = environ.get(LAUNCH_VARIABLE)
    if launch is None:
        return
    with (
        contextlib.suppress(OSError),  # the launcher is gone: nobody wants to know
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(_SEND_SECONDS)
        sender.sendto(message, _make_socket_path(launch))


def _make_socket_path(launch: str) -> str:
    return os.path.join(launch, _SOCKET)


@dataclass(frozen=True, slots=True)
class LeavingNotice:
    """A process is about to leave its job."""

    pid: int
    """Of the sender, as the kernel says."""
    is_failing: bool


@dataclass(frozen=True, slots=True)
class FailingNotice:
    """Calls of a process fail of the loss of a rank; None: they do no more."""

    pid: int
    cause: FailureCause | None


ExitNotice: TypeAlias = LeavingNotice | FailingNotice


class ExitNoticeListener:
    """Receiver of exit notices in the launcher."""

    def __init__(self, launch: str) -> None:
        """Create the directory of a launch, closed to other users, and listen in the directory.

        Raises:
            OSError: the directory or its socket cannot be created.
        """
        self._launch = launch
        os.mkdir(launch, 0o700)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # The kernel says who sends: a rank, or a process that it has started.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(_make_socket_path(launch))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._launch, ignore_errors=True)  # the guardian may have been first

    def read_notices(self) -> Iterator[ExitNotice]:
        """Return the notices received since the last call, in order, without blocking."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(
                    _MAX_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            for _, kind, content in ancillary:
                if kind != socket.SCM_CREDENTIALS:
                    continue
                pid, _, _ = _CREDENTIALS.unpack(content)
                if (announced := _parse_notice(pid, data)) is not None:
                    yield announced


def _parse_notice(pid: int, data: bytes) -> ExitNotice | None:
    """Parse a notice; None: unknown form."""
    if data in (_FAILING, _LEAVING):
        return LeavingNotice(pid, data == _FAILING)
    if not data.startswith(_CAUSE):
        return None
    try:
        told = json.loads(data.removeprefix(_CAUSE))
        if told is None:
            return FailingNotice(pid, None)
        rank, host, of, state, text = told
        return FailingNotice(
            pid, FailureCause(int(rank), str(host), int(of), str(state), str(text))
        )
    except (ValueError, TypeError):
        return None
