"""A member that speaks the session's wire by hand, for tests of what others see of it."""

import queue
from typing import Literal, TypeAlias

from allhands.coordinator.endpoint import Endpoint, configure_channel
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc

EventKind: TypeAlias = Literal[
    "joined", "world_formed", "member_lost", "member_left", "leave_accepted"
]

_LIFE_SECONDS = 120.0


class RawMember:
    """A session that says only what it is told to say."""

    def __init__(self, endpoint: Endpoint, join: wire.Join) -> None:
        made = configure_channel(endpoint)
        self._channel = made.open()
        self._requests: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
        self.send(join=join)
        self._events = coordinator_pb2_grpc.CoordinatorStub(self._channel).Session(
            iter(self._requests.get, None), metadata=made.metadata, timeout=_LIFE_SECONDS
        )

    def send(
        self,
        *,
        join: wire.Join | None = None,
        heartbeat: wire.Heartbeat | None = None,
        open_group: wire.OpenGroup | None = None,
        leave: wire.Leave | None = None,
    ) -> None:
        self._requests.put(
            wire.SessionRequest(join=join, heartbeat=heartbeat, open_group=open_group, leave=leave)
        )

    def receive(self, kind: EventKind) -> wire.SessionEvent:
        """Read events until one of this kind has come, and return it."""
        while not (event := next(self._events)).HasField(kind):
            pass
        return event

    def close(self) -> None:
        """Break the session, unless it has been left."""
        self._requests.put(None)
        self._events.cancel()
        self._channel.close()
