"""A refused or failed call leaves every buffer bit for bit unchanged, whatever went wrong."""

import threading
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import allhands as ah
from allhands.testing import run_threads
from programs.tables import make_faulty_calls
from support.arrays import faulty_calls
from support.ranks.processes import Job

SIZE = 3


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_over_links_who_fails_finds_its_buffers_untouched(data: st.DataObject) -> None:
    one = faulty_calls.spoiled(lambda name, among: data.draw(st.sampled_from(among), name), SIZE)

    ended = threading.Barrier(SIZE)

    def body(rank: int) -> str:
        said = one.make(rank, SIZE, ah.default_group())
        if one.way != "leaves":
            ended.wait(20)
        return said

    assert run_threads(SIZE)(body) == [""] * SIZE


def test_over_shared_memory_who_fails_finds_its_buffers_untouched(job: Job) -> None:
    ranks: list[Any] = job(SIZE, make_faulty_calls, 30)
    for rank in ranks:
        assert rank.expect("done")["wrong"] == []
        assert rank.ended() == 0, "".join(rank.errors)
