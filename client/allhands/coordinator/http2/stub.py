"""Methods of the coordinator's service, for channels that need no library of gRPC."""

from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from allhands_proto.v1 import coordinator_pb2 as wire

if TYPE_CHECKING:
    from allhands_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub


class Channel(Protocol):
    """Calls to the coordinator on a loop, in the interface of `grpc.aio.Channel`."""

    def unary_unary(self, method: str, serializer: Any, deserializer: Any, /) -> Any: ...

    def stream_stream(self, method: str, serializer: Any, deserializer: Any, /) -> Any: ...

    async def close(self, grace: float | None = None) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class _Stub:
    """The stub that gRPC generates, but for methods that are made when they are asked for."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        service = wire.DESCRIPTOR.services_by_name["Coordinator"]
        if (method := service.methods_by_name.get(name)) is None:
            raise AttributeError(f"the coordinator has no method {name}")
        channel = self._channel
        make = channel.stream_stream if method.client_streaming else channel.unary_unary
        request = getattr(wire, method.input_type.name)
        reply = getattr(wire, method.output_type.name)
        path = f"/{service.full_name}/{name}"
        made = make(path, request.SerializeToString, reply.FromString)
        setattr(self, name, made)
        return made


def make_stub(channel: Channel) -> "CoordinatorAsyncStub":
    """Return the methods that take one request, and the session's."""
    return cast("CoordinatorAsyncStub", _Stub(channel))
