"""What keeps a call over links from touching its outputs before all ranks are known to be in it.

A small call works on a copy, which is written back when it has ended: where a rank's result needs
what all ranks brought, its end proves that all came, and with every hop that all called the same.
Before a large one lets anything land it hears from all ranks, in empty messages that run beside
the first round's: what comes meanwhile waits in the inbox, or to be asked for. Of two ranks either
hears from all with the first message.

A rank that only gives, or only hears from some, has no such proof in a small call: the first time
that a call is made it hears from all beside, later calls like it run ahead.

Sizes that ranks may choose for themselves travel with the first messages, and every rank checks
every pair, as over shared memory: so all_to_all sends small blocks with them, to memory of its own,
and large ones afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.algorithms import dissemination, pairwise
from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.part import Assembly, Part
from allhands.collectives.request import Native
from allhands.collectives.schedule import Round, Schedule
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh, Muster

STAGED_BYTES = 512 << 10
"""Of the array, or of all ranks' blocks, up to which a call works on a copy."""
ROOTED = ("broadcast", "reduce", "gather", "scatter")
_OF_BLOCKS = (
    "gather",
    "scatter",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
ALONG_BYTES = 256 << 10
"""Of a block that travels with the sizes of all blocks; both its ends rely on it."""
_ALIGNED = 64
_EXCHANGES = ("all_to_all", "all_to_all_single")
_PAIRED = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", *_EXCHANGES)
"""Of these two ranks' schedules write nothing before the other's message has come."""


@dataclass(slots=True)
class Guarded:
    """The parts of a call, and what has to happen beside them."""

    parts: Sequence[Part]
    assembly: Assembly | None = None
    commit: Callable[[], None] | None = None
    """Brings into the outputs what has landed in the parts."""


class Stage:
    """Memory for the copies of one call after the other."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def rooms(self, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return memory of so many bytes each; those of the call before are void."""
        needed = sum(sizes) + _ALIGNED * len(sizes)
        if len(self._memory) < needed:
            self._memory = np.empty(needed, np.uint8)
        rooms, at = [], 0
        for nbytes in sizes:
            rooms.append(self._memory[at : at + nbytes])
            at += -(-nbytes // _ALIGNED) * _ALIGNED
        return rooms


def guarded(native: Native, rank: int, size: int, parts: Sequence[Part], stage: Stage) -> Guarded:
    """Return the parts of a call as they keep from its outputs; the same way on every rank."""
    kind = native.kind
    if size == 1 or kind == "barrier" or (size == 2 and kind in _PAIRED):
        return Guarded(parts)
    if kind in _EXCHANGES:
        return _exchange(native, rank, size, parts[0], stage)
    if _weight(native, size) > STAGED_BYTES:
        return Guarded(parts, roll(rank, size))
    if not native.targets or (kind == "broadcast" and rank == native.root):
        return Guarded(parts)
    return _staged(native, parts, stage)


def roll(rank: int, size: int) -> Assembly:
    """Return what hears from all ranks, and nothing else."""
    nothing = Buffer([], np.dtype(np.uint8))
    return Assembly(Part(_roll_call(rank, size), nothing, nothing))


class Hearing:
    """Hears from all ranks beside a call which they may not all be in."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        there: Sequence[int],
        key: Key,
        signature: int,
    ) -> None:
        """Of the group's `ranks` of the world, of which this is one, those are `there` still."""
        self._mesh = mesh
        self._ranks = ranks
        self._peers = [peer for peer in there if peer != ranks[rank]]
        self._key = key
        self._signature = signature
        self._muster: Muster | None = None

    def go_on(self, done: Callable[[], None]) -> None:
        self._muster = self._mesh.muster(self._key, self._signature, self._peers, done)
        if self._muster is None:
            done()

    def stop(self) -> None:
        self._mesh.dismiss(self._key)

    def waiting_for(self) -> list[int]:
        return [] if self._muster is None else list(map(self._ranks.index, self._muster.missing))


def _staged(native: Native, parts: Sequence[Part], stage: Stage) -> Guarded:
    made: list[Part] = []
    pairs: list[tuple[Array, Array]] = []
    reads = native.kind == "all_reduce"
    rooms = iter(stage.rooms([array.nbytes for part in parts for array in part.output.arrays]))
    for part in parts:
        copies = []
        for array in part.output.arrays:
            copy = next(rooms).view(array.dtype)
            if reads:
                copy[...] = array
            copies.append(copy)
            pairs.append((array, copy))
        made.append(Part(part.schedule, part.input, Buffer(copies, part.output.dtype), part.name))

    def commit() -> None:
        for array, copy in pairs:
            array[...] = copy

    return Guarded(made, None, commit)


def _exchange(native: Native, rank: int, size: int, part: Part, stage: Stage) -> Guarded:
    send, recv = native.send, native.recv
    assert send is not None
    assert recv is not None
    itemsize = part.input.dtype.itemsize
    own = np.array([send, recv], np.int64)
    if send[0] * itemsize <= ALONG_BYTES and (own == send[0]).all():
        return _even_exchange(own, send[0] * itemsize, rank, size, part, stage)
    table = np.empty((size, 2, size), np.int64)
    outgoing = _along(send, itemsize, rank)
    incoming = _along(recv, itemsize, rank)
    rooms = stage.rooms(incoming)
    starts = [0, *accumulate(send)]
    gives = [
        part.input.pieces(start, start + nbytes // itemsize)
        for start, nbytes in zip(starts, outgoing, strict=False)
    ]

    def conclude() -> int | None:
        if (odd := _odd_one(table, rank)) is not None:
            return odd
        places = [0, *accumulate(recv)]
        for room, at in zip(rooms, places, strict=False):
            for target in part.output.pieces(at, at + len(room) // itemsize):
                target[...] = room.view(target.dtype)
        return None

    row = table[0].nbytes
    assembly = Part(
        _together(
            rank,
            size,
            tuple(row + nbytes for nbytes in outgoing),
            tuple(row + nbytes for nbytes in incoming),
        ),
        _bytes([array for given in gives for array in (own, *given)]),
        _bytes([array for line, room in zip(table, rooms, strict=True) for array in (line, room)]),
    )
    large = Part(_large(part.schedule, ALONG_BYTES // itemsize), part.input, part.output, part.name)
    return Guarded([large], Assembly(assembly, conclude))


def _even_exchange(
    own: NDArray[np.int64], nbytes: int, rank: int, size: int, part: Part, stage: Stage
) -> Guarded:
    """Return an exchange in which all blocks of this rank are small and alike: with few copies."""
    row = own.nbytes
    width = row + nbytes
    outgoing, incoming = stage.rooms([size * width] * 2)
    given, taken = outgoing.reshape(size, width), incoming.reshape(size, width)
    given[:, :row] = own.reshape(-1).view(np.uint8)
    if nbytes:
        for block, place in _matched(part.input, given[:, row:]):
            place[...] = block

    def conclude() -> int | None:
        table = np.ascontiguousarray(taken[:, :row]).view(np.int64).reshape(size, 2, size)
        if (odd := _odd_one(table, rank)) is not None:
            return odd
        if nbytes:
            for block, place in _matched(part.output, taken[:, row:]):
                block[...] = place
        return None

    schedule = _together(rank, size, (width,) * size, (width,) * size)
    dtype = np.dtype(np.uint8)
    assembly = Part(schedule, Buffer((outgoing,), dtype), Buffer((incoming,), dtype))
    return Guarded((), Assembly(assembly, conclude))


def _matched(
    buffer: Buffer, places: NDArray[np.uint8]
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield the bytes of a buffer's blocks, and the places for them, of which each is a row."""
    if len(buffer.arrays) == 1:
        yield buffer.arrays[0].view(np.uint8).reshape(places.shape), places
    else:
        for array, place in zip(buffer.arrays, places, strict=True):
            yield array.view(np.uint8), place


def _odd_one(table: NDArray[np.int64], rank: int) -> int | None:
    """Return a rank that does not fit another, best not this one, given what each said."""
    unlike = table[:, 0, :] != table[:, 1, :].T  # what a gives to b against what b expects of a
    if not unlike.any():
        return None
    first = [int(one) for one in np.argwhere(unlike)[0]]
    return first[0] if first[0] != rank else first[1]


def _along(counts: Sequence[int], itemsize: int, rank: int) -> list[int]:
    """Return the bytes of each block that travel with the sizes of all."""
    limit = ALONG_BYTES // itemsize
    return [
        count * itemsize if count <= limit and peer != rank else 0
        for peer, count in enumerate(counts)
    ]


def _bytes(arrays: Sequence[Array]) -> Buffer:
    return Buffer([array.reshape(-1).view(np.uint8) for array in arrays], np.dtype(np.uint8))


def _large(schedule: Schedule, limit: int) -> Schedule:
    """Return a schedule without what is not longer than a limit."""
    spans = [send.span for step in schedule.rounds for send in step.sends]
    spans += [recv.span for step in schedule.rounds for recv in step.recvs]
    if all(len(span) <= limit for span in spans):
        return Schedule(tuple(Round(step.copies) for step in schedule.rounds if step.copies))
    return Schedule(
        tuple(
            Round(
                step.copies,
                tuple(one for one in step.sends if len(one.span) > limit),
                tuple(one for one in step.recvs if len(one.span) > limit),
            )
            for step in schedule.rounds
        )
    )


@lru_cache(maxsize=64)
def _roll_call(rank: int, size: int) -> Schedule:
    return dissemination.barrier(rank, size)


@lru_cache(maxsize=64)
def _together(rank: int, size: int, send: tuple[int, ...], recv: tuple[int, ...]) -> Schedule:
    return pairwise.all_to_all(rank, size, send, recv, together=True)


def _weight(native: Native, size: int) -> int:
    """Return the bytes of the array, or of all ranks' blocks: the same on every rank."""
    nbytes = 0 if native.dtype is None else native.count * native.dtype.itemsize
    return nbytes * size if native.kind in _OF_BLOCKS else nbytes
