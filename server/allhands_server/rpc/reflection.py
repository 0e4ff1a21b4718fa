"""gRPC's reflection, for tools such as grpcurl, loaded on first use.

Few do, and most coordinators live in a rank or a launcher, where it would cost each start 20 ms.
"""

from collections.abc import Sequence
from typing import Any, Final

import grpc

SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"


class Reflection(grpc.GenericRpcHandler):
    """Describes services by name."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = (*services, SERVICE)
        self._handler: grpc.GenericRpcHandler | None = None

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if not handler_call_details.method.startswith(f"/{SERVICE}/"):
            return None
        if self._handler is None:
            self._handler = _load_handler(self._services)
        return self._handler.service(handler_call_details)


class _Server:
    """Collector of the handlers registered by generated code."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Ignore: the generic handler has these methods."""


def _load_handler(services: Sequence[str]) -> grpc.GenericRpcHandler:
    from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

    taking = _Server()
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
        reflection.aio.ReflectionServicer(services), taking
    )
    [handler] = taking.handlers
    return handler
