"""Segments that other processes announce: whose memory is mapped, and whose is not."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from allhands.runtime import native_core

native, absence = native_core.find()
if native is None:
    pytest.skip(absence, allow_module_level=True)

NBYTES = 1 << 20
NONCE = bytes(range(16))
NOBODY = 65534
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

ANNOUNCE = f"""
import fcntl, os, sys
from allhands.runtime import native_core
kind, uid = sys.argv[1], int(sys.argv[2])
native, _ = native_core.find()
os.setuid(uid)
if kind == "segment":
    made = native.Segment.create({NBYTES}, {NONCE!r})
    fd = made.fd
elif kind == "unsealed":
    fd = os.memfd_create("allhands")
    os.ftruncate(fd, {NBYTES})
    os.pwrite(fd, {NONCE!r}, 0)
elif kind == "fifo":
    fd = os.pipe()[0]
print(fd, flush=True)
sys.stdin.read()
"""


@contextmanager
def announced(kind: str, uid: int) -> Iterator[str]:
    """Yield the path of what a process of that user announces."""
    with subprocess.Popen(
        [sys.executable, "-c", ANNOUNCE, kind, str(uid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield f"/proc/{process.pid}/fd/{int(process.stdout.readline())}"
        finally:
            process.communicate("")


def test_the_segment_of_another_process_of_this_user_is_mapped() -> None:
    with announced("segment", os.getuid()) as path:
        assert native.Segment.open(path, NBYTES, NONCE).nbytes == NBYTES
        with pytest.raises(OSError, match="another process's memory"):
            native.Segment.open(path, NBYTES, bytes(16))
        with pytest.raises(OSError, match="not the memory that was announced"):
            native.Segment.open(path, NBYTES + 4096, NONCE)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_the_segment_of_another_user_is_not_mapped_not_even_by_root() -> None:
    with announced("segment", NOBODY) as path, pytest.raises(OSError, match="belongs to uid 65534"):
        native.Segment.open(path, NBYTES, NONCE)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_another_user_cannot_open_a_segment() -> None:
    with announced("segment", 0) as path:
        opened = f"import os; os.setuid({NOBODY}); os.open({path!r}, os.O_RDWR)"
        done = subprocess.run([sys.executable, "-c", opened], capture_output=True, check=False)
    assert b"PermissionError" in done.stderr


@pytest.mark.parametrize(
    ("kind", "why"),
    [("unsealed", "can be cut off by its owner"), ("fifo", "not the memory that was announced")],
)
def test_what_could_end_or_block_this_process_is_not_mapped(kind: str, why: str) -> None:
    with announced(kind, os.getuid()) as path, pytest.raises(OSError, match=why):
        native.Segment.open(path, NBYTES, NONCE)


def test_a_segment_can_be_neither_cut_off_nor_unsealed() -> None:
    made = native.Segment.create(NBYTES, NONCE)
    assert fcntl.fcntl(made.fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    with pytest.raises(PermissionError):
        os.ftruncate(made.fd, 0)


def test_pages_are_touched_ahead_and_given_back() -> None:
    made = native.Segment.create(nbytes := native.HEAD_BYTES + (1 << 20), NONCE)
    before = os.fstat(made.fd).st_blocks
    if not made.prefault(native.HEAD_BYTES, 1 << 19):
        pytest.skip("the system touches no pages ahead of their use")
    assert (os.fstat(made.fd).st_blocks - before) * 512 >= 1 << 19
    opened = native.Segment.open(f"/proc/self/fd/{made.fd}", nbytes, NONCE)
    assert opened.prefault(native.HEAD_BYTES, 1 << 20)
    assert made.clear(native.HEAD_BYTES, 1 << 20)
    assert os.fstat(made.fd).st_blocks == before
    for offset, length in ((0, 4096), (native.HEAD_BYTES + 1, 4096), (native.HEAD_BYTES, 2 << 20)):
        with pytest.raises(ValueError, match="no such part"):
            made.prefault(offset, length)
