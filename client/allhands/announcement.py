"""What a rank tells its launcher before the other ranks hear that it leaves.

When a rank ends early, its peers learn that from the coordinator, fail in turn, and may even be
gone before it. The order of exits then blames a victim. So a rank that is about to leave says so
first, in a datagram to its launcher: that is in the launcher's hands before anything that
follows from it. A rank that is killed says nothing, but it ends before its peers can notice.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LAUNCH_VARIABLE = "ALLHANDS_LAUNCH"
"""Holds the same random name in every process of one launch, and in no other process."""

_FAILING, _LEAVING = b"failing", b"leaving"
_SEND_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def announce_end(environ: Mapping[str, str], *, failing: bool) -> None:
    """Tell the launcher, if there is one, that this process leaves its job: as it should, or not.

    To be called before the coordinator or a peer is told. Never fails, and waits a second at most.
    """
    launch = environ.get(LAUNCH_VARIABLE)
    if launch is None:
        return
    with (
        contextlib.suppress(OSError),  # the launcher is gone: nobody wants to know
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(_SEND_SECONDS)
        sender.sendto(_FAILING if failing else _LEAVING, _address(launch))


def _address(launch: str) -> str:
    # In Linux's abstract name space: no file that a killed launcher could leave behind.
    return f"\0allhands-launch-{launch}"


@dataclass(frozen=True, slots=True)
class Announcement:
    pid: int
    """Of the sender, as the kernel says."""
    failing: bool


class Announcements:
    """The launcher's ear: takes in what ranks announce."""

    def __init__(self, launch: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # Anybody on this host can send to an abstract address; so let the kernel say who did.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(_address(launch))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def heard(self) -> Iterator[Announcement]:
        """Give what has been announced since, in order; never waits."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(
                    64, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            for _, kind, content in ancillary:
                if kind != socket.SCM_CREDENTIALS or data not in (_FAILING, _LEAVING):
                    continue
                pid, uid, _ = _CREDENTIALS.unpack(content)
                if uid == os.getuid():
                    yield Announcement(pid, data == _FAILING)
