"""A few cycles of chaos; see chaos.py, which runs any number."""

import pytest

from faults import chaos
from support.ranks.processes import Cluster


@pytest.mark.parametrize(
    ("backend", "seed"), [("auto", 1), pytest.param("socket", 2, marks=pytest.mark.nightly)]
)
def test_a_job_outlives_kills_stops_and_cuts_without_a_wrong_number(
    cluster: Cluster, backend: str, seed: int
) -> None:
    found = chaos.run(cluster, seed, 10, backend)
    assert found["expelled"] > 0
    assert found["cycles"].get("kill", 0) > 0
    assert found["cycles"].get("join", 0) > 0
