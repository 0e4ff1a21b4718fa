"""Communicators: what those of one group of ranks and of two have in common."""

import os
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from allhands.mpi import constants, errors
from allhands.mpi.attributes import HasAttributes
from allhands.mpi.collectives.methods import BufferCollectives, Plans
from allhands.mpi.collectives.objects import ObjectCollectives
from allhands.mpi.communicators.fault_tolerance import FaultTolerance
from allhands.mpi.communicators.point_to_point import TAG_LIMIT, PointToPoint
from allhands.mpi.constants import (
    ANY_SOURCE,
    COMM_TYPE_SHARED,
    CONGRUENT,
    ERR_ARG,
    ERR_COMM,
    ERR_REVOKED,
    IDENT,
    MAX_OBJECT_NAME,
    SIMILAR,
    UNDEFINED,
    UNEQUAL,
)
from allhands.mpi.errhandlers import HasErrhandler
from allhands.mpi.groups import Group
from allhands.mpi.handles import Handle
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.p2p.buffered import SendBuffer
from allhands.mpi.p2p.requests import Request
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Transfer
from allhands.mpi.runtime import runtime
from allhands.mpi.startup import abort_world

NULL_CONTEXT = -1
_RESOURCE = "mpi_hw_resource_type"
_SHARED_MEMORY = "mpi_shared_memory"
CONTEXTS_TAKEN = 2
"""Numbers that a new communicator takes: its own, and that of the ranks on its side of a pair."""


