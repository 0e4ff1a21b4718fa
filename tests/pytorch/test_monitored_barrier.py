"""`dist.monitored_barrier` over groups of allhands, and unchanged over foreign groups."""

import re
from datetime import timedelta

import pytest
import torch.distributed as dist

from support.torch.ranks import run_ranks

SOON = timedelta(seconds=0.3)


@pytest.mark.parametrize("backend", ["allhands", "gloo"])
@pytest.mark.parametrize("waits_for_all", [False, True])
def test_it_passes_and_names_who_has_not(backend: str, waits_for_all: bool) -> None:
    def body(rank: int) -> str:
        apart = dist.new_group()
        dist.monitored_barrier(apart, timeout=timedelta(seconds=20))
        if rank:
            dist.barrier()
            return ""
        with pytest.raises(RuntimeError) as caught:
            dist.monitored_barrier(apart, SOON, wait_all_ranks=waits_for_all)
        dist.barrier()
        return str(caught.value)

    said = run_ranks(3, body, backend=backend)[0]
    named = "Ranks 1, 2" if waits_for_all else "Rank 1"
    assert re.search(rf"{named} failed to pass monitoredBarrier", said)


def test_who_is_not_in_the_group_is_warned_as_over_gloo() -> None:
    def body(rank: int) -> None:
        part = dist.new_group([0, 1])
        if rank < 2:
            dist.distributed_c10d.monitored_barrier(part)
        else:
            with pytest.warns(UserWarning, match="does not belong"):
                dist.monitored_barrier(dist.GroupMember.NON_GROUP_MEMBER)

    run_ranks(3, body)


def test_over_another_backend_it_is_what_it_was() -> None:
    def body(rank: int) -> None:
        other = dist.new_group(backend="gloo")
        dist.monitored_barrier(other, SOON * 30)
        with pytest.raises(TypeError, match="timeout"):
            dist.monitored_barrier(other, "soon")

    run_ranks(2, body)
