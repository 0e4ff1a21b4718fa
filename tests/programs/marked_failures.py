"""Tests on thread ranks with a failure or a skip on one rank.

`test_pytest_plugin` runs this file; pytest does not collect it by this name.
"""

import pytest

import allhands as ah


@pytest.mark.ranks(3)
def test_fails(rank):
    assert rank != 1, "not here"
    ah.barrier()


@pytest.mark.ranks(3)
def test_skips(rank):
    if rank == 2:
        pytest.skip("not today")
    ah.barrier()


@pytest.mark.ranks(2)
def test_is_alone(rank):
    if rank == 1:
        ah.barrier()
