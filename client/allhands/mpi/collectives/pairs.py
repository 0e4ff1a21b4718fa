"""Collectives between the ranks of two groups: plans and exchanges of bytes over messages.

Each rank sends what the other group needs straight to its ranks; reductions are folded in the
order of the ranks that brought them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from allhands.mpi import errors
from allhands.mpi.buffers.messages import (
    BlocksMessage,
    SimpleMessage,
    parse_blocks,
    parse_counts,
    parse_receive,
    parse_send,
    parse_vector,
    parse_vector_w,
)
from allhands.mpi.collectives.plans import Plan, fold, store
from allhands.mpi.constants import ERR_ROOT, PROC_NULL, ROOT
from allhands.mpi.operations.op import Op
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Completed, Together, Transfer

_NOTHING: Bytes = np.empty(0, np.uint8)


class PairPlans:
    """Plans of the collectives of an intercommunicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank = comm._rank
        self.local_size = len(comm._ranks)
        self.remote_size = len(comm._peers)

    def check_root(self, root: int) -> int:
        if not 0 <= root < self.remote_size and root not in (ROOT, PROC_NULL):
            raise errors.make_error(
                ERR_ROOT,
                f"root={root} is no rank of the other group: they go from 0 to "
                f"{self.remote_size - 1}; in the root's own group it is MPI.ROOT or MPI.PROC_NULL",
            )
        return root

    def _stand_by(self) -> Transfer:
        """Take no part in a call of the others, which counts here too."""
        self._comm._next_collective_tag()
        return Completed()

    def exchange(
        self,
        name: str,
        sends: dict[int, Bytes],
        receives: Sequence[int],
        finish: Callable[[list[Bytes]], Any] | None,
    ) -> Transfer:
        """Send to and receive from ranks of the other group; then finish with what came."""
        comm = self._comm
        tag = comm._next_collective_tag()
        parts: Together = comm._exchange(
            [(rank, tag, data) for rank, data in sends.items()],
            [(rank, tag, None) for rank in receives],
            what=f"{name} on an intercommunicator",
        )
        arrivals = parts.list_receives()

        def end() -> Any:
            came = [one.result for one in arrivals]
            return came if finish is None else finish(came)

        parts.set_finish(end)
        return parts

    @property
    def _everybody(self) -> range:
        return range(self.remote_size)

    def barrier(self) -> Plan:
        return lambda _: self.exchange(
            "Barrier", dict.fromkeys(self._everybody, _NOTHING), self._everybody, None
        )

    def bcast(self, buf: Any, root: int) -> Plan:
        self.check_root(root)
        if root == PROC_NULL:
            return lambda _: self._stand_by()
        if root == ROOT:
            message = parse_send(buf)
            return lambda _: self.exchange(
                "Bcast", dict.fromkeys(self._everybody, message.pack().copy()), (), None
            )
        target = parse_receive(buf)
        return lambda _: self.exchange(
            "Bcast", {}, (root,), lambda came: store(target, came[0], root)
        )

    def gather(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        return self._gather("Gather", sendbuf, recvbuf, root, parse_blocks)

    def gatherv(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        return self._gather("Gatherv", sendbuf, recvbuf, root, parse_vector)

    def _gather(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        root: int,
        parse: Callable[[Any, int, bool], BlocksMessage],
    ) -> Plan:
        self.check_root(root)
        if root == PROC_NULL:
            return lambda _: self._stand_by()
        if root == ROOT:
            blocks = parse(recvbuf, self.remote_size, True)
            return lambda _: self.exchange(
                name, {}, self._everybody, lambda came: _store_all(blocks, came)
            )
        message = parse_send(sendbuf)
        return lambda _: self.exchange(name, {root: message.pack().copy()}, (), None)

    def scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        return self._scatter("Scatter", sendbuf, recvbuf, root, parse_blocks)

    def scatterv(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        return self._scatter("Scatterv", sendbuf, recvbuf, root, parse_vector)

    def _scatter(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        root: int,
        parse: Callable[[Any, int, bool], BlocksMessage],
    ) -> Plan:
        self.check_root(root)
        if root == PROC_NULL:
            return lambda _: self._stand_by()
        if root == ROOT:
            blocks = parse(sendbuf, self.remote_size, False)
            return lambda _: self.exchange(name, _pack_all(blocks), (), None)
        message = parse_receive(recvbuf)
        return lambda _: self.exchange(
            name, {}, (root,), lambda came: store(message, came[0], root)
        )

    def allgather(self, sendbuf: Any, recvbuf: Any) -> Plan:
        return self._allgather("Allgather", parse_blocks(recvbuf, self.remote_size, True), sendbuf)

    def allgatherv(self, sendbuf: Any, recvbuf: Any) -> Plan:
        return self._allgather("Allgatherv", parse_vector(recvbuf, self.remote_size, True), sendbuf)

    def _allgather(self, name: str, blocks: BlocksMessage, sendbuf: Any) -> Plan:
        message = parse_send(sendbuf)
        return lambda _: self.exchange(
            name,
            dict.fromkeys(self._everybody, message.pack().copy()),
            self._everybody,
            lambda came: _store_all(blocks, came),
        )

    def alltoall(self, sendbuf: Any, recvbuf: Any) -> Plan:
        return self._alltoall("Alltoall", sendbuf, recvbuf, parse_blocks)

    def alltoallv(self, sendbuf: Any, recvbuf: Any) -> Plan:
        return self._alltoall("Alltoallv", sendbuf, recvbuf, parse_vector)

    def alltoallw(self, sendbuf: Any, recvbuf: Any) -> Plan:
        return self._alltoall("Alltoallw", sendbuf, recvbuf, parse_vector_w)

    def _alltoall(
        self,
        name: str,
        sendbuf: Any,
        recvbuf: Any,
        parse: Callable[[Any, int, bool], BlocksMessage],
    ) -> Plan:
        blocks = parse(recvbuf, self.remote_size, True)
        brought = parse(sendbuf, self.remote_size, False)
        return lambda _: self.exchange(
            name, _pack_all(brought), self._everybody, lambda came: _store_all(blocks, came)
        )

    # ------------------------------------------------------------ reductions of the other group

    def reduce(self, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> Plan:
        self.check_root(root)
        if root == PROC_NULL:
            return lambda _: self._stand_by()
        if root == ROOT:
            output = parse_receive(recvbuf)
            return lambda _: self.exchange(
                "Reduce", {}, self._everybody, lambda came: _store_fold(op, output, came)
            )
        message = parse_send(sendbuf)
        return lambda _: self.exchange("Reduce", {root: message.pack().copy()}, (), None)

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: Op) -> Plan:
        output = parse_receive(recvbuf)
        message = parse_send(sendbuf)
        return lambda _: self.exchange(
            "Allreduce",
            dict.fromkeys(self._everybody, message.pack().copy()),
            self._everybody,
            lambda came: _store_fold(op, output, came),
        )

    def reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op) -> Plan:
        output = parse_receive(recvbuf)
        whole = parse_send(sendbuf)
        return self._reduce_scatter(
            "Reduce_scatter_block", whole, [output.count] * self.local_size, output, op
        )

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, counts: Any, op: Op) -> Plan:
        output = parse_receive(recvbuf)
        whole = parse_send(sendbuf)
        shares = parse_counts(counts, self.local_size)
        return self._reduce_scatter(
            "Reduce_scatter", whole, shares, output.resize(shares[self.rank]), op
        )

    def _reduce_scatter(
        self, name: str, whole: SimpleMessage, shares: Sequence[int], output: SimpleMessage, op: Op
    ) -> Plan:
        """All of the other group's data comes here, and this rank's part of it is folded.

        How the other group shares out what it gets is not known here.
        """
        first = sum(shares[: self.rank]) * output.datatype.size
        last = first + output.nbytes
        return lambda _: self.exchange(
            name,
            dict.fromkeys(self._everybody, whole.pack().copy()),
            self._everybody,
            lambda came: _store_fold(op, output, [one[first:last] for one in came]),
        )


def _pack_all(blocks: BlocksMessage) -> dict[int, Bytes]:
    return {at: blocks.block(at).pack().copy() for at in range(len(blocks))}


def _store_all(blocks: BlocksMessage, came: Sequence[Bytes]) -> None:
    for at, data in enumerate(came):
        store(blocks.block(at), data, at)


def _store_fold(op: Op, output: SimpleMessage, came: Sequence[Bytes]) -> None:
    output.unpack(fold(op, output, came))
