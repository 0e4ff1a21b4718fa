"""Measurement of all pairs of hosts, as the program of the ranks of a world.

The lowest rank of each host measures for it; the others wait. What they agree on goes through the
coordinator. The world is joined last, and only where all hosts reach each other: ranks that join
measure their links, and fail where one does not work.
"""

import asyncio
import contextlib
import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

import allhands as ah
from allhands.config import SingleProcess, WorldConfig, resolve_config
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint, configure_channel
from allhands.coordinator.rendezvous import find_or_host_coordinator
from allhands.doctor.pairs import HostEnd, LinkResult, PairResult, TcpResult, list_rounds
from allhands.doctor.tcp_probe import ProbeListener, probe
from allhands.errors import AllhandsError
from allhands.launcher import embedded
from allhands.membership import advertised_address

Say = Callable[[str], None]

_PAIR_SECONDS = 60.0
"""For one pair, and what is waited for a rank that is slow to come."""
_MESSAGE_SECONDS = 15.0
_ROUND_TRIPS = 20
_MESSAGE_BYTES = 8 << 20
_MESSAGES = 3
_NAMESPACE = "allhands-doctor"
"""Of keys and barriers in the job."""


def measure_network(environ: Mapping[str, str], say: Say) -> list[PairResult] | None:
    """Measure all pairs of hosts with the other ranks; return the results at rank 0.

    Other ranks return None.

    Args:
        say: is told what is measured next.

    Raises:
        ValueError: the environment names no world, or is malformed.
        AllhandsError: the coordinator cannot be reached, or a rank does not come.
    """
    config = resolve_config(environ, parent=str(os.getppid()))
    if isinstance(config.rendezvous, SingleProcess) or config.rank < 0:
        raise ValueError(
            "--network is for ranks of a world that know their numbers: start it on all hosts, "
            "as in `torchrun --no-python ... allhands doctor --network`, or by `allhands run`"
        )
    return asyncio.run(_measure(config, say))


async def _measure(config: WorldConfig, say: Say) -> list[PairResult] | None:
    meeting = await find_or_host_coordinator(config)
    try:
        endpoint = meeting.endpoint
        await asyncio.to_thread(embedded.probe, endpoint, config.timeout)
        where = await advertised_address.resolve_configured(config)
        if where is None:
            channel_config = await asyncio.to_thread(configure_channel, endpoint)
            where = await advertised_address.discover(
                config, endpoint, channel_config, config.timeout
            )
        end = HostEnd(config.rank, socket.gethostname(), where.advertise or where.listen)
        return await asyncio.to_thread(_measure_as, end, config, endpoint, say)
    finally:
        await meeting.aclose()


def _measure_as(
    end: HostEnd, config: WorldConfig, endpoint: Endpoint, say: Say
) -> list[PairResult] | None:
    say(f"waiting for {config.world_size} ranks")
    with Control(endpoint, job=config.job, timeout=_PAIR_SECONDS) as control:
        measurement = _Measurement(control, end, config.world_size, say)
        try:
            measurement.connect_pairs(config.ports)
            if measurement.all_connected():
                _join(config, endpoint)
                try:
                    measurement.measure_links()
                finally:
                    ah.destroy_process_group()
            return measurement.finish()
        except BaseException:
            with contextlib.suppress(AllhandsError):  # the first error is the one to raise
                measurement.clear()
            raise


def _join(config: WorldConfig, endpoint: Endpoint) -> None:
    address = replace(endpoint.address, job=config.job)
    ah.init_process_group(
        address.url,
        rank=config.rank,
        world_size=config.world_size,
        token=endpoint.token,
        tls=endpoint.tls_ca,
        insecure=endpoint.insecure,
    )


def find_ends(everyone: Sequence[HostEnd]) -> list[HostEnd]:
    """Return the lowest rank of each host; hosts of one name differ in their addresses."""
    found: dict[tuple[str, str], HostEnd] = {}
    for one in sorted(everyone, key=lambda end: end.rank):
        found.setdefault((one.host, one.address), one)
    return list(found.values())


