"""Runs of real files, read and written, beside slices of their bytes; pointers and locks."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands.mpi import constants, errors
from allhands.mpi.files import storage
from allhands.mpi.files.pointers import SharedPointer
from allhands.mpi.files.storage import RangeLocks, read_runs, translate_errors, write_runs

_SIZE = 5000
_CONTENT = np.random.default_rng(1).integers(0, 256, _SIZE).astype(np.uint8)
_RUNS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=120)
"""Gap before each run, and its bytes: many, so that they are read together, or few."""


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("files") / "content"
    path.write_bytes(_CONTENT.tobytes())
    opened = os.open(path, os.O_RDWR)
    yield opened
    os.close(opened)


def _place(runs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    gaps, lengths = np.array(runs, np.int64).T
    return np.cumsum(gaps + lengths) - lengths, lengths.copy()


@given(_RUNS, st.sampled_from([8, 64, 1 << 20]))
def test_runs_are_read_up_to_the_end(
    descriptor: int, runs: list[tuple[int, int]], sieve: int
) -> None:
    offsets, lengths = _place(runs)
    known: list[int] = []
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        part = _CONTENT[offset : offset + length]
        known += part.tolist()
        if part.size < length:
            break
    target = np.zeros(int(lengths.sum()), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_SIEVE", sieve)
        found = read_runs(descriptor, offsets, lengths, target)
    assert found == len(known)
    assert target[:found].tolist() == known
    assert not target[found:].any()


def test_runs_in_any_order_are_read_one_by_one(descriptor: int) -> None:
    offsets, lengths = np.array([40, 0, 20, 8, 40]), np.full(5, 4)
    target = np.empty(20, np.uint8)
    assert read_runs(descriptor, offsets, lengths, target) == 20
    assert target.tolist() == [int(_CONTENT[at + k]) for at in offsets for k in range(4)]


@given(_RUNS)
def test_what_is_written_leaves_the_rest(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]]
) -> None:
    offsets, lengths = _place(runs)
    data = np.arange(int(lengths.sum())).astype(np.uint8)
    path = tmp_path_factory.getbasetemp() / "written"
    known = np.full(int(offsets[-1] + lengths[-1]), 255, np.uint8)
    path.write_bytes(known.tobytes())
    opened = os.open(path, os.O_RDWR)
    write_runs(opened, offsets, lengths, data)
    os.close(opened)
    at = 0
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        known[offset : offset + length] = data[at : at + length]
        at += length
    assert path.read_bytes() == known.tobytes()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (FileNotFoundError(2, "none"), constants.ERR_NO_SUCH_FILE),
        (FileExistsError(17, "there"), constants.ERR_FILE_EXISTS),
        (PermissionError(13, "no"), constants.ERR_ACCESS),
        (OSError(28, "full"), constants.ERR_NO_SPACE),
        (OSError(5, "broken"), constants.ERR_IO),
    ],
)
def test_errors_of_the_system_have_their_classes(kind: OSError, code: int) -> None:
    with (
        pytest.raises(errors.Exception, match="/some/path: ") as caught,
        translate_errors("/some/path"),
    ):
        raise kind
    assert caught.value.Get_error_class() == code


@pytest.mark.parametrize("is_alone", [False, True])
def test_threads_take_each_position_once(is_alone: bool) -> None:
    pointer = SharedPointer.create(is_alone)
    taken: list[int] = []

    def take() -> None:
        for _ in range(500):
            taken.append(pointer.take(3))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(0, 6000, 3))
    assert pointer.get() == 6000
    pointer.close()


def test_a_pointer_is_opened_by_its_address() -> None:
    pointer = SharedPointer.create()
    other = SharedPointer.open(pointer.address)
    pointer.move(10)
    assert other.take(5) == 10
    assert pointer.get() == 15
    other.close()
    pointer.close()


def test_another_process_of_that_number_is_noticed(tmp_path: Path) -> None:
    pointer = SharedPointer.create()
    pid, number, token = pointer.address
    with pytest.raises(OSError, match="another one"):
        SharedPointer.open((pid, number, bytes(len(token))))
    pointer.close()
    with pytest.raises(OSError, match="No such file"):
        SharedPointer.open((pid, 1 << 20, token))


def test_locks_are_kept_when_the_process_closes_the_file_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "locked"
    path.write_bytes(bytes(10))
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    has_begun, has_ended = threading.Event(), threading.Event()

    def wait() -> None:
        has_begun.set()
        with RangeLocks(second).hold(5, 8, exclusive=True):
            has_ended.set()

    waiting = threading.Thread(target=wait)
    with RangeLocks(first).hold(0, 6, exclusive=True):
        os.close(os.open(path, os.O_RDWR))
        with RangeLocks(second).hold(8, 10, exclusive=True):
            pass  # bytes that no other has
        waiting.start()
        has_begun.wait()
        assert not has_ended.wait(0.1)
    waiting.join(10)
    assert has_ended.is_set()
    os.close(first)
    os.close(second)
