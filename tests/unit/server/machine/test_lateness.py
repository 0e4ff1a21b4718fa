"""Heartbeats and reports in the machine: clocks, lateness, collections."""

import pytest

from allhands_proto.statuses import LatenessStatus
from allhands_server.machine.effects import CollectReport
from allhands_server.machine.member_messages import (
    CloseGroup,
    Heartbeat,
    Leave,
    OpenGroup,
    ReportPart,
)
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import CollectReports, DescribeJob
from allhands_server.machine.values import CallStarts, MemberReport
from allhands_server.machine.world.clock_sync import WINDOW, ClockSync
from allhands_server.machine.world.lateness import CALLS, LatenessTracker
from allhands_server.machine.world.report_collection import (
    COLLECT_SECONDS,
    LARGEST_REPORT,
    MOST_AT_ONCE,
)
from allhands_server.testing import Transcript

# ---------------------------------------------------------------- clocks


def test_the_offset_is_the_least_difference_that_was_seen() -> None:
    clocks = ClockSync()
    assert clocks.estimate_offset(0, "a") is None
    for took in (0.3, 0.01, 0.2):
        clocks.add_sample(0, "a", sent=50.0, now=150.0 + took)
    assert clocks.estimate_offset(0, "a") == pytest.approx(100.01)


def test_old_messages_are_forgotten_as_clocks_drift() -> None:
    clocks = ClockSync()
    clocks.add_sample(0, "a", sent=0.0, now=100.0)
    for beat in range(WINDOW):
        clocks.add_sample(0, "a", sent=float(beat), now=100.5 + beat)
    assert clocks.estimate_offset(0, "a") == pytest.approx(100.5)


def test_ranks_of_one_host_share_a_clock_unless_it_cannot_be_one() -> None:
    clocks = ClockSync()
    clocks.add_sample(0, "a", sent=1.0, now=11.002)
    clocks.add_sample(1, "a", sent=1.0, now=11.001)
    clocks.add_sample(2, "a", sent=1.0, now=500.0)
    clocks.add_sample(3, "b", sent=1.0, now=11.0)
    found = [clocks.estimate_offset(rank, host) for rank, host in enumerate("aaab")]
    assert found == pytest.approx([10.001, 10.001, 499.0, 10.0])


# ---------------------------------------------------------------- lateness


def learned(
    *begun: dict[int, float], offsets: dict[int, float | None] | None = None
) -> dict[int, LatenessStatus]:
    """Return the ranks' lateness from each call's start times by rank."""
    skew = LatenessTracker()
    for sequence, one in enumerate(begun, 1):
        for rank, at in one.items():
            skew.add_starts("world", rank, [(sequence, at)])
    known = offsets or {}
    return skew.measure("world", [0, 1, 2], lambda rank: known.get(rank, 0.0))


def test_lateness_is_against_the_earliest_of_each_call() -> None:
    found = learned({0: 1.0, 1: 1.05, 2: 1.01}, {0: 2.2, 1: 2.1, 2: 2.0}, {0: 3.0, 1: 3.05, 2: 3.0})
    assert found[1] == LatenessStatus("world", 3, pytest.approx(0.05), pytest.approx(0.1), 2)
    assert found[0] == LatenessStatus("world", 3, 0.0, pytest.approx(0.2), 1)
    assert (found[2].median, found[2].last) == (0.0, 0)


def test_times_are_compared_on_one_clock() -> None:
    found = learned({0: 1.0, 1: 101.0, 2: 0.5}, offsets={0: 0.0, 1: -100.0, 2: 0.7})
    assert found[2].median == pytest.approx(0.2)
    assert found[1].median == 0.0


def test_calls_of_which_not_all_have_said_when_do_not_count() -> None:
    assert learned({0: 1.0, 1: 9.0}) == {}
    assert learned({0: 1.0, 1: 9.0}, {0: 2.0, 1: 2.0, 2: 2.0})[1].worst == 0.0


def test_without_a_clock_nothing_is_said() -> None:
    assert learned({0: 1.0, 1: 1.0, 2: 1.0}, offsets={1: None}) == {}