class Comm(
    Handle,
    HasAttributes,
    HasErrhandler,
    PointToPoint,
    BufferCollectives,
    ObjectCollectives,
    FaultTolerance,
):
    """A communicator; null if it was freed, or this rank is not in it."""

    _ranks: tuple[int, ...]
    """Ranks of the world, by ranks of the communicator (of this side of a pair)."""

    def __new__(cls, comm: "Comm | None" = None) -> Self:
        self = super().__new__(cls, comm)
        if comm is None:
            self._set(NULL_CONTEXT, ())
        else:
            self._real = comm._real or comm
        return self

    _pair_type: ClassVar[Any]
    """The class of communicators of two groups."""
    _real: "Comm | None" = None
    """The communicator of its kind, of which this is another handle, of whatever class."""

    @property
    def _kind_of(self) -> "Comm":
        """The communicator of its kind that carries out its calls; see `_real`."""
        if self._real is None or self._context == NULL_CONTEXT:
            self._check_exists()
            raise errors.make_error(ERR_COMM, "the communicator is of no kind")
        return self._real

    def _set(self, context: int, ranks: Sequence[int], peers: Sequence[int] | None = None) -> None:
        self._context = context
        self._ranks = tuple(ranks)
        self._peers = self._ranks if peers is None else tuple(peers)
        self._rank = self._ranks.index(runtime.engine.rank) if self._ranks else UNDEFINED
        self._name = ""
        self._info: Info | None = None
        self._send_buffer: SendBuffer | None = None
        self._acknowledged = 0

    def _identity(self) -> object:
        return None if self._context == NULL_CONTEXT else self._context

    def _check_exists(self) -> None:
        """Raise if the communicator is null; calls that need no other rank go on if revoked."""
        if self._context == NULL_CONTEXT:
            raise errors.make_error(
                ERR_COMM, "the communicator is null: it was freed, or this rank is not in it"
            )

    def _check_alive(self) -> None:
        self._check_exists()
        if self._context in runtime.engine.revoked:
            raise errors.make_error(ERR_REVOKED, f"{self._title} was revoked")

    @property
    def _title(self) -> str:
        """The communicator's name, for errors."""
        return f"communicator {self._name or self._context}"

    # ------------------------------------------------------------ accessors

    def Get_group(self) -> Group:
        """Return the group of its ranks."""
        self._check_exists()
        return Group._of(self._ranks)

    group = property(Get_group, doc="Group of its ranks.")

    def Get_size(self) -> int:
        """Return the number of its ranks."""
        self._check_exists()
        return len(self._ranks)

    size = property(Get_size, doc="Number of its ranks.")

    def Get_rank(self) -> int:
        """Return the rank of this process."""
        self._check_exists()
        return self._rank

    rank = property(Get_rank, doc="Rank of this process.")

    def Is_inter(self) -> bool:
        """Say whether it has two groups."""
        return self._kind_of.Is_inter()

    is_inter = property(lambda self: self.Is_inter(), doc="Whether it has two groups.")

    def Is_intra(self) -> bool:
        """Say whether it has one group."""
        return not self.Is_inter()

    is_intra = property(Is_intra, doc="Whether it has one group.")

    def Get_topology(self) -> int:
        """Return the kind of its topology; UNDEFINED: it has none."""
        return self._kind_of.Get_topology()

    topology = property(lambda self: self.Get_topology(), doc="Kind of its topology.")
    is_topo = property(
        lambda self: self.Get_topology() != UNDEFINED, doc="Whether it has a topology."
    )

    def Get_name(self) -> str:
        """Return its name."""
        return "MPI_COMM_NULL" if self._context == NULL_CONTEXT else self._name

    def Set_name(self, name: str) -> None:
        """Set its name, on this rank."""
        self._check_exists()
        self._name = name[: MAX_OBJECT_NAME - 1]

    name = property(Get_name, Set_name, doc="Its name on this rank.")

    def Get_info(self) -> Info:
        """Return a copy of its hints."""
        self._check_exists()
        return Info.Create() if self._info is None else self._info.Dup()

    def Set_info(self, info: Info) -> None:
        """Set its hints, on all ranks alike."""
        self._check_exists()
        self._info = info.Dup() if info else None

    info = property(Get_info, Set_info, doc="Its hints.")

    def Compare(self, comm: "Comm") -> int:
        """Return IDENT, CONGRUENT (other messages), SIMILAR (another order), or UNEQUAL."""
        self._check_exists()
        comm._check_exists()
        if comm._context == self._context:
            return IDENT
        if self.Is_inter() != comm.Is_inter():
            return UNEQUAL
        sides = ((self._ranks, comm._ranks), (self._peers, comm._peers))
        if all(mine == theirs for mine, theirs in sides):
            return CONGRUENT
        if all(set(mine) == set(theirs) for mine, theirs in sides):
            return SIMILAR
        return UNEQUAL

    # ------------------------------------------------------------ new communicators

    def _agree_context(self) -> int:
        """Return a number that no communicator of any of the ranks has; a collective call."""
        return self._kind_of._agree_context()

    def _start_agreement(self) -> Transfer:
        """Begin to agree on such a number, which is the result."""
        return self._kind_of._start_agreement()

    def _copy(self, context: int, cls: type["Comm"] | None = None) -> Any:
        """Return a communicator of the same ranks with messages of its own."""
        return type(self)(self._kind_of._copy(context))

    def Clone(self) -> Self:
        """Return a communicator of the same ranks and topology."""
        return self.Dup()

    def Dup(self, info: Info | None = None) -> Self:
        """Return a communicator of the same ranks, topology and attributes."""
        self._check_alive()
        hints = self._info if info is None else info
        made: Self = self._dup(self._copy(self._agree_context()), hints)
        return made

    def _dup(self, comm: Any, info: Info | None) -> Any:
        comm._info = info.Dup() if info else None
        self.copy_attributes_to(comm)
        return comm

    def Dup_with_info(self, info: Info) -> Self:
        """Return a communicator of the same ranks with other hints."""
        return self.Dup(info)

    def Idup(self, info: Info | None = None) -> tuple[Self, Request]:
        """Begin a `Dup`; the communicator is not used before the request has ended."""
        self._check_alive()
        comm = type(self)()
        hints = self._info if info is None else info

        def fill(transfer: Transfer) -> None:
            made = self._dup(self._copy(transfer.result), hints)
            comm.__dict__.update(made.__dict__)

        agreement = self._start_agreement()
        return comm, Request._of(_Then("Idup", agreement, fill))

    def Idup_with_info(self, info: Info) -> tuple[Self, Request]:
        """Begin a `Dup_with_info`."""
        return self.Idup(info)

    def Create(self, group: Group) -> "Comm":
        """Return a communicator of some of the ranks, COMM_NULL elsewhere."""
        return self._kind_of.Create(group)

    def Split(self, color: int = 0, key: int = 0) -> "Comm":
        """Return a communicator of all ranks with equal color, in the order of keys."""
        return self._kind_of.Split(color, key)

    def Split_type(self, split_type: int, key: int = 0, info: Info = INFO_NULL) -> "Comm":
        """Return a communicator of all ranks that share something: memory, with SHARED."""
        self._check_alive()
        # All ranks gather, whatever they want: some may want nothing.
        hosts = self._gather_hosts()
        color = hosts.index(hosts[self._rank])
        if split_type == UNDEFINED or (
            split_type != COMM_TYPE_SHARED
            and self._find_resource(split_type, info, hosts) != _SHARED_MEMORY
        ):
            color = UNDEFINED
        return self.Split(color, key)

    def _find_resource(self, split_type: int, info: Info, hosts: Sequence[str]) -> str | None:
        """Return the hardware to split by: hosts are all that is known of it."""
        match split_type:
            case constants.COMM_TYPE_HW_GUIDED | constants.COMM_TYPE_RESOURCE_GUIDED:
                return info.get(_RESOURCE)
            case constants.COMM_TYPE_HW_UNGUIDED:
                if len(set(hosts)) == 1:
                    return None
                if info:
                    info.Set(_RESOURCE, _SHARED_MEMORY)
                return _SHARED_MEMORY
        raise errors.make_error(
            ERR_ARG,
            f"split_type={split_type} is none that allhands knows: MPI.COMM_TYPE_SHARED, or "
            "Split with a color of your own",
        )

    def _gather_hosts(self) -> list[str]:
        """Return the host of each rank of this side."""
        return self._kind_of._gather_hosts()

    @property
    def _plans(self) -> Plans:
        return self._kind_of._plans

    def _exchange_bytes(
        self, name: str, brought: "Bytes | Sequence[Bytes] | None", root: int | None
    ) -> list[Bytes]:
        return self._kind_of._exchange_bytes(name, brought, root)

    def Shrink(self) -> "Comm":
        return self._kind_of.Shrink()

    def _open_survivors(self) -> Any:
        return self._kind_of._open_survivors()

    def _abort_calls(self) -> None:
        self._kind_of._abort_calls()

    def Free(self) -> None:
        """Free it; what is under way on it ends first. A collective call."""
        if self._is_null:
            raise errors.make_error(ERR_COMM, "a null communicator cannot be freed")
        if self._is_predefined:
            raise errors.make_error(ERR_COMM, f"{self._name} cannot be freed")
        self.delete_attributes()
        self._release()
        self._make_null()

    def _release(self) -> None:
        """Give back what the communicator has of allhands."""
        self._kind_of._release()

    def Disconnect(self) -> None:
        """Free it, when all of its messages have come."""
        self.Free()

    # ------------------------------------------------------------ attributes

    def _check_attributes(self) -> None:
        self._check_exists()

    def _check_errhandler(self) -> None:
        self._check_exists()

    def _predefined_attribute(self, keyval: int) -> Any:
        match keyval:
            case constants.TAG_UB:
                return TAG_LIMIT
            case constants.IO:
                return ANY_SOURCE
            case constants.WTIME_IS_GLOBAL:
                return False
            case constants.UNIVERSE_SIZE:
                return runtime.engine.size
            case constants.APPNUM:
                return 0
            case constants.LASTUSEDCODE:
                return errors.last_used_code()
        return None

    # ------------------------------------------------------------ processes

    @classmethod
    def Get_parent(cls) -> "Comm":
        """Return COMM_NULL: no process here was spawned by others."""
        parent: Comm = cls._pair_type()
        return parent

    @classmethod
    def Join(cls, fd: int) -> NoReturn:
        """Refuse: processes of different worlds cannot be connected."""
        raise NotImplementedError(
            "two worlds cannot be joined by a socket: start all processes in one "
            "(allhands run -n N), and Split it"
        )

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End all processes of the world; this one with that exit status."""
        sys.stdout.flush()
        sys.stderr.flush()
        if runtime.is_initialized and not runtime.is_finalized:
            abort_world(f"MPI_Abort({errorcode}) by rank {runtime.engine.rank}")
        os._exit(errorcode if 0 <= errorcode < 256 else 1)


class _Then(Transfer):
    """A transfer, and what is done at its end."""

    __slots__ = ("_act", "_first", "_name")

    def __init__(self, name: str, first: Transfer, act: Any) -> None:
        super().__init__()
        self._name, self._first, self._act = name, first, act

    def poll(self) -> bool:
        if not self.done and self._first.poll():
            self.done = True
            self.error = self._first.error
            if self.error is None:
                self._act(self._first)
        return self.done

    def wait_briefly(self, seconds: float) -> bool:
        self._first.wait_briefly(seconds)
        return self.poll()

    @property
    def needs_frames(self) -> bool:
        return self._first.needs_frames

    def describe(self) -> str:
        return self._name

    def list_awaited(self) -> Sequence[int]:
        return self._first.list_awaited()


def take_context(agreed: int) -> int:
    """Note that a number is taken, and return it."""
    runtime.next_context = agreed + CONTEXTS_TAKEN
    return agreed


def as_numbers(*numbers: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return an array to agree by."""
    return np.array(numbers, np.int64)
