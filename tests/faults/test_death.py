"""Survivors of a rank's death, stop, lag or departure."""

import os
import signal

import pytest

from programs import deaths
from support.ranks.addresses import free_port
from support.ranks.processes import BACKENDS, Cluster, Job


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [2, 16 << 20])
def test_a_killed_rank_is_named_with_host_and_pid_by_every_survivor(job: Job, length: int) -> None:
    ranks = job(4, deaths.call_forever, length)
    pids = [rank.expect("running")["pid"] for rank in ranks]
    os.kill(pids[2], signal.SIGKILL)
    for survivor in (ranks[0], ranks[1], ranks[3]):
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [2]
        assert f"rank 2 (host {os.uname().nodename}, pid {pids[2]})" in told["text"]


def test_the_death_of_the_rank_that_hosts_the_coordinator_is_named_too(cluster: Cluster) -> None:
    ranks = cluster.world(
        3, deaths.call_forever, 2, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())
    )
    pids = [rank.expect("running")["pid"] for rank in ranks]
    os.kill(pids[0], signal.SIGKILL)
    for survivor in ranks[1:]:
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_rank_is_lost_after_the_window_and_learns_it_when_it_goes_on(job: Job) -> None:
    ranks = job(3, deaths.call_forever, 2, 1.0)
    pids = [rank.expect("running")["pid"] for rank in ranks]
    os.kill(pids[1], signal.SIGSTOP)
    for survivor in (ranks[0], ranks[2]):
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]
        assert "is paused: its process is stopped" in told["text"]
    os.kill(pids[1], signal.SIGCONT)
    told = ranks[1].expect("failed")
    assert told["error"] in ("MembershipChanged", "PeerFailed"), told


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_does_not_come_is_named_and_the_next_call_is_right(job: Job) -> None:
    ranks = job(
        3,
        deaths.call_late,
    )
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("late")
        assert told["error"] == "CollectiveTimeout", told
        assert told["ranks"] == [1]
        assert (told["op"], told["seq"]) == ("all_reduce", 1)
        assert "step 7" in told["text"]
        assert "rank 1" in told["text"]
    ranks[1].say()
    ranks[1].expect("late")
    for rank in (ranks[0], ranks[2]):
        rank.say()
    for rank in ranks:
        assert rank.expect("sum")["values"] == [6.0] * 5
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupt_ends_a_blocked_call_at_once(job: Job) -> None:
    ranks = job(
        2,
        deaths.interrupt_a_barrier,
    )
    pid = ranks[0].expect("blocked")["pid"]
    os.kill(pid, signal.SIGINT)
    ranks[0].expect("interrupted")
    assert ranks[0].ended() == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_leaves_because_of_an_exception_says_which(job: Job) -> None:
    ranks = job(
        2,
        deaths.leave_by_an_exception,
    )
    told = ranks[0].expect("failed")
    assert told["error"] == "GroupAborted", told
    assert told["by"].startswith("rank 1 (host ")
    assert "LookupError: no such file as this" in told["text"]
    assert ranks[1].ended() == 1


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_what_was_sent_before_leaving_is_received(job: Job) -> None:
    ranks = job(
        2,
        deaths.send_and_leave,
    )
    ranks[0].expect("sent")
    ranks[1].say()
    ranks[1].expect("received")
    ranks[0].expect("left")
    told = ranks[1].expect("gone")
    assert told["error"] == "PeerFailed", told
    assert "left the job" in told["text"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_comes_to_a_call_that_another_gave_up_before_leaving_is_told_so(job: Job) -> None:
    ranks = job(
        2,
        deaths.give_up_and_leave,
    )
    assert ranks[0].ended() == 1
    ranks[1].say()
    told = ranks[1].expect("failed")
    assert told["error"] == "GroupAborted", told
    assert told["by"].startswith("rank 0 (host ")
    assert "left the job because of CollectiveTimeout" in told["text"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("going", deaths.LEAVING)
def test_who_went_first_is_named_not_who_died_because_of_it(job: Job, going: str) -> None:
    ranks = job(3, deaths.follow_the_first_to_leave, going)
    for rank in ranks:
        rank.expect("ready")
    ranks[2].say()
    for what in ("blocked", "message", "made since"):
        told = ranks[0].expect(what)
        assert "rank 2 (host " in told["text"], told
        assert "rank 1 (host " not in told["text"], told


@pytest.mark.parametrize("way", ["left", "raised"])
def test_a_rank_that_fails_of_another_ends_after_it(job: Job, way: str) -> None:
    ranks = job(2, deaths.end_slowly, way)
    assert not ranks[1].expect("looked")["is_gone"]
    assert ranks[1].ended() == (1 if way == "raised" else 0)
    assert ranks[0].ended() == 1
