"""Requests over gRPC: statuses, deadlines with their missing parts, many waiters."""

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from allhands_proto.v1 import coordinator_pb2 as wire


async def test_the_key_value_calls_work_over_the_wire(caller: Any, job_name: str) -> None:
    async def call(method: str, **fields: Any) -> Any:
        return await caller.call(method, getattr(wire, f"{method}Request")(job=job_name, **fields))

    first = (await call("Set", key="a", value=b"1")).revision
    assert (await call("Get", key="a")).value == b"1"
    assert (await call("Add", key="a", amount=41)).value == 42
    assert (await call("Append", key="b", value=b"xy")).length == 2
    swapped = await call("CompareSet", key="c", expected=b"", desired=b"z")
    assert (swapped.swapped, swapped.exists, swapped.value) == (True, True, b"z")
    pairs = [wire.KeyValue(key="d", value=b"4"), wire.KeyValue(key="e", value=b"5")]
    assert (await call("MultiSet", pairs=pairs)).revision == first + 4
    assert (await call("MultiGet", keys=["e", "d"])).values == [b"5", b"4"]
    await call("Wait", keys=["a", "b"])
    assert (await call("Delete", key="d")).deleted
    assert (await call("List", prefix="")).keys == ["a", "b", "c", "e"]
    assert (await call("Count")).count == 4


@pytest.mark.parametrize("timeout", [0.2, 1.0])
async def test_a_wait_ends_before_its_deadline_and_names_what_was_missing(
    caller: Any, job_name: str, timeout: float
) -> None:
    await caller.call("Count", wire.CountRequest(job=job_name))  # connect
    begun = time.monotonic()
    request = wire.WaitRequest(job=job_name, keys=["b", "a"])
    error = await caller.refused_in_time("Wait", request, timeout)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.details() == f"nobody has set 'a', 'b' of job {job_name} (2 of 2 keys)"
    assert time.monotonic() - begun >= timeout * 0.8


async def test_a_barrier_that_does_not_open_names_who_did_not_come(
    caller: Any, job_name: str
) -> None:
    request = wire.BarrierRequest(
        job=job_name, name="start", participant="a", participants=["a", "b", "c"]
    )
    error = await caller.refused_in_time("Barrier", request, 1.0)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "2 of 3 did not arrive at barrier 'start'" in error.details()
    assert error.details().endswith("'b', 'c'")


async def test_a_call_without_deadline_waits_until_it_is_answered(
    caller: Any, job_name: str
) -> None:
    waiting = caller.begin("Get", wire.GetRequest(job=job_name, key="k", wait=True), None)
    await caller.call("Set", wire.SetRequest(job=job_name, key="k", value=b"v"))
    assert (await waiting).value == b"v"


async def test_an_arrival_that_is_cancelled_does_not_count(caller: Any, job_name: str) -> None:
    def arrival(participant: str, participants: str) -> wire.BarrierRequest:
        return wire.BarrierRequest(
            job=job_name, name="b", participant=participant, participants=participants
        )

    async def until(code: grpc.StatusCode) -> None:
        # Alone it passes where nobody waits, and is refused where somebody waits with others.
        async with asyncio.timeout(10):
            while await _code(caller, arrival("z", "z"), 5.0) is not code:
                pass

    abandoned = caller.begin("Barrier", arrival("a", "ab"))
    await until(grpc.StatusCode.FAILED_PRECONDITION)
    abandoned.cancel()
    await until(grpc.StatusCode.OK)
    assert await _code(caller, arrival("b", "ab"), 0.1) is grpc.StatusCode.DEADLINE_EXCEEDED


async def _code(caller: Any, request: wire.BarrierRequest, timeout: float) -> grpc.StatusCode:
    try:
        await caller.call("Barrier", request, timeout)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("Set", wire.SetRequest(job="j", key=""), "INVALID_ARGUMENT"),
        ("Set", wire.SetRequest(job="", key="k"), "INVALID_ARGUMENT"),
        ("Get", wire.GetRequest(job="j", key="nope"), "NOT_FOUND"),
        ("DescribeJob", wire.DescribeJobRequest(job="no-such-job"), "NOT_FOUND"),
        ("Set", wire.SetRequest(job="j", key="k", value=bytes(5 << 20)), "INVALID_ARGUMENT"),
        ("Set", wire.SetRequest(job="j", key="k", value=bytes(9 << 20)), "RESOURCE_EXHAUSTED"),
    ],
)
async def test_refusals_have_their_status(
    caller: Any, method: str, request_: Any, code: str
) -> None:
    error = await caller.refused(method, request_)
    assert error.code().name == code
    assert error.details()


async def test_the_largest_value_comes_back_whole(caller: Any, job_name: str) -> None:
    value = bytes(range(256)) * 4096 * 4
    await caller.call("Set", wire.SetRequest(job=job_name, key="k", value=value[:-64]))
    assert (await caller.call("Get", wire.GetRequest(job=job_name, key="k"))).value == value[:-64]


async def test_two_thousand_arrivals_at_once_all_pass(caller: Any, job_name: str) -> None:
    names = [f"{number:04}" for number in range(2000)]
    arrivals = [
        caller.call(
            "Barrier",
            wire.BarrierRequest(job=job_name, name="b", participant=name, participants=names),
            60.0,
        )
        for name in names
    ]
    replies = await asyncio.gather(*arrivals)
    assert {reply.generation for reply in replies} == {1}


async def test_a_verdict_travels_in_the_trailers_of_a_passed_deadline(
    caller: Any, job_name: str
) -> None:
    first = await caller.join(job_name, 0, 2)
    second = await caller.join(job_name, 1, 2)
    request = wire.AwaitVerdictRequest(
        job=job_name,
        member_id=first.joined.member_id,
        group="world",
        sequence=3,
        operation="all_reduce",
        waiting_on=[1],
    )
    asking = caller.begin("AwaitVerdict", request, 0.9)
    inside = wire.Progress(group="world", sequence=3, completed=2, operation="all_reduce")
    idle = wire.Progress(group="world", sequence=2, completed=2, elapsed=5)
    for session, progress in ((first, inside), (second, idle)):
        probe = (await session.hear("probe")).probe.probe
        await session.say(heartbeat=wire.Heartbeat(probe=probe, progress=[progress]))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asking
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "rank 1" in raised.value.details()
    trailers = dict(raised.value.trailing_metadata())
    verdict = wire.Verdict.FromString(trailers["allhands-verdict-bin"])
    assert (verdict.group, verdict.sequence, verdict.operation) == ("world", 3, "all_reduce")
    assert [(one.rank, one.state) for one in verdict.absent] == [(1, "busy")]


async def test_a_verdict_on_very_many_ranks_still_fits_into_the_trailers(
    caller: Any, job_name: str
) -> None:
    sessions = [await caller.join(job_name, rank, 2) for rank in range(2)]
    ranks = range(5000)
    await sessions[0].say(open_group=wire.OpenGroup(group="world", ranks=ranks))
    request = wire.AwaitVerdictRequest(
        job=job_name, member_id=sessions[0].joined.member_id, group="world", sequence=1
    )
    error = await caller.refused_in_time("AwaitVerdict", request, 3.0)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    verdict = wire.Verdict.FromString(dict(error.trailing_metadata())["allhands-verdict-bin"])
    found = [one.rank for one in verdict.absent]
    assert found == list(range(1, 1 + len(found)))  # who asks is there
    assert len(found) > 50
