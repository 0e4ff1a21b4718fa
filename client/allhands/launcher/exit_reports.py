"""Reports of exit statuses to the coordinator, by the parent of the ranks."""

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from allhands.errors import AllhandsError
from allhands.launcher.embedded import make_client_endpoint
from allhands.launcher.environment import JobEndpoint, ReportExit
from allhands_proto import notice, process

if TYPE_CHECKING:
    from allhands.coordinator.exit_report import ExitReportChannel

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
"""The other ranks are not ended before, so that they can say whose end they met."""


class ExitReporter:
    """Reports the ends of the processes of one launch."""

    def __init__(self, job_endpoint: JobEndpoint, report_directly: ReportExit | None) -> None:
        """Prepare reports to a coordinator in this process, or over a connection of their own."""
        if report_directly is None:
            # Now, and not when the first rank has ended. A launcher with the coordinator in it
            # needs no connection, which takes a twentieth of the CPU seconds of a launch.
            from allhands.coordinator import exit_report  # noqa: F401
        self._report_directly = report_directly
        self._endpoint = make_client_endpoint(job_endpoint)
        self._job = job_endpoint.job
        self._pid_namespace = process.get_pid_namespace()
        self._start_ticks: dict[int, str] = {}
        self._channel: ExitReportChannel | None = None
        self._lock = threading.Lock()

    def add_process(self, pid: int) -> None:
        """Register a process that was started."""
        self._start_ticks[pid] = notice.read_start_ticks(pid)

    async def report_exit(self, pid: int, status: int) -> None:
        """Report the end of a process; waits briefly for the answer and never fails."""
        born = self._start_ticks.pop(pid, "")
        if not (self._pid_namespace and born):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_SECONDS):
                if self._report_directly is None:
                    await asyncio.to_thread(self._send_report, pid, born, status)
                else:
                    namespace = self._pid_namespace
                    await self._report_directly(self._job, namespace, pid, born, status)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _send_report(self, pid: int, start_ticks: str, status: int) -> None:
        from allhands.coordinator.exit_report import ExitReport, ExitReportChannel

        report = ExitReport(self._job, self._pid_namespace, pid, start_ticks, status)
        try:
            with self._lock:
                if self._channel is None:
                    self._channel = ExitReportChannel(self._endpoint)
            self._channel.send(report, _REPORT_SECONDS)
        except (AllhandsError, OSError, ValueError) as error:
            # The job met elsewhere, or its coordinator is gone: then nobody wants to know.
            logger.debug("the end of process %d was not reported: %s", pid, error)
