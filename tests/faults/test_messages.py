"""Messages, over shared memory and links, with a late, unlike, killed or aborting peer."""

import os
import signal

import pytest

from programs import broken_messages
from support.ranks.processes import Job, Process

ROUTES = pytest.mark.parametrize("backend", ["auto", "socket"])
"""Shared memory and links."""

WAYS = [("plain", 8), ("plain", 1_300_000), ("plain", 6 << 20), ("shared", 1_300_000)]
"""Of an array, so that its message goes eagerly, in pieces, by attach, and direct."""

SURE_WAYS = pytest.mark.parametrize(
    ("backend", "kind", "length"),
    [*(("auto", *way) for way in WAYS), ("socket", "plain", 8), ("socket", "plain", 6 << 20)],
)
"""Likewise, but none that goes unasked or not, as the links are: over them from 1 to 4 MiB."""


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@SURE_WAYS
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_message_that_nobody_takes_or_sends_times_out_by_name_and_the_next_is_right(
    job: Job, kind: str, length: int, asynchronous: bool
) -> None:
    ranks = job(2, broken_messages.give_up_a_late_message, asynchronous, kind, length)
    for at, rank in enumerate(ranks):
        told = rank.expect("recv")
        assert told["error"] == "CollectiveTimeout", told
        assert told["ranks"] == [1 - at]
        assert told["label"] == "mine"
        assert f"recv from rank {1 - at} (tag 4) timed out after 0.05 s" in told["text"]
    if length > 8:
        told = ranks[0].expect("send")
        assert told["error"] == "CollectiveTimeout", told
        assert told["ranks"] == [1]
        assert "send to rank 1 (tag 0) timed out after 0.05 s" in told["text"]
    for rank in ranks:
        assert rank.expect("next")["right"]
    finished(ranks)


@SURE_WAYS
def test_an_unlike_message_is_refused_on_both_sides_and_touches_nothing(
    job: Job, kind: str, length: int
) -> None:
    ranks = job(2, broken_messages.exchange_unlike_messages, length, kind)
    for expected in (f"message(uint8[{length + 8}])", f"message(int64[{length // 8}])"):
        told = ranks[1].expect("refused")
        assert told["kept"]
        assert told["table"] == {"0": f"message(uint8[{length}])", "1": expected}
        if length == 8:
            ranks[0].expect("ended")  # it had gone before anybody looked
        else:
            told = ranks[0].expect("refused")
            assert told["table"] == {"0": f"message(uint8[{length}])", "1": expected}
        for rank in ranks:
            assert rank.expect("next")["right"]
    finished(ranks)


@ROUTES
@pytest.mark.parametrize("call", ["send", "recv"])
@pytest.mark.parametrize(("kind", "length"), WAYS)
def test_a_peer_killed_while_messages_are_under_way_is_named(
    job: Job, kind: str, length: int, call: str
) -> None:
    ranks = job(2, broken_messages.exchange_forever, kind, length, call)
    for rank in ranks:
        rank.expect("running")
    os.kill(ranks[1].child.pid, signal.SIGKILL)
    for what in ("failed", "next"):
        told = ranks[0].expect(what)
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]
        assert f"pid {ranks[1].child.pid}" in told["text"]
    finished(ranks[:1])


@ROUTES
@pytest.mark.parametrize(("kind", "length"), WAYS)
def test_a_cancelled_message_is_not_received_and_takes_nothing(
    job: Job, kind: str, length: int
) -> None:
    ranks = job(2, broken_messages.cancel_a_message, kind, length)
    for rank in ranks if length > 8 else ranks[:1]:
        told = rank.expect("cancelled")
        assert told["error"] == "AllhandsError", told
        assert "was cancelled by this rank" in told["text"]
        assert told["intact"] is (True if rank is ranks[0] else None), told
    for rank in ranks:
        assert rank.expect("done")["right"]
    finished(ranks)


@ROUTES
@pytest.mark.parametrize(("kind", "length"), [way for way in WAYS if way[1] > 8])
def test_a_message_that_both_give_up_says_whether_some_of_it_has_come(
    job: Job, kind: str, length: int
) -> None:
    ranks = job(2, broken_messages.cancel_on_both_sides, kind, length)
    for rank in ranks:
        assert rank.expect("done")["right"]
    finished(ranks)


@ROUTES
@pytest.mark.parametrize("call", ["send", "recv", "irecv"])
def test_ctrl_c_ends_a_message_at_once_and_the_next_is_right(job: Job, call: str) -> None:
    ranks = job(2, broken_messages.interrupt_a_message, call)
    ranks[0].expect("waiting")
    ranks[0].child.send_signal(signal.SIGINT)
    ranks[0].expect("interrupted")
    for rank in ranks:
        rank.expect("done")
    finished(ranks)


@pytest.mark.parametrize("backend", ["socket"])  # shared memory starts and waits in one
@pytest.mark.parametrize("call", ["send", "recv"])
def test_ctrl_c_between_the_start_of_a_message_and_its_wait_ends_it(job: Job, call: str) -> None:
    ranks = job(2, broken_messages.interrupt_a_message_once_started, call)
    ranks[0].expect("interrupted")
    for rank in ranks:
        rank.expect("done")
    finished(ranks)


def test_a_group_that_not_all_have_made_is_waited_for_by_name(job: Job) -> None:
    ranks = job(2, broken_messages.message_in_an_unfinished_group)
    told = ranks[0].expect("early")
    assert told["error"] == "CollectiveTimeout", told
    assert told["ranks"] == [1]
    ranks[0].expect("sent")
    ranks[1].say()
    assert ranks[1].expect("got")["x"] == [5.0] * 3
    finished(ranks)


@ROUTES
def test_a_destroyed_group_refuses_messages_and_ends_those_under_way(job: Job) -> None:
    ranks = job(2, broken_messages.message_in_a_destroyed_group)
    for rank in ranks:
        for _ in range(3):
            told = rank.expect("refused")
            assert told["error"] == "AllhandsError", told
            assert "destroyed" in told["text"]
    finished(ranks)
