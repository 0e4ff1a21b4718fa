"""Pairs of hosts: the order in which they are measured, results, and findings on them. Pure."""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from allhands.coordinator.sections import Section, Table, format_short
from allhands.doctor.finding import Finding, fail, ok, skip
from allhands_proto.quick_dataclass import dataclass

Failure: TypeAlias = Literal["refused", "silent", "unreachable", "large", "other"]
"""refused: nothing listens, or a firewall says no; silent: no answer to the first packet; large:
small packets pass and large ones do not; unreachable: this host knows no way."""


@dataclass(frozen=True, slots=True)
class HostEnd:
    """A host by the rank that measures for it."""

    rank: int
    host: str
    address: str

    def __str__(self) -> str:
        return f"{self.host} ({self.address}, rank {self.rank})"


@dataclass(frozen=True, slots=True)
class TcpResult:
    """A connection made by one host to another."""

    port: int
    failure: Failure | None = None
    problem: str = ""
    """In words; empty: none."""
    round_trip: float = 0.0
    """Seconds."""
    bandwidth: float = 0.0
    """Bytes a second, from the host that connected."""
    mtu: int = 0
    """Bytes of the largest packet on the path, as the kernel knows it; 0: unknown."""


@dataclass(frozen=True, slots=True)
class LinkResult:
    """Messages over the link of two ranks."""

    problem: str = ""
    round_trip: float = 0.0
    bandwidth: float = 0.0


@dataclass(frozen=True, slots=True)
class PairResult:
    """One direction between two hosts."""

    source: HostEnd
    target: HostEnd
    tcp: TcpResult
    link: LinkResult | None = None
    """None: not tried, since the hosts do not reach each other."""


def list_rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of disjoint pairs, the lower number first, in which each pair comes once.

    Source: the circle method of round-robin tournaments (Kirkman, 1847).
    """
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        yield [
            (min(one, other), max(one, other))
            for one, other in zip(places[:half], reversed(places[half:]), strict=True)
            if one is not None and other is not None
        ]
        places = [places[0], places[-1], *places[1:-1]]


def check_pairs(results: Sequence[PairResult]) -> Iterator[Finding]:
    """Name each direction that fails, with both ends and the fix; count those that do not."""
    if not results:
        yield skip("pairs", "all ranks are on one host: there is no network between them")
        return
    fine = 0
    for one in results:
        if one.tcp.failure is not None:
            yield fail("pairs", _describe_failure(one), _advise(one, one.tcp.failure))
        elif one.link is not None and one.link.problem:
            yield fail(
                "pairs",
                f"{one.source} connects to {one.target}, and their link fails: {one.link.problem}",
                "look for what the firewall does with other ports (ALLHANDS_PORT_RANGE)",
            )
        else:
            fine += 1
    if fine:
        yield ok("pairs", f"{fine} of {len(results)} directions between hosts work")


def _describe_failure(one: PairResult) -> str:
    where = f"port {one.tcp.port}"
    return f"{one.source} does not reach {one.target} at {where}: {one.tcp.problem}"


def _advise(one: PairResult, failure: Failure) -> str:
    source, target = one.source.address, one.target.address
    open_ports = f"let {source} through to the ports of ALLHANDS_PORT_RANGE at {target}"
    match failure:
        case "silent":
            return (
                f"a firewall drops it, or {target} is not the address for {one.source.host}: "
                f"{open_ports}, or choose another address on {one.target.host} "
                "(ALLHANDS_ADVERTISE, ALLHANDS_INTERFACE)"
            )
        case "refused":
            return f"a firewall rejects it, or {target} is another host: {open_ports}"
        case "unreachable":
            return (
                f"give {one.source.host} a route to {target} (ip route get {target}), or choose "
                f"another address on {one.target.host} (ALLHANDS_ADVERTISE, ALLHANDS_INTERFACE)"
            )
        case "large":
            return (
                f"a link on the way takes less than {one.tcp.mtu} bytes and nothing says so: let "
                "ICMP `fragmentation needed` pass, or lower the MTU of both interfaces (ip link "
                "set dev NAME mtu N), or sysctl -w net.ipv4.tcp_mtu_probing=1"
            )
        case "other":
            return f"look at what {target} is, and {open_ports}"


def describe_pairs(results: Sequence[PairResult]) -> list[Section]:
    """Describe results in a table, a row for each direction."""
    table = Table(
        ("FROM", "left"),
        ("TO", "left"),
        ("TCP", "right"),
        ("MB/S", "right"),
        ("MTU", "right"),
        ("LINK", "right"),
        ("MB/S", "right"),
    )
    for one in results:
        ends = (f"{end.host} {end.address}" for end in (one.source, one.target))
        tcp, link = one.tcp, one.link
        cells = [tcp.failure or format_short(tcp.round_trip), _format_rate(tcp.bandwidth)]
        cells.append(str(tcp.mtu) if tcp.mtu else "-")
        if link is None:
            cells += ["-", "-"]
        else:
            said = "fails" if link.problem else format_short(link.round_trip)
            cells += [said, _format_rate(link.bandwidth)]
        table.add_row(*ends, *cells)
    return [table] if results else []


def _format_rate(rate: float) -> str:
    return f"{rate / 1e6:,.0f}" if rate else "-"
