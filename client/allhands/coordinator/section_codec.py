"""Codec of sections: of the one that a rank is in, and of those in its report."""

from collections.abc import Sequence

from allhands.runtime.sections import SectionPosition, SectionRecord
from allhands_proto.v1 import coordinator_pb2 as wire


def write_section(
    message: wire.Heartbeat | wire.FlightReport, position: SectionPosition | None
) -> None:
    """Say in a message which section this rank is in; None: in none."""
    if position is not None:
        message.section = position.name
        message.section_elapsed = position.elapsed


def read_section(message: wire.Member | wire.FlightReport) -> SectionPosition | None:
    """Return the section that a rank is in; None: in none, or it does not say."""
    return SectionPosition(message.section, message.section_elapsed) if message.section else None


def encode_sections(records: Sequence[SectionRecord], nbytes: int) -> list[wire.FlightSection]:
    """Encode the latest sections that fit into so many bytes, oldest first."""
    told: list[wire.FlightSection] = []
    for one in reversed(records):
        message = wire.FlightSection(
            name=one.name, thread=one.thread, started=one.started, finished=one.finished
        )
        # Two bytes of tag and two of length, at most.
        if (nbytes := nbytes - message.ByteSize() - 4) < 0:
            break
        told.append(message)
    return told[::-1]


def decode_sections(messages: Sequence[wire.FlightSection]) -> tuple[SectionRecord, ...]:
    return tuple(
        SectionRecord(one.name, one.thread, 0, one.started, one.finished) for one in messages
    )
