"""The flight recorder's pure parts: ring, merge, lines of programs, dump and trace."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

from allhands.errors import AllhandsError, CollectiveTimeout, PeerFailed
from allhands.group.group import Group
from allhands.recorder import source
from allhands.recorder.call_samples import MAX_SAMPLES, CallSampler
from allhands.recorder.dump import MAX_FILES, Dumper
from allhands.recorder.merge import merge
from allhands.recorder.record import OperationRecord
from allhands.recorder.ring_buffer import OperationEntry, RingBuffer
from allhands.recorder.source import locate
from allhands.recorder.trace import make_trace
from allhands.runtime.sections import SectionRecord
from allhands.testing.inproc_world import inproc_world, wait_outcomes
from support.operation_records import SECOND, nothing, record

# ---------------------------------------------------------------- ring


def is_collective(entry: OperationEntry) -> bool:
    return entry.sequence > 0


def test_a_ring_keeps_the_latest_entries_and_finds_them_by_number() -> None:
    ring = RingBuffer(3, nothing, is_collective)
    for sequence in range(1, 6):
        ring.add("barrier", sequence, 0, "barrier()", None)
    assert [one.sequence for one in ring.list_entries()] == [3, 4, 5]
    assert ring.find(2) is None
    found = ring.find(4)
    assert found is not None
    assert found.sequence == 4


def test_a_ring_without_room_remembers_nothing() -> None:
    ring = RingBuffer(0, nothing, is_collective)
    assert ring.add("barrier", 1, 0, "barrier()", None) is None
    assert ring.list_entries() == []


def test_only_the_first_end_of_an_entry_counts_and_its_failure_is_told() -> None:
    heard: list[BaseException] = []
    entry = RingBuffer(1, heard.append, is_collective).add("barrier", 1, 0, "barrier()", "mine")
    assert entry is not None
    late = CollectiveTimeout("late", op="barrier", seq=1)
    entry.end(late, "over links")
    finished = entry.finished
    entry.end(None, "")
    assert (entry.outcome, entry.finished, entry.how) == ("timeout", finished, "over links")
    assert heard == [late]
    told = entry.to_record("world", (1,))
    assert (told.label, told.waits_for, told.outcome) == ("mine", (), "timeout")


def test_totals_have_what_ended_well_and_is_counted_also_once_it_is_forgotten() -> None:
    ring = RingBuffer(2, nothing, is_collective)
    failed = CollectiveTimeout("late", op="barrier", seq=3)
    for sequence, error in ((1, None), (2, None), (3, failed), (0, None), (4, None)):
        entry = ring.add("all_reduce", sequence, 100, "all_reduce()", None)
        assert entry is not None
        entry.start()
        entry.end(error, "over links")
        entry.end(None, "")
        assert entry.finished > entry.started
    assert ring.totals.nbytes == 300
    assert 0 < ring.totals.seconds < 10


def test_what_runs_says_for_whom_it_waits() -> None:
    entry = RingBuffer(1, nothing, is_collective).add("barrier", 1, 0, "barrier()", None)
    assert entry is not None
    assert entry.to_record("world", (2, 3)).waits_for == (2, 3)


def test_the_line_is_that_of_who_calls_the_package() -> None:
    def asks() -> OperationRecord:
        ring = RingBuffer(1, nothing, is_collective)
        entry = (
            ring
            .add("barrier", 1, 0, "barrier()", None)
        )  # fmt: skip
        assert entry is not None
        return entry.to_record("world", ())

    told = asks()
    here = asks.__code__.co_firstlineno + 4
    assert told.source == f"test_recorder.py:{here} in asks"
    assert told.file == __file__


def test_without_the_native_core_the_line_is_the_same() -> None:
    found, same = source.find_caller(), source.walk_frames()
    assert found[0] is same[0] is not None
    first, second = locate(*found), locate(*same)
    assert first == second
    assert first[2] == "test_without_the_native_core_the_line_is_the_same"


def test_the_line_is_that_of_who_calls_what_is_to_be_skipped_too(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    library = tmp_path / "inside" / "library.py"
    names: dict[str, Any] = {"source": source}
    text = "def both():\n    return source.find_caller(), source.walk_frames()\n"
    exec(compile(text, str(library), "exec"), names)
    assert [code.co_name for code, _ in names["both"]() if code] == ["both"] * 2
    for _ in range(2):
        source.skip_folder(str(library.parent))
    assert [code.co_name for code, _ in names["both"]() if code] == [
        "test_the_line_is_that_of_who_calls_what_is_to_be_skipped_too"
    ] * 2


def test_a_place_in_code_that_has_no_line_is_that_of_its_beginning() -> None:
    code: CodeType = record.__code__
    assert locate(code, 10**6) == (code.co_filename, code.co_firstlineno, "record")
    assert locate(None, 0) == ("", 0, "")


# ---------------------------------------------------------------- what began


def test_of_few_calls_all_beginnings_are_told_and_told_once() -> None:
    begun = CallSampler()
    for sequence in range(1, 6):
        begun.note(sequence, sequence / 10)
    assert begun.take() == [(sequence, sequence / 10) for sequence in range(1, 6)]
    assert begun.take() == []


def test_of_many_calls_two_ranks_tell_of_the_same_ones() -> None:
    first, second = CallSampler(), CallSampler()
    for sequence in range(1, 100_001):
        first.note(sequence, 0.0)
        if sequence > 30_000:
            second.note(sequence, 0.0)
    told = [sequence for sequence, _ in first.take()]
    others = [sequence for sequence, _ in second.take()]
    assert MAX_SAMPLES // 4 <= len(told) <= MAX_SAMPLES
    assert MAX_SAMPLES // 4 <= len(others) <= MAX_SAMPLES
    assert len(set(told) & set(others)) >= MAX_SAMPLES // 4


def test_after_a_busy_period_a_quiet_one_is_told_in_full_again() -> None:
    begun = CallSampler()
    for sequence in range(1, 10_001):
        begun.note(sequence, 0.0)
    begun.take()
    for _ in range(16):
        begun.take()
    begun.note(10_001, 1.0)
    assert begun.take() == [(10_001, 1.0)]


# ---------------------------------------------------------------- merging


def test_a_call_of_the_queue_is_told_once_with_who_asked_and_how_it_ran() -> None:
    asked = record(1, created=5, started=6, finished=30, how="", label="grad")
    ran = record(1, created=10, started=10, finished=20, file="", line=0, function="")
    [one] = merge([(True, ran)], [asked])
    assert (one.created, one.started, one.finished) == (5, 10, 20)
    assert (one.source, one.label, one.how) == ("train.py:31 in step", "grad", ran.how)


def test_calls_of_both_ways_come_in_the_order_of_their_being_asked_for() -> None:
    message = record(0, created=15, operation="send")
    core = [(False, record(2, created=20)), (True, record(3, created=31))]
    queue = [record(1, created=10), message, record(3, created=30)]
    assert [one.created for one in merge(core, queue)] == [10, 15, 20, 30]


def test_what_the_queue_forgot_is_told_by_the_core_alone() -> None:
    ran = record(7, file="", line=0, function="")
    assert merge([(True, ran)], []) == [ran]


# ---------------------------------------------------------------- over links


async def test_calls_over_links_are_recorded_with_their_ends_and_lines() -> None:
    async with inproc_world(2) as world:
        x = [np.ones(2), np.ones(2)]
        await world.call_on_all(lambda group: group.all_reduce(x[group.rank], label="grad"))
        await wait_outcomes(
            [world.groups[0].send(x[0], 1, tag=4), world.groups[1].recv(x[1], 0, tag=4)]
        )
        engine = world.ranks[1].engines["world"]
        first, second = engine.recorder.list_records()
        assert (first.sequence, first.operation, first.nbytes) == (1, "all_reduce", 16)
        assert first.signature == "all_reduce(float64[2], SUM)"
        assert (first.outcome, first.label) == ("ok", "grad")
        assert first.how == "doubling over links"
        assert first.created <= first.started <= first.finished
        assert first.source.startswith("test_recorder.py:")
        assert first.source.endswith("in <lambda>")
        assert engine.recorder.find_call_site(1) == first.source
        assert engine.recorder.find_call_site(2) == ""
        assert (second.operation, second.sequence) == ("recv", 0)
        assert second.signature == "recv(float64[2], from rank 0, tag 4)"
        assert [number for number, _ in engine.recorder.take_started()] == [1]


async def test_a_call_over_links_says_for_whom_it_waits_and_how_it_failed() -> None:
    async with inproc_world(3) as world:
        heard: list[BaseException] = []
        recording = world.ranks[0].engines["world"].recorder
        recording.on_failure = heard.append

        def late(group: Group) -> Any:
            return group.barrier(timeout=0.2)

        call = late(world.groups[0])
        await world.run_until_idle()
        [running] = recording.list_records()
        assert (running.outcome, running.finished) == ("running", 0)
        assert set(running.waits_for) <= {1, 2}
        assert running.waits_for
        [error] = await wait_outcomes([call])
        [ended] = recording.list_records()
        assert (ended.outcome, ended.waits_for) == ("timeout", ())
        assert heard == [error]


# ---------------------------------------------------------------- dump


class Clock:
    """A clock set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def dumper(folder: Path, clock: Callable[[], float]) -> Dumper:
    return Dumper(str(folder), "job", 2, 4, lambda: [record(1), record(2)], clock=clock)


