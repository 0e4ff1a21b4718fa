"""A coordinator without a port, for ranks on one loop, as in `allhands.testing`."""

from collections.abc import Callable

from allhands_server import embedded
from allhands_server.config import ServerConfig
from allhands_server.coordinator import Coordinator
from allhands_server.embedded import RunningCoordinator
from allhands_server.rpc.service import CoordinatorService

_FIRST_REQUEST_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"


class InprocCoordinator:
    """A coordinator with a gRPC service, for direct calls by tests."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._coordinator = Coordinator(clock)
        self.service = CoordinatorService(  # type: ignore[abstract]  # see its end
            self._coordinator, _FIRST_REQUEST_SECONDS, 0, b""
        )

    async def listen(self) -> RunningCoordinator:
        """Listen on a port of loopback too; the caller stops the result before `close`.

        Raises:
            OSError: there is no port to be had.
        """
        config = ServerConfig(host=_LOOPBACK, port=0, post_notice=False, kind="embedded")
        return await embedded.start(config, self._coordinator)

    def close(self) -> None:
        """Refuse all pending requests and end all sessions. Idempotent."""
        self._coordinator.close()
