"""What a page shows of one job, made from observations of it. Pure.

Times are of the wall clock, in seconds, so that what goes on does not change by itself. Keys of the
parts, and their values, in lists to be short; the states of ranks are those of `static/groups.js`:

    job               {state, epoch, size, members, keys, ended, failed, window}
    who/RANK          [host, pid, address, label]
    rank/RANK         [state, text, group, sequence, operation, since]
    late/RANK         [[group, calls, median, worst, last]]
    groups            [[name, spans]], with spans as [first, last]
    waits             [[group, sequence, operation, since, spans of waiting, spans of missing]]
    failures          [[rank, state, text, time, traceback]]
    event/NUMBER      [time, kind, text, rank, state, by]
    call/GROUP/NUMBER [group, sequence, time, span, last rank]
    rate/NUMBER       [time, operations a second, bytes of their arrays a second]
"""

import math
from collections.abc import Iterable

from allhands_proto.statuses import FailureStatus
from allhands_server.http.page.parts import Json, Parts
from allhands_server.http.page.waits import WAIT_SECONDS, Wait, find_waits
from allhands_server.machine.values import (
    JobEvent,
    JobObservation,
    JobView,
    MemberView,
    Presence,
    Progress,
)

MOST_EVENTS = 512
MOST_CALLS = 512
MOST_RATES = 600
_RATE_SECONDS = 2.0
"""Over which operations are counted: heartbeats come each second, of each rank at another time."""
_SAME_SECONDS = 0.7
"""A beginning that moves by less has not changed: it is known through heartbeats."""
_LONGEST_TRACEBACK = 4096


class JobParts:
    """The parts of one job, kept up to date by `update`."""

    def __init__(self) -> None:
        self.parts = Parts()
        self.last_event = 0
        """Number of the last event that is known."""
        self._world: tuple[str, tuple[int, ...]] = "", ()
        self._begun: dict[str, tuple[object, float]] = {}
        self._counted: tuple[float, int, int] | None = None
        self._rates = 0

    def clear(self) -> None:
        """Show that there is no such job."""
        if self._world != ("", ()) or self.parts.version == 0:
            self._begin_anew(("", ()))

    def update(self, seen: JobObservation, now: float, offset: float) -> None:
        """Take an observation, made `now`; `offset` is to be added to the coordinator's times."""
        view = seen.view
        world = view.incarnation or view.job, tuple(one.rank for one in view.members)
        events = seen.events
        if world != self._world:
            if self.last_event:
                events = ()  # those before are wanted again: they come with the next observation
            self._begin_anew(world)
        waits = find_waits(view.members, view.groups)
        self.parts.put(
            {
                "job": _describe_job(view, now),
                "groups": [[one.group, list_spans(one.ranks)] for one in view.groups],
                "waits": [self._describe_wait(one, now) for one in waits],
                "failures": [self._describe_failure(one, now) for one in view.failures],
            }
        )
        self._put_members(view, waits, now)
        self._put_events(events, offset)
        self._put_history(seen, now, offset)

    def _begin_anew(self, world: tuple[str, tuple[int, ...]]) -> None:
        self._world, self.last_event, self._counted = world, 0, None
        self._begun.clear()
        self.parts.begin_anew()

    def _put_members(self, view: JobView, waits: list[Wait], now: float) -> None:
        missing = {rank for one in waits for rank in one.missing}
        waiting = {rank for one in waits for rank in one.waiting}
        first = view.failures[0].rank if view.failures else None
        for one in view.members:
            state, text = _describe_state(one, one.rank in missing, one.rank in waiting)
            if state == "failed" and first not in (None, one.rank):
                state = "aborted"
            at = _choose_progress(one.progress)
            row: list[Json] = [state, text]
            if at is not None:
                call = at.group, at.sequence, at.operation
                since = self._find_begin(f"rank/{one.rank}", call, now - at.elapsed)
                row += [*call, since]
            self.parts.put(
                {
                    f"who/{one.rank}": [one.host, one.pid, one.address, one.label],
                    f"rank/{one.rank}": row,
                    f"late/{one.rank}": [
                        [late.group, late.calls, _round(late.median), _round(late.worst), late.last]
                        for late in one.lateness
                    ],
                }
            )

    def _put_events(self, events: tuple[JobEvent, ...], offset: float) -> None:
        for event in events:
            self.last_event = max(self.last_event, event.number)
            about: list[Json] = [event.kind, event.text, event.rank, event.state, event.by]
            self.parts.put({f"event/{event.number}": [_round(event.at + offset), *about]})
        self.parts.drop_oldest("event/", MOST_EVENTS)

    def _put_history(self, seen: JobObservation, now: float, offset: float) -> None:
        for call in seen.arrivals:
            key = f"call/{call.group}/{call.sequence}"
            if key not in self.parts:  # estimates of clocks go on to move a little
                at, span = _round(call.first + offset), round(call.span, 6)
                self.parts.put({key: [call.group, call.sequence, at, span, call.last]})
        if seen.view.ended is None:
            self._put_rate(seen.operations, seen.operations_nbytes, now)
        self.parts.drop_oldest("call/", MOST_CALLS)
        self.parts.drop_oldest("rate/", MOST_RATES)

    def _put_rate(self, operations: int, nbytes: int, now: float) -> None:
        counted = now, operations, nbytes
        if self._counted is None or operations < self._counted[1]:
            self._counted = counted
        elif (seconds := now - self._counted[0]) >= _RATE_SECONDS:
            rate = (operations - self._counted[1]) / seconds
            bandwidth = (nbytes - self._counted[2]) / seconds
            self._rates += 1
            rates: Json = [_round(now), round(rate, 1), round(bandwidth)]
            self.parts.put({f"rate/{self._rates}": rates})
            self._counted = counted

    def _describe_wait(self, wait: Wait, now: float) -> Json:
        call = wait.group, wait.sequence, wait.operation
        since = self._find_begin(f"wait/{wait.group}/{wait.sequence}", call, now - wait.seconds)
        return [*call, since, list_spans(wait.waiting), list_spans(wait.missing)]

    def _describe_failure(self, failure: FailureStatus, now: float) -> Json:
        at = self._find_begin(f"failure/{failure.text}", failure.text, now - failure.seconds)
        traceback = failure.traceback[:_LONGEST_TRACEBACK]
        return [failure.rank, failure.state, failure.text, at, traceback]

    def _find_begin(self, key: str, about: object, begun: float) -> float:
        """Return since when something is so: as it was told before, if that is about the same."""
        known = self._begun.get(key)
        if known is None or known[0] != about or abs(known[1] - begun) > _SAME_SECONDS:
            known = self._begun[key] = about, _round(begun)
        return known[1]


