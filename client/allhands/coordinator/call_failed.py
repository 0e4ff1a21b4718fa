"""Failures of gRPC calls for callers that do without gRPC's own library."""

import enum
from collections.abc import Sequence
from typing import Any, Protocol


class StatusCode(enum.Enum):
    """Statuses of gRPC calls by name, with their numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class NamedCode(Protocol):
    """A status code of this library or of gRPC's."""

    @property
    def name(self) -> str: ...


Trailers = Sequence[tuple[str, str | bytes]]


class RpcFailure(Protocol):
    """A `CallFailed`, or an error of gRPC's own."""

    def code(self) -> NamedCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Any: ...


class CallFailed(Exception):
    """Failure of a gRPC call, in the interface of `grpc.RpcError`; see `status_errors`."""

    def __init__(self, code: NamedCode, details: str | None, trailers: Trailers = ()) -> None:
        super().__init__(details)
        self.status = StatusCode[code.name]
        self._details = details
        self._trailers = trailers

    def code(self) -> NamedCode:
        return self.status

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> Trailers:
        return self._trailers

    def __str__(self) -> str:
        return f"{self.status.name}: {self._details}"
