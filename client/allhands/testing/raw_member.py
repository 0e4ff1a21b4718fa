"""A member that speaks the session protocol by hand."""

import queue
from typing import Literal, TypeAlias

from allhands.coordinator.endpoint import Endpoint, configure_channel
from allhands_proto.v1 import coordinator_pb2 as pb
from allhands_proto.v1 import coordinator_pb2_grpc

EventKind: TypeAlias = Literal[
    "joined", "world_formed", "member_lost", "member_left", "leave_accepted", "collect_report"
]

_LIFE_SECONDS = 120.0


class RawMember:
    """A session that sends only the messages of the test."""

    def __init__(self, endpoint: Endpoint, join: pb.Join) -> None:
        made = configure_channel(endpoint)
        self._channel = made.open()
        self._requests: queue.SimpleQueue[pb.SessionRequest | None] = queue.SimpleQueue()
        self.send(join=join)
        self._events = coordinator_pb2_grpc.CoordinatorStub(self._channel).Session(
            iter(self._requests.get, None), metadata=made.metadata, timeout=_LIFE_SECONDS
        )

    def send(
        self,
        *,
        join: pb.Join | None = None,
        heartbeat: pb.Heartbeat | None = None,
        open_group: pb.OpenGroup | None = None,
        leave: pb.Leave | None = None,
        report_part: pb.ReportPart | None = None,
    ) -> None:
        self._requests.put(
            pb.SessionRequest(
                join=join,
                heartbeat=heartbeat,
                open_group=open_group,
                leave=leave,
                report_part=report_part,
            )
        )

    def receive(self, kind: EventKind) -> pb.SessionEvent:
        """Read events up to the first of a kind, and return that event."""
        while not (event := next(self._events)).HasField(kind):
            pass
        return event

    def close(self) -> None:
        """Break the session, unless already left."""
        self._requests.put(None)
        self._events.cancel()
        self._channel.close()
