"""A world in virtual time: the real machine, real messages, and a model of what they cost.

The coordinator is one loop: it handles one event after the other, each when it has come and the
ones before are done. An event costs CPU for what comes in and what goes out, and all that goes out
shares the coordinator's link. Ranks answer at once, and cost nothing. All beat meanwhile, as long
as the coordinator can keep up with that at all.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from allhands.bench.session_clients import make_barriers
from allhands.coordinator.world_member import pack_ranks
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.kv.calls import KV_CALLS
from allhands_server.machine import Machine
from allhands_server.machine.effects import Answer, Effect, MemberLost, Push, Received, WorldFormed
from allhands_server.machine.events import (
    Event,
    Randomness,
    RequestReceived,
    SessionBroken,
    SessionMessage,
    SessionOpened,
    Tick,
)
from allhands_server.machine.member_messages import Heartbeat
from allhands_server.machine.requests import Barrier, MonitoredBarrier, Request
from allhands_server.rpc import messages
from allhands_server.rpc.session_events import EventEncoder, EventForm
from support.scale.costs import Costs, Traffic, price

JOB = "bench"
_DEADLINE = 1e6
_NEWEST = EventForm(
    takes_batches=True, takes_conditions=True, takes_packed_members=True, takes_members_left=True
)
_PARSE_BARRIER = KV_CALLS["barrier"].parse
_HOSTS = 8
"""Ranks of one host."""
_BEAT_EVERY = 1.5
"""Seconds between two rounds in which the machine hears all ranks."""
_LARGEST_LOAD = 0.8
"""Of a core by heartbeats: with more the coordinator does not keep up, and they are left out."""


_BEAT = wire.SessionRequest(
    heartbeat=wire.Heartbeat(
        sent_at=1.0, progress=[wire.Progress(group="world", sequence=5, completed=5)]
    )
)


@dataclass(frozen=True, slots=True)
class Link:
    """The way between the coordinator and the ranks."""

    latency: float = 0.0002
    """Seconds for one way."""
    bandwidth: float = 1.25e9
    """Bytes a second that leave the coordinator."""


@dataclass(frozen=True, slots=True)
class Measured:
    """An operation of a simulated world."""

    traffic: Traffic
    cpu: float
    seconds: float
    """Until the last rank is through."""


class SimulatedWorld:
    """A coordinator with the ranks of one world, in virtual time."""

    def __init__(self, size: int, costs: Costs, link: Link | None = None) -> None:
        self._size = size
        self._costs = costs
        self._link = link or Link()
        self._machine = Machine()
        self._encoder = EventEncoder()
        self._tickets = itertools.count(1)
        self._arrivals: list[tuple[float, int, Traffic, Event]] = []
        self._numbers = itertools.count()
        self._free_at = 0.0
        """Time at which the coordinator has done what has come."""
        self._link_free_at = 0.0
        self._traffic = Traffic()
        self._cpu = 0.0
        self._done_at = 0.0
        self._awaited = 0
        self._beats_at = _BEAT_EVERY
        self._slowdown = 1.0
        """Of all else by heartbeats."""
        self._is_end: Callable[[Effect], bool] = lambda effect: False
        self._sequence = 0

    def join(self) -> Measured:
        """Have all ranks join; over when the last knows all others."""
        for rank in range(self._size):
            join = self._make_join(rank)
            fresh = Randomness(f"{rank:016x}", "incarnation0", bytes(32))
            opened = SessionOpened(
                rank + 1, messages.decode_join(join, f"10.0.{rank % 250}.7:5000"), fresh
            )
            came = Traffic(
                sessions=1, received=1, received_nbytes=measure(wire.SessionRequest(join=join))
            )
            self._send(came, opened)
        found = self._run(lambda effect: is_told(effect, WorldFormed), self._size)
        if self.load <= _LARGEST_LOAD:
            self._slowdown = 1.0 / (1.0 - self.load)
        return found

    @property
    def load(self) -> float:
        """Share of a core that heartbeats cost."""
        return self._size * price(self._make_beats(1.0 / self._size), self._costs)

    def wait_monitored_barrier(self) -> Measured:
        self._sequence += 1
        for rank in range(self._size):
            asked = MonitoredBarrier(JOB, f"{rank:016x}", "world", self._sequence)
            request = wire.MonitoredBarrierRequest(
                job=JOB,
                member_id=asked.member_id,
                group="world",
                sequence=self._sequence,
                remaining=1,
            )
            self._call(asked, measure(request))
        return self._run(lambda effect: isinstance(effect, Answer), self._size)

    def wait_barrier(self) -> Measured:
        for asked in make_barriers([str(rank) for rank in range(self._size)]):
            request = _PARSE_BARRIER(asked)
            assert isinstance(request, Barrier)
            self._call(request, measure(asked))
        return self._run(lambda effect: isinstance(effect, Answer), self._size)

    def open_group(self, group: str = "g1") -> Measured:
        """Have all ranks open a group of all; over when the coordinator has taken each in."""
        opened = wire.OpenGroup(group=group, spans=pack_ranks(range(self._size)))
        request = wire.SessionRequest(open_group=opened, number=1)
        message = messages.decode_member_message(request)
        assert message is not None
        for rank in range(self._size):
            came = Traffic(received=1, received_nbytes=measure(request))
            self._send(came, SessionMessage(rank + 1, message, 1))
        return self._run(lambda effect: is_told(effect, Received), self._size)

    def lose_one(self) -> Measured:
        """Break the session of rank 0; over when the last of the others knows of the loss."""
        self._send(Traffic(), SessionBroken(1))
        return self._run(lambda effect: is_told(effect, MemberLost), self._size - 1)

    def beat(self) -> Measured:
        """Have each rank send one heartbeat."""
        message = messages.decode_member_message(_BEAT)
        assert message is not None
        came = self._make_beats(1.0 / self._size)
        for rank in range(self._size):
            self._send(came, SessionMessage(rank + 1, message))
        return self._run(lambda effect: False, 0)

    # ------------------------------------------------------------ virtual time

    def _make_join(self, rank: int) -> wire.Join:
        return wire.Join(
            job=JOB,
            rank=rank,
            world_size=self._size,
            host=f"host{rank // _HOSTS}",
            pid=1000 + rank,
            port=5000,
            takes_batches=True,
            takes_conditions=True,
            takes_packed_members=True,
            takes_members_left=True,
            heartbeat_window=3600.0,  # heartbeats are counted on their own
        )

    def _call(self, request: Request[Any], nbytes: int) -> None:
        event = RequestReceived(next(self._tickets), request, _DEADLINE)
        self._send(Traffic(calls=1, received_nbytes=nbytes), event)

    def _send(self, came: Traffic, event: Event) -> None:
        """Send an event to the coordinator, now."""
        at = self._free_at + self._link.latency
        heapq.heappush(self._arrivals, (at, next(self._numbers), came, event))

    def _run(self, is_end: Callable[[Effect], bool], awaited: int) -> Measured:
        """Let time pass until that many effects have reached their ranks."""
        begun, self._is_end, self._awaited = self._free_at, is_end, awaited
        self._traffic, self._cpu, self._done_at = Traffic(), 0.0, begun
        while self._arrivals or self._awaited > 0:
            self._step()
        seconds = self._done_at - begun
        if self._slowdown > 1.0:
            beats = self._make_beats(seconds)
            self._traffic += beats
            self._cpu += price(beats, self._costs)
        return Measured(self._traffic, self._cpu, seconds)

    def _step(self) -> None:
        """Handle the next event, or the next timer if that is due before."""
        due = self._machine.next_due
        if self._arrivals and (due is None or self._arrivals[0][0] <= max(due, self._free_at)):
            at, _, came, event = heapq.heappop(self._arrivals)
        else:
            assert due is not None, "nothing comes any more, and ranks still wait"
            at, came, event = due, Traffic(), Tick()
        start = max(at, self._free_at)
        if start >= self._beats_at:
            self._beat_all(start)
        effects = self._machine.handle(event, start)
        sent = self._measure_effects(effects)
        self._spend(came + sent if sent is not None else came, start)
        ends = sum(map(self._is_end, effects))
        if ends:
            self._awaited -= ends
            self._done_at = max(self._free_at, self._link_free_at) + self._link.latency

    def _spend(self, traffic: Traffic, start: float) -> None:
        cpu = price(traffic, self._costs)
        self._traffic += traffic
        self._cpu += cpu
        self._free_at = start + cpu * self._slowdown
        nbytes = traffic.sent_nbytes
        self._link_free_at = max(self._link_free_at, start) + nbytes / self._link.bandwidth

    def _make_beats(self, seconds: float) -> Traffic:
        """Make the traffic of all ranks' heartbeats in some time."""
        count = self._size * seconds
        return Traffic(received=count, received_nbytes=count * measure(_BEAT))

    def _beat_all(self, now: float) -> None:
        """Have the machine hear all ranks; `_slowdown` pays for that."""
        for rank in range(self._size):
            self._machine.handle(SessionMessage(rank + 1, Heartbeat()), now)
        self._beats_at = now + _BEAT_EVERY

    def _measure_effects(self, effects: list[Effect]) -> Traffic | None:
        sent = nbytes = 0
        for effect in effects:
            if isinstance(effect, Push):
                for data in self._encoder.encode_batch([effect.notification], _NEWEST):
                    sent += 1
                    nbytes += len(data)
        return Traffic(sent=sent, sent_nbytes=nbytes) if sent else None


def measure(message: Message) -> int:
    return message.ByteSize()


def is_told(effect: Effect, kind: type) -> bool:
    """Whether an effect is a notification of a kind to a member."""
    return isinstance(effect, Push) and isinstance(effect.notification, kind)


def simulate(size: int, costs: Costs, link: Link | None = None) -> dict[str, Measured]:
    """Return the operations of a world of that size, named as the benchmark of sessions does."""
    world = SimulatedWorld(size, costs, link)
    return {
        "join": world.join(),
        "monitored barrier": world.wait_monitored_barrier(),
        "named barrier": world.wait_barrier(),
        "new group": world.open_group(),
        "monitored barrier again": world.wait_monitored_barrier(),
        "rest": world.beat(),
        "failure of one": world.lose_one(),
    }
