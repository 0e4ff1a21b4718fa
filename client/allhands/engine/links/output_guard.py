"""Output guard: keeps a call over links from touching its outputs before all ranks are in the call.

A small call works on a copy in the staging buffer, written back at its end: where a rank's result
needs all ranks' contributions, its end proves that all ranks came, and each hop that all made the
same call. A large call first exchanges empty messages with all ranks, beside the messages of the
first round: data that arrives meanwhile waits in the inbox, or at its sender for the CTS. Of two
ranks either hears from all with the first message.

A rank that only sends, or only receives from some ranks, has no such proof in a small call: the
first such call exchanges the empty messages too, and later calls like it run ahead.

Sizes that may differ by rank (all_to_all) travel with the first messages, and every rank checks
every pair, as over shared memory. So all_to_all sends small blocks along with them, into the
staging buffer, and large blocks afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.algorithms import dissemination, pairwise
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.paced_part import pace_parts
from allhands.collectives.part import Assembly, Part
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.schedule import Round, Schedule
from allhands.data.blocks import copy_into
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import ArrivalWait, Mesh
from allhands.transport.outbox import EAGER_BYTES
from allhands_proto.quick_dataclass import dataclass

STAGED_BYTES = 1 << 20
"""Of the array up to which a call works on a copy; of all ranks' blocks it is twice as much."""
_ROOT_STAGED_BYTES = 4 << 20
"""Likewise of all ranks' blocks that a root gathers or scatters, of one frame each at most."""
PACED_BYTES = 8 << 20
"""Of the array, or of all ranks' blocks, up to which a larger call goes in pieces. By messages that
are asked for a broadcast of 2 MiB took 3.1 ms between two hosts, and in pieces 0.7."""
LONG_PACED_BYTES = 256 << 20
"""Likewise between two ranks over a fast link, where the event loop would be the limit."""
_NEAR_SECONDS, _FAST_BANDWIDTH = 1e-3, 200e6
"""Of a short message, and bytes a second: a slower link is idle while a rank waits for a piece, and
the event loop is not its limit."""
PIGGYBACK_BYTES = 256 << 10
"""Of a block that travels with the sizes of all blocks; both its ends rely on it."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class EvenExchange:
    """An exchange of blocks of one size, which travel behind the sizes that their sender has."""

    head: bytes
    """These sizes; of every rank the same if all blocks of all ranks have one size."""
    heads: Sequence[Array]
    """Their places in staging memory: before the blocks that are sent, then before the others."""
    given: Sequence[tuple[Array, Array]]
    """Where blocks are sent from, and the blocks."""
    taken: Sequence[tuple[Array, Array]]
    """Where blocks come, and their outputs."""


Describe = Callable[[], EvenExchange]


@dataclass(slots=True)
class GuardedParts:
    """The parts of a call with guarded outputs, and the call's side condition."""

    parts: Sequence[Part]
    arrival_check: Assembly | None = None
    commit: Callable[[], None] | None = None
    """Brings into the outputs what has landed in the parts."""
    staged: Sequence[tuple[Array, Array]] = ()
    """Where that lands, and its output."""
    describe: Describe | None = None
    """Describes what the arrival check moves, where that is all, and blocks of one size."""


class StagingBuffer:
    """Staging buffer for the outputs of one call after another."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def allocate_views(self, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return memory of so many bytes each; those of the call before are void."""
        needed = sum(sizes) + _ALIGNMENT * len(sizes)
        if len(self.memory) < needed:
            self.memory = np.empty(needed, np.uint8)
        rooms, at = [], 0
        for nbytes in sizes:
            rooms.append(self.memory[at : at + nbytes])
            at += align(nbytes)
        return rooms


