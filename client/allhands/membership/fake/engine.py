"""Engine of a fake group: calls complete at once on the callers' threads.

What they give is what they would if every other rank brought just what this one does:

    all_reduce, reduce, reduce_scatter   this rank's array, combined with itself as often as there
                                         are ranks: SUM is `size` times it, AVG, MIN and MAX itself
    gather, all_gather                   this rank's array in every place
    all_to_all                           what this rank gives itself, in every place; it is repeated
                                         or cut where a place is longer or shorter
    broadcast, scatter, recv             what another rank alone could bring stays as it was

A call that is made of several of these gives what they do, one after the other: so a reduction by
a function of the user's, of which every rank does a part, has this rank's part in every place. One
that cannot end without knowing what another rank brings fails, and says so.
"""

from collections.abc import Callable, Sequence

import numpy as np

from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall, CompositeState
from allhands.collectives.primitive_table import Operand
from allhands.collectives.reduction import ReduceOp, finish, fold
from allhands.collectives.request import CollectiveRequest
from allhands.engine.failures.losses import FailureLog
from allhands.engine.group_engine import GroupEngine
from allhands.engine.inline_limits import InlineLimits
from allhands.engine.operation import Operation
from allhands.engine.p2p.interface import P2PRouter
from allhands.engine.p2p.message import P2PRequest, name_message
from allhands.errors import AllhandsError
from allhands.runtime.helper_threads import HelperThreads
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh

_EXPLANATION = "by this rank alone: the group is fake"


class FakeEngine(GroupEngine):
    """An engine that neither waits nor sends; calls run one at a time."""

    def _make_p2p_router(self, mesh: Mesh, losses: FailureLog, threads: HelperThreads) -> P2PRouter:
        return _FakeP2PRouter(self.run_message)

    def submit(self, operation: Operation) -> None:
        work = operation.work
        if operation.is_cancelled:
            return
        self.recorder.record_start(work.entry)
        try:
            if (failure := self._failures.find_failure(work.sequence)) is not None:
                raise failure(self._watchdog.name_call(operation))
            if work.staging is not None:
                work.staging.load()
            if operation.composite_state is None:
                _write_targets(operation.request, self.rank, len(self.ranks))
            else:
                self._run_steps(operation, operation.composite_state)
        except Exception as error:  # whatever it is belongs to the caller
            work.fail(error)
            return
        work.explained(_EXPLANATION)
        work.succeed(operation.result)

    def can_run_inline(self, request: CollectiveRequest, limits: InlineLimits) -> bool:
        return False  # nothing is gained: every call runs on its caller's thread

    def can_run_composite_inline(self, composite: CompositeCall, limits: InlineLimits) -> bool:
        return False

    def run_message(self, request: P2PRequest) -> None:
        """Complete a message: sends are dropped, receives leave the array unchanged."""
        work = request.work
        what = name_message(work.operation, self.ranks, request.peer, request.tag)
        others = [rank for rank in self.ranks if rank != self.ranks[self.rank]]
        if (failure := self._failures.find_failure(self.order.latest_sequence)) is not None:
            work.fail(failure(what))
        elif request.peer is None and not others:
            work.fail(AllhandsError(f"{what} cannot end: the group has no other rank"))
        else:
            if request.receives:
                peer = others[0] if request.peer is None else request.peer
                work.received_from(self.ranks.index(peer))
            work.explained(_EXPLANATION)
            work.succeed(request.result)

    def _run_steps(self, operation: Operation, composite_state: CompositeState) -> None:
        """Carry out the steps of a chain."""
        try:
            while (step := composite_state.advance()) is not None:
                _write_targets(step.request, self.rank, len(self.ranks))
            operation.result = composite_state.finish()
        except Exception as error:
            if operation.call.root in (None, self.rank):
                raise
            raise AllhandsError(
                f"{self._watchdog.name_call(operation)} cannot end: what rank "
                f"{operation.call.root} would bring is not known here, and the group is fake"
            ) from error


class _FakeP2PRouter(P2PRouter):
    """Router of a fake group: messages are dropped and complete at once."""

    def __init__(self, run_message: Callable[[P2PRequest], None]) -> None:
        self.shm_path = None
        self._run_message = run_message

    @property
    def is_plain_links(self) -> bool:
        return False

    def start(self, request: P2PRequest) -> None:
        self._run_message(request)

    def open_early(self) -> None:
        pass

    def cancel(self, request: P2PRequest) -> None:
        pass

    def fail(self) -> None:
        pass

    def on_peer_left(self, rank: int) -> None:
        pass

    def on_refused(self, peer: int, key: MessageKey, call: str) -> None:
        pass

    async def wait_idle(self, run: object) -> None:
        pass

    def close(self) -> None:
        pass


def _write_targets(request: CollectiveRequest, rank: int, size: int) -> None:
    """Write the targets of a call."""
    own = _find_own_data(request, rank)
    for target in _split_blocks(request.targets, request.recv):
        if request.primitive.reduces:
            _repeat(request.op or ReduceOp.SUM, target if own is None else own, size, target)
        elif own is not None:
            _fill(target, own)


def _find_own_data(request: CollectiveRequest, rank: int) -> Array | None:
    """Return the array, or block, that this rank gives itself; None: its targets hold it, if any.

    Of a rooted call it is None also where another rank's data would be needed.
    """
    if not request.sources:
        return None
    if request.primitive.inputs is not Operand.BLOCKS:
        return request.sources[0]
    return _split_blocks(request.sources, request.send)[rank]


def _repeat(op: ReduceOp, array: Array, times: int, target: Array) -> None:
    """Write the combination of an array with itself to `target`, which may be that array."""
    if op is ReduceOp.AVG and array.dtype.kind not in "iu":  # whose sum wraps around
        np.copyto(target, array)
        return
    once, found = array.copy(), np.empty_like(array)
    fold(op, [once], found, 1)
    for bit in f"{times:b}"[1:]:
        fold(op, [found, found], found, 1)
        if bit == "1":
            fold(op, [found, once], found, 1)
    if op is ReduceOp.AVG:
        finish(op, found, times)
    np.copyto(target, found)


def _split_blocks(arrays: Sequence[Array], counts: Sequence[int] | None) -> Sequence[Array]:
    """Return an array for each rank, from as many or from one that holds all; None: as is."""
    if counts is None or len(arrays) == len(counts):
        return arrays
    (whole,) = arrays
    return np.split(whole, np.cumsum(counts)[:-1])


def _fill(target: Array, source: Array) -> None:
    """Fill `target` with repeats of `source`, the last one cut."""
    if source.size:
        target[...] = np.resize(source, target.size)
