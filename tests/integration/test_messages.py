"""Messages between ranks: in order and whole, on every route."""

import pytest

from programs import messages
from support.ranks.processes import Job, Process

ROUTES = pytest.mark.parametrize("backend", ["auto", "socket"])
"""Shared memory and links."""


def finished(ranks: list[Process]) -> None:
    said = [rank.expect("done") for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    assert [one["faults"] for one in said] == [[]] * len(said)


@ROUTES
@pytest.mark.parametrize("size", [2, 3])
def test_messages_arrive_whole_around_every_limit(job: Job, size: int) -> None:
    limits = [24, 64, 16 << 10, 64 << 10, 256 << 10, 5 << 20, 9_000_000]
    finished(job(size, messages.exchange_around_limits, limits))


@pytest.mark.parametrize(
    ("attach_min", "large"), [(None, "attach"), ("1048576", "attach"), ("-1", "pieces")]
)
def test_a_message_says_how_it_went(job: Job, attach_min: str | None, large: str) -> None:
    length, middle = (1 << 18, "pieces") if attach_min is None else (2 << 20, large)
    chosen = {} if attach_min is None else {"ALLHANDS_ARENA_ATTACH_MIN": attach_min}
    finished(job(2, messages.explain_messages, length, middle, large, **chosen))


@ROUTES
def test_tags_are_received_in_any_order(job: Job) -> None:
    finished(job(3, messages.receive_tags_in_any_order))


@ROUTES
def test_thousands_of_messages_of_several_threads_arrive_in_order(job: Job) -> None:
    finished(job(2, messages.exchange_from_threads))


@ROUTES
def test_whoever_sends_is_received_in_the_order_it_sent(job: Job) -> None:
    finished(job(4, messages.receive_from_any_rank))


@ROUTES
def test_more_may_be_sent_than_is_received_for_a_while(job: Job) -> None:
    finished(job(2, messages.send_ahead))


@ROUTES
def test_a_rank_that_computes_takes_in_more_than_fits_on_the_way(job: Job) -> None:
    finished(job(2, messages.send_to_a_busy_rank))


@ROUTES
def test_any_array_and_any_type_travels(job: Job) -> None:
    finished(job(2, messages.send_any_dtype))


@ROUTES
def test_groups_of_other_ranks_and_orders_have_messages_of_their_own(job: Job) -> None:
    finished(job(3, messages.exchange_in_groups))


@ROUTES
@pytest.mark.parametrize("first", ["message", "collective"])
def test_messages_and_collectives_find_their_way_at_once(job: Job, first: str) -> None:
    finished(job(2, messages.mix_with_collectives, first == "collective"))


@ROUTES
def test_asyncio_and_callbacks_hear_of_messages_that_nobody_waits_for(job: Job) -> None:
    finished(job(2, messages.exchange_with_asyncio))


@ROUTES
def test_what_was_sent_before_its_sender_left_is_received(job: Job) -> None:
    finished(job(2, messages.send_and_leave))


@ROUTES
def test_a_forked_child_sends_and_receives_nothing(job: Job) -> None:
    finished(job(2, messages.fork_a_child))
