"""Requests about named barriers, for both clients."""

from collections.abc import Sequence
from dataclasses import dataclass

from allhands.coordinator.kv.requests import AnyKvRequest, KvRequest
from allhands.errors import BarrierCancelled
from allhands.escapes import escape_line
from allhands_proto.v1 import coordinator_pb2 as wire


@dataclass(frozen=True, slots=True)
class BarrierStatus:
    """A barrier at which somebody waits."""

    name: str
    size: int
    """Number of participants."""
    participants: tuple[str, ...]
    """Sorted; empty where their number is known alone, as of double barriers."""
    arrived: tuple[str, ...]
    """Those who wait, sorted."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Participants who have not come, as far as they are known by name."""
        return tuple(sorted(set(self.participants) - set(self.arrived)))


@dataclass(frozen=True, slots=True)
class BarrierPassage:
    """A barrier that has opened."""

    generation: int
    """Number of openings of the name."""
    arrived: tuple[str, ...]
    """Participants, sorted; empty: an older coordinator."""


def make_barrier(
    job: str, name: str, participant: str, participants: Sequence[str] = (), size: int = 0
) -> AnyKvRequest[BarrierPassage]:
    """Return the request to wait at a barrier, of participants by name or of a number of them."""
    message = wire.BarrierRequest(
        job=job,
        name=name,
        participant=participant,
        participants=participants,
        size=size,
        takes_cancellation=True,
    )
    return KvRequest(message, wire.BarrierReply, lambda reply: _read_passage(job, name, reply))


def make_cancel_barrier(job: str, name: str, by: str, reason: str) -> AnyKvRequest[int]:
    message = wire.CancelBarrierRequest(job=job, name=name, by=by, reason=reason)
    return KvRequest(message, wire.CancelBarrierReply, lambda reply: reply.released)


def make_list_barriers(job: str) -> AnyKvRequest[tuple[BarrierStatus, ...]]:
    message = wire.ListBarriersRequest(job=job)
    return KvRequest(message, wire.ListBarriersReply, _read_barriers)


def _read_passage(job: str, name: str, reply: wire.BarrierReply) -> BarrierPassage:
    if reply.HasField("cancelled_by"):
        by, reason = escape_line(reply.cancelled_by), escape_line(reply.reason)
        raise BarrierCancelled(
            f"barrier {name!r} of job {job!r} was cancelled by {by}: {reason}",
            by=reply.cancelled_by,
            reason=reply.reason,
        )
    return BarrierPassage(reply.generation, tuple(reply.arrived))


def _read_barriers(reply: wire.ListBarriersReply) -> tuple[BarrierStatus, ...]:
    return tuple(
        BarrierStatus(one.name, one.size, tuple(one.participants), tuple(one.arrived))
        for one in reply.barriers
    )
