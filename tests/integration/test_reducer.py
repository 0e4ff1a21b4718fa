"""Reducers of real processes: buckets in shared memory, and over links."""

import pytest

from programs.reducers import average_in_buckets
from support.ranks.processes import BACKENDS, Job


@pytest.mark.parametrize("backend", BACKENDS)
def test_processes_average_gradients_in_buckets(job: Job, backend: str):
    for rank in job(3, average_in_buckets):
        told = rank.expect("done")
        assert told["averages"] == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]
        assert told["int8"] == pytest.approx(2, rel=1e-2)
        assert rank.ended() == 0
