"""Deadlines of blocks: the earliest of all counts."""

import asyncio
from datetime import timedelta

import numpy as np
import pytest

from allhands.deadlines import block_deadline, clip_timeout, deadline, format_timeout
from allhands.errors import CollectiveTimeout, StoreTimeout
from allhands.stores import HashStore
from allhands.testing.inproc_world import inproc_world, wait_outcomes, wait_results


def test_the_least_of_nested_blocks_counts_and_ends_with_its_block() -> None:
    assert clip_timeout(7.0) == 7.0
    with deadline(100):
        outer = block_deadline.get()
        with deadline(timedelta(seconds=50)):
            assert 49 < clip_timeout(70) <= 50
            with deadline(1000):
                assert 49 < clip_timeout(70) <= 50
            assert clip_timeout(3.0) == 3.0
        assert block_deadline.get() == outer
    assert block_deadline.get() is None


def test_timeouts_are_written_to_three_digits_or_the_second() -> None:
    given = (28.7584, 1.49988, 2.0, 0.25, 0.0012345, 99.96, 1234.4, 1_000_000.0)
    assert [format_timeout(one) for one in given] == [
        *("28.8 s", "1.5 s", "2 s", "0.25 s", "0.00123 s", "100 s", "1234 s", "1000000 s")
    ]


def test_a_block_that_raises_is_over_too() -> None:
    with pytest.raises(KeyError), deadline(1):
        raise KeyError
    assert block_deadline.get() is None


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_what_is_no_length_of_time_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError):
        deadline(wrong)


def test_one_deadline_may_be_entered_again_and_decorate() -> None:
    mine = deadline(50)
    with mine, mine:
        assert clip_timeout(70) <= 50

    @mine
    def left() -> float:
        return clip_timeout(70)

    assert 49 < left() <= 50
    assert block_deadline.get() is None


async def test_a_deadline_follows_the_tasks_of_its_block_and_no_others() -> None:
    @deadline(50)
    async def left() -> float:
        await asyncio.sleep(0)
        return clip_timeout(70)

    async def other() -> float:
        await asyncio.sleep(0)
        return clip_timeout(70)

    inside, outside = await asyncio.gather(left(), other())
    assert inside <= 50
    assert outside == 70
    with deadline(50):
        task = asyncio.create_task(other())
    assert await task <= 50


async def test_calls_end_at_the_deadline_of_a_block_around_them() -> None:
    async with inproc_world(2) as world:
        with deadline(0.05):
            [error] = await wait_outcomes([world.groups[0].barrier(timeout=5)])
            assert isinstance(error, CollectiveTimeout)
            [error] = await wait_outcomes([world.groups[0].recv(np.ones(1), 1)])
            assert isinstance(error, CollectiveTimeout)
        await wait_outcomes([world.groups[1].barrier(timeout=0.05)])
        await world.call_on_all(lambda group: group.barrier())


async def test_a_call_whose_time_is_over_uses_its_number_up_and_no_other() -> None:
    async with inproc_world(2) as world:
        first, second = world.groups
        x = np.ones(3)
        with deadline(0):
            work = first.all_reduce(x)
            message = first.send(x, 1)
        [error, unsent] = await wait_outcomes([work, message])
        assert isinstance(error, CollectiveTimeout)
        assert (error.op, error.seq) == ("all_reduce", 1)
        assert "timed out before it began" in str(error)
        assert isinstance(unsent, CollectiveTimeout)
        [given_up] = await wait_outcomes([second.all_reduce(np.ones(3), timeout=0.05)])
        assert isinstance(given_up, CollectiveTimeout)
        await wait_results([first.all_reduce(x), second.all_reduce(np.ones(3))])
        assert x.tolist() == [2.0] * 3


def test_a_store_asks_for_nothing_when_the_time_is_over() -> None:
    store = HashStore()
    store.set("key", "value")
    with deadline(0), pytest.raises(StoreTimeout, match="nothing was asked"):
        store.get("key")
    with deadline(0.01), pytest.raises(StoreTimeout, match="nobody set"):
        store.get("other")
