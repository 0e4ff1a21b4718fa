"""World of three ranks within one loop, for tests of the engine."""

from collections.abc import AsyncIterator

import pytest

from allhands.testing.inproc_world import InprocWorld, inproc_world


@pytest.fixture
async def three() -> AsyncIterator[InprocWorld]:
    async with inproc_world(3) as world:
        yield world