def list_spans(ranks: Iterable[int]) -> list[Json]:
    """Return ranks in order as lists of the first and the last of each run."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return [[first, last] for first, last in spans]


def _describe_job(view: JobView, now: float) -> Json:
    return {
        "state": view.state,
        "epoch": view.epoch,
        "size": view.world_size,
        "members": sum(one.presence is Presence.JOINED for one in view.members),
        "keys": view.keys,
        "ended": None if view.ended is None else round(now - view.ended),
        "failed": bool(view.failures),
        "window": view.heartbeat_window,
    }


def _describe_state(member: MemberView, is_missing: bool, is_waiting: bool) -> tuple[str, str]:
    """Return the state of a member in one word of the page's, and a sentence where there is one."""
    if member.presence is Presence.LOST:
        return "lost", member.reason
    if member.presence is Presence.LEFT:
        return ("failed", member.reason) if member.reason else ("left", "")
    if member.condition is not None:
        return member.condition.state, member.condition.text
    if is_missing:
        return "missing", ""
    if is_waiting:
        return "waiting", ""
    at = _choose_progress(member.progress)
    if at is not None and at.operation:
        return ("long", "") if at.elapsed >= WAIT_SECONDS else ("inside", "")
    return "outside", ""


def _choose_progress(progress: Iterable[Progress]) -> Progress | None:
    """Return the call that a member has been in for longest, else the one that ended last."""
    known = [one for one in progress if one.sequence]
    inside = [one for one in known if one.operation]
    if inside:
        return max(inside, key=lambda one: one.elapsed)
    return min(known, key=lambda one: one.elapsed, default=None)


def _round(seconds: float) -> float:
    """Return seconds to the millisecond; what a member says may be no number, and JSON has none."""
    return round(seconds, 3) if math.isfinite(seconds) else 0.0
