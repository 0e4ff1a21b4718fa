"""Communicators of one group of ranks."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, Self, cast

import numpy as np

from allhands.api import collectives as ah
from allhands.api import ragged
from allhands.api.default_world import destroy_process_group
from allhands.api.groups import new_group
from allhands.api.objects import broadcast_object_list
from allhands.group.group import Group as AllhandsGroup
from allhands.mpi import errors
from allhands.mpi.collectives import direct
from allhands.mpi.collectives.direct import DirectCall
from allhands.mpi.collectives.methods import Plans
from allhands.mpi.collectives.objects import ObjectPrefixes
from allhands.mpi.collectives.plans import IntraPlans, Plan
from allhands.mpi.communicators.comm import (
    NULL_CONTEXT,
    Comm,
    as_numbers,
    take_context,
)
from allhands.mpi.constants import ERR_GROUP, ERR_RANK, UNDEFINED
from allhands.mpi.errhandlers import Errhandler
from allhands.mpi.groups import Group
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.operations.op import Op
from allhands.mpi.operations.predefined import SUM
from allhands.mpi.p2p.requests import Prequest, Request
from allhands.mpi.progress.channel import Channel
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Transfer, WorkTransfer
from allhands.mpi.runtime import runtime
from allhands.mpi.startup import name_host

_CREATE_GROUP_TAGS = 1 << 24
"""Internal tags from here on are of communicators being made by `Create_group`."""


_SMALL_OBJECT = 1 << 14
"""Bytes of an object up to which they are sooner decoded as bytes than as an array."""


class Intracomm(Comm, ObjectPrefixes):
    """A communicator of one group of ranks."""

    _cached_group: AllhandsGroup | None
    _cached_plans: IntraPlans | None
    _topologies: ClassVar[dict[str, Callable[..., Any]]] = {}
    """What makes communicators with a topology, and says where a rank would be."""

    def __new__(cls, comm: Comm | None = None) -> Self:
        if comm is not None and comm and comm.Is_inter():
            raise TypeError("expecting an intracommunicator")
        return super().__new__(cls, comm)

    def _set(self, context: int, ranks: Sequence[int], peers: Sequence[int] | None = None) -> None:
        super()._set(context, ranks, peers)
        self._cached_group = self._cached_plans = None

    def Is_inter(self) -> bool:
        self._check_exists()
        return False

    def Get_topology(self) -> int:
        self._check_exists()
        return UNDEFINED

    @classmethod
    def _make(cls, context: int, ranks: Sequence[int], **topology: Any) -> Self:
        """Return a communicator of ranks of the world, of which this is one."""
        self = cls.__new__(cls)
        self._set(context, ranks)
        self.__dict__.update(topology)
        return self

    # ------------------------------------------------------------ parts

    @property
    def _group(self) -> AllhandsGroup:
        """The group of allhands that carries out the collectives."""
        group = self._cached_group
        if group is None:
            self._check_exists()
            if self._ranks == tuple(range(runtime.engine.size)) and self._context == 0:
                group = runtime.group
            else:
                made = new_group(self._ranks, f"mpi communicator {self._context}")
                assert isinstance(made, AllhandsGroup)
                group = made
            self._cached_group = group
        return group

    @property
    def _plans(self) -> Plans:
        plans = self._cached_plans
        if plans is None:
            plans = self._cached_plans = IntraPlans(self._group)
        if self._context in runtime.engine.revoked:
            self._check_alive()
        return plans

    def _call_direct(self, call: DirectCall, *args: Any) -> bool:
        group = self._cached_group
        return group is not None and self._call_now(call, group.order.direct_calls, args)

    def _call_vectors(self, call: DirectCall, *args: Any) -> bool:
        group = self._cached_group
        return group is not None and self._call_now(call, group.order.vector_calls, args)

    def _call_now(self, call: DirectCall, calls: Any, args: tuple[Any, ...]) -> bool:
        engine = runtime.engine
        if (
            calls is None
            or engine.table.posted_count  # `is_idle` by hand: this is what small calls cost
            or engine.services
            or (engine.revoked and self._context in engine.revoked)
        ):
            return False
        try:
            return call(calls, self._rank, len(self._peers), *args)
        except Exception as error:
            raise errors.translate(error) from None

    def _release(self) -> None:
        if self._cached_group is not None and self._cached_group is not runtime.group:
            destroy_process_group(self._cached_group)

    def _exchange_bytes(
        self, name: str, brought: "Bytes | Sequence[Bytes] | None", root: int | None
    ) -> list[Bytes]:
        plans = cast(IntraPlans, self._plans)
        if root is not None:
            plans.check_root(root)
        group = self._group
        data: Any = brought
        try:
            match name:
                case "bcast":
                    is_small = root == self._rank and data.size <= _SMALL_OBJECT
                    told = [data.tobytes() if is_small else data]
                    broadcast_object_list(told, None, group, group_src=root)
                    return [np.frombuffer(told[0], np.uint8)]
                case "gather":
                    return ragged.gather_v(data, None, group, group_dst=root) or []
                case "scatter":
                    return [ragged.scatter_v(data, None, group, group_src=root)]
                case "allgather":
                    return cast(list[Bytes], ragged.all_gather_v(data, group))
                case _:
                    return cast(list[Bytes], ragged.all_to_all_v(data, group))
        except Exception as error:
            raise errors.translate(error) from None

    # ------------------------------------------------------------ new communicators

    def _agree_context(self) -> int:
        told = as_numbers(runtime.next_context)
        self._reduce_max(told)
        return take_context(int(told[0]))

    def _reduce_max(self, numbers: Any) -> None:
        try:
            ah.all_reduce(numbers, "max", self._group, label="making a communicator")
        except Exception as error:
            raise errors.translate(error) from None

    def _start_agreement(self) -> Transfer:
        told = as_numbers(runtime.next_context)
        # The next one must not agree on the same, while this one is under way.
        runtime.next_context += 1
        work = ah.all_reduce(told, "max", self._group, async_op=True, label="Idup")
        return WorkTransfer("Idup", cast(Any, work), lambda _: take_context(int(told[0])))

    def _copy(self, context: int, cls: type[Comm] | None = None) -> Any:
        made = cast(type[Intracomm], cls or type(self))._make(context, self._ranks)
        made.__dict__.update(self._topology_fields())
        return made

    def _topology_fields(self) -> dict[str, Any]:
        """Return what a copy has of the topology."""
        return {}

    def _make_communicator(
        self, ranks: Sequence[int], cls: "type[Intracomm]", **topology: Any
    ) -> Any:
        """Return a communicator of some ranks of this one, COMM_NULL elsewhere; collective."""
        self._check_alive()
        context = self._agree_context()
        if self._rank not in ranks:
            return cls()
        return cls._make(context, [self._ranks[rank] for rank in ranks], **topology)

    def Create(self, group: Group) -> "Intracomm":
        self._check_alive()
        places = self._find_places(group)
        told = as_numbers(runtime.next_context)
        self._reduce_max(told)
        context = take_context(int(told[0]))
        if self._rank not in places:
            return Intracomm()
        return Intracomm._make(context, group.ranks)

    def _find_places(self, group: Group) -> list[int]:
        """Return the ranks here of the members of a group."""
        if not group and group.ranks is None:
            raise errors.make_error(ERR_GROUP, "the group is null")
        if strangers := [rank for rank in group.ranks if rank not in self._ranks]:
            raise errors.make_error(
                ERR_GROUP, f"world ranks {strangers} of the group are not in {self._title}"
            )
        return [self._ranks.index(rank) for rank in group.ranks]

    def Split(self, color: int = 0, key: int = 0) -> "Intracomm":
        self._check_alive()
        told = as_numbers(color, key, runtime.next_context)
        everybody = np.empty((len(self._ranks), 3), np.int64)
        try:
            ah.all_gather_into_tensor(everybody, told, self._group, label="Split")
        except Exception as error:
            raise errors.translate(error) from None
        context = take_context(int(everybody[:, 2].max()))
        if color == UNDEFINED:
            return Intracomm()
        same = [at for at in range(len(self._ranks)) if everybody[at, 0] == color]
        same.sort(key=lambda at: (int(everybody[at, 1]), at))
        return Intracomm._make(context, [self._ranks[at] for at in same])

    def _gather_hosts(self) -> list[str]:
        return cast(list[str], self._share(name_host()))

    def Create_group(self, group: Group, tag: int = 0) -> "Intracomm":
        """Return a communicator of a group; a collective call of its members alone."""
        self._check_alive()
        places = self._find_places(group)
        if self._rank not in places:
            return Intracomm()
        context = self._agree_among(places, tag)
        return Intracomm._make(context, group.ranks)

    def _agree_among(self, places: Sequence[int], tag: int) -> int:
        """Agree on a number with some ranks, by messages to and from the first."""
        tag = _CREATE_GROUP_TAGS + tag
        leader, others = places[0], places[1:]
        told = as_numbers(runtime.next_context).view(np.uint8)
        if self._rank == leader:
            gathered = self._exchange([], [(one, tag, None) for one in others])
            runtime.engine.wait(gathered)
            came = [int(one.result.view(np.int64)[0]) for one in gathered.list_receives()]
            context = max([runtime.next_context, *came])
            answer = as_numbers(context).view(np.uint8)
            runtime.engine.wait(self._exchange([(one, tag, answer) for one in others], []))
        else:
            answered = self._exchange([(leader, tag, told)], [(leader, tag, None)])
            runtime.engine.wait(answered)
            context = int(answered.list_receives()[0].result.view(np.int64)[0])
        return take_context(context)

    @classmethod
    def Create_from_group(
        cls,
        group: Group,
        stringtag: str = "org.mpi4py",
        info: Info = INFO_NULL,
        errhandler: Errhandler | None = None,
    ) -> "Intracomm":
        """Return a communicator of a group, of which this process is a member."""
        tag = sum(stringtag.encode()) % (1 << 20)
        comm: Intracomm = runtime.world.Create_group(group, tag)
        if errhandler is not None and comm:
            comm.Set_errhandler(errhandler)
        return comm

    def Create_intercomm(
        self, local_leader: int, peer_comm: "Intracomm", remote_leader: int, tag: int = 0
    ) -> "Comm":
        """Return a communicator with this group on one side and another group on the other.

        The leaders exchange messages on `peer_comm`, where the other one is `remote_leader`.
        """
        self._check_alive()
        if not 0 <= local_leader < len(self._ranks):
            raise errors.make_error(ERR_RANK, f"local_leader={local_leader} is no rank here")
        told = as_numbers(runtime.next_context)
        self._reduce_max(told)
        answer: list[int] | None = None
        if self._rank == local_leader:
            own = as_numbers(int(told[0]), *self._ranks).view(np.uint8)
            tag = _CREATE_GROUP_TAGS + tag
            exchange = peer_comm._exchange(
                [(remote_leader, tag, own)], [(remote_leader, tag, None)], what="Create_intercomm"
            )
            peer_comm._complete(exchange)
            answer = exchange.list_receives()[0].result.view(np.int64).tolist()
        theirs, *remote = self._tell(answer, local_leader)
        context = take_context(max(int(told[0]), theirs))
        made: Comm = self._pair_type._make_pair(context, self._ranks, remote)
        return made

    # ------------------------------------------------------------ topologies

    def Create_cart(
        self,
        dims: Sequence[int],
        periods: "Sequence[bool] | bool | None" = None,
        reorder: bool = False,
    ) -> Any:
        """Return a communicator whose ranks are the points of a grid."""
        return self._topologies["cart"](self, dims, periods, reorder)

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> Any:
        """Return a communicator whose ranks are the nodes of a graph that all ranks give."""
        return self._topologies["graph"](self, index, edges, reorder)

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        """Return a communicator with a graph of which each rank gives its own neighbours."""
        return self._topologies["dist graph adjacent"](
            self, sources, destinations, sourceweights, destweights, info, reorder
        )

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        """Return a communicator with a graph of which each rank gives any edges."""
        return self._topologies["dist graph"](
            self, sources, degrees, destinations, weights, info, reorder
        )

    def Cart_map(self, dims: Sequence[int], periods: "Sequence[bool] | bool | None" = None) -> int:
        """Return this rank's rank in such a grid; UNDEFINED: it would not be in it."""
        rank: int = self._topologies["map of cart"](self, dims, periods)
        return rank

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        """Return this rank's rank in such a graph; UNDEFINED: it would not be in it."""
        rank: int = self._topologies["map of graph"](self, index, edges)
        return rank

    # ------------------------------------------------------------ prefix reductions

    def _plan_prefix(self, name: str, sendbuf: Any, recvbuf: Any, op: Op) -> Plan:
        plans = cast(IntraPlans, self._plans)
        return plans.prefix(name, sendbuf, recvbuf, op)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine buffers of the ranks up to this one."""
        if not self._call_direct(direct.scan, sendbuf, recvbuf, op):
            self._run(self._plan_prefix("Scan", sendbuf, recvbuf, op))

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine buffers of the ranks before this one."""
        if not self._call_direct(direct.exscan, sendbuf, recvbuf, op):
            self._run(self._plan_prefix("Exscan", sendbuf, recvbuf, op))

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Begin a `Scan`."""
        return self._begin(self._plan_prefix("Scan", sendbuf, recvbuf, op))

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Begin an `Exscan`."""
        return self._begin(self._plan_prefix("Exscan", sendbuf, recvbuf, op))

    def Scan_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = SUM, info: Info = INFO_NULL
    ) -> Prequest:
        """Prepare a `Scan`."""
        return self._prepare(self._plan_prefix("Scan", sendbuf, recvbuf, op))

    def Exscan_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = SUM, info: Info = INFO_NULL
    ) -> Prequest:
        """Prepare an `Exscan`."""
        return self._prepare(self._plan_prefix("Exscan", sendbuf, recvbuf, op))

    # ------------------------------------------------------------ after losses

    def _abort_calls(self) -> None:
        group = self._cached_group
        if group is not None and group is not runtime.group:
            group.abort("the communicator was revoked")

    def _open_survivors(self) -> AllhandsGroup:
        try:
            return self._group.shrink()
        except Exception as error:
            raise errors.translate(error) from None

    def Shrink(self) -> "Intracomm":
        if self._context == NULL_CONTEXT:
            self._check_exists()
        group = self._open_survivors()
        engine = runtime.engine
        members = [runtime.group.members.index(one) for one in group.members]
        is_lacking = any(
            rank not in members and not engine.has_lost(rank) for rank in engine.channel_ranks
        )
        told = np.array([runtime.next_context, is_lacking], np.int64)
        group.all_reduce(told, "max").wait()
        context = take_context(int(told[0]))
        if not told[1] and len(members) < len(engine.channel_ranks):
            # All that remain are here, and know it: messages go on by a way without the lost ones.
            # It is a group of its own, which outlives this communicator.
            engine.replace_channel(Channel(group.shrink(), members))
        made = Intracomm._make(context, members)
        made._cached_group = group
        return made

    # ------------------------------------------------------------ processes

    def Spawn(
        self,
        command: str,
        args: Sequence[str] | None = None,
        maxprocs: int = 1,
        info: Info = INFO_NULL,
        root: int = 0,
        errcodes: list[int] | None = None,
    ) -> NoReturn:
        """Refuse: processes are started by the launcher."""
        raise NotImplementedError(_SPAWN)

    def Spawn_multiple(
        self,
        command: Sequence[str],
        args: Any = None,
        maxprocs: Sequence[int] | None = None,
        info: Any = INFO_NULL,
        root: int = 0,
        errcodes: Any = None,
    ) -> NoReturn:
        """Refuse: processes are started by the launcher."""
        raise NotImplementedError(_SPAWN)

    def Accept(self, port_name: str, info: Info = INFO_NULL, root: int = 0) -> NoReturn:
        """Refuse: worlds cannot be connected."""
        raise NotImplementedError(_CONNECT)

    def Connect(self, port_name: str, info: Info = INFO_NULL, root: int = 0) -> NoReturn:
        """Refuse: worlds cannot be connected."""
        raise NotImplementedError(_CONNECT)


_SPAWN = (
    "processes cannot be spawned from within a world: start as many as are needed with "
    "`allhands run -n N` and Split them, or let more join with `allhands.executor`; programs of "
    "mpi4py.futures: `allhands run --mpi -n N -m mpi4py.futures PROGRAM`"
)
_CONNECT = (
    "two worlds cannot be connected: start all processes in one (`allhands run -n N`), Split it, "
    "and make an intercommunicator with Create_intercomm"
)
