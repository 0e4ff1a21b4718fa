"""Wrong uses of the pytest plugin: an unmarked test, a coroutine. Not collected under this name."""

import pytest


def test_unmarked(rank):
    pass


@pytest.mark.ranks(2)
async def test_coroutine():
    pass
