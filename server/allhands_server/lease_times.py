"""File of the times at which leases end, beside the log of a daemon.

Keep-alives are no changes of the log. So that a lease has the time that it had left after a kill of
the daemon, each is a line here: unsynchronised, as a kill leaves written data alone, and the times
are of no use after a start of the host, when another clock begins. A lease without a line, or with
one that is cut, has all of its time again.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

FILE_NAME = "lease-times"
_LARGEST_NBYTES = 1 << 20
"""A file of this size is written anew, without the leases that have ended."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LeaseTimes:
    """The times of one folder; without a clock that goes on over a restart it keeps none."""

    def __init__(self, folder: Path) -> None:
        """Read the times in a folder, and write later times there."""
        self._path = folder / FILE_NAME
        self._boot = _read_boot_id()
        self._ends: dict[tuple[str, int], float] = {}
        if self._boot:
            with contextlib.suppress(OSError):
                self._ends = _read_times(self._path.read_bytes(), self._boot)
        self._nbytes = 0
        self._file = -1
        self._write_anew()

    def find_remaining(self) -> Mapping[tuple[str, int], float]:
        """Return the seconds that leases have left, by job and number; below 0: it is over."""
        now = _read_clock()
        return {lease: end - now for lease, end in self._ends.items()}

    def note(self, job: str, lease: int, remaining: float) -> None:
        """Write down that a lease has so many seconds left."""
        if self._file < 0:
            return
        self._ends[job, lease] = end = _read_clock() + remaining
        self._append(_encode_line(job, lease, end))
        if self._nbytes > _LARGEST_NBYTES:
            self._write_anew()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes) -> None:
        try:
            written = os.write(self._file, data)
        except OSError as error:
            self._give_up(error)
        else:
            self._nbytes += written
            if written < len(data):
                self._give_up(OSError("no room"))

    def _write_anew(self) -> None:
        """Write the times of the leases that have not ended."""
        self.close()
        if not self._boot:
            return
        now = _read_clock()
        self._ends = {lease: end for lease, end in self._ends.items() if end > now}
        lines = (_encode_line(*lease, end) for lease, end in self._ends.items())
        data = b"".join((f"{self._boot}\n".encode(), *lines))
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(data)
            self._file = os.open(fresh, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            fresh.replace(self._path)
        except OSError as error:
            self._give_up(error)
        self._nbytes = len(data)

    def _give_up(self, error: OSError) -> None:
        """Keep no times: an old one would end a lease too early."""
        logger.warning(
            "the times of leases cannot be written to %s (%s): after a restart they begin again",
            self._path,
            error.strerror or error,
        )
        self.close()
        self._boot = ""
        for path in (self._path, self._path.with_suffix(".new")):
            with contextlib.suppress(OSError):
                path.unlink()


def _encode_line(job: str, lease: int, end: float) -> bytes:
    return f"{end:.3f} {lease} {job}\n".encode()  # a job's name has no space


def _read_times(data: bytes, boot: str) -> dict[tuple[str, int], float]:
    lines = data.split(b"\n")[:-1]  # the last one is empty, or cut
    if not lines or lines[0] != boot.encode():
        return {}
    return dict(_parse_lines(lines[1:]))


def _parse_lines(lines: Iterable[bytes]) -> Iterable[tuple[tuple[str, int], float]]:
    for line in lines:
        with contextlib.suppress(ValueError):
            end, lease, job = line.decode().split(" ")
            yield (job, int(lease)), float(end)


def _read_boot_id() -> str:
    """Return the name of this run of the host; empty: it has none, or no clock for it."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return ""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _read_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
