"""The default world of a process that pretends to be one rank of many."""

from allhands.api.world import World
from allhands.config import WorldConfig
from allhands.coordinator.endpoint import Endpoint
from allhands.membership.fake.world import FakeThread, FakeWorker


class FakeWorld(World):
    """A world in which only this rank exists."""

    @classmethod
    def join(cls, config: WorldConfig) -> "FakeWorld":
        """Be in the world at once.

        Raises:
            ValueError: it is to go on after failures, which it cannot have.
        """
        if config.on_failure != "raise" or config.retryable:
            raise ValueError("a fake world loses no rank: on_failure and retryable are not for it")
        thread = FakeThread("allhands fake")
        return cls(thread, thread.run(FakeWorker.start(config)))

    @property
    def endpoint(self) -> Endpoint:
        raise RuntimeError("a fake world has no coordinator: for keys there is ah.HashStore()")
