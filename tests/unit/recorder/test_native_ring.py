"""The flight recorder's ring buffer in the native core."""

import os
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import OPS
from allhands.recorder.call_samples import MAX_SAMPLES, CallSampler
from allhands.recorder.record import OUTCOMES
from allhands.runtime.native_core import find
from support.operation_records import nothing


def comm(records: int) -> Any:
    core, absence = find()
    if core is None:
        pytest.skip(absence)
    limits = core.default_limits(1)
    nbytes = core.area_bytes(1, limits)

    segment = core.Segment.create(core.HEAD_BYTES + nbytes, bytes(16))
    return core.ShmComm(
        rank=0,
        segments=(segment,),
        offsets=(core.HEAD_BYTES,),
        pids=(os.getpid(),),
        heap_offset=0,
        heap_bytes=0,
        limits=limits,
        timeout=10.0,
        ops=OPS,
        on_failure=nothing,
        on_slow=nothing,
        last_number=0,
        queued=0,
        records=records,
    )


def test_the_native_ring_keeps_the_latest_calls_when_it_comes_round() -> None:
    one, x = comm(100), np.zeros(3, np.float32)
    begun = time.monotonic_ns()
    for number in range(1, 301):
        assert one.all_reduce(x, ReduceOp.SUM, None, f"call {number}")
    ended = time.monotonic_ns()
    rows = one.records(1000)
    assert [row[0] for row in rows] == list(range(173, 301)), "128 is the next power of two"
    assert [row[13] for row in rows] == [f"call {number}" for number in range(173, 301)]
    assert {row[1:7] for row in rows} == {("all_reduce", np.dtype(np.float32), 3, 12, 0, -1)}
    assert {OUTCOMES[row[9]] for row in rows} == {"ok"}
    times = [at for row in rows for at in row[7:9]]
    slack = 5_000_000  # between the processor's counter and the system's clock
    assert all(begun - slack <= at <= ended + slack for at in times)
    assert all(row[7] <= row[8] for row in rows)
    assert [row[0] for row in one.records(2)] == [299, 300]
    assert one.call_site(172) is None
    file, line, function = one.call_site(173)
    assert (file, function) == (
        __file__,
        "test_the_native_ring_keeps_the_latest_calls_when_it_comes_round",
    )
    assert line == begun_line(function) + 4


def begun_line(name: str) -> int:
    """Where a function of this module begins."""
    line: int = globals()[name].__code__.co_firstlineno
    return line


def test_times_are_those_of_the_system_clock_however_they_are_read() -> None:
    one = comm(64)
    until = time.monotonic() + 0.1  # so that the rate of the processor's counter is known
    while time.monotonic() < until:
        before = time.monotonic_ns()
        one.barrier(None, None)
        after = time.monotonic_ns()
    row = one.records(1)[0]
    slack = 2_000_000
    assert before - slack <= row[7] <= row[8] <= after + slack


def test_the_native_ring_tells_when_some_of_very_many_calls_began() -> None:
    one = comm(64)
    for _ in range(20_000):
        one.barrier(None, None)
    told = one.start_times()
    numbers = [sequence for sequence, _ in told]
    assert MAX_SAMPLES // 4 <= len(numbers) <= MAX_SAMPLES
    strides = {second - first for first, second in pairwise(numbers)}
    assert strides == {512}
    here = CallSampler()
    for sequence in range(1, 20_001):
        here.note(sequence, 0.0)
    assert numbers == [sequence for sequence, _ in here.take()], "all ways choose alike"
    assert sorted(at for _, at in told) == [at for _, at in told]
    assert one.start_times() == []


def test_a_native_ring_that_is_off_still_says_what_a_call_was() -> None:
    one, x = comm(0), np.zeros(3, np.float32)
    assert one.all_reduce(x, ReduceOp.MAX, None, None)
    assert one.records(10) == []
    assert one.call_site(1) is None
    assert one.start_times() == []
    assert one.describe(1)[:3] == ("all_reduce", np.dtype(np.float32), 3)


def test_how_a_call_really_ended_can_be_said_later() -> None:
    one = comm(64)
    one.barrier(None, None)
    one.set_outcome(1, OUTCOMES.index("aborted"))
    one.set_outcome(65, OUTCOMES.index("failed"))  # which would be in the same place
    assert [OUTCOMES[row[9]] for row in one.records(9)] == ["aborted"]
    with pytest.raises(ValueError):
        one.set_outcome(1, len(OUTCOMES))
