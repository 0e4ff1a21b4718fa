"""The page of `allhands report`, made of hostile texts and of nothing."""

from html.parser import HTMLParser

import pytest

from allhands.cli.report import render_page
from allhands.cli.report_page import ReportPage, make_page
from allhands.coordinator.analysis import RankReport, diagnose
from allhands.coordinator.event_calls import JobEvent
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.runtime.sections import SectionPosition, SectionRecord
from allhands_proto.statuses import (
    FailureStatus,
    GroupStatus,
    GroupWaits,
    OperationStatus,
    RankWaits,
    WaitPeriod,
)
from support.operation_records import SECOND, record

HOSTILE = "<script>alert(1)</script>\" onload='x'&<u>"
_VOID = {"meta"}


class Page(HTMLParser):
    """A page as a browser takes it: elements, attributes, text; refuses what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def make_hostile_page() -> ReportPage:
    member = MemberStatus(
        rank=0,
        member_id="m",
        host=HOSTILE,
        pid=7,
        address="a:1",
        label=HOSTILE,
        state="lost",
        reason=HOSTILE,
        last_heartbeat=0.1,
        operations=(OperationStatus(HOSTILE, HOSTILE, 4, 3, 1.0),),
        section=SectionPosition(HOSTILE, 2.0),
    )
    failure = FailureStatus(0, "dead", HOSTILE, 1.0, HOSTILE)
    status = JobStatus(
        HOSTILE, "ended", 1, 1, (member,), (GroupStatus(HOSTILE, (0,)),), 5.0, 0, "i", (failure,)
    )
    operation = record(4, outcome="ok")
    report = RankReport(
        now=5.0,
        progress=member.operations,
        operations=(operation,),
        stack=HOSTILE,
        is_cut=True,
        section=member.section,
        sections=(SectionRecord(HOSTILE, "t", 0, SECOND, 3 * SECOND),),
    )
    late = (RankWaits(0, 9, 3.0),)
    waits = GroupWaits(
        HOSTILE,
        20,
        (RankWaits(0, 9, 3.0, 0.5), RankWaits(1, 11, 1.5, 2.0)),
        tuple(WaitPeriod(ago, 60.0, 10, 1.0, 0.5, late) for ago in (180.0, 60.0)),
    )
    event = JobEvent(1, 1e9, "verdict", HOSTILE, 0, HOSTILE, 1, HOSTILE)
    diagnosis = diagnose(status, {0: report}, {1: HOSTILE}, [waits])
    return make_page(status, diagnosis, {0: report}, [event], 1.2e9)


def test_texts_of_others_are_shown_as_they_are_and_run_nothing() -> None:
    html = render_page(make_hostile_page())
    page = Page(html)
    assert not {"script", "u", "img", "link", "iframe"} & set(page.elements)
    assert not {"onload", "src", "href"} & set(page.attributes)
    assert any(HOSTILE in text for text in page.texts)
    assert "://" not in html
    assert "default-src 'none'" in html


def test_a_report_shows_skew_late_ranks_sections_and_events() -> None:
    page = make_hostile_page()
    [group] = page.groups
    assert group.sentence.endswith(
        "rank 0 was last to begin 18 of 20 calls; the others waited 6.0 s for it"
    )
    assert [(one.rank, one.caused, one.waited, one.share) for one in group.ranks] == [
        (0, "3.0 s", "500.0 ms", 100.0),
        (1, "1.5 s", "2.0 s", 50.0),
    ]
    assert group.chart is not None
    assert group.chart.worst == "0.0,0.0 426.7,0.0"
    assert group.chart.mean == "0.0,96.0 426.7,96.0"
    assert (group.chart.top, group.chart.begin) == ("500.0 ms", "3 m 00 s ago")
    assert page.sections[0].cells[1:] == ("1", "1", "2.0 s", "2.0 s (rank 0)", "2.0 s")
    assert page.events[0].cells[:2] == ("2001-09-09 01:46:40Z", "verdict")
    assert page.made_at == "2008-01-10 21:20:00Z"
    assert page.verdicts == (HOSTILE,)
    text = "".join(Page(render_page(page)).texts)
    for heading in ("Failures", "Verdicts", "Ranks", "Sections", "Slowest operations", "Events"):
        assert heading in text


def test_of_many_failures_only_the_first_has_its_stack() -> None:
    text = "rank {} left: timed out\nrank 2 is at\n  File"
    failures = tuple(FailureStatus(rank, "left", text.format(rank), 1.0) for rank in range(3))
    status = JobStatus("j", "ended", 1, 1, (), (), 5.0, 0, "i", failures, 3.0)
    page = make_page(status, diagnose(status, {}, {}), {}, [], 1.2e9)
    assert page.headline == "ended 3.0 s ago; 0 ranks, epoch 1"
    assert page.failures == (
        "rank 0 left: timed out\nrank 2 is at\n  File",
        "rank 1 left: timed out",
        "rank 2 left: timed out",
    )


def test_a_stall_stands_above_all_else() -> None:
    def member(rank: int, operation: str, sequence: int) -> MemberStatus:
        now = OperationStatus("g", operation, sequence, 3, 5.0)
        return MemberStatus(rank, "m", "h", 7, "a:1", "", "joined", "", 0.1, (now,))

    members = (member(0, "barrier", 4), member(1, "", 3))
    groups = (GroupStatus("g", (0, 1)),)
    status = JobStatus("j", "running", 1, 2, members, groups, 5.0, 0, "i")
    page = make_page(status, diagnose(status, {}, {}), {}, [], 1.2e9)
    assert page.stalls == ("rank 1 missing for 5.0 s in barrier #4 of group g",)
    assert "rank 1 missing for 5.0 s" in "".join(Page(render_page(page)).texts)


@pytest.mark.parametrize("ended", [None, 3.0])
def test_a_job_of_which_nothing_is_known_has_a_report_too(ended: float | None) -> None:
    status = JobStatus("empty", "running", 1, 0, (), (), 5.0, 0, "i", (), ended)
    html = render_page(make_page(status, diagnose(status, {}, {}), {}, [], 1e9))
    assert "Nothing was measured" in "".join(Page(html).texts)
