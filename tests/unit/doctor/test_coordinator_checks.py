"""Checks of a coordinator's answer, and of the ranks of a job."""

from dataclasses import replace

from allhands.doctor.coordinator_checks import check_coordinator, check_members
from allhands.doctor.finding import Finding, Level
from allhands.doctor.machine import CoordinatorReading, MemberReach
from unit.doctor.machines import ANSWERING


def find(what: str, **changes: object) -> Finding:
    changed = replace(ANSWERING, **changes)  # type: ignore[arg-type]
    [found] = [one for one in check_coordinator(changed) if one.what == what]
    return found


def test_a_coordinator_that_answers_has_no_finding_to_fix() -> None:
    assert {one.status for one in check_coordinator(ANSWERING)} == {Level.OK}


def test_one_that_does_not_answer_is_the_only_finding() -> None:
    problem = "the coordinator at h:1 cannot be reached: nothing listens there; start one"
    [found] = check_coordinator(CoordinatorReading("ah://h:1", problem))
    assert (found.status, found.what, found.fix) == (Level.FAIL, "coordinator", "start one")


def test_plaintext_to_another_host_is_warned_of() -> None:
    assert find("TLS", has_tls=False).status is Level.WARN
    assert find("TLS", has_tls=False, is_loopback=True).status is Level.OK


def test_clocks_are_told_and_warned_of_when_far_apart() -> None:
    assert find("clock").detail == "the coordinator's, within the time of a call"
    assert "2.0 s ahead of this one" in find("clock", clock_offset=2.0).detail
    late = find("clock", clock_offset=-90.0)
    assert (late.status, "1 m 30 s behind" in late.detail) == (Level.WARN, True)
    assert find("clock", clock_offset=None).status is Level.SKIP


def test_a_daemon_without_a_leader_is_warned_of() -> None:
    assert find("coordinator", role="follower").status is Level.WARN
    assert find("coordinator", role="follower", leader="a:1").status is Level.OK
    assert find("coordinator", round_trip=0.5).status is Level.WARN


def test_each_rank_that_is_not_reached_is_named() -> None:
    found = list(
        check_members(
            "train",
            [
                MemberReach(0, "a", "10.0.0.1:4000", seconds=0.001),
                MemberReach(1, "b", "10.0.0.2:4000", "no answer within 3 s"),
                MemberReach(2, "a", "10.0.0.1:4001", seconds=0.002),
            ],
        )
    )
    assert [one.status for one in found] == [Level.FAIL, Level.OK]
    assert "rank 1 on b is not reached at 10.0.0.2:4000: no answer" in found[0].detail
    assert found[1].detail == "ranks 0,2 on 1 host reached, in 2.0 ms at most"


def test_a_job_without_ranks_is_not_judged() -> None:
    [found] = check_members("train", [])
    assert found.status is Level.SKIP
