"""Receivers of a job's events that `allhands run` is given, and the form in which they get them."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from allhands.coordinator.event_calls import JobEvent
    from allhands.launcher.event_sinks import EventOutlets, EventSink


def make_outlets(command: str | None, webhook: str | None) -> "EventOutlets | None":
    """Return the receivers of the job's events; None: there are none."""
    if not command and not webhook:
        return None
    from allhands.launcher.event_sinks import CommandSink, EventOutlets, WebhookSink

    sinks: list[EventSink] = [CommandSink(command)] if command else []
    if webhook:
        try:
            sinks.append(WebhookSink(webhook))
        except ValueError as error:
            hint = "--webhook or ALLHANDS_WEBHOOK"
            raise typer.BadParameter(str(error), param_hint=hint) from error
    return EventOutlets(tuple(sinks), format_event)


def format_event(job: str, event: "JobEvent") -> bytes:
    """Return the document of an event, as `allhands events -o json` prints it, with the job."""
    from allhands.cli.documents import make_event_fields
    from allhands.cli.render import Output, format_document

    fields = {**make_event_fields(event), "job": job}
    return format_document("JobEvent", fields, Output.JSON, in_stream=True).encode()
