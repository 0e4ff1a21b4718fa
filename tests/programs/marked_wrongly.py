"""Wrong uses of the pytest plugin: an unmarked test, a coroutine.

`test_pytest_plugin` runs this file; pytest does not collect it by this name.
"""

import pytest


def test_unmarked(rank):
    pass


@pytest.mark.ranks(2)
async def test_coroutine():
    pass
