"""Calls on arrays of other libraries and of any layout: right in place, or untouched."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads, run_threads
from programs import foreign_arrays as program
from support.arrays.foreign import Copied, Tensor
from support.ranks.processes import Job

OPTIONS = pytest.mark.parametrize("options", [{}, {"retryable": True}, {"verify": True}], ids=str)


@OPTIONS
def test_every_call_over_shared_memory_takes_every_kind(job: Job, options: dict[str, Any]) -> None:
    ranks = job(2, program.run_every_call, options)
    for rank in ranks:
        assert rank.expect("done")["faults"] == []
        assert rank.ended() == 0, "".join(rank.errors)


def test_every_call_over_links_takes_every_kind() -> None:
    assert run_threads(3)(program.make_every_call) == [[], [], []]


@on_threads(2)
def test_calls_that_follow_each_other_see_each_others_results(rank: int) -> None:
    x = np.full((3, 4), rank + 1.0)
    works = [ah.all_reduce(x[:, ::2], async_op=True), ah.all_reduce(x[:, ::2], async_op=True)]
    with ah.coalescing():
        ah.all_reduce(x[:, ::2])
        ah.all_reduce(x[:, ::2])
        ah.all_reduce(x[:, :1].copy())
    assert all(work is not None and work.is_completed() for work in works)
    np.testing.assert_array_equal(x[:, ::2], 24.0)
    np.testing.assert_array_equal(x[:, 1::2], rank + 1.0)


@on_threads(2)
def test_columns_of_one_matrix_are_filled(rank: int) -> None:
    matrix = np.zeros((5, 2), order="F")
    rows = np.zeros((2, 5))
    ah.all_gather([rows[:, 0], rows[:, 3]], np.full(2, rank + 1.0))
    ah.all_gather([matrix[:1], matrix[1:2]], np.full((1, 2), rank + 1.0))
    assert rows.tolist() == [[1, 0, 0, 2, 0]] * 2
    assert matrix.tolist() == [[1, 1], [2, 2], [0, 0], [0, 0], [0, 0]]


@on_threads(2)
def test_calls_on_several_arrays_and_scans_take_every_kind(rank: int) -> None:
    one, other = np.full((2, 3), rank + 1.0, order="F"), np.full(4, rank + 1.0)[::-1]
    ah.all_reduce_coalesced([one, Tensor(other)])  # type: ignore[list-item]
    ah.broadcast_coalesced([one[:, ::2], b"12"] if rank == 0 else [one[:, ::2], bytearray(2)], 0)  # type: ignore[list-item]
    gathered = [[bytearray(8)], [bytearray(8)]]
    ah.all_gather_coalesced(gathered, [bytes([rank]) * 8])  # type: ignore[arg-type,list-item]
    assert gathered == [[bytearray(8)], [bytearray([1]) * 8]]
    ah.scan(one)
    ah.exscan(other)
    assert (one == 3.0 * (rank + 1)).all()
    assert (other == 3.0).all()
    ah.all_reduce(one, ah.ReduceOp.user(lambda mine, theirs: np.minimum(mine, theirs)))
    assert (one == 3.0).all()


@on_threads(2)
def test_a_persistent_call_reads_and_writes_its_array_each_time(rank: int) -> None:
    x = np.full((2, 2), rank + 1.0)
    call = ah.all_reduce_init(x[:, 0])
    assert call is not None
    for _ in range(3):
        call.start()
        call.wait()
    assert x.tolist() == [[12.0, rank + 1.0]] * 2


@on_threads(2)
def test_the_root_may_bring_what_cannot_be_written(rank: int) -> None:
    out = bytearray(3)
    ah.broadcast(b"abc" if rank == 0 else out, 0)  # type: ignore[arg-type]
    assert rank == 0 or out == b"abc"
    sources = [b"12", memoryview(b"34")]
    pair = bytearray(2)
    ah.scatter(pair, sources if rank == 0 else None, 0)  # type: ignore[arg-type]
    assert pair == sources[rank]
    if rank:
        ah.send(bytes(pair), 0)  # type: ignore[arg-type]
    else:
        matrix = np.zeros((2, 2), np.uint8)
        ah.recv(matrix[:, 1], 1)
        assert matrix.tobytes() == b"\x003\x004"


def test_a_call_that_fails_leaves_staged_outputs_as_they_were() -> None:
    has_failed = threading.Event()

    def body(rank: int) -> None:
        if rank:
            has_failed.wait(30)
            return
        x = np.arange(12.0).reshape(3, 4)
        before = x.copy()
        for call in (ah.all_reduce, ah.scan, ah.recv):
            with pytest.raises(ah.CollectiveTimeout) as caught:
                call(x[:, ::2], timeout=0.05)  # type: ignore[operator]
            assert caught.value.outputs_intact
        has_failed.set()
        np.testing.assert_array_equal(x, before)

    run_threads(2)(body)


UNWRITABLE: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "bytes": (
        ValueError,
        r"read-only \(a value of type bytes\).*ah\.functional",
        lambda: b"12345678",
    ),
    "copy": (ValueError, r"gives NumPy a copy.*ah\.functional", lambda: Copied(np.ones(3))),
    "number": (ValueError, r"read-only \(a value of type float64\)", lambda: np.float64(1)),
    "float": (TypeError, r"not float.*np\.asarray", lambda: 0.5),
    "list": (TypeError, r"not list.*np\.asarray", lambda: [1.0, 2.0]),
    "text": (TypeError, "not str, which has neither", lambda: "text"),
    "device": (TypeError, "unsupported device type cuda", lambda: Tensor(np.ones(3), (2, 0))),
    "overlap": (
        ValueError,
        "elements of x share memory",
        lambda: np.lib.stride_tricks.as_strided(np.zeros(3), (2, 2), (8, 8)),
    ),
    "repeated": (
        ValueError,
        "elements of x share memory",
        lambda: np.lib.stride_tricks.as_strided(np.zeros(1), (4,), (0,)),
    ),
    "objects": (TypeError, "holds Python objects", lambda: np.array([None])),
}


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_what_cannot_be_written_is_refused_with_a_way_out(kind: str) -> None:
    error, text, make = UNWRITABLE[kind]
    ah.init_process_group(backend="fake", rank=0, world_size=2)
    try:
        for call in (ah.all_reduce, lambda x: ah.broadcast(x, 1), lambda x: ah.recv(x, 1)):
            with pytest.raises(error, match=text):
                call(make())  # type: ignore[arg-type]
    finally:
        ah.destroy_process_group()


@on_threads(2)
def test_what_is_only_read_may_be_of_any_kind(rank: int) -> None:
    for made in (Copied(np.full(2, rank)), Tensor(np.full(2, rank), (2, 0)), np.int64(rank)):
        out = np.zeros((2, 1 if isinstance(made, np.int64) else 2), np.int64)
        ah.all_gather_into_tensor(out, made)  # type: ignore[arg-type]
        assert (out == [[0], [1]]).all()


@on_threads(2)
def test_outputs_that_share_elements_are_refused(rank: int) -> None:
    x = np.zeros((4, 4))
    for outputs in ([x[:, 0], x[:, 0]], [x[:2], x.T[:2]], [x[::2, 1], x[0]]):
        with pytest.raises(ValueError, match="share memory"):
            ah.all_gather(outputs, np.zeros(outputs[0].shape))
    with pytest.raises(ValueError, match="share memory"):
        ah.all_reduce_coalesced([x, x.T])
    assert ah.get_rank() == rank


PLAIN_DATA: dict[str, Callable[[int], Any]] = {
    "structured": lambda rank: np.array([(rank, 0.5)] * 3, [("a", "i4"), ("b", "f8")]),
    "datetime64": lambda rank: np.array([f"2026-01-0{rank + 1}", "NaT"], "M8[s]"),
    "timedelta64": lambda rank: np.array([rank, 2], "m8[ns]"),
    "text": lambda rank: np.array([f"rank{rank}", "é"]),
    "bytes": lambda rank: np.array([b"a", b"rank%d" % rank]),
    "void": lambda rank: np.array([b"%d234" % rank] * 2, "V4"),
    "big-endian": lambda rank: np.array([rank, 1, 2], ">i4"),
}


@pytest.mark.parametrize("kind", PLAIN_DATA)
def test_plain_data_of_every_dtype_moves(kind: str) -> None:
    make = PLAIN_DATA[kind]

    def body(rank: int) -> None:
        x, both = make(rank), [make(0), make(1)]
        blank = [np.zeros_like(x), np.zeros_like(x)]

        def check(*pairs: tuple[Any, Any]) -> None:
            for have, want in pairs:
                assert have.tobytes() == want.tobytes()
                have[...] = np.zeros_like(have)

        ah.all_gather(blank, x)
        check(*zip(blank, both, strict=True))
        ah.gather(x, blank if rank else None, 1)
        check(*zip(blank, both, strict=True)) if rank else None
        ah.all_to_all(blank, [x, x])
        check(*zip(blank, both, strict=True))
        ah.scatter(blank[0], both if rank else None, 1)
        check((blank[0], x))
        ah.broadcast(both[0] if rank == 0 else blank[0], 0)
        assert rank == 0 or (blank[0].tobytes() == both[0].tobytes())
        if rank:
            ah.send(x, 0)
        else:
            ah.recv(blank[1], 1)
            assert blank[1].tobytes() == both[1].tobytes()
        for reduction in (ah.all_reduce, ah.scan):
            with pytest.raises(TypeError):
                reduction(x.copy())

    run_threads(2)(body)


@on_threads(2)
def test_a_different_dtype_is_named(rank: int) -> None:
    x = np.zeros(2, "M8[s]" if rank else "M8[ms]")
    with pytest.raises(ah.CollectiveMismatch, match=r"datetime64\[s\]"):
        ah.broadcast(x, 0)
