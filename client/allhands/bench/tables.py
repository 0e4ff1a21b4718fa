"""The tables of README, by name: one command measures them all."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from allhands.bench.case import COLLECTIVES, OBJECTS, SCANS, VARIABLE
from allhands.bench.systems import ENCRYPTED, MPI, TCP, TORCH
from allhands.bench.table_request import TableRequest, TwoHosts

T = TypeVar("T")

_KIB, _MIB = 1 << 10, 1 << 20
_SMALL = (8, 64 * _KIB, _MIB)
_ALL_SIZES = (8, _KIB, 64 * _KIB, _MIB, 16 * _MIB, 64 * _MIB)
_ON_HOSTS = ("sendrecv", "barrier", "all_reduce", "broadcast", "all_gather")
_FEW = (2, 4)
_OTHERS = ("reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Those with one array a side, but all_reduce and broadcast."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table with the systems that are measured in it; those that are not there are left out."""

    request: TableRequest
    variants: tuple[str, ...] = ("allhands",)
    peers: tuple[str, ...] = ("gloo", *MPI)

    def choose(
        self,
        ranks: Collection[int] | None,
        variants: Collection[str] | None,
        peers: Collection[str] | None,
    ) -> "NamedTable":
        """Return the table with only these of its numbers of ranks and systems; None: all."""
        return NamedTable(
            replace(self.request, ranks=_keep(self.request.ranks, ranks)),
            _keep(self.variants, variants),
            _keep(self.peers, peers),
        )


def _keep(own: tuple[T, ...], wanted: Collection[T] | None) -> tuple[T, ...]:
    return own if wanted is None else tuple(one for one in own if one in wanted)


def _make_hosts(rate: str | None, ranks_per_host: int) -> NamedTable:
    request = TableRequest(
        _ON_HOSTS, (), (*_SMALL, 4 * _MIB, 64 * _MIB), hosts=TwoHosts(rate, ranks_per_host)
    )
    peers = ("gloo", TCP) if ranks_per_host == 1 else ("gloo",)
    return NamedTable(request, ("allhands", ENCRYPTED), peers)


def _make_composite(hosts: TwoHosts) -> NamedTable:
    request = TableRequest((*OBJECTS, "all_gather_v", "scan"), (), _SMALL, hosts=hosts)
    return NamedTable(request, peers=("gloo",))


def _make_safer(hosts: TwoHosts) -> NamedTable:
    request = TableRequest(("all_reduce",), (), _SMALL, hosts=hosts)
    return NamedTable(request, _SAFER, ("gloo",))


_TWO_HOSTS, _TWO_OF_TWO = TwoHosts(None, 1), TwoHosts(None, 2)
_TORCH_TOO = ("allhands", TORCH)
_AWAITED = ("allhands", "allhands-asyncio", "allhands-uvloop")
_SAFER = ("allhands", "allhands-retryable", "allhands-shrinking", "allhands-verified")

TABLES: Mapping[str, NamedTable] = {
    "all_reduce": NamedTable(
        TableRequest(("all_reduce",), _FEW, (*_ALL_SIZES, 256 * _MIB)),
        ("allhands", "allhands-arena", "allhands-persistent", TORCH),
    ),
    "collectives": NamedTable(TableRequest(COLLECTIVES, (2, 3, 4), _SMALL)),
    "many_ranks": NamedTable(
        TableRequest(("all_reduce",), (8, 32, 64), (8,)), ("allhands",), ("openmpi",)
    ),
    "scans": NamedTable(TableRequest(SCANS, _FEW, _SMALL), peers=MPI),
    "v_variants": NamedTable(TableRequest(VARIABLE, _FEW, _SMALL)),
    "objects": NamedTable(TableRequest(OBJECTS, _FEW, _SMALL)),
    "coalesced": NamedTable(TableRequest(("coalesced_all_reduce",), _FEW, (_KIB,))),
    "async": NamedTable(
        TableRequest(("async_all_reduce", "in_flight_all_reduce"), _FEW, _SMALL[:2]), _TORCH_TOO
    ),
    "async_large": NamedTable(TableRequest(("async_all_reduce",), _FEW, (_MIB,)), _TORCH_TOO),
    "overlap": NamedTable(TableRequest(("overlap_all_reduce",), _FEW, (16 * _MIB,))),
    "asyncio": NamedTable(
        TableRequest(("all_reduce", "broadcast"), _FEW, _SMALL), _AWAITED, ("gloo",)
    ),
    "asyncio_others": NamedTable(
        TableRequest((*_OTHERS, *SCANS), _FEW, _SMALL[:2]), _AWAITED, peers=()
    ),
    "safer": NamedTable(TableRequest(("all_reduce",), _FEW, _SMALL), _SAFER, ()),
    "hosts": _make_hosts(None, 1),
    "hosts_2_ranks": _make_hosts(None, 2),
    "hosts_10gbit": _make_hosts("10gbit", 1),
    "hosts_10gbit_2_ranks": _make_hosts("10gbit", 2),
    "hosts_others": NamedTable(
        TableRequest(("all_to_all", "gather", "scatter", "reduce"), (), _SMALL, hosts=_TWO_OF_TWO),
        peers=("gloo",),
    ),
    "hosts_composite": _make_composite(_TWO_HOSTS),
    "hosts_composite_2_ranks": _make_composite(_TWO_OF_TWO),
    "hosts_async": NamedTable(
        TableRequest(
            ("async_all_reduce", "in_flight_all_reduce"), (), _SMALL[:2], hosts=_TWO_HOSTS
        ),
        peers=("gloo",),
    ),
    "hosts_asyncio": NamedTable(
        TableRequest(("all_reduce", "broadcast", "barrier"), (), _SMALL, hosts=_TWO_HOSTS),
        _AWAITED,
        ("gloo",),
    ),
    "hosts_safer": _make_safer(_TWO_HOSTS),
    "hosts_safer_2_ranks": _make_safer(_TWO_OF_TWO),
    "start_up": NamedTable(TableRequest(("start_up",), (2, 32), ()), peers=MPI),
    "sessions": NamedTable(TableRequest(("sessions",), (1000, 2000), ()), peers=()),
}
