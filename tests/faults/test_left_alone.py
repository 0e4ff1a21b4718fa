"""Outputs that an error calls untouched, of calls that a rank has made alone."""

import pytest

from programs import left_alone
from support.ranks.processes import Job


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("length", [5, 30_000, 300_000])
@pytest.mark.parametrize("size", [2, 3])
def test_outputs_that_are_said_to_be_untouched_are(
    job: Job, backend: str, size: int, length: int
) -> None:
    ranks = job(size, left_alone.time_out_of_every_kind, length)
    for rank in ranks:
        assert rank.expect("done")["wrong"] == []
    for rank in ranks:
        rank.say()
