"""Failures of calls over HTTP/2 for callers that also make calls with gRPC's own library."""

import grpc
import grpc.aio

from allhands.coordinator.call_failed import CallFailed, NamedCode, StatusCode, Trailers


class GrpcCallFailed(CallFailed, grpc.aio.AioRpcError):
    """A `CallFailed` that is gRPC's error as well."""

    def __init__(self, code: NamedCode, details: str | None, trailers: Trailers = ()) -> None:
        self.status = StatusCode[code.name]
        grpc.aio.AioRpcError.__init__(
            self,
            grpc.StatusCode[code.name],
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*trailers),
            details=details,
        )

    def code(self) -> grpc.StatusCode:
        return grpc.aio.AioRpcError.code(self)

    def details(self) -> str | None:
        return grpc.aio.AioRpcError.details(self)

    def trailing_metadata(self) -> grpc.aio.Metadata:  # type: ignore[override]  # pairs as well
        return grpc.aio.AioRpcError.trailing_metadata(self)

    def __str__(self) -> str:
        return grpc.aio.AioRpcError.__str__(self)