def test_a_failure_is_dumped_whole_for_nobody_else_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    dumper(folder, Clock()).dump_failure(PeerFailed("rank 1 is lost", (1,)))
    [path] = folder.iterdir()
    assert path.name == "allhands-job-rank2.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = json.loads(path.read_text())
    assert (said["error"], said["text"]) == ("PeerFailed", "rank 1 is lost")
    assert [one["sequence"] for one in said["records"]] == [1, 2]
    assert said["records"][0]["source"] == "train.py:31 in step"


def test_what_fails_of_the_same_is_dumped_once_and_not_without_end(tmp_path: Path) -> None:
    clock = Clock()
    one = dumper(tmp_path, clock)
    for _ in range(3):
        one.dump_failure(PeerFailed("lost", (1,)))
    assert len(list(tmp_path.iterdir())) == 1
    for _ in range(2 * MAX_FILES):
        clock.now += 2
        one.dump_failure(PeerFailed("lost", (1,)))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == MAX_FILES
    assert "allhands-job-rank2-2.json" in names


def test_a_cancelled_call_is_no_failure_to_dump(tmp_path: Path) -> None:
    dumper(tmp_path, Clock()).dump_failure(AllhandsError("cancelled"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    dumper(tmp_path / "file", Clock()).dump_failure(PeerFailed("lost", (1,)))
    assert "could not be written" in caplog.text


# ---------------------------------------------------------------- trace


def test_a_trace_has_one_clock_and_a_row_for_each_group() -> None:
    message = record(0, started=3 * SECOND, finished=3 * SECOND + 500, operation="send")
    running = record(2, finished=0, outcome="running", label="grad")
    ranks = {
        0: (10.0, 4.0, [record(1), running, message]),
        1: (9.5, 9.0, [replace(record(1), started=SECOND + SECOND // 2)]),
    }
    document = json.loads(json.dumps(make_trace(ranks, {0: "rank 0 (host a)"})))
    shown = [event for event in document["traceEvents"] if event["ph"] == "X"]
    first, second, third, other = shown
    assert (first["pid"], first["ts"], first["dur"], first["name"]) == (0, 0, 1, "all_reduce #1")
    assert other["pid"] == 1
    assert other["ts"] == 0, "half a second later by a clock that is half a second ahead"
    assert second["dur"] == 2e6, "until it was told of"
    assert second["args"]["label"] == "grad"
    assert second["args"]["source"] == "train.py:31 in step"
    assert third["tid"] != first["tid"]
    names = [event for event in document["traceEvents"] if event["name"] == "thread_name"]
    assert [one["args"]["name"] for one in names] == ["world", "world messages", "world"]


def test_a_trace_has_the_sections_of_each_thread_on_the_same_clock() -> None:
    ended = SectionRecord("load", "MainThread", 0, 1_500_000_000, 2_000_000_000)
    running = SectionRecord("load/decode", "MainThread", 0, 1_600_000_000, 0)
    other = SectionRecord("prefetch", "loader", 0, 1_000_000_000, 1_250_000_000)
    found = make_trace({3: (10.0, 2.5, [])}, {}, {3: [other, running, ended]})
    events = found["traceEvents"]
    rows = {
        one["tid"]: one["args"]["name"]
        for one in events
        if one["ph"] == "M" and one["name"] == "thread_name"
    }
    slices = [
        (rows[one["tid"]], one["name"], one["ts"], one["dur"]) for one in events if one["ph"] == "X"
    ]
    assert slices == [
        ("sections of loader", "prefetch", 0.0, 250_000.0),
        ("sections of MainThread", "load", 500_000.0, 500_000.0),
        ("sections of MainThread", "load/decode", 600_000.0, 900_000.0),
    ]


def test_a_trace_of_nothing_is_one() -> None:
    assert make_trace({}, {})["traceEvents"] == []