def test_only_the_latest_calls_count_and_are_kept() -> None:
    late = [{0: float(at), 1: at + 5.0, 2: float(at)} for at in range(1, 2000)]
    good = [dict.fromkeys(range(3), 5000.0 + at) for at in range(CALLS)]
    found = learned(*late, *good)
    assert found[1] == LatenessStatus("world", CALLS, 0.0, 0.0, 0)


def test_times_that_are_none_are_left_out() -> None:
    assert learned({0: float("nan"), 1: 1.0, 2: 1.0}) == {}
    assert learned({0: -1.0, 1: 1.0, 2: 1.0}) == {}


def test_a_member_that_is_late_is_shown_as_late() -> None:
    t = Transcript(now=1000.0)
    sessions = t.form_world(3, window=60.0)
    for session in sessions:
        t.send(session, OpenGroup("world", (0, 1, 2)))
    for rank, session in enumerate(sessions):
        late = 0.05 if rank == 1 else 0.0
        calls = tuple((sequence, 10.0 * rank + sequence + late) for sequence in range(1, 21))
        t.now = 1021.0  # the clock of rank r is 10 r ahead of that of rank 0
        t.send(
            session, Heartbeat(sent_at=21.0 + 10 * rank, call_starts=(CallStarts("world", calls),))
        )
    members = t.ask_now(DescribeJob("j")).members
    assert [one.clock_offset for one in members] == [1000.0, 990.0, 980.0]
    assert [one.lateness[0].median for one in members] == pytest.approx([0.0, 0.05, 0.0])
    assert [one.lateness[0].last for one in members] == [0, 20, 0]
    assert t.ask_now(DescribeJob("j")).waits == ()
    t.advance_to(1090.0)
    [waits] = t.ask_now(DescribeJob("j", 600.0)).waits
    assert (waits.group, waits.calls) == ("world", 20)
    assert [one.rank for one in waits.ranks] == [1, 0, 2]
    assert [one.last for one in waits.ranks] == [20, 0, 0]
    assert [one.caused for one in waits.ranks] == pytest.approx([1.0, 0.0, 0.0])
    assert [one.waited for one in waits.ranks] == pytest.approx([0.0, 1.0, 1.0])
    [period] = waits.periods
    assert (period.calls, period.length, period.ago) == (20, 60.0, 69.0)
    assert t.ask_now(DescribeJob("j", 5.0)).waits[0].periods == ()
    t.send(sessions[0], CloseGroup("world"))
    assert t.ask_now(DescribeJob("j")).members[1].lateness != ()
    for session in sessions[1:]:
        t.send(session, CloseGroup("world"))
    t.send(sessions[0], OpenGroup("world", (0, 1, 2)))  # another one of that name
    assert t.ask_now(DescribeJob("j")).members[1].lateness == ()


def test_waits_are_measured_from_the_first_call_of_each_group() -> None:
    t = Transcript(now=1000.0)
    sessions = t.form_world(4, window=60.0)
    for group, ranks in (("low", (0, 1)), ("high", (2, 3))):
        for rank in ranks:
            t.send(sessions[rank], OpenGroup(group, ranks))
        for rank in ranks:
            starts = CallStarts(group, ((1, 1.0 + rank),))
            t.send(sessions[rank], Heartbeat(sent_at=10.0, call_starts=(starts,)))
    found = t.ask_now(DescribeJob("j", 600.0)).waits
    assert {one.group: one.ranks[0].rank for one in found} == {"low": 1, "high": 3}


def test_a_call_that_is_told_twice_is_whole_once() -> None:
    tracker = LatenessTracker()
    assert tracker.add_starts("world", 0, [(1, 1.0), (2, 2.0)], 2) == []
    assert tracker.add_starts("world", 1, [(1, 1.5)], 2) == [{0: 1.0, 1: 1.5}]
    assert tracker.add_starts("world", 1, [(1, 1.6)], 2) == []


