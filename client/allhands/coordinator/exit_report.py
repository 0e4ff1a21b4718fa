"""Reports of ended processes to a coordinator, by their parent.

Apart from `client`, which launchers, of which every job has one, would load for this call alone: in
34 ms, where all else that a launcher loads takes 230.
"""

from functools import partial

import grpc

from allhands.coordinator.blocking_channel import open_channel
from allhands.coordinator.endpoint import Endpoint, configure_channel
from allhands.coordinator.status_errors import translate_error
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1.coordinator_pb2_grpc import CoordinatorStub


@dataclass(frozen=True, slots=True)
class ExitReport:
    """The end of a process; see `Control.report_exit`."""

    job: str
    pid_namespace: str
    pid: int
    start_ticks: str
    status: int


class ExitReportChannel:
    """A connection to a coordinator for these reports; for any thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Prepare the connection, which is made with the first report.

        Raises:
            OSError, ValueError: as `configure_channel`.
        """
        self._config = configure_channel(endpoint)
        self._channel = open_channel(self._config)
        report = CoordinatorStub(self._channel).ReportExit
        # A channel to several daemons waits for one that answers anyway.
        self._report_exit = report if self._config.others else partial(report, wait_for_ready=True)

    def send(self, report: ExitReport, timeout: float) -> bool:
        """Report the end of a process; return whether it was a member of the job.

        A coordinator that cannot be reached is waited for; `timeout` is in seconds.

        Raises:
            AllhandsError: it did not answer, or knows no such job.
            ValueError: the connection is closed.
        """
        request = wire.ReportExitRequest(
            job=report.job,
            pid_namespace=report.pid_namespace,
            pid=report.pid,
            start_ticks=report.start_ticks,
            status=report.status,
        )
        try:
            return self._report_exit(request, timeout=timeout, metadata=self._config.metadata).known
        except grpc.RpcError as error:
            action = f"report the end of process {report.pid} of job {report.job!r}"
            raise translate_error(error, action, target=self._config.target) from error

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._channel.close()
