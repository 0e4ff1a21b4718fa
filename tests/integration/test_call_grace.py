"""Time after a caller's deadline in which a busy coordinator may still answer."""

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

import allhands as ah
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.testing.daemon import DaemonProcess
from allhands_proto.call_metadata import GRACE_KEY, add_call_metadata, find_grace
from allhands_proto.kv_verbs import ANSWER_GRACE
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc

_LIMIT = 20.0
"""Seconds until the caller's deadline, of calls that are answered at once."""


class _Described(coordinator_pb2_grpc.CoordinatorServicer):
    """A coordinator that refuses each call, and says what it knows of the call's deadline."""

    def DescribeCoordinator(self, request: Any, context: Any) -> Any:
        return wire.CoordinatorDescription()

    def Barrier(self, request: Any, context: Any) -> Any:
        grace = find_grace(context.invocation_metadata())
        late = context.time_remaining() > _LIMIT
        context.abort(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"grace {grace}, and the deadline is later: {late}"
        )


@pytest.fixture
def port() -> Iterator[int]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(_Described(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


def test_a_client_waits_a_little_longer_than_the_caller_and_says_so(port: int) -> None:
    endpoint = Endpoint(Address("127.0.0.1", port), None)
    told = pytest.raises(ah.StoreTimeout, match=f"grace {ANSWER_GRACE}, .* later: True")
    with Control(endpoint, job="x") as control, told:
        control.barrier("b", "0", ["0", "1"], timeout=_LIMIT)


def test_the_coordinator_answers_at_the_callers_deadline(
    daemon: DaemonProcess, job_name: str
) -> None:
    token = (("authorization", f"Bearer {daemon.notice.token}"),)
    request = wire.BarrierRequest(job=job_name, name="b", participant="0", participants=["0", "1"])
    with grpc.insecure_channel(f"127.0.0.1:{daemon.notice.port}") as channel:
        stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        metadata = add_call_metadata(token, grace=59.5)
        call = stub.Barrier.future(request, timeout=60.0, metadata=metadata)
        with pytest.raises(grpc.RpcError):
            call.result(timeout=40.0)
        assert "1 of 2 did not arrive" in call.details()


@pytest.mark.parametrize("value", ["", "soon", "-1", "inf", "nan", "1e9"])
def test_grace_that_makes_no_sense_counts_as_none(value: str) -> None:
    assert find_grace([("x", "1"), (GRACE_KEY, value)]) == 0
    assert find_grace([(GRACE_KEY, "0.5")]) == 0.5
    assert find_grace(None) == 0
