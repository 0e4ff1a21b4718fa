"""Failing programs of four processes over both backends: the words that programs look for.

What they look for is what PyTorch's own tests of Gloo look for, and what Gloo says.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.torch.ranks import run_ranks

BACKENDS = pytest.mark.parametrize("backend", ["allhands", "gloo"])
SIZE = 4
ABSENT = 3
"""Of the ranks, the one that does not come, or has left."""

SOON = timedelta(seconds=0.4)
ENDED_BY_TIME = r"Timed out|timed out|closed|timeout"
"""Over Gloo one rank's deadline closes the connections of the others."""


def _said(act: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        act()
    return str(caught.value)


@BACKENDS
@pytest.mark.parametrize("call", ["barrier", "all_reduce"])
def test_a_call_that_a_rank_does_not_make_ends_in_gloos_words(call: str, backend: str) -> None:
    def body(rank: int) -> str:
        late = dist.new_group(timeout=SOON)
        act = {
            "barrier": lambda: dist.barrier(late),
            "all_reduce": lambda: dist.all_reduce(torch.ones(3), group=late),
        }[call]
        said = "" if rank == ABSENT else _said(act)
        dist.barrier()
        return said

    told = run_ranks(SIZE, body, backend=backend)[:ABSENT]
    assert all(re.search(ENDED_BY_TIME, said) for said in told)
    assert any(re.search(r" Timed out waiting \d+ms", said) for said in told)


@BACKENDS
def test_a_message_that_nobody_sends_ends_in_gloos_words(backend: str) -> None:
    def body(rank: int) -> str:
        late = dist.new_group(timeout=SOON)
        said = "" if rank else _said(lambda: dist.recv(torch.ones(1), ABSENT, late))
        dist.barrier()
        return said

    said = run_ranks(SIZE, body, backend=backend)[0]
    assert re.search(r" Timed out waiting 400ms for recv operation to complete", said)


@BACKENDS
def test_a_wait_that_may_take_a_while_ends_in_gloos_words_and_the_call_goes_on(
    backend: str,
) -> None:
    def body(rank: int) -> tuple[str, float]:
        late = dist.new_group()
        x, said = torch.ones(3), ""
        if rank != ABSENT:
            work = dist.all_reduce(x, group=late, async_op=True)
            said = _said(lambda: work.wait(SOON))
        dist.barrier()
        if rank == ABSENT:
            work = dist.all_reduce(x, group=late, async_op=True)
        work.wait()
        return said, x[0].item()

    told = run_ranks(SIZE, body, backend=backend)
    assert [total for _, total in told] == [SIZE] * SIZE
    assert all("Operation timed out!" in said for said, _ in told[:ABSENT])


@BACKENDS
@pytest.mark.parametrize("names_all", [False, True])
def test_a_monitored_barrier_that_a_rank_does_not_reach_ends_in_gloos_words(
    names_all: bool, backend: str
) -> None:
    def body(rank: int) -> str:
        late = dist.new_group()
        said = ""
        if rank not in (1, ABSENT):
            said = _said(lambda: dist.monitored_barrier(late, SOON, wait_all_ranks=names_all))
        dist.barrier()
        return said

    told = run_ranks(SIZE, body, backend=backend)
    named = "Ranks 1, 3" if names_all else "Rank 1"
    assert re.search(f"{named} failed to pass monitoredBarrier", told[0])
    assert names_all or re.search(r"Timed out waiting \d+ms", told[0])
    assert re.search(_REACHED.format(2), told[2])


@BACKENDS
@pytest.mark.parametrize("names_all", [False, True])
def test_a_monitored_barrier_after_a_rank_has_left_ends_in_gloos_words(
    names_all: bool, backend: str
) -> None:
    def body(rank: int) -> str:
        if rank == ABSENT:
            return ""
        limit = timedelta(seconds=10)
        return _said(lambda: dist.monitored_barrier(None, limit, wait_all_ranks=names_all))

    told = run_ranks(SIZE, body, backend=backend)
    # Over Gloo it is one or the other, as rank 0 happens to learn that the connection is gone.
    words = ["Ranks? 3 failed to pass monitoredBarrier", "Connection closed by peer|Read error"]
    found = [re.search(one, told[0]) for one in words]
    assert all(found) if backend == "allhands" else any(found)
    for rank in (1, 2):
        assert re.search(_REACHED.format(rank), told[rank])


_REACHED = (
    "Rank {} successfully reached monitoredBarrier, but received errors while waiting for "
    "send/recv from rank 0"
)


def test_ranks_of_a_part_of_the_world_are_told_apart_from_those_that_are_missing() -> None:
    def body(rank: int) -> str:
        part = dist.new_group([1, 2, 3])
        said = "" if rank in (0, 1) else _said(lambda: dist.monitored_barrier(part, SOON))
        dist.barrier()
        return said

    told = run_ranks(SIZE, body)
    assert all("successfully reached monitoredBarrier" in said for said in told[2:])
