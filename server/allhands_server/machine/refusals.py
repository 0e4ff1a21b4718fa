"""Why the coordinator says no: a status and a sentence that says what to do."""

import enum
from dataclasses import dataclass


class Status(enum.Enum):
    """The gRPC status codes that the machine uses, by name; coordinator.proto says when."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    NOT_FOUND = "NOT_FOUND"
    ABORTED = "ABORTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A no, as it travels: the text is short enough for a trailer (see `wording`)."""

    status: Status
    text: str


class Refused(Exception):
    """Raised while an event is handled; `Machine.handle` turns it into an effect."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(status, text)
