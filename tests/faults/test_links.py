"""Faults of the links between ranks, over raw sockets and over gRPC."""

import os
import signal

import pytest

from programs import broken_links
from support.ranks.processes import Job, Process


def members(ranks: list[Process]) -> list[int]:
    return [rank.expect("here")["pid"] for rank in ranks]


@pytest.mark.parametrize("links", ["socket", "grpc"])
@pytest.mark.parametrize("victim", [0, 1])
def test_who_is_killed_in_the_middle_of_a_message_is_named_at_its_other_end(
    job: Job, links: str, victim: int
) -> None:
    ranks = job(2, broken_links.stop_within_a_message, links, victim)
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
    ranks = job(2, broken_links.time_out_within_a_call, links)
    members(ranks)
    assert ranks[0].expect("late")["error"] == "CollectiveTimeout"
    ranks[1].say()
    assert ranks[1].expect("late")["error"] == "CollectiveTimeout"
    for rank in ranks:
        told = rank.expect("right")
        assert (told["value"], told["other"]) == (4.0, 4.0)
        assert rank.ended() == 0
