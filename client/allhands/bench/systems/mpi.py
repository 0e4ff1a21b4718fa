"""MPI as a benchmarked system, through mpi4py, on NumPy arrays."""

import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.bench import overlap
from allhands.bench.case import BenchCase
from allhands.bench.data import Array, get_carrier
from allhands.bench.systems import forms
from allhands.bench.systems.system import BoundCall, Call, Unsupported, make_round_trip


class MpiSystem:
    """One rank of an MPI."""

    def __init__(self) -> None:
        import mpi4py

        # Without locks it is faster. But MPICH yields its core to other ranks only if it expects
        # threads: of more ranks than cores, each would wait for the others to be preempted.
        mpi4py.rc.threads = int(os.environ.get("PMI_SIZE", "0")) > len(os.sched_getaffinity(0))
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        self._matmuls = overlap.MatmulCache()
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        library = MPI.Get_library_version().rstrip("\0")
        self.about = {
            "library": " ".join(library.split("\n")[0].replace(",", " ").split()),
            "mpi4py": mpi4py.__version__,
            "threads": "multiple" if mpi4py.rc.threads else "single",
            "python": platform.python_version(),
        }

    def allocate(self, elements: int, dtype: str) -> Array:
        return np.empty(elements, get_carrier(dtype))

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call | BoundCall:
        if case.operation != "barrier":
            self._refuse_unknown(case.dtype)
        found = self._bind_collective(case, x, out) or self._bind_composite(case, x)
        found = found or self._bind_many(case, x) or self._bind_asynchronous(case, x, out)
        if found is None:
            raise forms.refuse("MPI", case.operation)
        return found

    def _bind_collective(self, case: BenchCase, x: Array, out: Array) -> Call | None:
        world, in_place = self._world, self._mpi.IN_PLACE
        match case.operation:
            case "all_reduce":
                return lambda: world.Allreduce(in_place, x)
            case "all_gather":
                return lambda: world.Allgather(x, out)
            case "reduce_scatter":
                return lambda: world.Reduce_scatter_block(x, out)
            case "broadcast":
                return lambda: world.Bcast(x, 0)
            case "reduce":
                if self.rank == 0:
                    return lambda: world.Reduce(in_place, x, root=0)
                return lambda: world.Reduce(x, None, root=0)
            case "gather":
                into = out if self.rank == 0 else None
                return lambda: world.Gather(x, into, root=0)
            case "scatter":
                given = x if self.rank == 0 else None
                return lambda: world.Scatter(given, out, root=0)
            case "all_to_all":
                return lambda: world.Alltoall(x, out)
            case "sendrecv":
                return make_round_trip(
                    self.rank, lambda to: world.Send(x, to), lambda by: world.Recv(out, by)
                )
            case "barrier":
                return lambda: world.Barrier()
        return None

    def _bind_composite(self, case: BenchCase, x: Array) -> Call | BoundCall | None:
        world, in_place = self._world, self._mpi.IN_PLACE
        match case.operation:
            case "scan":
                return lambda: world.Scan(in_place, x)
            case "exscan":
                return lambda: world.Exscan(in_place, x)
            case "all_gather_v":
                return BoundCall(lambda: self._all_gather_v(x), np.asarray)
            case "all_to_all_v":
                sizes = np.array([case.count_block(self.rank, to) for to in range(self.size)])
                return BoundCall(lambda: self._all_to_all_v(x, sizes), np.asarray)
            case "gather_v":
                return BoundCall(lambda: self._gather_v(x), np.asarray)
            case "scatter_v":
                sizes = np.array([case.count_block(0, to) for to in range(self.size)])
                return BoundCall(lambda: self._scatter_v(x, sizes), np.asarray)
            case "reduce_scatter_v":
                sizes = np.array([case.count_block(0, to) for to in range(self.size)])
                return BoundCall(lambda: self._reduce_scatter_v(x, sizes), np.asarray)
            case "all_gather_object":
                return forms.bind_object(case, x, world.allgather)
            case "broadcast_object_list":
                return forms.bind_object(case, x, self._broadcast_object)
        return None

    def _all_gather_v(self, x: Array) -> Array:
        counts = np.empty(self.size, np.int64)
        self._world.Allgather(np.array([x.size]), counts)
        out = np.empty(counts.sum(), x.dtype)
        self._world.Allgatherv(x, [out, counts])
        return out

    def _all_to_all_v(self, x: Array, sizes: Array) -> Array:
        counts = np.empty(self.size, np.int64)
        self._world.Alltoall(sizes, counts)
        out = np.empty(counts.sum(), x.dtype)
        self._world.Alltoallv([x, sizes], [out, counts])
        return out

    def _gather_v(self, x: Array) -> Array:
        counts = np.empty(self.size if self.rank == 0 else 0, np.int64)
        self._world.Gather(np.array([x.size]), counts if self.rank == 0 else None)
        out = np.empty(counts.sum(), x.dtype)
        self._world.Gatherv(x, [out, counts] if self.rank == 0 else None)
        return out

    def _scatter_v(self, x: Array, sizes: Array) -> Array:
        count = np.empty(1, np.int64)
        self._world.Scatter(sizes if self.rank == 0 else None, count)
        out = np.empty(count[0], x.dtype)
        self._world.Scatterv([x, sizes] if self.rank == 0 else None, out)
        return out

    def _reduce_scatter_v(self, x: Array, sizes: Array) -> Array:
        out = np.empty(sizes[self.rank], x.dtype)
        self._world.Reduce_scatter(x, out, sizes)
        return out

    def _broadcast_object(self, mine: object) -> Sequence[Any]:
        return [self._world.bcast(mine if self.rank == 0 else None, 0)]

    def _bind_many(self, case: BenchCase, x: Array) -> Call | None:
        """Return the call of an operation on many arrays."""
        if case.arrays == 1:
            return None
        world, in_place, parts = self._world, self._mpi.IN_PLACE, np.split(x, case.arrays)
        wait_all = self._mpi.Request.Waitall

        def reduce(part: Array) -> None:
            world.Allreduce(in_place, part)

        match case.form:
            case "":
                return lambda: wait_all([world.Iallreduce(in_place, part) for part in parts])
            case "packed":
                return forms.bind_packed(reduce, parts, np.empty_like(x))
            case "one_by_one":
                return forms.bind_one_by_one(reduce, parts)
        raise Unsupported(f"MPI has no {case.form}")

    def _bind_asynchronous(self, case: BenchCase, x: Array, out: Array) -> Call | None:
        world, in_place = self._world, self._mpi.IN_PLACE
        match case.operation:
            case "async_all_reduce":
                return lambda: world.Iallreduce(in_place, x).Wait()
            case "exchange":
                after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
                return lambda: self._mpi.Request.Waitall(
                    [world.Irecv(out, before), world.Isend(x, after)]
                )
            case "overlap_all_reduce":
                return overlap.bind(case, self._matmuls, lambda: world.Iallreduce(in_place, x).Wait)
        return None

    def _refuse_unknown(self, dtype: str) -> None:
        """Refuse dtypes without an MPI type in mpi4py."""
        if dtype != "bfloat16":
            try:
                found = self._mpi.Datatype.fromcode(np.dtype(dtype).char)
            except ValueError:
                found = self._mpi.DATATYPE_NULL
            if found != self._mpi.DATATYPE_NULL:
                return
        raise Unsupported(f"this MPI has no {dtype}")

    def get_variant(self) -> str | None:
        return None

    def close(self) -> None:
        self._mpi.Finalize()
