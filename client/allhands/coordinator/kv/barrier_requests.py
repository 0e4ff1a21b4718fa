"""Requests about named barriers, for both clients."""

from collections.abc import Sequence

from allhands.coordinator.kv.requests import AnyKvRequest, KvRequest
from allhands.errors import BarrierCancelled
from allhands.escapes import escape_line
from allhands_proto.participants_digest import LARGEST_UNDIGESTED, LISTERS, digest_participants
from allhands_proto.quick_dataclass import dataclass
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
    """Participants, sorted; empty: known to the caller, or an older coordinator."""


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


def shorten_barrier(asked: AnyKvRequest[BarrierPassage]) -> AnyKvRequest[BarrierPassage] | None:
    """Return the request with a digest in place of the names; None: it is to be sent as it is.

    A coordinator that refuses it may be older, or have more to say about the names: ask for the
    whole then.
    """
    whole: wire.BarrierRequest = asked.message
    ordered = sorted(whole.participants)
    listers = ordered[:LISTERS]
    if (
        len(ordered) <= LARGEST_UNDIGESTED
        or whole.participant in listers
        or len(set(ordered)) < len(ordered)
        or whole.participant not in ordered
    ):
        return None
    message = wire.BarrierRequest(
        job=whole.job,
        name=whole.name,
        participant=whole.participant,
        takes_cancellation=True,
        digest=digest_participants(ordered),
        count=len(ordered),
        first_participants=listers,
    )
    return KvRequest(message, wire.BarrierReply, asked.read)


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