def guard_outputs(
    request: CollectiveRequest,
    rank: int,
    size: int,
    parts: Sequence[Part],
    staging: StagingBuffer,
    link_cost: LinkCost | None = None,
) -> GuardedParts:
    """Return a call's parts with guarded outputs; the same method on every rank."""
    primitive = request.primitive
    if size == 1 or not primitive.has_data:
        return GuardedParts(parts)
    is_guarded = size == 2 and primitive.pair_receives_first
    if is_paced(request, size, link_cost):
        pieces = max(-(-_count_message_bytes(request, size, parts) // EAGER_BYTES), 1)
        return GuardedParts([pace_parts(parts, pieces, rank, size, meets_first=not is_guarded)])
    if is_guarded:
        return GuardedParts(parts)
    if primitive.has_splits:
        return _guard_exchange(request, rank, size, parts[0], staging)
    if not is_staged(request, size):
        return GuardedParts(parts, make_arrival_check(rank, size))
    if not request.targets or (primitive.is_in_place and rank == request.root):
        return GuardedParts(parts)
    return _stage_outputs(request, parts, staging)


def make_arrival_check(rank: int, size: int) -> Assembly:
    """Return the exchange of empty messages with all ranks."""
    nothing = Buffer([], np.dtype(np.uint8))
    return Assembly(Part(_build_arrival_schedule(rank, size), nothing, nothing))


class ArrivalCondition:
    """Hears from all ranks beside a call which they may not all be in."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        present: Sequence[int],
        key: MessageKey,
        signature: int,
    ) -> None:
        """`ranks` are the group's ranks of the world; `present` are those still in the call."""
        self._mesh = mesh
        self._ranks = ranks
        self._peers = [peer for peer in present if peer != ranks[rank]]
        self._key = key
        self._signature = signature
        self._arrival_wait: ArrivalWait | None = None

    def start(self, on_done: Callable[[], None]) -> None:
        self._arrival_wait = self._mesh.watch_arrivals(
            self._key, self._signature, self._peers, on_done
        )
        if self._arrival_wait is None:
            on_done()

    def stop(self) -> None:
        self._mesh.forget_arrivals(self._key)

    def list_awaited(self) -> list[int]:
        return (
            []
            if self._arrival_wait is None
            else list(map(self._ranks.index, self._arrival_wait.missing))
        )


def _stage_outputs(
    request: CollectiveRequest, parts: Sequence[Part], staging: StagingBuffer
) -> GuardedParts:
    """Stage the outputs of each part end to end, so that no message lies in several arrays."""
    made: list[Part] = []
    pairs: list[tuple[Array, Array]] = []
    reads = request.primitive.is_in_place and not request.primitive.is_rooted
    rooms = staging.allocate_views(
        [sum(array.nbytes for array in part.output.arrays) for part in parts]
    )
    for part, room in zip(parts, rooms, strict=True):
        whole, at = room.view(part.output.dtype), 0
        for array in part.output.arrays:
            copy = whole[at : at + len(array)]
            at += len(array)
            if reads:
                copy_into(copy, array)
            pairs.append((copy, array))
        made.append(Part(part.schedule, part.input, Buffer([whole], whole.dtype), part.name))

    def commit() -> None:
        for copy, array in pairs:
            copy_into(array, copy)

    return GuardedParts(made, None, commit, pairs)


def _guard_exchange(
    request: CollectiveRequest, rank: int, size: int, part: Part, staging: StagingBuffer
) -> GuardedParts:
    send, recv = request.send, request.recv
    assert send is not None
    assert recv is not None
    itemsize = part.input.dtype.itemsize
    own = np.array([send, recv], np.int64)
    if send[0] * itemsize <= PIGGYBACK_BYTES and (own == send[0]).all():
        return _guard_even_exchange(own, send[0] * itemsize, rank, size, part, staging)
    table = np.empty((size, 2, size), np.int64)
    outgoing = _count_piggybacked(send, itemsize, rank)
    incoming = _count_piggybacked(recv, itemsize, rank)
    rooms = staging.allocate_views(incoming)
    starts = [0, *accumulate(send)]
    gives = [
        part.input.view_pieces(start, start + nbytes // itemsize)
        for start, nbytes in zip(starts, outgoing, strict=False)
    ]

    def conclude() -> int | None:
        if (odd := _find_odd_rank(table, rank)) is not None:
            return odd
        places = [0, *accumulate(recv)]
        for room, at in zip(rooms, places, strict=False):
            for target in part.output.view_pieces(at, at + len(room) // itemsize):
                target[...] = room.view(target.dtype)
        return None

    row = table[0].nbytes
    assembly = Part(
        _build_exchange_schedule(
            rank,
            size,
            tuple(row + nbytes for nbytes in outgoing),
            tuple(row + nbytes for nbytes in incoming),
        ),
        _view_as_bytes([array for given in gives for array in (own, *given)]),
        _view_as_bytes(
            [array for line, room in zip(table, rooms, strict=True) for array in (line, room)]
        ),
    )
    large = Part(
        _keep_large(part.schedule, PIGGYBACK_BYTES // itemsize), part.input, part.output, part.name
    )
    return GuardedParts([large], Assembly(assembly, conclude))


def _guard_even_exchange(
    own: NDArray[np.int64], nbytes: int, rank: int, size: int, part: Part, staging: StagingBuffer
) -> GuardedParts:
    """Return an exchange in which all blocks of this rank are small and alike: with few copies."""
    row = own.nbytes
    width = row + nbytes
    outgoing, incoming = staging.allocate_views([size * width] * 2)
    given, taken = outgoing.reshape(size, width), incoming.reshape(size, width)
    given[:, :row] = own.reshape(-1).view(np.uint8)
    if nbytes:
        for block, place in _match_blocks(part.input, given[:, row:]):
            place[...] = block

    def conclude() -> int | None:
        table = np.ascontiguousarray(taken[:, :row]).view(np.int64).reshape(size, 2, size)
        if (odd := _find_odd_rank(table, rank)) is not None:
            return odd
        if nbytes:
            for block, place in _match_blocks(part.output, taken[:, row:]):
                block[...] = place
        return None

    def describe() -> EvenExchange:
        return EvenExchange(
            own.tobytes(),
            [one[:row] for one in (*given, *taken)],
            list(zip((one[row:] for one in given), _list_blocks(part.input, size), strict=True)),
            list(zip((one[row:] for one in taken), _list_blocks(part.output, size), strict=True)),
        )

    schedule = _build_exchange_schedule(rank, size, (width,) * size, (width,) * size)
    dtype = np.dtype(np.uint8)
    assembly = Part(schedule, Buffer((outgoing,), dtype), Buffer((incoming,), dtype))
    check = Assembly(assembly, conclude)
    return GuardedParts((), check, describe=describe if nbytes else None)


def _list_blocks(buffer: Buffer, size: int) -> list[Array]:
    """Return the bytes of a buffer's blocks, which are of one size."""
    if len(buffer.arrays) == 1:
        return list(buffer.arrays[0].view(np.uint8).reshape(size, -1))
    return [array.view(np.uint8) for array in buffer.arrays]


def _match_blocks(
    buffer: Buffer, rows: NDArray[np.uint8]
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield the bytes of a buffer's blocks, and the places for them, of which each is a row."""
    if len(buffer.arrays) == 1:
        yield buffer.arrays[0].view(np.uint8).reshape(rows.shape), rows
    else:
        for array, place in zip(buffer.arrays, rows, strict=True):
            yield array.view(np.uint8), place


def _find_odd_rank(table: NDArray[np.int64], rank: int) -> int | None:
    """Return a rank whose sizes do not match a peer's, preferably not this rank."""
    unlike = table[:, 0, :] != table[:, 1, :].T  # what a gives to b against what b expects of a
    if not unlike.any():
        return None
    first = [int(one) for one in np.argwhere(unlike)[0]]
    return first[0] if first[0] != rank else first[1]


def _count_piggybacked(counts: Sequence[int], itemsize: int, rank: int) -> list[int]:
    """Return the bytes of each block that travel with the sizes of all."""
    limit = PIGGYBACK_BYTES // itemsize
    return [
        count * itemsize if count <= limit and peer != rank else 0
        for peer, count in enumerate(counts)
    ]


def _view_as_bytes(arrays: Sequence[Array]) -> Buffer:
    return Buffer([array.reshape(-1).view(np.uint8) for array in arrays], np.dtype(np.uint8))


def _keep_large(schedule: Schedule, limit: int) -> Schedule:
    """Return the schedule's transfers longer than a limit."""
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
def _build_arrival_schedule(rank: int, size: int) -> Schedule:
    return dissemination.barrier(rank, size)


@lru_cache(maxsize=64)
def _build_exchange_schedule(
    rank: int, size: int, send: tuple[int, ...], recv: tuple[int, ...]
) -> Schedule:
    return pairwise.all_to_all(rank, size, send, recv, in_one_round=True)


def align(nbytes: int) -> int:
    """Return the bytes that so many take in a staging buffer."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def is_staged(request: CollectiveRequest, size: int) -> bool:
    """Say whether a call is so small that it works on a copy: the same on every rank."""
    if request.primitive.has_splits:
        return False  # ranks know their own sizes alone
    nbytes, scales = count_bytes(request, size), request.primitive.scales_with_size
    if scales and request.primitive.is_rooted:
        return nbytes <= min(size * EAGER_BYTES, _ROOT_STAGED_BYTES)
    return nbytes <= STAGED_BYTES << scales


def is_paced(request: CollectiveRequest, size: int, link_cost: LinkCost | None = None) -> bool:
    """Say whether a call, not staged, goes in pieces into its outputs: the same on every rank."""
    if not request.primitive.has_data or request.primitive.has_splits or is_staged(request, size):
        return False
    is_long_paced = size == 2 and link_cost is not None and _is_fast(link_cost)
    return count_bytes(request, size) <= (LONG_PACED_BYTES if is_long_paced else PACED_BYTES)


def _is_fast(link_cost: LinkCost) -> bool:
    return link_cost.latency <= _NEAR_SECONDS and link_cost.bandwidth >= _FAST_BANDWIDTH


def goes_unasked(request: CollectiveRequest, size: int, link_cost: LinkCost | None = None) -> bool:
    """Say whether no message of a call has to be asked for: the same on every rank."""
    return is_staged(request, size) or is_paced(request, size, link_cost)


def _count_message_bytes(request: CollectiveRequest, size: int, parts: Sequence[Part]) -> int:
    """Return the bytes that no message is longer than: the same on every rank."""
    first = parts[0]  # the longest, and where a call has several, of one length on all ranks
    itemsize = first.output.dtype.itemsize
    if size == 2:  # both have all messages
        return first.schedule.longest_message * itemsize
    if len(parts) == 1:
        return count_bytes(request, size)
    return max(len(first.input), len(first.output)) * itemsize


def count_bytes(request: CollectiveRequest, size: int) -> int:
    """Return the bytes of the array, or of all ranks' blocks: the same on every rank."""
    nbytes = 0 if request.dtype is None else request.count * request.dtype.itemsize
    return nbytes * size if request.primitive.scales_with_size else nbytes
