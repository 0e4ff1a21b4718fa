"""Spans of OpenTelemetry for calls, as a call hook; by its API alone."""

from typing import TYPE_CHECKING, Any

from allhands.group.call_info import CallInfo

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class CallSpans:
    """Begins a span before each call and ends it after; the program's sampler chooses which.

    The parent is the caller's current span.
    """

    def __init__(self) -> None:
        """Take the tracer `allhands` of the program's provider.

        Raises:
            ImportError: the API of OpenTelemetry is not installed.
        """
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise ImportError(
                "spans of calls need the API of OpenTelemetry, which is not installed here: "
                "pip install 'allhands[otel]'"
            ) from error

        self._trace = trace
        self._tracer = trace.get_tracer("allhands")
        self._spans: dict[int, Span] = {}
        """Of calls under way, by their ids."""

    def begin(self, call: CallInfo) -> None:
        self._spans[call.id] = self._tracer.start_span(
            f"allhands.{call.operation}", attributes=_describe(call)
        )

    def end(self, call: CallInfo, error: BaseException | None, seconds: float) -> None:
        span = self._spans.pop(call.id, None)
        if span is None:
            return
        if call.sequence is not None:
            span.set_attribute("allhands.sequence", call.sequence)
        if error is not None:
            span.record_exception(error)
            status = self._trace.Status(self._trace.StatusCode.ERROR, type(error).__name__)
            span.set_status(status)
        span.end()


def _describe(call: CallInfo) -> dict[str, Any]:
    known: dict[str, str | int | None] = {
        "allhands.group": call.group,
        "allhands.rank": call.rank,
        "allhands.group.size": call.size,
        "allhands.bytes": call.nbytes,
        "allhands.dtype": call.dtype or None,
        "allhands.reduce_op": call.reduce_op or None,
        "allhands.root": call.root,
        "allhands.peer": call.peer,
        "allhands.tag": call.tag,
        "allhands.label": call.label or None,
    }
    return {name: value for name, value in known.items() if value is not None}
