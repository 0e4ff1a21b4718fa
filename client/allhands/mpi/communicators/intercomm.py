"""Communicators of two groups, whose ranks exchange messages with those of the other."""

from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np

from allhands.mpi import errors
from allhands.mpi.collectives.methods import Plans
from allhands.mpi.collectives.pairs import PairPlans
from allhands.mpi.communicators.comm import Comm, as_numbers, take_context
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.constants import ERR_GROUP, PROC_NULL, ROOT, UNDEFINED
from allhands.mpi.errhandlers import Errhandler
from allhands.mpi.groups import Group
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Completed, Transfer
from allhands.mpi.runtime import runtime
from allhands.mpi.startup import name_host

_FIRST_TAG = 1 << 10
_TAGS = 1 << 20
_SHRINK_TAG = 1
_NOTHING: Bytes = np.empty(0, np.uint8)


class Intercomm(Comm):
    """A communicator of two groups of ranks."""

    _local: Intracomm
    """The ranks on this side."""
    _calls: int
    """Collectives so far."""

    def __new__(cls, comm: Comm | None = None) -> Self:
        if comm is not None and comm and not comm.Is_inter():
            raise TypeError("expecting an intercommunicator")
        return super().__new__(cls, comm)

    @classmethod
    def _make_pair(cls, context: int, ranks: Sequence[int], peers: Sequence[int]) -> Self:
        """Return a communicator of ranks of the world on this side, and on the other."""
        self = cls.__new__(cls)
        self._set(context, ranks, peers)
        self._local = Intracomm._make(context + 1, ranks)
        self._calls = 0
        return self

    def Is_inter(self) -> bool:
        self._check_exists()
        return True

    def Get_topology(self) -> int:
        self._check_exists()
        return UNDEFINED

    @property
    def _plans(self) -> Plans:
        self._check_alive()
        return PairPlans(self)

    @property
    def _is_pair(self) -> bool:
        return True

    def _next_collective_tag(self) -> int:
        self._calls += 1
        return _FIRST_TAG + self._calls % _TAGS

    def _exchange_bytes(
        self, name: str, brought: "Bytes | Sequence[Bytes] | None", root: int | None
    ) -> list[Bytes]:
        self._check_alive()
        plans = PairPlans(self)
        everybody = range(len(self._peers))
        if root is not None:
            plans.check_root(root)
            if root == PROC_NULL:
                self._next_collective_tag()
                return []
        whole = cast(Bytes, brought)
        sends: dict[int, Bytes]
        receives: Sequence[int]
        match name:
            case "bcast" if root == ROOT:
                sends, receives = dict.fromkeys(everybody, whole), ()
            case "scatter" if root == ROOT:
                sends, receives = dict(enumerate(cast(Sequence[Bytes], brought))), ()
            case "bcast" | "scatter":
                sends, receives = {}, (cast(int, root),)
            case "gather" if root == ROOT:
                sends, receives = {}, everybody
            case "gather":
                sends, receives = {cast(int, root): whole}, ()
            case "allgather":
                sends, receives = dict.fromkeys(everybody, whole), everybody
            case _:
                sends, receives = dict(enumerate(cast(Sequence[Bytes], brought))), everybody
        transfer = plans.exchange(name, sends, receives, None)
        return cast(list[Bytes], self._complete(transfer).result)

    # ------------------------------------------------------------ accessors

    def Get_remote_group(self) -> Group:
        """Return the group of the ranks on the other side."""
        self._check_alive()
        return Group._of(self._peers)

    remote_group = property(Get_remote_group, doc="Group of the ranks on the other side.")

    def Get_remote_size(self) -> int:
        """Return the number of ranks on the other side."""
        self._check_alive()
        return len(self._peers)

    remote_size = property(Get_remote_size, doc="Number of ranks on the other side.")

    # ------------------------------------------------------------ new communicators

    def _gather_both(self, *numbers: int) -> tuple[list[list[int]], list[list[int]]]:
        """Return the numbers of all ranks of this side and of the other."""
        told = list(numbers)
        here = cast(list[list[int]], self._local._share(told))
        there = cast(list[list[int]], self._share(told))
        return here, there

    def _agree_context(self) -> int:
        here, there = self._gather_both(runtime.next_context)
        return take_context(max(one[0] for one in (*here, *there)))

    def _start_agreement(self) -> Transfer:
        return Completed(result=self._agree_context())

    def _copy(self, context: int, cls: type[Comm] | None = None) -> Any:
        return type(self)._make_pair(context, self._ranks, self._peers)

    def Create(self, group: Group) -> "Intercomm":
        self._check_alive()
        if strangers := [rank for rank in group.ranks if rank not in self._ranks]:
            raise errors.make_error(
                ERR_GROUP, f"world ranks {strangers} of the group are not on this side"
            )
        theirs = self._exchange_bytes("allgather", as_numbers(*group.ranks).view(np.uint8), None)
        remote = theirs[0].view(np.int64).tolist()
        context = self._agree_context()
        if self._ranks[self._rank] not in group.ranks or not remote:
            return Intercomm()
        return Intercomm._make_pair(context, group.ranks, remote)

    def Split(self, color: int = 0, key: int = 0) -> "Intercomm":
        self._check_alive()
        here, there = self._gather_both(color, key, runtime.next_context)
        context = take_context(max(one[2] for one in (*here, *there)))
        if color == UNDEFINED:
            return Intercomm()

        def choose(told: list[list[int]], ranks: Sequence[int]) -> list[int]:
            places = [at for at in range(len(ranks)) if told[at][0] == color]
            places.sort(key=lambda at: (told[at][1], at))
            return [ranks[at] for at in places]

        mine, theirs = choose(here, self._ranks), choose(there, self._peers)
        return Intercomm._make_pair(context, mine, theirs) if theirs else Intercomm()

    def _gather_hosts(self) -> list[str]:
        return self._local._gather_hosts()

    def Split_type(self, split_type: int, key: int = 0, info: Info = INFO_NULL) -> Comm:
        self._check_alive()
        if split_type == UNDEFINED:
            return self.Split(UNDEFINED, key)
        hosts = sorted({*self._local._share(name_host()), *self._share(name_host())})
        return self.Split(hosts.index(name_host()), key)

    def Merge(self, high: bool = False) -> Intracomm:
        """Return a communicator of both groups; those that say `high` come last."""
        self._check_alive()
        here, there = self._gather_both(int(bool(high)), runtime.next_context)
        context = take_context(max(one[1] for one in (*here, *there)))
        mine, theirs = (here[0][0], self._ranks[0]), (there[0][0], self._peers[0])
        first, second = (self._ranks, self._peers) if mine < theirs else (self._peers, self._ranks)
        return Intracomm._make(context, (*first, *second))

    @classmethod
    def Create_from_groups(
        cls,
        local_group: Group,
        local_leader: int,
        remote_group: Group,
        remote_leader: int,
        stringtag: str = "org.mpi4py",
        info: Info = INFO_NULL,
        errhandler: Errhandler | None = None,
    ) -> "Intercomm":
        """Return a communicator of two groups that all ranks give."""
        local = Intracomm.Create_from_group(local_group, stringtag, info, errhandler)
        leader = remote_group.ranks[remote_leader]
        tag = sum(stringtag.encode()) % (1 << 20)
        comm = local.Create_intercomm(local_leader, runtime.world, leader, tag)
        local.Free()
        return cast(Intercomm, comm)

    def _release(self) -> None:
        self._local._release()

    def Agree(self, flag: int) -> int:
        here = self._local.Agree(flag)
        theirs = self._exchange_bytes("allgather", as_numbers(here).view(np.uint8), None)
        return here & int(theirs[0].view(np.int64)[0])

    def Shrink(self) -> "Intercomm":
        """Return a communicator of the remaining ranks of both groups.

        The leaders of the groups tell one another; ranks that are lost meanwhile are found later.
        """
        local = self._local.Shrink()
        remote = [rank for rank in self._peers if not runtime.engine.has_lost(rank)]
        told = None
        if local.Get_rank() == 0:
            own = as_numbers(local._context, *local._ranks).view(np.uint8)
            leader = self._peers.index(remote[0])
            exchange = self._exchange(
                [(leader, _SHRINK_TAG, own)], [(leader, _SHRINK_TAG, None)], what="Shrink"
            )
            self._complete(exchange)
            told = exchange.list_receives()[0].result.view(np.int64).tolist()
        theirs, *others = local._tell(told, 0)
        return Intercomm._make_pair(
            take_context(max(local._context, theirs) + 1), local._ranks, others
        )

    def _abort_calls(self) -> None:
        self._local._abort_calls()


Comm._pair_type = Intercomm
