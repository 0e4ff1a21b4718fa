"""A coordinator without a port: for ranks within one loop, as `allhands.testing` has them."""

from collections.abc import Callable

from allhands_server import embedded
from allhands_server.config import ServerConfig
from allhands_server.coordinator import Coordinator
from allhands_server.embedded import RunningCoordinator
from allhands_server.rpc.service import CoordinatorService

_FIRST_REQUEST_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"


class InprocCoordinator:
    """The coordinator and its gRPC face; who calls its methods stands for gRPC."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._coordinator = Coordinator(clock)
        self.service = CoordinatorService(self._coordinator, _FIRST_REQUEST_SECONDS, 0, b"")

    async def listen(self) -> RunningCoordinator:
        """Let clients in at a port of loopback as well; who asked stops that, before `close`.

        Raises:
            OSError: there is no port to be had.
        """
        config = ServerConfig(host=_LOOPBACK, port=0, post_notice=False, kind="embedded")
        return await embedded.start(config, self._coordinator)

    def close(self) -> None:
        """Refuse whoever still waits, end all sessions. Idempotent."""
        self._coordinator.close()
