"""Reading and writing of runs of a file, and locks of its bytes."""

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from allhands.mpi import constants, errors
from allhands.mpi.datatypes.layouts import Offsets
from allhands.mpi.progress.frames import Bytes

_CLASSES = {
    errno.ENOENT: constants.ERR_NO_SUCH_FILE,
    errno.ENOTDIR: constants.ERR_NO_SUCH_FILE,
    errno.EEXIST: constants.ERR_FILE_EXISTS,
    errno.EACCES: constants.ERR_ACCESS,
    errno.EPERM: constants.ERR_ACCESS,
    errno.EROFS: constants.ERR_READ_ONLY,
    errno.ENOSPC: constants.ERR_NO_SPACE,
    errno.EDQUOT: constants.ERR_QUOTA,
    errno.EISDIR: constants.ERR_BAD_FILE,
    errno.ENAMETOOLONG: constants.ERR_BAD_FILE,
    errno.ELOOP: constants.ERR_BAD_FILE,
    errno.EBUSY: constants.ERR_FILE_IN_USE,
    errno.ETXTBSY: constants.ERR_FILE_IN_USE,
}

_SIEVE = 1 << 20
"""Bytes of a file that are read at once to pick short runs out of them."""
_SHORT_RUN, _SHORT_GAP = 256, 2048
"""Up to these means, reading what lies between runs costs less than a call for each run."""

_FLOCK = "hhqqi4x"
"""A `struct flock` of Linux with 64 bits: kind, whence, start, length, process."""


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise the errors of MPI for those of the system in a block."""
    try:
        yield
    except OSError as error:
        code = _CLASSES.get(error.errno or 0, constants.ERR_IO)
        raise errors.make_error(code, f"{what}: {error.strerror or error}") from error


def read_runs(descriptor: int, offsets: Offsets, lengths: Offsets, target: Bytes) -> int:
    """Read runs into memory, one behind the other, up to the end of the file.

    Returns:
        How many bytes were read; the memory behind them is as it was.
    """
    if _are_scattered(offsets, lengths):
        return _sieve_runs(descriptor, offsets, lengths, target)
    at = 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        done = _read_all(descriptor, target[at : at + length], offset)
        at += done
        if done < length:
            break
    return at


def write_runs(descriptor: int, offsets: Offsets, lengths: Offsets, data: Bytes) -> None:
    """Write data to runs, which have as many bytes as it."""
    memory = memoryview(np.ascontiguousarray(data))  # type: ignore[arg-type]
    at = 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        done = 0
        while done < length:
            done += os.pwrite(descriptor, memory[at + done : at + length], offset + done)
        at += length


def _are_scattered(offsets: Offsets, lengths: Offsets) -> bool:
    """Say whether runs are many, short, in order, and near one another."""
    count = offsets.size
    if count < 4:
        return False
    data = int(lengths.sum())
    gaps = int(offsets[-1] + lengths[-1] - offsets[0]) - data
    if data > count * _SHORT_RUN or gaps > count * _SHORT_GAP:
        return False
    return bool((offsets[1:] >= offsets[:-1] + lengths[:-1]).all())


def _sieve_runs(descriptor: int, offsets: Offsets, lengths: Offsets, target: Bytes) -> int:
    """Read runs that are in order, with what lies between them, and keep theirs."""
    space: Bytes = np.empty(_SIEVE + _SHORT_RUN, np.uint8)
    ends = offsets + lengths
    at = first = 0
    while first < offsets.size:
        base = int(offsets[first])
        # At least one run, whatever its length.
        stop = max(int(np.searchsorted(ends, base + _SIEVE, side="right")), first + 1)
        span = int(ends[stop - 1]) - base
        if span > space.size:
            space = np.empty(span, np.uint8)
        found = _read_all(descriptor, space[:span], base)
        begins = offsets[first:stop] - base
        kept = np.clip(found - begins, 0, lengths[first:stop])
        total = int(kept.sum())
        # Byte k of run r lies at begins[r] + k; k is the place in all data less that of the run.
        shifts = begins - (np.cumsum(kept) - kept)
        places = np.repeat(shifts, kept) + np.arange(total, dtype=np.int64)
        np.take(space, places, out=target[at : at + total])
        at += total
        if found < span:
            break
        first = stop
    return at


def _read_all(descriptor: int, target: Bytes, offset: int) -> int:
    """Read into all of the memory, or up to the end of the file; return how many bytes."""
    memory: Any = memoryview(target)  # type: ignore[arg-type]
    done = 0
    while done < target.size:
        count = os.preadv(descriptor, [memory[done:]], offset + done)
        if not count:
            break
        done += count
    return done


class RangeLocks:
    """Locks of bytes of an open file, against other opens of it and other threads of this one.

    They belong to the open file and not to the process: what a process opens and closes beside
    it takes no lock away.
    """

    def __init__(self, descriptor: int | None) -> None:
        """None: there are no other opens of the file."""
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, start: int, stop: int, exclusive: bool) -> Iterator[None]:
        """Keep the others from bytes in a block."""
        with self._lock:
            descriptor = self._descriptor
            if descriptor is None:
                yield
                return
            kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
            _lock(descriptor, kind, start, stop)
            try:
                yield
            finally:
                _lock(descriptor, fcntl.F_UNLCK, start, stop)


def _lock(descriptor: int, kind: int, start: int, stop: int) -> None:
    asked = struct.pack(_FLOCK, kind, os.SEEK_SET, start, max(stop - start, 1), 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, asked)
