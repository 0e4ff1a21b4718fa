"""Numbered requests of a session, kept until the coordinator has received them."""

from collections import deque

from allhands_proto.v1 import coordinator_pb2 as wire

_KEPT = frozenset(
    (
        "open_group",
        "close_group",
        "link_broken",
        "link_silent",
        "abort",
        "cancel_call",
        "last_report",
        "leave",
    )
)
"""Requests that nothing later makes good: the others say how things are now."""


class PendingRequests:
    """Requests in order, from the first that the coordinator may not have."""

    def __init__(self) -> None:
        self.is_enabled = False
        """Whether the coordinator acknowledges numbered requests."""
        self._requests: deque[wire.SessionRequest] = deque()
        self._last_number = 0

    def add(self, request: wire.SessionRequest) -> None:
        """Number a request and keep it, if it is one that has to arrive."""
        if self.is_enabled and request.WhichOneof("request") in _KEPT:
            self._last_number += 1
            request.number = self._last_number
            self._requests.append(request)

    def on_received(self, number: int) -> None:
        """Drop the requests up to this number."""
        while self._requests and self._requests[0].number <= number:
            self._requests.popleft()

    def list_all(self) -> list[wire.SessionRequest]:
        """Return the requests to send again."""
        return [*self._requests]
