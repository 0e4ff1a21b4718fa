"""Checks of a coordinator by its answer, and of the ranks of a job by their addresses. Pure."""

from collections.abc import Iterator, Sequence

from allhands.coordinator.sections import format_ranks, format_short
from allhands.doctor.finding import Finding, fail, ok, skip, warn
from allhands.doctor.machine import CoordinatorReading, MemberReach

_CLOCK_SECONDS = 30.0
_SLOW_SECONDS = 0.2


def skip_coordinator(reason: str) -> Finding:
    """Say that there is no coordinator to ask."""
    return skip(
        "coordinator",
        reason,
        "give --coordinator or ALLHANDS_URL, or: allhands serve",
    )


def check_coordinator(found: CoordinatorReading) -> Iterator[Finding]:
    """Check that a coordinator answers, and what it says."""
    if found.problem:
        problem, _, advice = found.problem.partition("; ")
        yield fail("coordinator", problem, advice or "read what it says, and change that")
        return
    yield _check_answer(found)
    yield _check_privacy(found)
    token = "a token of a job" if found.token == "job" else "the cluster's"
    yield ok("token", f"{token}, accepted")
    yield ok("protocol", f"the coordinator speaks {found.versions}, this side {found.own_versions}")
    yield _check_clock(found)


def _check_answer(found: CoordinatorReading) -> Finding:
    detail = f"{found.url} answers in {format_short(found.round_trip)}"
    if found.role:
        detail += f"; it is {found.role}, led from {found.leader or 'nowhere'}"
    if found.role and not found.leader:
        return warn(
            "coordinator", detail, "wait for an election, or start the other daemons of this log"
        )
    if found.round_trip > _SLOW_SECONDS:
        return warn(
            "coordinator",
            f"{detail}, which is slow: joins and barriers take as long",
            "look at the load of its host (allhands status --limits), and at the way there",
        )
    return ok("coordinator", detail)


def _check_privacy(found: CoordinatorReading) -> Finding:
    if found.has_tls:
        return ok("TLS", "its certificate is valid for this name; links are encrypted, too")
    if found.is_loopback:
        return ok("TLS", "none: it is dialled on loopback")
    return warn(
        "TLS",
        "none, and the coordinator is on another host: token and data can be read on the way",
        "allhands token init DIR --host NAME makes certificates, and says what to run",
    )


def _check_clock(found: CoordinatorReading) -> Finding:
    if found.clock_offset is None:
        return skip("clock", "the coordinator is of a version that does not tell its time")
    if abs(found.clock_offset) < max(found.round_trip, 0.001):
        return ok("clock", "the coordinator's, within the time of a call")
    side = "ahead of" if found.clock_offset > 0 else "behind"
    detail = f"the coordinator's is {format_short(abs(found.clock_offset))} {side} this one"
    if abs(found.clock_offset) < _CLOCK_SECONDS:
        return ok("clock", f"{detail}; only times in logs differ")
    return warn(
        "clock",
        f"{detail}: times in logs differ, certificates and tokens may count as expired",
        "synchronise both hosts (chrony, systemd-timesyncd)",
    )


def check_members(job: str, found: Sequence[MemberReach]) -> Iterator[Finding]:
    """Check that the ranks of a job are reached from here."""
    if not found:
        yield skip("ranks", f"no rank of job {job} is there now")
        return
    for one in found:
        if one.problem:
            yield fail(
                "ranks",
                f"rank {one.rank} on {one.host} is not reached at {one.address}: {one.problem}",
                "open the ports of ALLHANDS_PORT_RANGE between the hosts, or have its launcher "
                "announce another address (--advertise, --interface)",
            )
    reached = [one for one in found if not one.problem]
    if reached:
        hosts = len({one.host for one in reached})
        slowest = max(one.seconds for one in reached)
        ranks = format_ranks(sorted(one.rank for one in reached))
        yield ok(
            "ranks",
            f"rank{'s' if len(reached) > 1 else ''} {ranks} on {hosts} "
            f"host{'s' if hosts > 1 else ''} reached, in {format_short(slowest)} at most",
        )
