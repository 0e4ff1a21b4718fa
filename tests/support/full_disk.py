"""A small disk that can be filled up, for a daemon's folder."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_BALLAST = "ballast"


def can_mount() -> bool:
    """Return whether this process may mount a file system of its own."""
    tried = ("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class SmallDisk:
    """A file system in memory with little room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, spare: int = 0) -> None:
        """Take all room but `spare` bytes."""
        with (self.folder / _BALLAST).open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            ballast.truncate(max(0, ballast.tell() - spare))

    def free(self) -> None:
        """Give the room back. Idempotent."""
        (self.folder / _BALLAST).unlink(missing_ok=True)


@contextlib.contextmanager
def mount_small_disk(folder: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """Mount a disk on a folder within a block."""
    folder.mkdir(mode=0o700, exist_ok=True)
    size = f"size={mebibytes}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", os.fspath(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", os.fspath(folder)], check=True)
