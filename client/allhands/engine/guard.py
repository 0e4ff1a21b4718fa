"""What keeps a call over links from touching its outputs before all ranks are known to be in it.

A small call works on a copy, which is written back when it has ended: where a rank's result needs
what all ranks brought, its end proves that all came, and with every hop that all called the same.
Before a large one lets anything land it hears from all ranks, in empty messages that run beside
the first round's: what comes meanwhile waits in the inbox, or to be asked for. Of two ranks either
hears from all with the first message.

A rank that only gives, or only hears from some, has no such proof in a small call: the first time
that a call is made it hears from all beside, later calls like it run ahead.

Sizes that ranks may choose for themselves travel in those messages, and every rank checks every
pair, as over shared memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from allhands.algorithms import bruck, dissemination
from allhands.engine.buffer import Array, Buffer
from allhands.engine.executor import Assembly, Part
from allhands.engine.native import Native
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh, Muster

STAGED_BYTES = 1 << 20
"""Of the array, or of all ranks' blocks, up to which a call works on a copy.

Its two copies take less than messages among 4 ranks would."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
_OF_BLOCKS = (
    "gather",
    "scatter",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
_EXCHANGES = ("all_to_all", "all_to_all_single")
_PAIRED = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", *_EXCHANGES)
"""Of these two ranks' schedules write nothing before the other's message has come."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """The parts of a call, and what has to happen beside them."""

    parts: Sequence[Part]
    assembly: Assembly | None = None
    commit: Callable[[], None] | None = None
    """Brings into the outputs what has landed in the parts."""


def guarded(native: Native, rank: int, size: int, parts: Sequence[Part]) -> Guarded:
    """Return the parts of a call as they keep from its outputs; the same way on every rank."""
    kind = native.kind
    if size == 1 or kind == "barrier" or (size == 2 and kind in _PAIRED):
        return Guarded(parts)
    if kind in _EXCHANGES:
        assert native.send is not None
        assert native.recv is not None
        return Guarded(parts, _rows(rank, size, native.send, native.recv))
    if _weight(native, size) > STAGED_BYTES:
        return Guarded(parts, roll(rank, size))
    if not native.targets or (kind == "broadcast" and rank == native.root):
        return Guarded(parts)
    return _staged(native, parts)


def roll(rank: int, size: int) -> Assembly:
    """Return what hears from all ranks, and nothing else."""
    nothing = Buffer([], np.dtype(np.uint8))
    return Assembly(Part(dissemination.barrier(rank, size), nothing, nothing))


class Hearing:
    """Hears from all ranks beside a call which they may not all be in."""

    def __init__(
        self, mesh: Mesh, ranks: Sequence[int], rank: int, key: Key, signature: int
    ) -> None:
        self._mesh = mesh
        self._ranks = ranks
        self._rank = rank
        self._key = key
        self._signature = signature
        self._muster: Muster | None = None

    def go_on(self, done: Callable[[], None]) -> None:
        peers = [peer for peer in self._ranks if peer != self._ranks[self._rank]]
        self._muster = self._mesh.muster(self._key, self._signature, peers, done)
        if self._muster is None:
            done()

    def stop(self) -> None:
        self._mesh.dismiss(self._key)

    def waiting_for(self) -> list[int]:
        return [] if self._muster is None else list(map(self._ranks.index, self._muster.missing))


def _rows(rank: int, size: int, send: Sequence[int], recv: Sequence[int]) -> Assembly:
    """Return what hears from all ranks what they give and expect; it fails unless that fits."""
    table = np.empty((size, 2, size), np.int64)
    own = np.array([*send, *recv], np.int64)
    whole = table.reshape(-1)

    def odd_one() -> int | None:
        # What a gives to b against what b expects from a.
        unlike = np.argwhere(table[:, 0, :] != table[:, 1, :].T)
        if not len(unlike):
            return None
        return next((int(one) for one in unlike[0] if one != rank), int(unlike[0][0]))

    schedule = bruck.all_gather(rank, size, [2 * size] * size)
    return Assembly(Part(schedule, Buffer([own], own.dtype), Buffer([whole], own.dtype)), odd_one)


def _staged(native: Native, parts: Sequence[Part]) -> Guarded:
    staged: list[tuple[Array, Array]] = []
    made = []
    for part in parts:
        copies = [np.empty_like(array) for array in part.output.arrays]
        pairs = zip(part.output.arrays, copies, strict=True)
        staged.extend((one.view(np.uint8), other.view(np.uint8)) for one, other in pairs)
        made.append(Part(part.schedule, part.input, Buffer(copies, part.output.dtype), part.name))
    if native.kind == "all_reduce":
        for array, copy in staged:
            np.copyto(copy, array)

    def commit() -> None:
        for array, copy in staged:
            np.copyto(array, copy)

    return Guarded(made, commit=commit)


def _weight(native: Native, size: int) -> int:
    """Return the bytes of the array, or of all ranks' blocks: the same on every rank."""
    nbytes = 0 if native.dtype is None else native.count * native.dtype.itemsize
    return nbytes * size if native.kind in _OF_BLOCKS else nbytes
