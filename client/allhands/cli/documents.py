"""Fields of the documents of `-o json` and `-o yaml`; docs/output.md lists all of them.

A length of time has its unit in its name; what is so many seconds ago has the absolute time beside
it. Names are added, none is removed or given another meaning.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from allhands.cli.render import format_time

if TYPE_CHECKING:
    from allhands.coordinator.diagnosis import (
        Diagnosis,
        GroupDiagnosis,
        PendingOperation,
        RankDiagnosis,
        Straggler,
    )
    from allhands.coordinator.event_calls import JobEvent
    from allhands.coordinator.limit_calls import CoordinatorLimits
    from allhands.coordinator.status import JobStatus, MemberStatus
    from allhands.coordinator.token_calls import TokenStatus
    from allhands.runtime.sections import SectionPosition
    from allhands_proto.statuses import (
        FailureStatus,
        GroupStatus,
        GroupWaits,
        LatenessStatus,
        OperationStatus,
        RankWaits,
    )

Fields: TypeAlias = dict[str, Any]


def make_jobs_fields(jobs: "Iterable[JobStatus]", now: float) -> Fields:
    """Return a `JobList`; `now` is in seconds since 1970."""
    return {"time": format_time(now), "jobs": [_make_job(job, now) for job in jobs]}


def make_groups_fields(found: "Iterable[tuple[JobStatus, GroupStatus]]", now: float) -> Fields:
    """Return a `GroupList`."""
    return {
        "time": format_time(now),
        "groups": [
            {
                "job": job.job,
                "group": group.group,
                "epoch": job.epoch,
                "members": _make_group_members(job, group, now),
            }
            for job, group in found
        ],
    }


def make_diagnosis_fields(found: "Diagnosis", now: float) -> Fields:
    """Return a `Diagnosis`."""
    return {
        "time": format_time(now),
        "job": found.job,
        "state": found.state,
        "failed": found.has_failed,
        **_make_age("ended", found.ended, now),
        "failures": [_make_failure(one, now) for one in found.failures],
        "ranks": [_make_rank(one, now) for one in found.ranks],
        "groups": [_make_positions(one) for one in found.groups],
        "stragglers": [_make_straggler(one) for one in found.stragglers],
        "waits": [_make_group_waits(one, now) for one in found.waits],
    }


def make_event_fields(event: "JobEvent") -> Fields:
    """Return a `JobEvent`."""
    return {
        "time": format_time(event.time),
        "number": event.number,
        "event": event.kind,
        "text": event.text,
        "rank": event.rank,
        "state": event.state,
        "epoch": event.epoch,
        "by": event.by,
    }


def make_limits_fields(found: "CoordinatorLimits") -> Fields:
    """Return a `LimitList`."""
    return {
        "limits": [asdict(one) for one in found.limits],
        "resident_bytes": found.resident_bytes,
    }


def make_tokens_fields(tokens: "Iterable[TokenStatus]") -> Fields:
    """Return a `TokenList`, which has no secrets."""
    return {
        "tokens": [
            {
                "id": one.id,
                "job": one.job,
                "verbs": list(one.verbs),
                "expires_time": format_time(one.expires_at) if one.expires_at else None,
                "joins": one.joins,
                "max_joins": one.max_joins,
            }
            for one in tokens
        ]
    }


def _make_age(name: str, seconds: float | None, now: float) -> Fields:
    """Return the age of an event and its time; both None: it has not happened."""
    return {
        f"{name}_age_seconds": seconds,
        f"{name}_time": None if seconds is None else format_time(now - seconds),
    }


def _make_job(job: "JobStatus", now: float) -> Fields:
    return {
        "job": job.job,
        "state": job.state,
        "epoch": job.epoch,
        "world_size": job.world_size,
        "incarnation": job.incarnation,
        "keys": job.keys,
        "heartbeat_window_seconds": job.heartbeat_window,
        **_make_age("ended", job.ended, now),
        "failures": [_make_failure(one, now) for one in job.failures],
        "groups": [{"group": one.group, "ranks": list(one.ranks)} for one in job.groups],
        "members": [_make_member(one, now) for one in job.members],
    }


def _make_failure(failure: "FailureStatus", now: float) -> Fields:
    return {
        "rank": None if failure.rank < 0 else failure.rank,
        "state": failure.state,
        "text": failure.text,
        **_make_age("failure", failure.seconds, now),
        "traceback": failure.traceback,
    }


def _make_member(member: "MemberStatus", now: float) -> Fields:
    return {
        "rank": member.rank,
        "member_id": member.member_id,
        "host": member.host,
        "pid": member.pid,
        "address": member.address,
        "label": member.label,
        "state": member.state,
        "reason": member.reason,
        "condition": member.condition,
        "condition_text": member.condition_text,
        **_make_section(member.section),
        **_make_age("heartbeat", member.last_heartbeat, now),
        **_make_age("gone", member.gone, now),
        "clock_offset_seconds": member.clock_offset,
        "operations": [
            _make_operation(one, now - member.get_age(one)) for one in member.operations
        ],
        "lateness": [_make_lateness(one) for one in member.lateness],
    }


def _make_group_waits(waits: "GroupWaits", now: float) -> Fields:
    return {
        "group": waits.group,
        "calls": waits.calls,
        "ranks": [_make_rank_waits(one) for one in waits.ranks],
        "periods": [
            {
                "begin_time": format_time(now - period.ago),
                "length_seconds": period.length,
                "calls": period.calls,
                "skew_seconds": period.skew,
                "worst_seconds": period.worst,
                "late": [_make_rank_waits(one) for one in period.late],
            }
            for period in waits.periods
        ],
    }


def _make_rank_waits(one: "RankWaits") -> Fields:
    return {
        "rank": one.rank,
        "last": one.last,
        "caused_seconds": one.caused,
        "waited_seconds": one.waited,
    }


def _make_section(section: "SectionPosition | None") -> Fields:
    return {
        "section": None if section is None else section.name,
        "section_elapsed_seconds": None if section is None else section.elapsed,
    }


def _make_operation(one: "OperationStatus", since: float) -> Fields:
    return {
        "group": one.group,
        "operation": one.operation,
        "sequence": one.sequence,
        "completed": one.completed,
        "elapsed_seconds": one.elapsed,
        "since_time": format_time(since),
    }


def _make_lateness(one: "LatenessStatus") -> Fields:
    return {
        "group": one.group,
        "calls": one.calls,
        "median_seconds": one.median,
        "worst_seconds": one.worst,
        "last": one.last,
    }


def _make_group_members(job: "JobStatus", group: "GroupStatus", now: float) -> list[Fields]:
    """Return the members of a group in its order; a rank that never joined has the state ""."""
    present = {member.rank: member for member in job.members}
    made = []
    for place, rank in enumerate(group.ranks):
        member = present.get(rank)
        doing = None if member is None else member.find_operation(group.group)
        age = None if member is None or doing is None else member.get_age(doing)
        made.append(
            {
                "group_rank": place,
                "rank": rank,
                "host": "" if member is None else member.host,
                "pid": None if member is None else member.pid,
                "state": "" if member is None else member.state,
                "condition": "" if member is None else member.condition,
                **_make_age("heartbeat", None if member is None else member.last_heartbeat, now),
                "begun": 0 if doing is None else doing.sequence,
                "completed": 0 if doing is None else doing.completed,
                "operation": "" if doing is None else doing.operation,
                "elapsed_seconds": None if doing is None else doing.elapsed,
                "since_time": None if age is None else format_time(now - age),
            }
        )
    return made


def _make_rank(rank: "RankDiagnosis", now: float) -> Fields:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "absence": rank.absence,
        "gone": rank.gone,
        "stale_seconds": rank.stale,
        "waits": [_make_wait(one, now) for one in rank.waits],
        "idle_seconds": rank.idle,
        "last": rank.last,
        "stack": rank.stack,
        **_make_section(rank.section),
    }


def _make_wait(one: "PendingOperation", now: float) -> Fields:
    return {
        "group": one.group,
        "sequence": one.sequence,
        "operation": one.operation,
        "signature": one.signature,
        "elapsed_seconds": one.seconds,
        "since_time": format_time(now - one.age),
        "waits_for": list(one.waits_for),
        "label": one.label,
        "source": one.source,
    }


def _make_positions(group: "GroupDiagnosis") -> Fields:
    return {
        "group": group.group,
        "behind": list(group.behind),
        "unknown": list(group.unknown),
        "is_over": group.is_over,
        "positions": [
            {"sequence": one.sequence, "operation": one.operation, "ranks": list(one.ranks)}
            for one in group.positions
        ],
    }


def _make_straggler(one: "Straggler") -> Fields:
    return {
        "rank": one.rank,
        "group": one.group,
        "calls": one.calls,
        "median_seconds": one.median,
        "worst_seconds": one.worst,
        "last": one.last,
    }