class _Measurement:
    """One rank's part."""

    def __init__(self, control: Control, own_end: HostEnd, world_size: int, say: Say) -> None:
        """Meet all ranks, and learn where they are."""
        self._say = say
        self._control = control
        self._rank = own_end.rank
        self._everyone = [str(rank) for rank in range(world_size)]
        self.clear()  # before anybody asks: what an earlier run of this job has left
        self._synchronize("begin")
        self._tell("end", asdict(own_end))
        self._ends = find_ends([HostEnd(**self._ask("end", rank)) for rank in range(world_size)])
        self._place = next((at for at, one in enumerate(self._ends) if one == own_end), -1)
        self._results: dict[int, PairResult] = {}
        """By the partner's place."""

    def connect_pairs(self, ports: Sequence[int] | None) -> None:
        """Connect to each other host, and let them connect, one pair after the other."""
        if self._place < 0 or len(self._ends) < 2:
            return
        with ProbeListener(self._ends[self._place].address, ports) as listener:
            self._tell("listener", {"port": listener.port, "nonce": listener.nonce.hex()})
            for turn, partner in enumerate(partners := self._list_partners()):
                self._say(f"connecting pairs of hosts, round {turn + 1} of {len(partners)}")
                for connects in (True, False):  # first the lower one
                    if partner is not None and (self._place < partner) is connects:
                        self._connect(partner)
                    self._synchronize(f"tcp/{turn}/{connects}", among_ends=True)

    def _connect(self, partner: int) -> None:
        other = self._ends[partner]
        told = self._ask("listener", other.rank)
        tcp = probe(other.address, told["port"], bytes.fromhex(told["nonce"]))
        self._results[partner] = PairResult(self._ends[self._place], other, tcp)

    def all_connected(self) -> bool:
        """Say whether there are several hosts that all reach each other; the same on all ranks."""
        failed = [one for one in self._results.values() if one.tcp.failure is not None]
        self._tell("is_connected", not failed)
        every = [bool(self._ask("is_connected", one.rank)) for one in self._ends]
        return len(every) > 1 and all(every)

    def measure_links(self) -> None:
        """Exchange messages with each other host, one pair after the other."""
        if self._place < 0:
            return
        for turn, partner in enumerate(partners := self._list_partners()):
            self._say(f"measuring links of hosts, round {turn + 1} of {len(partners)}")
            if partner is not None:
                link = _measure_link(self._ends[partner].rank, self._place < partner)
                self._results[partner] = replace(self._results[partner], link=link)
            self._synchronize(f"link/{turn}", among_ends=True)

    def finish(self) -> list[PairResult] | None:
        """Give the results to rank 0, which deletes what all have left; return them there.

        It does so once nobody reads any more. It may host the coordinator and end it next: others
        ask for nothing after the barrier.
        """
        self._tell("results", [asdict(one) for one in self._results.values()])
        found = None
        if not self._rank:
            told = [self._ask("results", one.rank) for one in self._ends]
            found = [_read_result(fields) for results in told for fields in results]
            found.sort(key=lambda one: (one.source.rank, one.target.rank))
        self._synchronize("finish")
        if not self._rank:
            self._control.delete_prefix(f"{_NAMESPACE}/")
        return found

    def clear(self) -> None:
        """Delete what this rank has left at the coordinator."""
        self._control.delete_prefix(f"{_NAMESPACE}/{self._rank}/")

    def _list_partners(self) -> list[int | None]:
        rounds = list_rounds(len(self._ends))
        return [_find_partner(pairs, self._place) for pairs in rounds]

    def _synchronize(self, name: str, *, among_ends: bool = False) -> None:
        who = [str(one.rank) for one in self._ends] if among_ends else self._everyone
        # Others may have many pairs to measure.
        patience = _PAIR_SECONDS if among_ends else _PAIR_SECONDS * (2 + len(self._everyone))
        self._control.barrier(f"{_NAMESPACE}/{name}", str(self._rank), who, timeout=patience)

    def _tell(self, name: str, value: object) -> None:
        self._control.put(f"{_NAMESPACE}/{self._rank}/{name}", json.dumps(value))

    def _ask(self, name: str, rank: int) -> Any:
        patience = _PAIR_SECONDS * (2 + len(self._everyone))
        key = f"{_NAMESPACE}/{rank}/{name}"
        return json.loads(self._control.get(key, wait=True, timeout=patience))


def _measure_link(peer: int, is_first: bool) -> LinkResult:
    """Exchange messages with a rank over the world's link; the other one does so, too."""
    small, large = np.zeros(1, np.int64), np.zeros(_MESSAGE_BYTES, np.uint8)
    try:
        _exchange(small, peer, is_first)  # which makes the link
        times = [_exchange(small, peer, is_first) for _ in range(_ROUND_TRIPS)]
        bandwidth = 0.0
        for sends in (is_first, not is_first):
            seconds = _stream(large, small, peer, sends)
            if sends:
                bandwidth = _MESSAGES * large.nbytes / seconds
    except AllhandsError as error:
        return LinkResult(str(error))
    return LinkResult("", statistics.median(times), bandwidth)


def _exchange(array: np.ndarray[Any, Any], peer: int, sends: bool) -> float:
    """Send an array there and back; return the seconds."""
    started = time.perf_counter()
    for goes_out in (sends, not sends):
        (ah.send if goes_out else ah.recv)(array, peer, timeout=_MESSAGE_SECONDS)
    return time.perf_counter() - started


def _stream(
    large: np.ndarray[Any, Any], small: np.ndarray[Any, Any], peer: int, sends: bool
) -> float:
    """Send some large messages one way, and a small one back; return the seconds."""
    started = time.perf_counter()
    for _ in range(_MESSAGES):
        (ah.send if sends else ah.recv)(large, peer, timeout=_MESSAGE_SECONDS)
    (ah.recv if sends else ah.send)(small, peer, timeout=_MESSAGE_SECONDS)
    return time.perf_counter() - started


def _find_partner(pairs: Sequence[tuple[int, int]], place: int) -> int | None:
    for one, other in pairs:
        if place in (one, other):
            return other if place == one else one
    return None


def _read_result(fields: Mapping[str, Any]) -> PairResult:
    link = fields["link"]
    return PairResult(
        HostEnd(**fields["source"]),
        HostEnd(**fields["target"]),
        TcpResult(**fields["tcp"]),
        None if link is None else LinkResult(**link),
    )
