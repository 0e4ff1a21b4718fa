"""Windows: memory that the ranks of a communicator open to one another."""

import operator
from collections.abc import Sequence
from typing import Any, Literal, Self, cast

import numpy as np

from allhands.mpi import constants, errors
from allhands.mpi.attributes import HasAttributes
from allhands.mpi.buffers.messages import SimpleMessage, as_datatype, parse_receive, parse_send
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.communicators.predefined import COMM_SELF
from allhands.mpi.constants import (
    ERR_ARG,
    ERR_DISP,
    ERR_RANK,
    ERR_RMA_ATTACH,
    ERR_RMA_FLAVOR,
    ERR_RMA_SHARED,
    ERR_RMA_SYNC,
    ERR_SIZE,
    ERR_WIN,
    LOCK_EXCLUSIVE,
    LOCK_SHARED,
    MAX_OBJECT_NAME,
    PROC_NULL,
    WIN_FLAVOR_ALLOCATE,
    WIN_FLAVOR_CREATE,
    WIN_FLAVOR_DYNAMIC,
    WIN_FLAVOR_SHARED,
    WIN_UNIFIED,
)
from allhands.mpi.errhandlers import HasErrhandler
from allhands.mpi.groups import Group
from allhands.mpi.handles import Handle
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.memory.buffer import buffer
from allhands.mpi.memory.owner import MemoryOwner
from allhands.mpi.memory.special import is_bottom
from allhands.mpi.memory.views import view_bytes
from allhands.mpi.operations.op import Op
from allhands.mpi.operations.predefined import SUM
from allhands.mpi.p2p.requests import Request
from allhands.mpi.progress.frames import Bytes, FrameKind
from allhands.mpi.progress.transfers import Completed, Transfer
from allhands.mpi.runtime import runtime
from allhands.mpi.windows.direct_exchange import DirectExchange, Shares
from allhands.mpi.windows.exchange import WindowExchange, describe_address
from allhands.mpi.windows.operations import Kind
from allhands.mpi.windows.places import Place, make_place
from allhands.mpi.windows.shares import LINE_BYTES, open_shares, reach_memory


