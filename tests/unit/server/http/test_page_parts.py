"""What a page shows of a job: states of ranks, waits, and only what has changed."""

import json
import math
from typing import Any

from allhands_server.http.page import job_parts
from allhands_server.http.page.job_parts import JobParts, list_spans
from allhands_server.http.page.parts import Parts
from allhands_server.http.page.waits import WAIT_SECONDS, find_waits
from allhands_server.machine.member_messages import Heartbeat, Leave, OpenGroup
from allhands_server.machine.values import CallStarts, Progress
from allhands_server.testing import Transcript

LONG = WAIT_SECONDS + 1


def inside(sequence: int, elapsed: float, operation: str = "all_reduce") -> Progress:
    return Progress("world", sequence, sequence - 1, operation, elapsed)


def outside(sequence: int, elapsed: float = 0.0) -> Progress:
    return Progress("world", sequence, sequence, "", elapsed)


class Watched:
    """A world of three under a page's eyes."""

    def __init__(self, size: int = 3) -> None:
        self.t = Transcript()
        self.sessions = self.t.form_world(size)
        for session in self.sessions:
            self.t.send(session, OpenGroup("world", tuple(range(size))))
        self.kept = JobParts()
        self.seen = -1

    def beat(self, rank: int, *progress: Progress, **more: Any) -> None:
        self.t.send(self.sessions[rank], Heartbeat(progress=progress, **more))

    def look(self) -> dict[str, Any]:
        """Return the parts that have changed since the last look."""
        seen = self.t.machine.observe("j", self.kept.last_event, self.t.now)
        assert seen is not None
        self.kept.update(seen, 1000.0 + self.t.now, 1000.0)
        changes = self.kept.parts.format_changes(self.seen)
        self.seen = self.kept.parts.version
        parts: dict[str, Any] = {} if changes is None else json.loads(changes)["parts"]
        return parts


def test_who_waits_for_whom_is_known_from_progress() -> None:
    watched = Watched()
    watched.beat(0, inside(5, LONG))
    watched.beat(1, inside(5, LONG + 1))
    watched.beat(2, outside(4, LONG))
    parts = watched.look()
    assert parts["waits"] == [["world", 5, "all_reduce", 1000.0 - LONG - 1, [[0, 1]], [[2, 2]]]]
    assert [parts[f"rank/{rank}"][0] for rank in range(3)] == ["waiting", "waiting", "missing"]
    assert parts["rank/0"][2:5] == ["world", 5, "all_reduce"]
    assert parts["groups"] == [["world", [[0, 2]]]]


def test_ranks_of_one_call_wait_for_nobody_however_long_it_takes() -> None:
    watched = Watched()
    for rank in range(3):
        watched.beat(rank, inside(5, LONG))
    parts = watched.look()
    assert parts["waits"] == []
    assert [parts[f"rank/{rank}"][0] for rank in range(3)] == ["long"] * 3


def test_news_of_different_moments_are_no_wait() -> None:
    watched = Watched()
    watched.beat(0, inside(900, 0.1))
    watched.beat(1, outside(850))
    assert watched.look()["waits"] == []


def test_a_peer_that_answers_no_ping_is_waited_for() -> None:
    watched = Watched()
    watched.beat(0, Progress("world", 5, 4, "all_reduce", LONG, (2,)))
    for rank in (1, 2):
        watched.beat(rank, inside(5, LONG))
    seen = watched.t.machine.observe("j", 0, watched.t.now)
    assert seen is not None
    [wait] = find_waits(seen.view.members, seen.view.groups)
    assert wait.missing == (2,)


def test_only_changes_are_told_and_what_goes_on_is_none() -> None:
    watched = Watched()
    for rank in range(3):
        watched.beat(rank, inside(1, 0.0))
    whole = watched.look()
    assert {"job", "groups", "who/0", "rank/2", "event/1"} <= whole.keys()
    watched.t.now += 0.5
    assert watched.look() == {}
    watched.beat(1, outside(1))
    assert watched.look().keys() == {"rank/1"}


