"""Operations on windows of one host: carried out by their origins.

Each rank sees the memory of all, or reaches it through the kernel. Operations that nothing may come
between, and changes of locks, are made with the mutex of the target's memory held, for
microseconds. Only who waits for a lock, `Post` and `Complete` have messages.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import ERR_OTHER, ERR_RMA_SYNC
from allhands.mpi.progress.engine import Engine
from allhands.mpi.progress.frames import Bytes, FrameKind
from allhands.mpi.progress.transfers import Target
from allhands.mpi.windows.exchange import Operation, WindowExchange
from allhands.mpi.windows.locks import LockQueue, LockTable
from allhands.mpi.windows.memories import MappedMemory, Memory
from allhands.mpi.windows.operations import ATOMIC, Kind, carry_out, explain
from allhands.mpi.windows.places import Place
from allhands.mpi.windows.shared_memory import SharedMemory
from allhands_proto.quick_dataclass import dataclass

_MUTEX_SECONDS = 60.0
_EMPTY: Bytes = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Share:
    """Memory of one rank, as this process sees it."""

    place: int
    """Rank in the communicator of the window."""
    memory: Memory
    disp_unit: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Memory of all ranks of a window, on one host, and their locks."""

    table: SharedMemory
    """What the locks and the mutexes are in."""
    locks: LockTable
    by_rank: Mapping[int, Share]
    """By the rank in the world."""

    def get_mapped(self, rank: int) -> Bytes:
        """Return the memory of a rank of the world, which this process sees."""
        memory = self.by_rank[rank].memory
        assert isinstance(memory, MappedMemory)
        return memory.data


class _LockRequest(Operation):
    """A lock that is asked for; the rank that has it is waited for."""

    __slots__ = ("_exchange",)

    def __init__(self, what: str, rank: int, exchange: "DirectExchange") -> None:
        super().__init__(what, rank, None)
        self._exchange = exchange

    def list_awaited(self) -> Sequence[int]:
        return self._exchange.list_holders(self.rank)

    def cancel(self) -> None:
        self._exchange.withdraw(self)


class DirectExchange(WindowExchange):
    """The operations of one window, on one rank of those that reach each other's memory."""

    def __init__(self, engine: Engine, context: int, rank: int, shares: Shares) -> None:
        """`rank` is this process's in the world."""
        super().__init__(engine, context, None, shares.by_rank[rank].disp_unit)
        self._rank = rank
        self._shares = shares

    # ------------------------------------------------------------ origin

    def start(
        self,
        what: str,
        kind: Kind,
        rank: int,
        place: Place | None,
        data: Bytes | None = None,
        target: Target | None = None,
        flag: int = 0,
    ) -> Operation:
        """Do an operation at a rank of the world; only a lock may be under way then."""
        if kind == Kind.LOCK:
            return self._ask_lock(what, rank, bool(flag))
        operation = Operation(what, rank, target)
        if kind == Kind.UNLOCK:
            self._give_back(operation)
            return operation
        assert place is not None
        share = self._shares.by_rank[rank]
        start = place.disp * share.disp_unit
        brought = _EMPTY if data is None else data
        try:
            if kind in ATOMIC:
                with self._hold(rank):
                    answer = carry_out(kind, place, share.memory, start, brought)
            else:
                answer = carry_out(kind, place, share.memory, start, brought)
        except Exception as error:
            self._fail(operation, *explain(error))
        else:
            operation.end(_EMPTY if answer is None else answer)
        return operation

    def _ask_lock(self, what: str, rank: int, is_shared: bool) -> Operation:
        request = _LockRequest(what, rank, self)
        with self._engine.lock:
            self._number = number = self._number + 1
            self._pending[number] = request
        with self._change_locks(rank) as queue:
            granted = queue.ask(self._rank, number, is_shared)
        self._grant(rank, granted)
        return request

    def _give_back(self, operation: Operation) -> None:
        rank = operation.rank
        granted: Sequence[tuple[int, int]] = ()
        try:
            with self._change_locks(rank) as queue:
                granted = queue.release(self._rank)
        except ValueError as error:
            self._fail(operation, ERR_RMA_SYNC, str(error))
        operation.done = True
        self._grant(rank, granted)

    def _grant(self, target: int, granted: Sequence[tuple[int, int]]) -> None:
        """Tell ranks that they hold the lock of a target."""
        for rank, number in granted:
            if rank == self._rank:
                self._take_lock(number)
            else:
                fields = (Kind.GRANT, number, 0)
                self._engine.send_frame(rank, FrameKind.RMA, self._context, fields, None)

    def _take_lock(self, number: int) -> None:
        with self._engine.lock:
            request = self._pending.pop(number, None)
            if request is not None:
                request.done = True

    def withdraw(self, request: Operation) -> None:
        """Give up a request, and the lock if it came meanwhile."""
        with self._engine.lock:
            self._pending = {at: one for at, one in self._pending.items() if one is not request}
        with self._change_locks(request.rank) as queue:
            granted = queue.withdraw(self._rank)
        self._grant(request.rank, granted)

    def list_holders(self, rank: int) -> list[int]:
        """Return the ranks of the world that hold the lock of a rank."""
        with self._hold(rank) as place:
            return self._shares.locks.read(place).list_holders()

    # ------------------------------------------------------------ both

    def handle(self, sender: int, fields: tuple[int, ...], payload: Bytes) -> None:
        """Take a frame of this window; the engine's lock is held."""
        if fields[0] == Kind.GRANT:
            self._take_lock(fields[1])
        elif fields[0] in (Kind.POST, Kind.COMPLETE):
            super().handle(sender, fields, payload)

    def close(self) -> None:
        """Give the file of the memory back; the memory stays until nobody uses it."""
        self._shares.table.close()

    @contextlib.contextmanager
    def _change_locks(self, rank: int) -> Iterator[LockQueue]:
        """Give the locks of a rank, which are stored at the end unless there is an error."""
        with self._hold(rank) as place:
            queue = self._shares.locks.read(place)
            yield queue
            self._shares.locks.write(place, queue)

    @contextlib.contextmanager
    def _hold(self, rank: int) -> Iterator[int]:
        """Have the memory of a rank alone, among operations that do this; give its place."""
        place, table = self._shares.by_rank[rank].place, self._shares.table
        with self._engine.lock:
            try:
                table.acquire(place, _MUTEX_SECONDS)
            except TimeoutError as error:
                raise errors.make_error(
                    ERR_OTHER, f"an operation at rank {rank} of the world: {error}"
                ) from None
            try:
                yield place
            finally:
                table.release(place)
