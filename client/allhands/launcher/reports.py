"""Tell the coordinator how ranks ended: nobody else learns the exit status of a process."""

import asyncio
import contextlib
import logging
import threading

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.errors import AllhandsError
from allhands.launcher.environment import Rendezvous
from allhands_proto import notice, process

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
"""The other ranks are not ended before, so that they can say whose end they met."""


class Reports:
    """What the coordinator is told about the ends of the processes of one launch."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        address = Address(rendezvous.host, rendezvous.port, rendezvous.job)
        self._endpoint = Endpoint(
            address, rendezvous.token, rendezvous.tls_ca, rendezvous.insecure, rendezvous.tls_name
        )
        self._job = rendezvous.job
        self._space = process.space()
        self._born: dict[int, str] = {}
        self._control: Control | None = None
        self._lock = threading.Lock()

    def begun(self, pid: int) -> None:
        """Learn of a process that was started."""
        self._born[pid] = notice.born(pid)

    async def ended(self, pid: int, status: int) -> None:
        """Tell how one ended; waits for the answer, but not for long, and never fails."""
        born = self._born.pop(pid, "")
        if not (self._space and born):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_SECONDS):
                await asyncio.to_thread(self._tell, pid, born, status)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()

    def _tell(self, pid: int, born: str, status: int) -> None:
        with self._lock:
            if self._control is None:
                self._control = Control(self._endpoint, job=self._job, timeout=_REPORT_SECONDS)
        try:
            self._control.report_exit(self._space, pid, born, status)
        except (AllhandsError, OSError, ValueError) as error:
            # The job met elsewhere, or its coordinator is gone: then nobody wants to know.
            logger.debug("the end of process %d was not reported: %s", pid, error)