def test_a_beginning_is_as_it_was_first_known() -> None:
    watched = Watched()
    watched.beat(0, inside(1, 0.0))
    since = watched.look()["rank/0"][5]
    for _ in range(4):
        watched.t.now += 1.0
        watched.beat(0, inside(1, watched.t.now - 0.05))  # known a little late
        watched.look()
    assert watched.kept._begun["rank/0"][1] == since


def test_the_states_of_those_who_are_gone() -> None:
    watched = Watched()
    watched.t.send(watched.sessions[0], Leave())
    watched.t.send(watched.sessions[1], Leave(error="ValueError: no"))
    watched.t.break_session(watched.sessions[2])
    watched.t.advance_to(60.0)
    parts = watched.look()
    assert [parts[f"rank/{rank}"][0] for rank in range(3)] == ["left", "failed", "lost"]
    assert "ValueError: no" in parts["rank/1"][1]
    assert parts["job"]["failed"]
    assert "ValueError: no" in parts["failures"][0][2]


def test_arrivals_are_shown_once_each() -> None:
    watched = Watched(2)
    for rank, late in ((0, 0.0), (1, 0.25)):
        starts = (CallStarts("world", ((1, 50.0 + late),)),)
        watched.beat(rank, outside(1), sent_at=51.0, call_starts=starts)
    parts = watched.look()
    [call] = [parts[key] for key in parts if key.startswith("call/")]
    assert (call[0], call[1], call[3], call[4]) == ("world", 1, 0.25, 1)
    assert not any(key.startswith("call/") for key in watched.look())


def test_operations_have_a_rate_once_it_is_known() -> None:
    watched = Watched(2)
    watched.look()
    watched.t.now += 2.0
    for rank in range(2):
        watched.beat(rank, Progress("world", 10, 10, nbytes=4_000, seconds=0.5))
    parts = watched.look()
    assert parts["rate/1"] == [1002.0, 10.0, 4_000]


def test_another_world_begins_anew_with_all_events() -> None:
    watched = Watched(2)
    watched.look()
    for session in watched.sessions:
        watched.t.send(session, Leave())
    watched.look()
    watched.sessions = watched.t.form_world(2)
    watched.look()
    seen, watched.seen = watched.seen, -1
    events = {key for key in watched.look() if key.startswith("event/")}
    assert len(events) == 9
    assert seen > 0


def test_what_a_member_says_cannot_break_the_form() -> None:
    watched = Watched(2)
    watched.beat(0, Progress("world", 1, 0, "all_reduce", math.nan))
    watched.beat(1, Progress("world", 1, 0, 'x"}</script>', math.inf))
    assert watched.look()["rank/1"][4] == 'x"}</script>'


def test_what_is_kept_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(job_parts, "MOST_RATES", 3)
    watched = Watched(2)
    for _ in range(9):
        watched.look()
        watched.t.now += 2.0
    assert sum("rate/" in key for key in watched.kept.parts._parts) == 3


def test_ranks_are_told_in_spans() -> None:
    assert list_spans([4, 0, 1, 2, 9]) == [[0, 2], [4, 4], [9, 9]]


def test_readers_get_what_is_new_to_them() -> None:
    parts = Parts()
    assert parts.format_changes(0) is None
    parts.put({"a": 1, "b": [2]})
    first = parts.version
    parts.put({"a": 1, "b": [3]})
    assert json.loads(parts.format_changes(first) or "") == {"reset": False, "parts": {"b": [3]}}
    whole = {"a": 1, "b": [3]}
    assert json.loads(parts.format_changes(-1) or "") == {"reset": True, "parts": whole}
    parts.begin_anew()
    assert json.loads(parts.format_changes(first) or "") == {"reset": True, "parts": {}}
