"""Collective calls on communicators: blocking, non-blocking and persistent, on buffers."""

from typing import Any, Protocol

from allhands.mpi import errors
from allhands.mpi.collectives import direct
from allhands.mpi.collectives.direct import DirectCall
from allhands.mpi.collectives.plans import Plan
from allhands.mpi.operations.op import Op
from allhands.mpi.operations.predefined import SUM
from allhands.mpi.p2p.requests import Prequest, Request
from allhands.mpi.progress.transfers import Transfer
from allhands.mpi.runtime import runtime


class Plans(Protocol):
    """Plans of all collectives, among ranks of one group or of two."""

    def barrier(self) -> Plan: ...
    def bcast(self, buf: Any, root: int) -> Plan: ...
    def gather(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan: ...
    def gatherv(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan: ...
    def scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan: ...
    def scatterv(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan: ...
    def allgather(self, sendbuf: Any, recvbuf: Any) -> Plan: ...
    def allgatherv(self, sendbuf: Any, recvbuf: Any) -> Plan: ...
    def alltoall(self, sendbuf: Any, recvbuf: Any) -> Plan: ...
    def alltoallv(self, sendbuf: Any, recvbuf: Any) -> Plan: ...
    def alltoallw(self, sendbuf: Any, recvbuf: Any) -> Plan: ...
    def reduce(self, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> Plan: ...
    def allreduce(self, sendbuf: Any, recvbuf: Any, op: Op) -> Plan: ...
    def reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op) -> Plan: ...
    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, counts: Any, op: Op) -> Plan: ...


class BufferCollectives:
    """Collectives on buffers; mixin of `Comm`."""

    @property
    def _plans(self) -> Plans:
        raise NotImplementedError

    def _call_direct(self, call: DirectCall, *args: Any) -> bool:
        """Carry a call out at once; False: nothing has happened, and it needs a plan."""
        return False

    def _call_vectors(self, call: DirectCall, *args: Any) -> bool:
        """Carry a call on blocks of various sizes out at once, as `_call_direct` others."""
        return False

    def _check_alive(self) -> None:
        """Raise if the communicator is null or freed."""

    def _run(self, plan: Plan) -> None:
        """Carry a call out, and return at its end."""
        engine = runtime.engine
        try:
            transfer = plan(engine.is_idle)
        except Exception as error:
            raise errors.translate(error) from None
        if not transfer.done:
            engine.wait(transfer)
        if transfer.error is not None:
            raise errors.translate(transfer.error)

    def _begin(self, plan: Plan) -> Request:
        return Request._of(self._start(plan))

    def _prepare(self, plan: Plan) -> Prequest:
        return Prequest._prepare(lambda: self._start(plan))

    def _start(self, plan: Plan) -> Transfer:
        try:
            return plan(False)
        except Exception as error:
            raise errors.translate(error) from None

    def _make_persistent(self, start: Any) -> Prequest:
        """Prepare a call that a function begins, which returns a request."""
        return Prequest._prepare(lambda: start()._transfer)

    _peers: tuple[int, ...]

    # ------------------------------------------------------------ blocking

    def Barrier(self) -> None:
        """Return when all ranks have come here."""
        if not self._call_direct(direct.barrier):
            self._run(self._plans.barrier())

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Send a buffer of the root to all ranks."""
        if not self._call_direct(direct.bcast, buf, root):
            self._run(self._plans.bcast(buf, root))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect equal buffers of all ranks at the root, in order."""
        if not self._call_direct(direct.gather, sendbuf, recvbuf, root):
            self._run(self._plans.gather(sendbuf, recvbuf, root))

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect buffers of all ranks at the root, each where its displacement says."""
        if not self._call_vectors(direct.gatherv, sendbuf, recvbuf, root):
            self._run(self._plans.gatherv(sendbuf, recvbuf, root))

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give each rank its equal part of a buffer of the root."""
        if not self._call_direct(direct.scatter, sendbuf, recvbuf, root):
            self._run(self._plans.scatter(sendbuf, recvbuf, root))

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give each rank its part of a buffer of the root."""
        if not self._call_vectors(direct.scatterv, sendbuf, recvbuf, root):
            self._run(self._plans.scatterv(sendbuf, recvbuf, root))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collect equal buffers of all ranks at all ranks, in order."""
        if not self._call_direct(direct.allgather, sendbuf, recvbuf):
            self._run(self._plans.allgather(sendbuf, recvbuf))

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collect buffers of all ranks at all ranks, each where its displacement says."""
        if not self._call_vectors(direct.allgatherv, sendbuf, recvbuf):
            self._run(self._plans.allgatherv(sendbuf, recvbuf))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange equal blocks between all ranks."""
        if not self._call_direct(direct.alltoall, sendbuf, recvbuf):
            self._run(self._plans.alltoall(sendbuf, recvbuf))

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange blocks of various sizes between all ranks."""
        if not self._call_vectors(direct.alltoallv, sendbuf, recvbuf):
            self._run(self._plans.alltoallv(sendbuf, recvbuf))

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange blocks of various sizes and datatypes between all ranks."""
        self._run(self._plans.alltoallw(sendbuf, recvbuf))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Combine buffers of all ranks at the root."""
        if not self._call_direct(direct.reduce, sendbuf, recvbuf, op, root):
            self._run(self._plans.reduce(sendbuf, recvbuf, op, root))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine buffers of all ranks at all ranks."""
        if not self._call_direct(direct.allreduce, sendbuf, recvbuf, op):
            self._run(self._plans.allreduce(sendbuf, recvbuf, op))

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine buffers of all ranks; each gets its equal part."""
        if not self._call_direct(direct.reduce_scatter_block, sendbuf, recvbuf, op):
            self._run(self._plans.reduce_scatter_block(sendbuf, recvbuf, op))

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM
    ) -> None:
        """Combine buffers of all ranks; each gets its part, of `recvcounts[rank]` elements."""
        if not self._call_vectors(direct.reduce_scatter, sendbuf, recvbuf, recvcounts, op):
            self._run(self._plans.reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    # ------------------------------------------------------------ non-blocking

    def Ibarrier(self) -> Request:
        """Begin a `Barrier`."""
        return self._begin(self._plans.barrier())

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """Begin a `Bcast`."""
        return self._begin(self._plans.bcast(buf, root))

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Begin a `Gather`."""
        return self._begin(self._plans.gather(sendbuf, recvbuf, root))

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Begin a `Gatherv`."""
        return self._begin(self._plans.gatherv(sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Begin a `Scatter`."""
        return self._begin(self._plans.scatter(sendbuf, recvbuf, root))

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Begin a `Scatterv`."""
        return self._begin(self._plans.scatterv(sendbuf, recvbuf, root))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin an `Allgather`."""
        return self._begin(self._plans.allgather(sendbuf, recvbuf))

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin an `Allgatherv`."""
        return self._begin(self._plans.allgatherv(sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin an `Alltoall`."""
        return self._begin(self._plans.alltoall(sendbuf, recvbuf))

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin an `Alltoallv`."""
        return self._begin(self._plans.alltoallv(sendbuf, recvbuf))

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin an `Alltoallw`."""
        return self._begin(self._plans.alltoallw(sendbuf, recvbuf))

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Request:
        """Begin a `Reduce`."""
        return self._begin(self._plans.reduce(sendbuf, recvbuf, op, root))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Begin an `Allreduce`."""
        return self._begin(self._plans.allreduce(sendbuf, recvbuf, op))

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Begin a `Reduce_scatter_block`."""
        return self._begin(self._plans.reduce_scatter_block(sendbuf, recvbuf, op))

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM
    ) -> Request:
        """Begin a `Reduce_scatter`."""
        return self._begin(self._plans.reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    # ------------------------------------------------------------ persistent

    def Barrier_init(self, info: Any = None) -> Prequest:
        """Prepare a `Barrier`."""
        return self._prepare(self._plans.barrier())

    def Bcast_init(self, buf: Any, root: int = 0, info: Any = None) -> Prequest:
        """Prepare a `Bcast`."""
        return self._prepare(self._plans.bcast(buf, root))

    def Gather_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: Any = None) -> Prequest:
        """Prepare a `Gather`."""
        return self._prepare(self._plans.gather(sendbuf, recvbuf, root))

    def Gatherv_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: Any = None) -> Prequest:
        """Prepare a `Gatherv`."""
        return self._prepare(self._plans.gatherv(sendbuf, recvbuf, root))

    def Scatter_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: Any = None) -> Prequest:
        """Prepare a `Scatter`."""
        return self._prepare(self._plans.scatter(sendbuf, recvbuf, root))

    def Scatterv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: Any = None
    ) -> Prequest:
        """Prepare a `Scatterv`."""
        return self._prepare(self._plans.scatterv(sendbuf, recvbuf, root))

    def Allgather_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare an `Allgather`."""
        return self._prepare(self._plans.allgather(sendbuf, recvbuf))

    def Allgatherv_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare an `Allgatherv`."""
        return self._prepare(self._plans.allgatherv(sendbuf, recvbuf))

    def Alltoall_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare an `Alltoall`."""
        return self._prepare(self._plans.alltoall(sendbuf, recvbuf))

    def Alltoallv_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare an `Alltoallv`."""
        return self._prepare(self._plans.alltoallv(sendbuf, recvbuf))

    def Alltoallw_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare an `Alltoallw`."""
        return self._prepare(self._plans.alltoallw(sendbuf, recvbuf))

    def Reduce_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0, info: Any = None
    ) -> Prequest:
        """Prepare a `Reduce`."""
        return self._prepare(self._plans.reduce(sendbuf, recvbuf, op, root))

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = SUM, info: Any = None
    ) -> Prequest:
        """Prepare an `Allreduce`."""
        return self._prepare(self._plans.allreduce(sendbuf, recvbuf, op))

    def Reduce_scatter_block_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = SUM, info: Any = None
    ) -> Prequest:
        """Prepare a `Reduce_scatter_block`."""
        return self._prepare(self._plans.reduce_scatter_block(sendbuf, recvbuf, op))

    def Reduce_scatter_init(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = SUM, info: Any = None
    ) -> Prequest:
        """Prepare a `Reduce_scatter`."""
        return self._prepare(self._plans.reduce_scatter(sendbuf, recvbuf, recvcounts, op))
