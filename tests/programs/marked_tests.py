"""Tests on thread ranks: joining, options, fixtures.

`test_pytest_plugin` runs this file; pytest does not collect it by this name.
"""

import threading

import numpy as np
import pytest

import allhands as ah


@pytest.fixture
def seen():
    return {}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("factor", [1, 3])
def test_sum(rank, seen, factor):
    x = np.array([rank * factor])
    ah.all_reduce(x)
    assert x[0] == 6 * factor
    assert (ah.get_rank(), ah.get_world_size()) == (rank, 4)
    seen[rank] = threading.current_thread()
    ah.barrier()
    assert sorted(seen) == [0, 1, 2, 3]
    assert len(set(seen.values())) == 4


@pytest.mark.ranks(2, init=False)
def test_joins_by_itself():
    assert not ah.is_initialized()
    ah.init_process_group(backend="threads", timeout=5)
    assert ah.default_group().timeout == 5


@pytest.mark.ranks(3, timeout=7)
class TestAll:
    def test_options_are_those_of_joining(self):
        assert ah.default_group().timeout == 7


def test_others_are_left_alone():
    assert not ah.is_initialized()
    assert threading.current_thread() is threading.main_thread()
