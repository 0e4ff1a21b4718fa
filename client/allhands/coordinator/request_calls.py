"""What the calls of a client, grouped by what they are about, have of the client."""

from typing import TypeVar

import grpc

from allhands.coordinator.endpoint import Endpoint
from allhands.deadlines import Timeout
from allhands_proto.v1 import coordinator_pb2_grpc

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


class RequestCalls:
    """Base of groups of calls; the client that has them carries out their requests."""

    endpoint: Endpoint

    @property
    def _calls(self) -> coordinator_pb2_grpc.CoordinatorStub:
        raise NotImplementedError

    def _call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[_Request, _Reply]",
        request: _Request,
        action: str,
        timeout: Timeout | None,
        *,
        is_write: bool = False,
    ) -> _Reply:
        raise NotImplementedError
