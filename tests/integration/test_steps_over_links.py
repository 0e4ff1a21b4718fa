"""Composite calls over links, step by step on their callers' threads, between real processes."""

import signal

import pytest

from programs import steps_over_links
from support.ranks.processes import Job


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("backend", "size", "handed", "hosts"),
    [
        ("socket", 1, 0.0, ""),
        ("socket", 2, 0.0, ""),
        ("socket", 2, 0.2, ""),
        ("socket", 3, 0.2, ""),
        ("auto", 4, 0.2, "aabb"),
        ("auto", 4, 0.2, "abab"),
    ],
)
def test_calls_are_right_wherever_their_steps_go_on(
    job: Job, size: int, handed: float, hosts: str
) -> None:
    for rank in job(size, steps_over_links.call_all_kinds, 80, handed, hosts):
        told = rank.expect("done")
        assert told["wrong"] == []
        assert told["ended"] == 560
        assert told["first"] + told["later"] < (560 if size > 1 else 561)
        assert told["not_begun"] == 0
        assert told["later"] > (2 if handed and size > 1 else -1)
        assert rank.ended() == 0, "".join(rank.errors)


def test_a_rank_killed_between_two_steps_is_named(job: Job) -> None:
    ranks = job(3, steps_over_links.be_held_up_between_steps, 20)
    ranks[1].expect("between")
    ranks[1].child.send_signal(signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("PeerFailed", [1]), told


def test_a_rank_late_for_a_step_is_named_and_the_next_call_is_right(job: Job) -> None:
    ranks = job(3, steps_over_links.be_held_up_between_steps, 1.5, True)
    ranks[1].expect("between")
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("CollectiveTimeout", [1]), told
        assert told["op"] == "all_gather_v"
    ranks[1].say()
    # What the others sent before they gave up may be all that it needs.
    assert ranks[1].expect("ended")["error"] in (None, "CollectiveTimeout", "GroupAborted")
    for rank in ranks:
        assert rank.expect("lengths")["lengths"] == [0, 1, 2]
        assert rank.ended() == 0


@pytest.mark.parametrize("runs_here", [True, False])
def test_who_cannot_read_an_object_fails_alone_and_the_next_call_is_right(
    job: Job, runs_here: bool
) -> None:
    for at, rank in enumerate(job(3, steps_over_links.receive_unknown_objects, runs_here)):
        told = rank.expect("done")
        assert told["error"] == ("ValueError" if at else None), told
        assert told["sum"] == 3
        assert rank.ended() == 0, "".join(rank.errors)
