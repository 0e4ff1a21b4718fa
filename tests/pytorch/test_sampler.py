"""Shares of a data set are those that PyTorch's sampler gives for the same permutation."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

import allhands as ah


@pytest.mark.parametrize("length", [0, 1, 2, 7, 12, 13])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_shares_are_as_in_pytorch(
    length: int, count: int, drop_last: bool, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def permute(length: int, generator: torch.Generator) -> torch.Tensor:
        seeds.append(generator.initial_seed())
        return torch.from_numpy(np.random.default_rng(seeds[-1]).permutation(length))

    monkeypatch.setattr(torch, "randperm", permute)
    data: Any = range(length)
    for rank in range(count):
        theirs = DistributedSampler(data, count, rank, shuffle, 5, drop_last)
        ours = ah.DistributedSampler(data, count, rank, shuffle, 5, drop_last)
        for epoch in (0, 3):
            theirs.set_epoch(epoch)
            ours.set_epoch(epoch)
            assert list(ours) == list(theirs)
            assert (len(ours), ours.total_size) == (len(theirs), theirs.total_size)
    assert {*seeds} == ({5, 8} if shuffle else set())
