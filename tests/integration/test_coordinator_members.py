"""A worker's session with a real coordinator."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from allhands import CollectiveTimeout
from allhands.coordinator.endpoint import Address, Endpoint, configure_channel
from allhands.coordinator.session import Session
from allhands_proto.v1 import coordinator_pb2 as wire
from support.async_poll import poll_async

TURNS = 12
"""More turns of the loop than a word to the coordinator takes."""


class Quiet:
    """A listener deaf to all events."""

    def get_progress(self) -> Sequence[wire.Progress]:
        return ()

    def take_started_calls(self) -> Sequence[wire.CallStarts]:
        return ()


async def test_a_session_outlives_whoever_was_about_to_say_something(
    caller: Any, daemon: Any, job_name: str
) -> None:
    request = wire.Join(job=job_name, rank=0, world_size=1, host="h", pid=1, port=1)
    endpoint = Endpoint(Address("127.0.0.1", daemon.notice.port), daemon.notice.token)
    session = await Session.join(configure_channel(endpoint), request, 10)
    session.start(Quiet())  # type: ignore[arg-type]
    for turns in range(TURNS):
        saying = asyncio.create_task(session.open_group(f"group {turns}", [0]))
        for _ in range(turns):
            await asyncio.sleep(0)
        saying.cancel()
        await asyncio.wait([saying])
    await session.leave(wire.Leave())
    job = await caller.call("DescribeJob", wire.DescribeJobRequest(job=job_name))
    assert [one.state for one in job.members] == [wire.MEMBER_STATE_LEFT]


async def test_a_rank_that_gave_up_a_moment_before_is_told_from_one_that_never_joined(
    caller: Any, daemon: Any, job_name: str
) -> None:
    endpoint = Endpoint(Address("127.0.0.1", daemon.notice.port), daemon.notice.token)

    async def give_up(rank: int, timeout: float) -> CollectiveTimeout:
        request = wire.Join(job=job_name, rank=rank, world_size=3, host="h", pid=1, port=1)
        with pytest.raises(CollectiveTimeout) as raised:
            await Session.join(configure_channel(endpoint), request, timeout)
        return raised.value

    async def is_there() -> bool:
        listed = await caller.call("ListJobs", wire.ListJobsRequest())
        return [one.rank for job in listed.jobs if job.job == job_name for one in job.members] == [
            0
        ]

    last = asyncio.create_task(give_up(0, 5.0))
    await poll_async(is_there)
    assert (await give_up(2, 1.0)).missing_ranks == (1,)
    error = await last
    assert error.missing_ranks == (1, 2)
    text = "never joined: rank 1; joined and gave up before: rank 2 (of 3 ranks)"
    assert text in str(error)
    assert error.verdict is not None
    found = [(one.rank, one.state) for one in error.verdict.absent]
    assert found == [(1, "never joined"), (2, "left")]
