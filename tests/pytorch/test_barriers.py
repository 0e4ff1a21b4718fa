"""Barriers with the missing ranks in the errors."""

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import allhands as ah
from support.torch.ranks import BACKEND, on_ranks, run_ranks


@on_ranks(3)
def test_p047_a_monitored_barrier_opens_when_all_are_there(rank: int) -> None:
    dist.monitored_barrier()
    dist.monitored_barrier(dist.new_group([0, 1, 2]), timedelta(seconds=20), wait_all_ranks=True)
    pair = dist.new_group([0, 2])
    if rank != 1:
        dist.monitored_barrier(pair)


@pytest.mark.parametrize("names_all", [False, True])
@pytest.mark.parametrize("backend", [BACKEND, "gloo"])
def test_p047_ranks_that_do_not_come_are_named_in_the_words_of_gloo(
    backend: str, names_all: bool
) -> None:
    def body(rank: int) -> Any:
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()  # Gloo connects
        came = None
        if rank in (0, 3):
            with pytest.raises(RuntimeError) as it:
                dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=names_all)
            store.set(f"{rank} was told", "")
            came = str(it.value), getattr(it.value, "missing_ranks", None)
        store.wait(["0 was told", "3 was told"])  # who leaves before is lost to them
        return came

    found = run_ranks(4, body, backend=backend)
    missing = "Ranks 1, 2" if names_all else "Rank 1"
    assert f"{missing} failed to pass monitoredBarrier" in found[0][0]
    assert "Rank 3 successfully reached monitoredBarrier, but received errors" in found[3][0]
    if backend == BACKEND:
        assert found[0][1] == found[3][1] == ((1, 2) if names_all else (1,))


@on_ranks(2)
def test_p047_a_monitored_barrier_that_may_take_no_time_says_so(rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        with pytest.raises(ah.CollectiveTimeout, match="Rank 0 timed out in monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(0))
        store.set("told", "")
    else:
        store.wait(["told"])
        with pytest.raises(ah.CollectiveTimeout, match="Rank 1 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=20))
    x = torch.ones(1)
    dist.all_reduce(x)  # nothing is left of it
    assert x.item() == 2


def test_p047_a_rank_that_died_is_named() -> None:
    def body(rank: int) -> None:

        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(ah.PeerFailed, match=r"rank 1 .* is dead"):
            dist.monitored_barrier(timeout=timedelta(seconds=20))

    run_ranks(3, body, dies=(1,))


def test_other_backends_have_their_own_barriers_where_ours_is_known() -> None:
    def body(rank: int) -> None:
        gloo = dist.new_group(backend="gloo")
        dist.monitored_barrier(gloo)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3), gloo)
        assert gloo._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=3)
        if rank == 0:
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier") as it:
                dist.monitored_barrier(gloo, timedelta(seconds=0.3))
            assert not isinstance(it.value, ah.AllhandsError)
        dist.barrier()

    run_ranks(2, body)


@on_ranks(2)
def test_the_timeout_of_a_group_may_be_set_as_that_of_others(rank: int) -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=11))
    assert dist.group.WORLD.options._timeout == timedelta(seconds=11)
