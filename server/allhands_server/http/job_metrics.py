"""Metrics of single jobs: a series for each job and metric."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.measurements import JobMeasurement

_Family: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]


@dataclass(frozen=True, slots=True)
class _JobMetric:
    name: str
    text: str
    read: Callable[[JobMeasurement], float | None]
    """Return the value; None: the job has none."""
    family: _Family = GaugeMetricFamily


_METRICS = (
    _JobMetric("epoch", "Version of the membership.", lambda job: job.epoch),
    _JobMetric("world_size", "Agreed number of ranks; 0: not yet.", lambda job: job.world_size),
    _JobMetric("members", "Members that are present.", lambda job: job.members),
    _JobMetric("newcomers", "Workers that wait to be taken in.", lambda job: job.newcomers),
    _JobMetric(
        "silent_members",
        "Members that are silent though they live: stalled, paused or unreachable.",
        lambda job: job.silent_members,
    ),
    _JobMetric("groups", "Open groups.", lambda job: job.groups),
    _JobMetric("keys", "Keys.", lambda job: job.keys),
    _JobMetric(
        "memory_bytes",
        "Bytes counted of keys, queues, leases and waiting calls.",
        lambda job: job.nbytes,
    ),
    _JobMetric("leases", "Leases.", lambda job: job.leases),
    _JobMetric("watches", "Watches.", lambda job: job.watches),
    _JobMetric(
        "waiting_calls", "Calls that wait at the coordinator.", lambda job: job.waiting_calls
    ),
    _JobMetric(
        "operations",
        "Collectives and messages that ended well, counted on each of their ranks; as of the "
        "last heartbeats.",
        lambda job: job.operations,
        CounterMetricFamily,
    ),
    _JobMetric(
        "operations_bytes",
        "Bytes of the arrays of collectives and messages that ended well, counted likewise.",
        lambda job: job.operations_nbytes,
        CounterMetricFamily,
    ),
    _JobMetric(
        "operations_seconds",
        "Seconds in collectives and messages that ended well, counted likewise.",
        lambda job: job.operations_seconds,
        CounterMetricFamily,
    ),
    _JobMetric(
        "members_in_operations",
        "Members that were in an operation at their last heartbeat.",
        lambda job: job.members_in_operations,
    ),
    _JobMetric(
        "longest_operation_seconds",
        "For how long a member has been in its operation, the longest of all.",
        lambda job: job.longest_operation,
    ),
    _JobMetric(
        "oldest_heartbeat_seconds",
        "Since the last sign of life of the member that is silent for longest.",
        lambda job: job.oldest_heartbeat,
    ),
    _JobMetric(
        "arrival_skew_median_seconds",
        "From the first rank's start of a call to the last one's, median of the latest calls.",
        lambda job: None if job.skew is None else job.skew[0],
    ),
    _JobMetric(
        "arrival_skew_max_seconds",
        "The same, the maximum of the latest calls.",
        lambda job: None if job.skew is None else job.skew[1],
    ),
)


def list_job_metrics(jobs: Sequence[JobMeasurement]) -> Iterator[Metric]:
    """Return the metrics of jobs, each with a series for each job that has a value."""
    for metric in _METRICS:
        made = metric.family(f"allhands_job_{metric.name}", metric.text, labels=["job"])
        for job in jobs:
            if (value := metric.read(job)) is not None:
                made.add_metric([job.job], float(value))
        yield made
