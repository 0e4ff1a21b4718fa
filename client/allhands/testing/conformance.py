"""Test suites for implementations of `Store` and `Link`.

They need pytest. Subclass a suite in a test module, under a name that begins with `Test`:

    from allhands.testing.conformance import StoreSuite

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store(self):
            return MyStore(timeout=60)

The store must be empty for each test, and its timeout a minute: one that wakes nobody, but looks
again when the time is over, would otherwise go unnoticed.

    from allhands.testing.conformance import LinkSuite

    class TestMyLinks(LinkSuite):
        @asynccontextmanager
        async def fabrics(self, receivers):
            made = [MyFabric(rank, receiver) for rank, receiver in enumerate(receivers)]
            yield made
            for fabric in made:
                await fabric.aclose()

One fabric is wanted for each receiver, by rank, all of one world, on the loop that runs. What the
methods must do the docstrings of `Store`, `Link`, `Fabric` and `Receiver` say.
"""

from allhands.stores.contract import Store
from allhands.testing.link_suite import LinkSuite
from allhands.testing.store_suite import StoreSuite
from allhands.transport.frame import Frame, FrameError, whole
from allhands.transport.link import (
    Fabric,
    Gathering,
    Link,
    LinkBroken,
    Receiver,
    Sink,
    Unreachable,
)

__all__ = [
    "Fabric",
    "Frame",
    "FrameError",
    "Gathering",
    "Link",
    "LinkBroken",
    "LinkSuite",
    "Receiver",
    "Sink",
    "Store",
    "StoreSuite",
    "Unreachable",
    "whole",
]
