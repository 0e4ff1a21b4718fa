"""Refusals of the coordinator: a status, and a sentence with the remedy."""

import enum

from allhands_proto.quick_dataclass import dataclass


class Status(enum.Enum):
    """Names of gRPC status codes used by the machine; for meanings see coordinator.proto."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    NOT_FOUND = "NOT_FOUND"
    ABORTED = "ABORTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a request or session; the text fits into a trailer, see `formatting`."""

    status: Status
    text: str
    leader: str | None = None
    """Where another daemon leads, and nothing was done: its address; empty: it is not known."""
    retry_after: float | None = None
    """Seconds after which the request can be made again; None: nobody knows."""


class Refused(Exception):
    """Exception during an event, converted into an effect by `Machine.handle`."""

    def __init__(
        self,
        status: Status,
        text: str,
        leader: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(text)
        self.refusal = Refusal(status, text, leader, retry_after)

    @classmethod
    def of(cls, refusal: Refusal) -> "Refused":
        return cls(refusal.status, refusal.text, refusal.leader, refusal.retry_after)
