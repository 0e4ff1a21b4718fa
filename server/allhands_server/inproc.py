"""A coordinator without a port: for ranks within one loop, as `allhands.testing` has them."""

from collections.abc import Callable

from allhands_server.coordinator import Coordinator
from allhands_server.servicers import CoordinatorService

_FIRST_REQUEST_SECONDS = 10.0


class InprocCoordinator:
    """The coordinator and its gRPC face; who calls its methods stands for gRPC."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._coordinator = Coordinator(clock)
        self.service = CoordinatorService(self._coordinator, _FIRST_REQUEST_SECONDS, 0, b"")

    def close(self) -> None:
        """Refuse whoever still waits, end all sessions. Idempotent."""
        self._coordinator.close()
