"""Coalesced calls over links, on the thread that leaves the block."""

import pytest

from allhands.runtime import native_core
from programs import coalesced_over_links
from support.ranks.processes import Job

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")

ROUNDS = 60


@pytest.mark.parametrize("size", [2, 3])
def test_a_block_of_like_calls_is_one_call_on_its_own_thread(job: Job, size: int) -> None:
    ranks = job(size, coalesced_over_links.coalesce, ROUNDS)
    for rank in ranks:
        told = rank.expect("blocks")
        assert told["wrong"] == []
        assert told["queued"] < ROUNDS / 2, told
        assert "over links" in told["explained"]
    for rank in ranks:
        told = rank.expect("unlike")
        assert (told["error"], told["kept"]) == ("CollectiveMismatch", True), told
        assert "float64[4]" in told["text"]
        assert rank.ended() == 0, "".join(rank.errors)
