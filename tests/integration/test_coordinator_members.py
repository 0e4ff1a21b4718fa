"""A worker's session with a real coordinator."""

import asyncio
from collections.abc import Sequence
from typing import Any

from allhands.coordinator.endpoint import Address, Endpoint, configure_channel
from allhands.coordinator.session import Session
from allhands_proto.v1 import coordinator_pb2 as wire

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
