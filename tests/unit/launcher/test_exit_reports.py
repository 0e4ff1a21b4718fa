"""Reports of exit statuses by a launcher that has the coordinator in it."""

import os

from allhands.launcher.environment import JobEndpoint
from allhands.launcher.exit_reports import ExitReporter
from allhands_proto import notice, process


async def test_ends_are_reported_to_a_coordinator_of_this_process_without_a_connection() -> None:
    reports: list[tuple[object, ...]] = []

    async def report(*told: object) -> None:
        reports.append(told)

    nobody = JobEndpoint("127.0.0.1", 1, "job", "secret")  # a port where nobody listens
    reporter = ExitReporter(nobody, report)
    pid = os.getpid()
    reporter.add_process(pid)
    for status in (-9, 0):  # the second is of no process that was started
        await reporter.report_exit(pid, status)
    reporter.close()
    ticks = notice.read_start_ticks(pid)
    assert reports == [("job", process.get_pid_namespace(), pid, ticks, -9)]
