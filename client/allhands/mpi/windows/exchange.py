"""Operations on windows as messages: sent by their origins, carried out by the targets.

One of these belongs to each window. Handlers of messages run one at a time, so that accumulations
are atomic and come in the order of their origin. Each operation has one answer, which tells its
origin that it has been carried out.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import ERR_RMA_SYNC
from allhands.mpi.progress.engine import Engine
from allhands.mpi.progress.frames import Bytes, FrameKind
from allhands.mpi.progress.transfers import Target, Transfer
from allhands.mpi.windows import places
from allhands.mpi.windows.locks import LockQueue
from allhands.mpi.windows.memories import MappedMemory
from allhands.mpi.windows.operations import Kind, carry_out, explain
from allhands.mpi.windows.places import Place


class Operation(Transfer):
    """An operation under way at its target."""

    __slots__ = ("_target", "rank", "what")

    def __init__(self, what: str, rank: int, target: Target | None) -> None:
        """`rank` is the target's in the world, `target` where an answer's data goes."""
        super().__init__()
        self.what = what
        self.rank = rank
        self._target = target

    def describe(self) -> str:
        return f"{self.what} at rank {self.rank} of the world"

    def list_awaited(self) -> Sequence[int]:
        return (self.rank,)

    def end(self, data: Bytes) -> None:
        """Take the answer."""
        try:
            if self._target is not None:
                self._target.unpack(data)
        except Exception as error:
            self.error = error
        self.done = True


class WindowExchange:
    """The messages of one window, on one rank."""

    def __init__(self, engine: Engine, context: int, memory: Bytes | None, disp_unit: int) -> None:
        """`memory` None: displacements are addresses, of what is attached."""
        self._engine = engine
        self._context = context
        self._memory = memory
        self._disp_unit = disp_unit
        self._number = 0
        self._pending: dict[int, Operation] = {}
        self._open: dict[int, int] = {}
        """Operations under way, by the target's rank in the world."""
        self._failure: BaseException | None = None
        self._locks = LockQueue()
        self.attached: dict[int, Bytes] = {}
        """Memory of a dynamic window, by its address."""
        self.posts: dict[int, int] = {}
        """Exposures that targets have opened to this rank, by rank."""
        self.completions: dict[int, int] = {}
        """Accesses that origins have ended, by rank."""

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
        """Send an operation to a rank of the world."""
        operation = Operation(what, rank, target)
        engine = self._engine
        with engine.lock:
            self._number = number = self._number + 1
            self._pending[number] = operation
            self._open[rank] = self._open.get(rank, 0) + 1
        payload = data if place is None else places.dump(place, data)
        engine.send_frame(rank, FrameKind.RMA, self._context, (kind, number, flag), payload)
        return operation

    def notify(self, kind: Kind, rank: int) -> None:
        """Send a rank word that has no answer."""
        self._engine.send_frame(rank, FrameKind.RMA, self._context, (kind, 0, 0), None)

    def flush(self, ranks: Iterable[int] | None = None) -> None:
        """Return when all operations at some ranks, or all, have been carried out.

        Raises:
            Exception: one failed.
        """
        wanted = None if ranks is None else set(ranks)

        def list_open() -> list[int]:
            return [
                rank
                for rank, count in list(self._open.items())
                if count and (wanted is None or rank in wanted)
            ]

        self._engine.wait_until(
            lambda: not list_open(), "the end of operations on a window", list_open
        )
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure

    def wait_until(
        self, predicate: Callable[[], bool], what: str, ranks: Callable[[], Sequence[int]]
    ) -> None:
        """Make progress until something is so."""
        self._engine.wait_until(predicate, what, ranks)

    # ------------------------------------------------------------ both

    def handle(self, sender: int, fields: tuple[int, ...], payload: Bytes) -> None:
        """Take a frame of this window; the engine's lock is held."""
        kind, number, flag = fields[:3]
        match kind:
            case Kind.ANSWER | Kind.FAILURE:
                self._take_answer(sender, number, flag, payload, kind == Kind.FAILURE)
            case Kind.POST:
                self.posts[sender] = self.posts.get(sender, 0) + 1
            case Kind.COMPLETE:
                self.completions[sender] = self.completions.get(sender, 0) + 1
            case Kind.LOCK:
                self._tell(self._locks.ask(sender, number, bool(flag)))
            case Kind.UNLOCK:
                try:
                    granted = self._locks.release(sender)
                except ValueError as error:
                    self._refuse(sender, number, ERR_RMA_SYNC, str(error))
                else:
                    self._answer(sender, number, None)
                    self._tell(granted)
            case _:
                self._carry_out(sender, kind, number, payload)

    def _take_answer(
        self, sender: int, number: int, code: int, payload: Bytes, is_failure: bool
    ) -> None:
        operation = self._pending.pop(number, None)
        if operation is None or operation.rank != sender:
            return
        self._open[sender] -= 1
        if not is_failure:
            operation.end(payload)
            return
        self._fail(operation, code, payload.tobytes().decode(errors="replace"))

    def _fail(self, operation: Operation, code: int, text: str) -> None:
        """End an operation with an error, which the next synchronization raises."""
        operation.error = errors.make_error(code, f"{operation.describe()}: {text}")
        operation.done = True
        self._failure = self._failure or operation.error

    # ------------------------------------------------------------ target

    def _tell(self, granted: Sequence[tuple[int, int]]) -> None:
        for rank, number in granted:
            self._answer(rank, number, None)

    def _answer(self, rank: int, number: int, data: Bytes | None) -> None:
        self._engine.send_frame(rank, FrameKind.RMA, self._context, (Kind.ANSWER, number, 0), data)

    def _refuse(self, rank: int, number: int, code: int, text: str) -> None:
        said = np.frombuffer(text.encode(), np.uint8)
        self._engine.send_frame(
            rank, FrameKind.RMA, self._context, (Kind.FAILURE, number, code), said
        )

    def _carry_out(self, sender: int, kind: int, number: int, payload: Bytes) -> None:
        try:
            place, data = places.load(payload)
            memory, start = self._find(place)
            answer = carry_out(kind, place, MappedMemory(memory), start, data)
        except Exception as error:
            code, text = explain(error)
            self._refuse(sender, number, code, text)
        else:
            self._answer(sender, number, answer)

    def _find(self, place: Place) -> tuple[Bytes, int]:
        """Return the memory that a place is in, and where it begins."""
        if self._memory is not None:
            return self._memory, place.disp * self._disp_unit
        for address, memory in self.attached.items():
            if address <= place.disp <= address + memory.size:
                return memory, place.disp - address
        raise ValueError(f"no memory is attached at address {place.disp}")


def describe_address(memory: Bytes) -> int:
    """Return the address of memory."""
    address: int = memory.__array_interface__["data"][0]
    return address
