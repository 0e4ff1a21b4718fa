"""What the others see when a rank dies, stops, lags or leaves."""

import os
import signal

import pytest

from support.ranks.addresses import free_port
from support.ranks.processes import BACKENDS, Cluster, Job

LOOP = """
ah.init_process_group(timeout=40)
x = np.ones({length}, np.float32)
ah.all_reduce(x)
tell("running", pid=os.getpid())
def forever():
    while True:
        ah.all_reduce(x)
told = failure(forever)
tell("failed", **told)
hear()
os._exit(0)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [2, 16 << 20])
def test_a_killed_rank_is_named_with_host_and_pid_by_every_survivor(job: Job, length: int) -> None:
    ranks = job(4, LOOP.format(length=length))
    pids = [rank.expect("running")["pid"] for rank in ranks]
    os.kill(pids[2], signal.SIGKILL)
    for survivor in (ranks[0], ranks[1], ranks[3]):
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [2]
        assert f"rank 2 (host {os.uname().nodename}, pid {pids[2]})" in told["text"]


def test_the_death_of_the_rank_that_hosts_the_coordinator_is_named_too(cluster: Cluster) -> None:
    script = LOOP.format(length=2)
    ranks = cluster.world(3, script, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    pids = [rank.expect("running")["pid"] for rank in ranks]
    os.kill(pids[0], signal.SIGKILL)
    for survivor in ranks[1:]:
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_rank_is_lost_after_the_window_and_learns_it_when_it_goes_on(job: Job) -> None:
    script = LOOP.format(length=2).replace("timeout=40", "timeout=40, heartbeat_window=1.0")
    ranks = job(3, script)
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
        """
        ah.init_process_group(timeout=20)
        if ah.get_rank() == 1:
            hear()
        x = np.full(5, 1.0)
        if ah.get_rank() != 1:
            tell("late", **failure(lambda: ah.all_reduce(x, timeout=1, label="step 7")))
            hear()
        else:
            tell("late", **failure(lambda: ah.all_reduce(x, timeout=0.5, label="step 7")))
        y = np.full(5, ah.get_rank() + 1.0)
        ah.all_reduce(y)
        tell("sum", values=y.tolist())
        ah.destroy_process_group()
        """,
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
        """
        ah.init_process_group(timeout=50)
        if ah.get_rank() == 0:
            try:
                tell("blocked", pid=os.getpid())
                ah.barrier()
            except KeyboardInterrupt:
                tell("interrupted")
                os._exit(3)
        hear()
        """,
    )
    pid = ranks[0].expect("blocked")["pid"]
    os.kill(pid, signal.SIGINT)
    ranks[0].expect("interrupted")
    assert ranks[0].ended() == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_leaves_because_of_an_exception_says_which(job: Job) -> None:
    ranks = job(
        2,
        """
        ah.init_process_group(timeout=20)
        ah.barrier()
        if ah.get_rank() == 1:
            raise LookupError("no such file as this")
        tell("failed", **failure(ah.barrier))
        """,
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
        """
        ah.init_process_group(timeout=20)
        if ah.get_rank() == 0:
            for size in (3, 3_000_000):
                ah.isend(np.full(size, size, np.int32), 1)
            tell("sent")
            ah.destroy_process_group()
            tell("left")
        else:
            hear()
            for size in (3, 3_000_000):
                x = np.zeros(size, np.int32)
                assert ah.recv(x, 0) == 0
                assert (x == size).all()
            tell("received")
            tell("gone", **failure(lambda: ah.recv(np.zeros(1), 0)))
        """,
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
        """
        ah.init_process_group(timeout=40)
        if ah.get_rank() == 0:
            ah.all_reduce(np.ones(3), timeout=0.5)
        hear()
        tell("failed", **failure(lambda: ah.all_reduce(np.ones(3))))
        """,
    )
    assert ranks[0].ended() == 1
    ranks[1].say()
    told = ranks[1].expect("failed")
    assert told["error"] == "GroupAborted", told
    assert told["by"].startswith("rank 0 (host ")
    assert "left the job because of CollectiveTimeout" in told["text"]


GOING = {
    "left": "ah.destroy_process_group(); sys.exit()",
    "raised": "raise LookupError('no such file as this')",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("going", GOING)
def test_who_went_first_is_named_not_who_died_because_of_it(job: Job, going: str) -> None:
    text = f"""
    import logging
    heard = threading.Event()
    class Ear(logging.Handler):
        def emit(self, record):
            if "rank 1 " in record.getMessage() and "is lost" in record.getMessage():
                heard.set()
    logging.getLogger("allhands").addHandler(Ear())
    ah.init_process_group(timeout=40)
    ah.barrier()
    tell("ready")
    if ah.get_rank() == 2:
        hear()
        {GOING[going]}
    if ah.get_rank() == 1:
        failure(ah.barrier)
        os._exit(1)
    assert heard.wait(30)
    tell("blocked", **failure(ah.barrier))
    tell("message", **failure(lambda: ah.recv(np.ones(3), 2)))
    tell("made since", **failure(lambda: ah.new_group([0, 1, 2]).barrier().wait()))
    """
    ranks = job(3, text)
    for rank in ranks:
        rank.expect("ready")
    ranks[2].say()
    for what in ("blocked", "message", "made since"):
        told = ranks[0].expect(what)
        assert "rank 2 (host " in told["text"], told
        assert "rank 1 (host " not in told["text"], told
