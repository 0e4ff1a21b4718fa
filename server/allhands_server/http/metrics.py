"""Metrics of a coordinator for Prometheus: read from its machine at each scrape.

Base units, no label of ranks, and a bounded number of series: labels are of closed sets but for
`job`, of which there are at most MOST_JOBS in a scrape. See docs/metrics.md.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from allhands_proto.verdicts import State
from allhands_server.access import Access, RefusalReason
from allhands_server.coordinator import Coordinator
from allhands_server.http.job_metrics import list_job_metrics
from allhands_server.log.append_times import BUCKETS, AppendTimes
from allhands_server.machine.measurements import Measurements
from allhands_server.machine.values import EventKind

_STATES = ("empty", "forming", "running", "degraded", "ended")


class Snapshot(Collector):
    """All metrics of one moment; made on the loop, and written out on a thread."""

    def __init__(self, coordinator: Coordinator, access: Access, engine: str) -> None:
        """Read a coordinator; `engine` names that of its log, `memory` where there is none."""
        self._families = list(_list_metrics(coordinator, access, engine))

    def collect(self) -> Iterable[Metric]:
        return self._families


def encode(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """Return a scrape and its content type: OpenMetrics where the header asks for it."""
    registry = CollectorRegistry()
    registry.register(snapshot)
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def _list_metrics(coordinator: Coordinator, access: Access, engine: str) -> Iterator[Metric]:
    measured = coordinator.measure()
    build = {"version": metadata.version("allhands"), "python": platform.python_version()}
    yield InfoMetricFamily("allhands_build", "Versions of the daemon.", build)
    yield from _list_leadership(coordinator)
    yield _count_by(
        GaugeMetricFamily,
        "allhands_jobs",
        "Jobs, by state.",
        "state",
        dict.fromkeys(_STATES, 0) | dict(measured.job_states),
    )
    yield from list_job_metrics(measured.jobs)
    yield _gauge("allhands_sessions", "Open sessions of members.", measured.sessions)
    yield _gauge("allhands_tokens", "Tokens for jobs.", measured.tokens)
    yield from _list_counters(coordinator, access, measured)
    parts = {
        "state": measured.nbytes,
        "histories": measured.histories_nbytes,
        "answers": measured.answers_nbytes,
        "events": measured.events_nbytes,
    }
    text = "Bytes counted of all jobs, by part."
    yield _count_by(GaugeMetricFamily, "allhands_memory_bytes", text, "part", parts)
    text = "Bytes that the parts of the memory of all jobs may have; 0: not limited."
    yield _gauge("allhands_memory_limit_bytes", text, coordinator.limits.memory)
    yield from _list_log_metrics(coordinator, engine)


def _list_counters(
    coordinator: Coordinator, access: Access, measured: Measurements
) -> Iterator[Metric]:
    """Yield counters by one label; where its values are known before, all are there from 0 on."""
    states, kinds, reasons = map(_list_zeros, (State, EventKind, RefusalReason))
    statuses = {status.value: count for status, count in coordinator.refusals.items()}
    for name, text, label, counts in (
        ("requests", "Requests that were taken, by kind.", "kind", measured.requests),
        ("events", "Events of jobs, by kind.", "kind", kinds | measured.events),
        ("lost_members", "Lost members, by cause.", "state", states | measured.lost),
        ("absent_ranks", "Ranks absent from calls by verdict.", "state", states | measured.absent),
        ("refused_callers", "Refused callers, by reason.", "reason", reasons | {**access.refused}),
        ("refused_requests", "Requests that were refused, by status.", "status", statuses),
    ):
        yield _count_by(CounterMetricFamily, f"allhands_{name}", text, label, counts)


def _list_zeros(choices: Any) -> dict[str, int]:
    return dict.fromkeys(get_args(choices), 0)


def _list_leadership(coordinator: Coordinator) -> Iterator[Metric]:
    text = "Whether this daemon leads; alone it does."
    yield _gauge("allhands_leader", text, coordinator.leads)
    text = "Whether the daemon is ready, as /readyz says."
    yield _gauge("allhands_ready", text, not coordinator.find_obstacle())
    status = coordinator.leadership
    text = "Term of the leader among several daemons; 0: there is one."
    yield _gauge("allhands_leader_term", text, 0 if status is None else status.term)


def _list_log_metrics(coordinator: Coordinator, engine: str) -> Iterator[Metric]:
    yield InfoMetricFamily("allhands_log", "Engine of the log.", {"engine": engine})
    if (journal := coordinator.journal) is None:
        return
    yield _gauge("allhands_log_size_bytes", "Size of the log, about.", journal.nbytes)
    text = "Commits that wait for the next append."
    yield _gauge("allhands_log_pending_commits", text, journal.pending)
    text = "Bytes appended to the log."
    yield CounterMetricFamily("allhands_log_appended_bytes", text, journal.times.nbytes)
    yield _make_histogram(journal.times)


def _make_histogram(times: AppendTimes) -> Metric:
    text = "Seconds until an append was durable: an fsync, or a write to etcd."
    ends = [*map(str, BUCKETS), "+Inf"]
    total, cumulative = 0, []
    for end, count in zip(ends, times.buckets, strict=True):
        total += count
        cumulative.append((end, float(total)))
    return HistogramMetricFamily(
        "allhands_log_append_duration_seconds", text, cumulative, times.seconds
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, float(value))


def _count_by(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    counts: Mapping[str, int],
) -> Metric:
    made = family(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        made.add_metric([value], float(count))
    return made
