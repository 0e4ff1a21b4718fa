"""Faults of a daemon while clients call it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from support.full_disk import SmallDisk, can_mount, mount_small_disk
from support.linearizability.clients import Progress
from support.served_daemon import ServedDaemon

DISK_MEBIBYTES = 256
_CALLS_LOST = 5
"""Calls of unknown outcome or refused by which a fault has been noticed."""


class Disturber:
    """Cause of faults, each once the clients have made some calls more."""

    def __init__(
        self, daemon: ServedDaemon, disk: SmallDisk | None, seen: Progress, calls_between: int
    ) -> None:
        self._daemon = daemon
        self._disk = disk
        self._progress = seen
        self._calls_between = calls_between
        self.faults: dict[str, Callable[[], None]] = {
            "kill": self.kill,
            "pause": self.pause,
            "restart": self.restart,
        }
        if disk is not None:
            self.faults["fill the disk"] = self.fill

    def disturb(self, count: int) -> list[str]:
        """Make `count` faults by turns, with undisturbed calls before each and after the last.

        Return the faults; the clients end then.
        """
        made = [list(self.faults)[place % len(self.faults)] for place in range(count)]
        try:
            for fault in made:
                self.let_work()
                self.faults[fault]()
            self.let_work()
        finally:
            self._progress.end()
        return made

    def let_work(self) -> None:
        """Wait until the clients have made calls without a fault."""
        until = self._progress.calls + self._calls_between
        self._progress.wait(lambda: self._progress.calls >= until)

    def kill(self) -> None:
        """Kill the daemon in the middle of calls, and start it again."""
        with self._not_served():
            self._daemon.kill()

    def restart(self) -> None:
        """End the daemon in order, and start it again."""
        with self._not_served():
            assert self._daemon.stop() == 0

    def pause(self) -> None:
        """Stop the daemon's process for a second: no answer, and no lost connection."""
        with self._daemon.pause():
            # Nothing tells of a second without an answer.
            self._progress.wait_long(1.0)

    def fill(self) -> None:
        """Leave the log no room until calls are refused."""
        assert self._disk is not None
        until = self._progress.refused + _CALLS_LOST
        self._disk.fill()
        try:
            self._progress.wait(lambda: self._progress.refused >= until)
        finally:
            self._disk.free()

    @contextlib.contextmanager
    def _not_served(self) -> Iterator[None]:
        self._progress.set_served(False)
        yield
        self._daemon.start()
        self._progress.set_served(True)


@contextlib.contextmanager
def provide_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """Mount a disk that can be filled, where this process may; else yield None."""
    if not can_mount():
        yield None
        return
    with mount_small_disk(folder, DISK_MEBIBYTES) as disk:
        yield disk
