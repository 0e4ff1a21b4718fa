"""Choice among several daemons with one log: who is called, and whether a call is made again."""

import enum
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from allhands.coordinator.call_failed import RpcFailure, StatusCode
from allhands.coordinator.endpoint import Address, ChannelConfig, configure_channel, parse_url
from allhands.coordinator.http2.grpc_failures import GrpcCallFailed
from allhands_proto.kv_verbs import KV_VERBS
from allhands_proto.v1 import coordinator_pb2 as wire

SILENCE_SECONDS = 0.7
"""Of a call, after which another daemon is asked who leads."""
ASK_SECONDS = 0.5
"""For the answer to that."""
PAUSE_SECONDS = 0.1
"""Between attempts while nobody leads: nothing tells of a new leader."""

_LEADER_KEY = "allhands-leader"
_NEVER_SENT = ("failed to connect", "errors resolving", "DNS resolution failed")
"""How gRPC begins the text of a call for which there was no connection, or no address."""
_REPEATABLE = frozenset(
    {
        *(verb.method for verb in KV_VERBS.values() if not verb.is_write),
        *("DescribeCoordinator", "ListJobs", "DescribeJob", "ReportExit"),
        *("AwaitVerdict", "MonitoredBarrier"),
    }
)
"""Methods that may be carried out twice."""
_last_chosen: dict[tuple[str, ...], str] = {}
"""Cache of the process: which of the daemons of these addresses was called last."""


class Decision(enum.Enum):
    """What becomes of a call that failed."""

    AGAIN = "again"
    PAUSE = "again, after a pause"
    FAIL = "fail"


class Unavailable(GrpcCallFailed):
    """Failure of a call with status UNAVAILABLE, for a reason that gRPC does not know of."""

    def __init__(self, text: str) -> None:
        super().__init__(StatusCode.UNAVAILABLE, text)


class LeaderChanged(Unavailable):
    """Failure of a call whose daemon is silent while another one leads."""

    def __init__(self, target: str) -> None:
        super().__init__(
            f"{target} is silent and leads no more; the call may have been carried out"
        )


class DaemonChoice:
    """The daemons of an endpoint, and the one to call; safe from any thread."""

    def __init__(self, config: ChannelConfig) -> None:
        self._known = {one.target: one for one in config.daemons}
        self._order = tuple(self._known)
        self._lock = threading.Lock()
        self._unreachable: set[str] = set()
        """Targets to which no connection was had since one answered."""
        last = _last_chosen.get(self._order, self._order[0])
        self._current = last if last in self._known else self._order[0]

    @property
    def current(self) -> ChannelConfig:
        """The daemon to call."""
        return self._known[self._current]

    def list_others(self) -> list[ChannelConfig]:
        """Return the daemons besides the current one."""
        return [self._known[one] for one in self._order if one != self._current]

    def on_answer(self, before: ChannelConfig, found: ChannelConfig) -> None:
        """Choose the daemon that answered first, unless another was chosen since `before`."""
        with self._lock:
            if self._current == before.target:
                self._current = _last_chosen[self._order] = found.target

    def on_leader(self, target: str) -> None:
        """Note where the daemons are led from."""
        with self._lock:
            self._add(target)
            self._current = _last_chosen[self._order] = target
            self._unreachable.clear()

    def on_failure(self, called: ChannelConfig, error: RpcFailure, method: str) -> Decision:
        """Choose another daemon after a failed call, if that can help; say what to do.

        Raises:
            ValueError: a daemon sends its callers where they must not go.
        """
        leader = find_leader(error)
        if leader is not None:
            if leader and leader != called.target:
                self.on_leader(leader)
                return Decision.AGAIN
            self._go_on(called)
            return Decision.PAUSE
        if error.code().name != StatusCode.UNAVAILABLE.name:
            return Decision.FAIL
        was_sent = not (error.details() or "").startswith(_NEVER_SENT)
        with self._lock:
            if was_sent:
                self._unreachable.clear()
            else:
                self._unreachable.add(called.target)
            is_none_left = self._unreachable.issuperset(self._order)
        self._go_on(called)
        if is_none_left or (was_sent and method not in _REPEATABLE):
            return Decision.FAIL
        return Decision.PAUSE

    def _go_on(self, called: ChannelConfig) -> None:
        """Choose the daemon after the one that was called, unless another was chosen since."""
        with self._lock:
            if self._current == called.target:
                place = self._order.index(called.target) if called.target in self._order else -1
                self._current = self._order[(place + 1) % len(self._order)]
                _last_chosen[self._order] = self._current

    def _add(self, target: str) -> None:
        """Add a daemon that was not in the URL."""
        if target not in self._known:
            endpoint = next(iter(self._known.values())).endpoint
            address = replace(parse_url(f"ah://{target}"), job=endpoint.address.job)
            self._known[target] = configure_channel(replace(endpoint, address=address))


def find_leader(error: RpcFailure) -> str | None:
    """Return the leader's address where a daemon has done nothing, as it does not lead.

    Empty: that daemon knows of none. None: the call failed for another reason.
    """
    trailers: Iterable[Any] = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == _LEADER_KEY:
            return str(value)
    return None


def keep_kv_addresses(told: wire.CoordinatorDescription, called: ChannelConfig) -> None:
    """Keep the addresses of the key-value port where one daemon has several addresses.

    A connection of that port cannot move to another daemon: of several there are none.
    """
    if told.role:
        told.kv_port = 0
    elif told.kv_port and not told.kv_addresses:
        host = called.endpoint.address.host
        told.kv_addresses.append(Address(host, told.kv_port).target)