class Win(Handle, HasAttributes, HasErrhandler, MemoryOwner):
    """A window; null once it was freed."""

    _comm: Intracomm | None
    _exchange: WindowExchange
    _memory: Bytes | None
    _disp_unit: int
    _flavor: int
    _model = WIN_UNIFIED
    _owner: Any
    """What the program gave, which stays alive."""
    _name: str
    _info: Info | None
    _accessed: tuple[int, ...]
    """Ranks of the world at which `Start` began operations."""
    _exposed: tuple[int, ...]
    """Ranks of the world that `Post` has let in."""
    _locked: set[int]
    _shares: Shares | None
    """Memory that this process sees, of all ranks; None: its own alone."""

    def __new__(cls, win: "Win | None" = None) -> Self:
        self = super().__new__(cls, win)
        if win is None:
            self._comm = None
        return self

    def _identity(self) -> object:
        return None if self._comm is None else self._comm._context

    def _check(self) -> Intracomm:
        if self._comm is None:
            raise errors.make_error(ERR_WIN, "the window is null")
        return self._comm

    def _check_attributes(self) -> None:
        self._check()

    def _check_errhandler(self) -> None:
        self._check()

    # ------------------------------------------------------------ creation

    @classmethod
    def _make(
        cls,
        comm: Intracomm,
        memory: Bytes | None,
        disp_unit: int,
        flavor: int,
        info: Info,
        owner: Any = None,
        shares: Shares | None = None,
    ) -> Self:
        self = cls.__new__(cls)
        self._comm = comm.Dup()
        self._comm._group  # noqa: B018 (made now: the ranks are together)
        self._memory, self._disp_unit, self._flavor = memory, disp_unit, flavor
        self._owner = owner
        self._shares = shares
        self._name = ""
        self._info = info.Dup() if info else None
        self._accessed = ()
        self._exposed = ()
        self._locked = set()
        engine, context = runtime.engine, self._comm._context
        if shares is None:
            self._exchange = WindowExchange(engine, context, memory, disp_unit)
            with engine.lock:
                engine.services += 1
            engine.start_background()
        else:  # frames come to ranks in calls that wait for them
            self._exchange = DirectExchange(engine, context, engine.rank, shares)
        _open_windows()[context] = self._exchange
        self._comm.Barrier()
        return self

    @classmethod
    def Create(
        cls, memory: Any, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF
    ) -> Self:
        """Open a buffer of this rank; BOTTOM, None: no memory. A collective call."""
        _check_unit(disp_unit)
        data = _NOTHING if is_bottom(memory) else view_bytes(memory, writeable=True)
        files = runtime.storage.setdefault("memory of processes", {})
        shares = reach_memory(comm, data, disp_unit, files)
        return cls._make(comm, data, disp_unit, WIN_FLAVOR_CREATE, info, memory, shares)

    @classmethod
    def Allocate(
        cls, size: int, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF
    ) -> Self:
        """Open new memory of so many bytes, which ranks on one host share. A collective call."""
        _check_size(size)
        _check_unit(disp_unit)
        shares = open_shares(comm, size, disp_unit, LINE_BYTES)
        if shares is None:
            memory: Bytes = np.zeros(size, np.uint8)
        else:
            memory = shares.get_mapped(comm._ranks[comm._rank])
        return cls._make(comm, memory, disp_unit, WIN_FLAVOR_ALLOCATE, info, shares=shares)

    @classmethod
    def Allocate_shared(
        cls, size: int, disp_unit: int = 1, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF
    ) -> Self:
        """Open new memory that all ranks see, one rank's behind the other's. A collective call.

        Raises:
            Exception: the ranks are not on one host.
        """
        _check_size(size)
        _check_unit(disp_unit)
        shares = open_shares(comm, size, disp_unit, 1)
        if shares is None:
            raise errors.make_error(
                ERR_RMA_SHARED,
                "ranks on several hosts, or in containers of their own, share no memory: "
                "Split_type(MPI.COMM_TYPE_SHARED) first",
            )
        own = shares.get_mapped(comm._ranks[comm._rank])
        return cls._make(comm, own, disp_unit, WIN_FLAVOR_SHARED, info, shares=shares)

    def Shared_query(self, rank: int) -> tuple[buffer, int]:
        """Return the memory of a rank that this process sees, and its unit.

        PROC_NULL: that of the first rank that has any. Only `Allocate_shared` lets a rank see the
        memory of others: else it is empty.
        """
        comm = self._check()
        if self._flavor == WIN_FLAVOR_DYNAMIC:
            raise errors.make_error(ERR_RMA_FLAVOR, "memory that is attached is not shared")
        if self._flavor != WIN_FLAVOR_SHARED:
            asked = 0 if rank == PROC_NULL else self._check_rank(rank)
            is_own = asked == comm._rank and self._memory is not None
            found = (self._memory if is_own else _NOTHING, self._disp_unit)
        else:
            assert self._shares is not None
            mapped = [self._shares.get_mapped(one) for one in comm._ranks]
            if rank == PROC_NULL:
                place = next((at for at, one in enumerate(mapped) if one.size), None)
            else:
                place = self._check_rank(rank)
            if place is None:
                found = (_NOTHING, 1)
            else:
                found = (mapped[place], self._shares.by_rank[comm._ranks[place]].disp_unit)
        memory, unit = found
        assert memory is not None
        return buffer._over(memory, self), unit

    @classmethod
    def Create_dynamic(cls, info: Info = INFO_NULL, comm: Intracomm = COMM_SELF) -> Self:
        """Open no memory yet: see `Attach`. A collective call."""
        return cls._make(comm, None, 1, WIN_FLAVOR_DYNAMIC, info)

    def Attach(self, memory: Any) -> None:
        """Open a buffer of this rank too; displacements are addresses."""
        self._check_dynamic()
        data = view_bytes(memory, writeable=True)
        with runtime.engine.lock:
            self._exchange.attached[describe_address(data)] = data

    def Detach(self, memory: Any) -> None:
        """Close a buffer that was attached."""
        self._check_dynamic()
        address = describe_address(view_bytes(memory, writeable=True))
        with runtime.engine.lock:
            if self._exchange.attached.pop(address, None) is None:
                raise errors.make_error(ERR_RMA_ATTACH, "the memory is not attached")

    def _check_dynamic(self) -> None:
        self._check()
        if self._flavor != WIN_FLAVOR_DYNAMIC:
            raise errors.make_error(ERR_RMA_FLAVOR, "the window was not made by Create_dynamic")

    def Free(self) -> None:
        """Close the window, when all operations have been carried out. A collective call."""
        comm = self._check()
        self.delete_attributes()
        self._exchange.flush()
        comm.Barrier()
        engine = runtime.engine
        with engine.lock:
            if isinstance(self._exchange, DirectExchange):
                self._exchange.close()
            else:
                engine.services -= 1
            _open_windows().pop(comm._context, None)
        comm.Free()
        self._make_null()

    # ------------------------------------------------------------ accessors

    def Get_info(self) -> Info:
        """Return a copy of the hints."""
        self._check()
        return Info.Create() if self._info is None else self._info.Dup()

    def Set_info(self, info: Info) -> None:
        """Set the hints, on all ranks alike."""
        self._check()
        self._info = info.Dup() if info else None

    info = property(Get_info, Set_info, doc="Hints.")

    def Get_group(self) -> Group:
        """Return the group of the ranks."""
        return self._check().Get_group()

    group = property(Get_group, doc="Group of the ranks.")
    group_size = property(lambda self: self._check().Get_size(), doc="Number of ranks.")
    group_rank = property(lambda self: self._check().Get_rank(), doc="Rank of this process.")

    def _predefined_attribute(self, keyval: int) -> Any:
        memory = self._memory
        match keyval:
            case constants.WIN_BASE:
                return 0 if memory is None or not memory.size else describe_address(memory)
            case constants.WIN_SIZE:
                return 0 if memory is None else memory.size
            case constants.WIN_DISP_UNIT:
                return self._disp_unit
            case constants.WIN_CREATE_FLAVOR:
                return self._flavor
            case constants.WIN_MODEL:
                return self._model
        return None

    @property
    def attrs(self) -> tuple[int, int, int]:
        """Address, size and unit."""
        keys = (constants.WIN_BASE, constants.WIN_SIZE, constants.WIN_DISP_UNIT)
        base, size, unit = (self.Get_attr(key) for key in keys)
        return base, size, unit

    @property
    def flavor(self) -> int:
        """How it was made."""
        self._check()
        return self._flavor

    @property
    def model(self) -> int:
        """WIN_UNIFIED: there is one copy of the memory."""
        self._check()
        return self._model

    def tomemory(self) -> buffer:
        """Return the memory of this rank."""
        self._check()
        if self._memory is None or not self._memory.size:
            return buffer()
        return buffer._over(self._memory, self)

    def __buffer__(self, flags: int) -> memoryview:
        whole: Any = self.tomemory()
        return memoryview(whole)

    def Get_name(self) -> str:
        """Return the name."""
        return "MPI_WIN_NULL" if self._comm is None else self._name

    def Set_name(self, name: str) -> None:
        """Set the name, on this rank."""
        self._check()
        self._name = name[: MAX_OBJECT_NAME - 1]

    name = property(Get_name, Set_name, doc="Name on this rank.")

    # ------------------------------------------------------------ operations

    def _check_rank(self, rank: int) -> int:
        size = len(self._check()._ranks)
        if not 0 <= rank < size:
            raise errors.make_error(ERR_RANK, f"target rank {rank} is not among {size}")
        return rank

    def _start(
        self,
        what: str,
        kind: Kind,
        rank: int,
        place: Place,
        data: Bytes | None = None,
        result: SimpleMessage | None = None,
    ) -> Transfer:
        world = self._check()._ranks[self._check_rank(rank)]
        return self._exchange.start(what, kind, world, place, data, result)

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Store data at a target.

        Args:
            target: displacement there, or with count and datatype; by default as at the origin.
        """
        self._put(origin, target_rank, target)

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Begin a `Put`."""
        return Request._of(self._put(origin, target_rank, target))

    def _put(self, origin: Any, rank: int, target: Any) -> Transfer:
        self._check()
        if rank == PROC_NULL:
            return Completed.from_nowhere()
        message = parse_send(origin)
        place = _parse_target(target, message)
        return self._start("Put", Kind.PUT, rank, place, message.pack())

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Fetch data from a target; it is there after the synchronization."""
        self._get(origin, target_rank, target)

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Begin a `Get`; the data is there when the request has ended."""
        return Request._of(self._get(origin, target_rank, target))

    def _get(self, origin: Any, rank: int, target: Any) -> Transfer:
        self._check()
        if rank == PROC_NULL:
            return Completed.from_nowhere()
        message = parse_receive(origin)
        place = _parse_target(target, message)
        return self._start("Get", Kind.GET, rank, place, None, message)

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        """Combine data with that at a target, there."""
        self._accumulate(origin, target_rank, target, op)

    def Raccumulate(
        self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM
    ) -> Request:
        """Begin an `Accumulate`."""
        return Request._of(self._accumulate(origin, target_rank, target, op))

    def _accumulate(self, origin: Any, rank: int, target: Any, op: Op) -> Transfer:
        self._check()
        if rank == PROC_NULL:
            return Completed.from_nowhere()
        message = parse_send(origin)
        place = _parse_target(target, message, _name_op(op))
        return self._start("Accumulate", Kind.ACCUMULATE, rank, place, message.pack())

    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM
    ) -> None:
        """Fetch data from a target, and combine other data with it, there."""
        self._get_accumulate(origin, result, target_rank, target, op)

    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM
    ) -> Request:
        """Begin a `Get_accumulate`."""
        return Request._of(self._get_accumulate(origin, result, target_rank, target, op))

    def _get_accumulate(self, origin: Any, result: Any, rank: int, target: Any, op: Op) -> Transfer:
        self._check()
        if rank == PROC_NULL:
            return Completed.from_nowhere()
        name = _name_op(op)
        message, output = parse_send(origin), parse_receive(result)
        place = _parse_target(target, output if name == "NO_OP" else message, name)
        data = None if name == "NO_OP" else message.pack()
        return self._start("Get_accumulate", Kind.FETCH, rank, place, data, output)

    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: Op = SUM
    ) -> None:
        """Fetch an element from a target, and combine another with it, there."""
        self._check()
        if target_rank == PROC_NULL:
            return
        name = _name_op(op)
        message, output = parse_send(origin), parse_receive(result)
        _check_one("origin", message)
        _check_one("result", output)
        _check_same("origin and result", message, output)
        place = make_place(target_disp, 1, output.datatype, name)
        data = None if name == "NO_OP" else message.pack()
        self._start("Fetch_and_op", Kind.FETCH, target_rank, place, data, output)

    def Compare_and_swap(
        self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0
    ) -> None:
        """Fetch an element from a target, and store another there if it is as expected."""
        self._check()
        if target_rank == PROC_NULL:
            return
        message, expected = parse_send(origin), parse_send(compare)
        output = parse_receive(result)
        for title, one in (("origin", message), ("compare", expected), ("result", output)):
            _check_one(title, one)
        _check_same("origin and compare", message, expected)
        _check_same("origin and result", message, output)
        place = make_place(target_disp, 1, output.datatype)
        data = np.concatenate([expected.pack(), message.pack()])
        self._start("Compare_and_swap", Kind.SWAP, target_rank, place, data, output)

    # ------------------------------------------------------------ synchronization

    def Fence(self, assertion: int = 0) -> None:
        """End all operations of all ranks; a collective call."""
        comm = self._check()
        self._exchange.flush()
        comm.Barrier()

    def _list_world(self, group: Group) -> tuple[int, ...]:
        ranks = self._check()._ranks
        if strangers := [rank for rank in group.ranks if rank not in ranks]:
            raise errors.make_error(ERR_RANK, f"world ranks {strangers} are not of the window")
        return group.ranks

    def Post(self, group: Group, assertion: int = 0) -> None:
        """Open the memory to operations of some ranks, until `Wait`."""
        if self._exposed:
            raise errors.make_error(ERR_RMA_SYNC, "Post was called before: Wait first")
        self._exposed = self._list_world(group)
        for rank in self._exposed:
            self._exchange.notify(Kind.POST, rank)

    def Start(self, group: Group, assertion: int = 0) -> None:
        """Begin operations at some ranks, when they have called `Post`."""
        if self._accessed:
            raise errors.make_error(ERR_RMA_SYNC, "Start was called before: Complete first")
        targets = self._list_world(group)
        posts = self._exchange.posts

        def missing() -> list[int]:
            return [rank for rank in targets if not posts.get(rank)]

        self._exchange.wait_until(lambda: not missing(), "Start of a window", missing)
        for rank in targets:
            posts[rank] -= 1
        self._accessed = targets

    def Complete(self) -> None:
        """End the operations that `Start` began."""
        self._check()
        targets, self._accessed = self._accessed, ()
        self._exchange.flush(targets)
        for rank in targets:
            self._exchange.notify(Kind.COMPLETE, rank)

    def Wait(self) -> Literal[True]:
        """Return when the ranks given to `Post` have called `Complete`."""
        self._check()
        origins = self._exposed

        def missing() -> list[int]:
            return [rank for rank in origins if not self._exchange.completions.get(rank)]

        self._exchange.wait_until(lambda: not missing(), "Wait of a window", missing)
        self._close_exposure()
        return True

    def Test(self) -> bool:
        """Say whether the ranks given to `Post` have called `Complete`."""
        self._check()
        runtime.engine.progress()
        if any(not self._exchange.completions.get(rank) for rank in self._exposed):
            return False
        self._close_exposure()
        return True

    def _close_exposure(self) -> None:
        for rank in self._exposed:
            self._exchange.completions[rank] -= 1
        self._exposed = ()

    def Lock(self, rank: int, lock_type: int = LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin operations at a rank, alone or, with LOCK_SHARED, beside others."""
        self._check()
        if lock_type not in (LOCK_EXCLUSIVE, LOCK_SHARED):
            raise errors.make_error(constants.ERR_LOCKTYPE, f"{lock_type} is no kind of lock")
        if rank == PROC_NULL:
            return
        asked = self._ask_lock(self._check_rank(rank), lock_type == LOCK_SHARED)
        try:
            self._wait_for(asked)
        except BaseException:
            self._locked.discard(rank)
            raise

    def _ask_lock(self, rank: int, is_shared: bool) -> Transfer:
        if rank in self._locked:
            raise errors.make_error(ERR_RMA_SYNC, f"rank {rank} is locked already: Unlock first")
        self._locked.add(rank)
        world = self._check()._ranks[rank]
        return self._exchange.start("Lock", Kind.LOCK, world, None, flag=int(is_shared))

    def _wait_for(self, transfer: Transfer) -> None:
        runtime.engine.wait(transfer)
        if transfer.error is not None:
            raise errors.translate(transfer.error)

    def Unlock(self, rank: int) -> None:
        """End the operations at a rank that `Lock` began."""
        self._check()
        if rank == PROC_NULL:
            return
        self._wait_for(self._give_back(self._check_rank(rank)))

    def _give_back(self, rank: int) -> Transfer:
        if rank not in self._locked:
            raise errors.make_error(ERR_RMA_SYNC, f"rank {rank} is not locked: Lock first")
        world = self._check()._ranks[rank]
        try:
            self._exchange.flush((world,))
        finally:
            self._locked.discard(rank)
            unlock = self._exchange.start("Unlock", Kind.UNLOCK, world, None)
        return unlock

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin operations at all ranks, beside others."""
        comm = self._check()
        asked = [self._ask_lock(rank, True) for rank in range(len(comm._ranks))]
        for transfer in asked:
            self._wait_for(transfer)

    def Unlock_all(self) -> None:
        """End the operations that `Lock_all` began."""
        self._check()
        for transfer in [self._give_back(rank) for rank in sorted(self._locked)]:
            self._wait_for(transfer)

    def Flush(self, rank: int) -> None:
        """Return when the operations at a rank have been carried out."""
        comm = self._check()
        if rank != PROC_NULL:
            self._exchange.flush((comm._ranks[self._check_rank(rank)],))

    def Flush_all(self) -> None:
        """Return when the operations at all ranks have been carried out."""
        self._check()
        self._exchange.flush()

    def Flush_local(self, rank: int) -> None:
        """Return when the buffers of the operations at a rank are the program's again."""
        self.Flush(rank)

    def Flush_local_all(self) -> None:
        """Return when the buffers of all operations are the program's again."""
        self.Flush_all()

    def Sync(self) -> None:
        """Let what others have stored be seen here."""
        self._check()
        runtime.engine.progress()


_NOTHING: Bytes = np.empty(0, np.uint8)


def _open_windows() -> dict[int, WindowExchange]:
    """Return the windows that are open, by their numbers."""
    storage = runtime.storage
    if "windows" not in storage:
        storage["windows"] = {}

        def handle(sender: int, context: int, fields: Sequence[int], payload: Bytes) -> None:
            exchange = storage["windows"].get(context)
            if exchange is not None:
                exchange.handle(sender, tuple(fields), payload)

        runtime.engine.set_handler(FrameKind.RMA, cast(Any, handle))
    windows: dict[int, WindowExchange] = storage["windows"]
    return windows


def _check_unit(disp_unit: int) -> None:
    if disp_unit < 1:
        raise errors.make_error(ERR_DISP, f"disp_unit={disp_unit} is not positive")


def _check_size(size: int) -> None:
    if size < 0:
        raise errors.make_error(ERR_SIZE, f"no memory has {size} bytes")


def _parse_target(target: Any, message: SimpleMessage, op: str = "") -> Place:
    """Return the place at the target that a program names."""
    disp, count, datatype = 0, message.count, message.datatype
    if isinstance(target, list | tuple):
        if len(target) > 3:
            raise ValueError("target: expecting 3 items at most")
        if len(target) >= 1:
            disp = operator.index(target[0])
        if len(target) >= 2:
            count = operator.index(target[1])
        if len(target) >= 3:
            datatype = as_datatype(target[2])
    elif target is not None:
        if not hasattr(target, "__index__"):
            raise ValueError("target: expecting integral or list/tuple")
        disp = operator.index(target)
    if datatype.size * count != message.nbytes:
        raise errors.make_error(
            ERR_ARG, f"{message.nbytes} bytes at the origin are {datatype.size * count} there"
        )
    return make_place(disp, count, datatype, op)


def _name_op(op: Op) -> str:
    if op._standard is None:
        raise errors.make_error(
            constants.ERR_OP, "operations on windows take predefined operations, such as MPI.SUM"
        )
    return op._standard.name


def _check_one(title: str, message: SimpleMessage) -> None:
    if message.count != 1:
        raise ValueError(f"{title}: expecting a single element, got {message.count}")


def _check_same(titles: str, one: SimpleMessage, other: SimpleMessage) -> None:
    if one.datatype != other.datatype and one.datatype.base != other.datatype.base:
        raise ValueError(f"mismatch in {titles} MPI datatypes")


WIN_NULL = Win()._name_constant("WIN_NULL")
"""The null window."""
