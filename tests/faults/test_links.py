"""Faults of the links between ranks, over raw sockets and over gRPC."""

import os
import signal
import textwrap

import pytest

from support.ranks.processes import Job, Process

ALIKE = """
ah.init_process_group(timeout=40, backend={links!r})
tell("here", pid=os.getpid())
"""


def members(ranks: list[Process]) -> list[int]:
    return [rank.expect("here")["pid"] for rank in ranks]


@pytest.mark.parametrize("links", ["socket", "grpc"])
@pytest.mark.parametrize("victim", [0, 1])
def test_who_is_killed_in_the_middle_of_a_message_is_named_at_its_other_end(
    job: Job, links: str, victim: int
) -> None:
    script = """
    x = np.ones(16 << 20, np.float32)  # 64 MiB: more than the network holds
    if ah.get_rank() == VICTIM:
        ah.barrier()
        hear()
        # It stops itself: the first part of the message may go, not the last.
        if VICTIM == 1:
            ah.irecv(x, 0)
        else:
            ah.isend(x, 1)
        tell("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        ah.barrier()
        tell("ready")
        tell("failed", **failure(lambda: ah.send(x, 1) if VICTIM else ah.recv(x, 0)))
        tell("next", **failure(lambda: ah.all_reduce(x)))
    """
    body = textwrap.dedent(script).replace("VICTIM", str(victim))
    ranks = job(2, ALIKE.format(links=links) + body)
    pids = members(ranks)
    survivor = ranks[1 - victim]
    survivor.expect("ready")
    ranks[victim].say()
    ranks[victim].expect("stopped")
    os.kill(pids[victim], signal.SIGKILL)
    for what in ("failed", "next"):
        told = survivor.expect(what)
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [victim]


@pytest.mark.parametrize("links", ["socket", "grpc"])
def test_a_call_that_times_out_in_the_middle_leaves_the_link_fit_for_the_next(
    job: Job, links: str
) -> None:
    script = """
    x = np.ones(16 << 20, np.float32)
    ah.all_reduce(x)
    if ah.get_rank() == 1:
        hear()
        y = np.ones(16 << 20, np.float32)
        tell("late", **failure(lambda: ah.all_reduce(y, timeout=0.5)))
    else:
        y = np.ones(16 << 20, np.float32)
        tell("late", **failure(lambda: ah.all_reduce(y, timeout=0.5)))
        y[:] = 7.0  # it is this rank's own again
    ah.all_reduce(x)
    tell("right", value=float(x.min()), other=float(x.max()))
    ah.destroy_process_group()
    """
    ranks = job(2, ALIKE.format(links=links) + textwrap.dedent(script))
    members(ranks)
    assert ranks[0].expect("late")["error"] == "CollectiveTimeout"
    ranks[1].say()
    assert ranks[1].expect("late")["error"] == "CollectiveTimeout"
    for rank in ranks:
        told = rank.expect("right")
        assert (told["value"], told["other"]) == (4.0, 4.0)
        assert rank.ended() == 0
