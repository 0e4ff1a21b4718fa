"""Messages and barriers of a process group, in c10d's forms."""

import threading
from datetime import timedelta
from functools import partial

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads, run_threads

SIZE = 4


@on_threads(SIZE)
def test_p051_send_and_recv_between_all_pairs(rank: int) -> None:
    pg = ah.process_group()
    others = [other for other in range(SIZE) if other != rank]
    outputs = {other: np.array([-1]) for other in others}
    sends = [pg.send([np.array([rank])], other, 0) for other in others]
    recvs = [pg.recv([outputs[other]], other, 0) for other in others]
    for work in (*sends, *recvs):
        assert work.wait(20)
        assert work.is_completed()
    for other, output in outputs.items():
        assert output.tolist() == [other]
    for other, work in zip(others, recvs, strict=True):
        (found,) = work.result()
        assert found is outputs[other]
        assert work.source_rank() == other


@on_threads(2)
def test_p051_messages_are_told_apart_by_their_tags(rank: int) -> None:
    pg = ah.process_group()
    if rank == 0:
        works = [pg.send([np.array([tag])], 1, tag) for tag in (5, 6)]
    else:
        later, sooner = np.array([-1]), np.array([-1])
        works = [pg.recv([later], 0, 6), pg.recv([sooner], 0, tag=5)]
    for work in works:
        assert work.wait(20)
    if rank == 1:
        assert (later.tolist(), sooner.tolist()) == ([6], [5])


@on_threads(SIZE)
def test_p111_recv_from_any_source_says_who_it_was(rank: int) -> None:
    pg = ah.process_group()
    if rank:
        pg.send([np.array([10 * rank])], 0, 3).wait(20)
        return
    found = {}
    for _ in range(SIZE - 1):
        x = np.array([-1])
        work = pg.recv_anysource([x], 3)
        work.wait(20)
        found[work.source_rank()] = int(x[0])
    assert found == {1: 10, 2: 20, 3: 30}


@on_threads(2)
def test_p051_a_message_is_one_array_in_a_list(rank: int) -> None:
    pg = ah.process_group()
    x = np.zeros(1)
    for call in (
        lambda arrays: pg.send(arrays, 1 - rank, 0),
        lambda arrays: pg.recv(arrays, 1 - rank, 0),
        lambda arrays: pg.recv_anysource(arrays, 0),
    ):
        for arrays in ([], [x, x]):
            with pytest.raises(RuntimeError, match="requires a single-element tensor list"):
                call(arrays)
        with pytest.raises(TypeError, match="tensors must be a list"):
            call(x)
    with pytest.raises(ValueError, match="is this rank itself"):
        pg.send([x], rank, 0)
    with pytest.raises(ValueError, match="ranks go from 0 to 1"):
        pg.recv([x], 2, 0)


# ---------------------------------------------------------------- monitored barriers


@on_threads(SIZE)
def test_p047_a_monitored_barrier_opens_when_all_are_there() -> None:
    ah.monitored_barrier()
    ah.process_group().monitored_barrier()
    ah.process_group().monitored_barrier(timedelta(seconds=20), wait_all_ranks=True)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("names_all", [False, True])
def test_p047_a_monitored_barrier_tells_all_ranks_who_is_missing(
    names_all: bool, is_plain: bool
) -> None:
    told = threading.Barrier(3)
    texts: dict[int, str] = {}
    missing = "Ranks 1, 2" if names_all else "Rank 1"

    def body(rank: int) -> None:
        pg = ah.process_group()
        if rank in (1, 2):
            told.wait(20)
        meet = partial(ah.monitored_barrier, None) if is_plain else pg.monitored_barrier
        with pytest.raises(RuntimeError) as it:
            meet(timedelta(seconds=0.3), names_all)
        texts[rank] = str(it.value)
        assert isinstance(it.value, ah.CollectiveTimeout)
        assert it.value.missing_ranks == ((1, 2) if names_all else (1,))
        if rank == 0:
            told.wait(20)
        pg.barrier().wait(20)  # nothing is left of it

    run_threads(SIZE)(body)
    for rank in (0, 3):
        assert f"{missing} failed to pass monitoredBarrier" in texts[rank]
    if is_plain:
        assert texts[0] == texts[3]
    else:
        assert (
            "Rank 3 successfully reached monitoredBarrier, but received errors while waiting for "
            "send/recv from rank 0" in texts[3]
        )


def test_p047_a_monitored_barrier_that_may_take_no_time_says_so() -> None:
    told = threading.Event()

    def body(rank: int) -> None:
        pg = ah.process_group()
        if rank == 0:
            with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier"):
                pg.monitored_barrier(timedelta(0))
            told.set()
        else:
            assert told.wait(20)
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
                pg.monitored_barrier(20)
        pg.barrier().wait(20)

    run_threads(2)(body)


@on_threads(2)
def test_tags_are_checked_before_anything_moves(rank: int) -> None:
    pg, x = ah.process_group(), np.ones(2)
    for call in (pg.send, pg.recv):
        with pytest.raises(ValueError, match="tag must be from 0"):
            call([x], 1 - rank, -1)
    with pytest.raises(ValueError, match="tag must be from 0"):
        pg.recv_anysource([x], 1 << 31)
    pg.barrier().wait()
