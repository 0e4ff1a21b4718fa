"""DistributedSampler: shares of equal length that cover a data set."""

from itertools import chain

import pytest

import allhands as ah
from allhands.testing import on_threads


@pytest.mark.parametrize("length", [0, 1, 3, 8, 10])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_are_equally_long_and_cover_the_data_set(
    length: int, count: int, drop_last: bool
) -> None:
    data = range(length)
    samplers = [
        ah.DistributedSampler(data, count, rank, seed=3, drop_last=drop_last)
        for rank in range(count)
    ]
    shares = [list(one) for one in samplers]
    assert {len(share) for share in shares} == {len(samplers[0])}
    taken = sorted(chain(*shares))
    if drop_last:
        assert len({*taken}) == len(taken) == length // count * count
    else:
        assert {*taken} == {*data}
        assert len(taken) - length < count
    assert all(type(at) is int for at in taken)


def test_each_epoch_and_seed_has_an_order_of_its_own() -> None:
    sampler = ah.DistributedSampler(range(50), 1, 0, seed=1)
    first = list(sampler)
    assert first == list(sampler) != list(range(50))
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(sampler) == list(ah.DistributedSampler(range(50), 1, 0, seed=2))


def test_without_shuffling_shares_are_every_so_many() -> None:
    sampler = ah.DistributedSampler(range(5), 2, 1, shuffle=False)
    assert list(sampler) == [1, 3, 0]
    assert (sampler.num_samples, sampler.total_size, len(sampler)) == (3, 6, 3)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_share_that_does_not_exist_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=r"rank must be from 0 to num_replicas - 1, 1, not"):
        ah.DistributedSampler(range(5), 2, rank)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must not be negative"):
        ah.DistributedSampler(range(5), 2, 0, seed=-1)


def test_without_a_world_the_share_has_to_be_given() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        ah.DistributedSampler(range(5))


@on_threads(2)
def test_share_is_that_of_the_rank_in_the_world(rank: int) -> None:
    assert list(ah.DistributedSampler(range(4), shuffle=False)) == [rank, rank + 2]