def test_calls_of_a_group_that_a_member_is_not_in_are_not_kept() -> None:
    t = Transcript(now=1000.0)
    first, second = t.form_world(2, window=60.0)
    t.send(first, OpenGroup("pair", (0, 1)))
    for session in (first, second):
        t.send(session, Heartbeat(sent_at=1.0, call_starts=(CallStarts("other", ((1, 1.0),)),)))
    t.send(first, OpenGroup("other", (0, 1)))
    assert [one.lateness for one in t.ask_now(DescribeJob("j")).members] == [(), ()]


# ---------------------------------------------------------------- collections


def collect(t: Transcript, session: int) -> CollectReport:
    [found] = [one for one in t.read_pushed(session) if isinstance(one, CollectReport)]
    return found


def test_a_collection_asks_all_and_is_answered_with_the_last_report() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = t.ask(CollectReports("j", 16), 10.0)
    asked = collect(t, first)
    assert asked == collect(t, second)
    assert (asked.operations, asked.nbytes) == (16, LARGEST_REPORT)
    t.send(second, ReportPart(asked.number, b"ab", is_last=False))
    t.send(first, ReportPart(asked.number, b"", is_last=True))
    assert ticket not in t.outcomes
    t.send(second, ReportPart(asked.number, b"c", is_last=True))
    assert t.outcomes[ticket] == (MemberReport(0, b""), MemberReport(1, b"abc"))


def test_who_does_not_answer_in_time_is_named_and_not_heard_any_more() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    t.send(third, Leave())
    ticket = t.ask(CollectReports("j", 16), 60.0)
    asked = collect(t, first)
    t.send(first, ReportPart(asked.number, b"x", is_last=True))
    t.send(second, ReportPart(asked.number, b"unfinished", is_last=False))
    t.advance_to(COLLECT_SECONDS - 0.01)
    assert ticket not in t.outcomes
    t.advance_to(COLLECT_SECONDS)
    found = t.outcomes[ticket]
    assert isinstance(found, tuple)
    assert found[0] == MemberReport(0, b"x")
    assert found[1] == MemberReport(1, b"", "it did not answer within 2 s")
    assert found[2] == MemberReport(2, b"", "it is left")
    t.send(second, ReportPart(asked.number, b"late", is_last=True))


def test_the_callers_own_deadline_counts_where_it_is_sooner() -> None:
    t = Transcript()
    t.form_world(2)
    ticket = t.ask(CollectReports("j", 16), 0.5)
    t.advance_to(0.5)
    assert isinstance(t.outcomes[ticket], tuple)


def test_a_report_that_is_too_large_is_dropped_before_it_is_kept() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = t.ask(CollectReports("j", 16), 10.0)
    asked = collect(t, first)
    t.send(first, ReportPart(asked.number, bytes(asked.nbytes), is_last=False))
    t.send(first, ReportPart(asked.number, b"x", is_last=False))
    t.send(first, ReportPart(asked.number, b"ok", is_last=True))
    t.send(second, ReportPart(asked.number, b"y", is_last=True))
    assert t.outcomes[ticket] == (
        MemberReport(0, b"", "its report is too large"),
        MemberReport(1, b"y"),
    )


def test_in_large_worlds_each_may_say_less() -> None:
    t = Transcript()
    sessions = t.form_world(130)
    t.ask(CollectReports("j", 16), 10.0)
    assert collect(t, sessions[0]).nbytes * 130 <= 64 << 20


def test_collections_do_not_pile_up() -> None:
    t = Transcript()
    first, _ = t.form_world(2)
    tickets = [t.ask(CollectReports("j", 16), 10.0) for _ in range(MOST_AT_ONCE + 1)]
    refused = t.outcomes[tickets[-1]]
    assert isinstance(refused, Refusal)
    assert refused.status is Status.RESOURCE_EXHAUSTED
    t.cancel(tickets[0])
    t.read_pushed(first)
    assert t.ask(CollectReports("j", 16), 10.0) not in t.outcomes


def test_a_job_that_nobody_is_in_has_no_reports() -> None:
    t = Transcript()
    assert t.ask_refused(CollectReports("j", 16)).status is Status.NOT_FOUND
    [only] = t.form_world(1)
    t.send(only, Leave())
    assert t.ask_now(CollectReports("j", 16)) == (MemberReport(0, b"", "it is left"),)
