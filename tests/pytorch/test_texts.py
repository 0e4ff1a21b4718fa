"""Error texts: the words for which PyTorch programs search, and the verdicts."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from support.torch.ranks import run_ranks


@pytest.mark.parametrize("backend", ["allhands", "gloo"])
def test_a_call_that_timed_out_says_so_as_gloo_does(backend: str) -> None:
    def body(rank: int) -> list[str]:
        late = dist.new_group(timeout=timedelta(seconds=60))
        said = []
        if rank == 0:
            with pytest.raises(RuntimeError, match=" Timed out waiting 50ms") as caught:
                dist.barrier(late, timeout=timedelta(seconds=0.05))
            said.append(str(caught.value))
        dist.barrier()
        return said

    (said,) = run_ranks(2, body, backend=backend)[0]
    if backend == "allhands":
        assert "timed out after 0.05 s: rank 1 did not arrive" in said


def test_a_future_of_a_call_that_timed_out_says_so_too() -> None:
    def body(rank: int) -> None:
        late = dist.new_group()
        if rank == 0:
            late.set_timeout(timedelta(seconds=0.1))
            work = late.allreduce([torch.ones(1)])
            with pytest.raises(RuntimeError, match=" Timed out waiting 100ms"):
                work.get_future().wait()
            assert str(work.exception()).count("Timed out") == 1
            with pytest.raises(TimeoutError, match=" Timed out waiting 100ms"):
                work.wait()
        dist.barrier()

    run_ranks(2, body)


def test_a_call_that_timed_out_says_so_also_while_a_profiler_runs() -> None:
    def body(rank: int) -> None:
        late = dist.new_group(timeout=timedelta(seconds=60))
        dist.all_reduce(torch.ones(1), group=late)  # from now on calls are made on this thread
        if rank == 0:
            with (
                profile(activities=[ProfilerActivity.CPU]),
                pytest.raises(RuntimeError, match=" Timed out waiting 50ms"),
            ):
                dist.barrier(late, timeout=timedelta(seconds=0.05))
        dist.barrier()

    run_ranks(2, body)
