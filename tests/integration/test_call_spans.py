"""Spans of OpenTelemetry for calls, by its SDK."""

import sys

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import allhands as ah
from allhands import config
from allhands.testing import run_threads


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What is exported by a program that samples all."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return made


def of_rank(exporter: InMemorySpanExporter, rank: int) -> list[ReadableSpan]:
    found = exporter.get_finished_spans()
    return [one for one in found if (one.attributes or {}).get("allhands.rank") == rank]


def test_each_call_has_a_span_below_the_callers(exporter: InMemorySpanExporter) -> None:
    def act() -> None:
        with ah.hooks.trace_calls(), trace.get_tracer("program").start_as_current_span("step"):
            ah.all_reduce(np.ones(4), label="gradient")
            work = ah.broadcast(np.ones(4, np.float32), 1, async_op=True)
            assert work is not None
            work.wait()
        ah.barrier()

    run_threads(2)(act)
    steps = {one.context.span_id for one in exporter.get_finished_spans() if one.name == "step"}
    for rank in range(2):
        spans = of_rank(exporter, rank)
        assert [one.name for one in spans] == ["allhands.all_reduce", "allhands.broadcast"]
        assert {one.parent.span_id for one in spans if one.parent is not None} <= steps
        assert all(one.parent is not None for one in spans)
        assert dict(spans[0].attributes or {}) == {
            "allhands.group": "world",
            "allhands.rank": rank,
            "allhands.group.size": 2,
            "allhands.bytes": 32,
            "allhands.dtype": "float64",
            "allhands.reduce_op": "SUM",
            "allhands.label": "gradient",
            "allhands.sequence": 1,
        }
        assert (spans[1].attributes or {})["allhands.root"] == 1
        assert all(one.status.is_unset for one in spans)


def test_a_failed_call_has_its_exception(exporter: InMemorySpanExporter) -> None:
    def act() -> None:
        x = np.ones(2 + ah.get_rank())
        with ah.hooks.trace_calls(), pytest.raises(ah.CollectiveMismatch):
            ah.all_reduce(x)

    run_threads(2)(act)
    for rank in range(2):
        [span] = of_rank(exporter, rank)
        assert span.status.status_code is trace.StatusCode.ERROR
        assert span.status.description == "CollectiveMismatch"
        [event] = span.events
        assert (event.attributes or {})["exception.type"] == "allhands.errors.CollectiveMismatch"


def test_the_programs_sampler_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    def act() -> None:
        with ah.hooks.trace_calls():
            ah.barrier()

    run_threads(2)(act)
    assert exporter.get_finished_spans() == ()


def test_a_variable_traces_a_world_from_its_beginning(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLHANDS_OTEL", "1")
    run_threads(2)(lambda: ah.barrier(ah.new_group([0, 1])))
    for rank in range(2):
        assert [one.name for one in of_rank(exporter, rank)] == ["allhands.barrier"]


def test_without_the_api_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"need the API of OpenTelemetry.*allhands\[otel\]"):
        ah.hooks.trace_calls()
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    monkeypatch.setenv("ALLHANDS_OTEL", "1")
    with pytest.raises(ValueError, match=r"ALLHANDS_OTEL=1 needs .*allhands\[otel\]"):
        ah.init_process_group(backend="fake", rank=0, world_size=1)
    assert not ah.is_initialized()
