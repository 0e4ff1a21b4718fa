"""The benchmarked systems from a rank's view: allhands, Gloo, MPI.

Every one is at its best setting: calls and tensors are made ready before the clock runs, MPI works
in place where it can and without locks where it can.
"""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from allhands.bench import training
from allhands.bench.case import BenchCase
from allhands.bench.data import Array, get_carrier

Call = Callable[[], object]

_BACKENDS = {"allhands-socket": "socket", "allhands-grpc": "grpc"}
UNRECORDED = "allhands-unrecorded"
TORCH = "allhands-torch"
ALLHANDS = ("allhands", "allhands-arena", "allhands-persistent", UNRECORDED, *_BACKENDS, TORCH)
"""allhands on any arrays; on its own; with calls made ready once; without the flight recorder; over
each kind of links alone; as the backend of torch.distributed."""
MPI = ("openmpi", "mpich")
PEERS = ("gloo", *MPI)


class Unsupported(Exception):
    """This contender does not do this; says why."""


class System(Protocol):
    """One rank of a benchmarked system."""

    rank: int
    size: int
    about: dict[str, str]
    """What it is, with versions."""

    def allocate(self, elements: int, dtype: str) -> Array:
        """Allocate an array the way the system's users would."""

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call:
        """Return the call of the case's operation; for sendrecv a round trip.

        A model that is trained has the weights of that `seed`.

        Raises:
            Refused: it has no such operation, or no such dtype.
        """

    def barrier(self) -> None: ...

    def get_variant(self) -> str | None:
        """Return the algorithm of the latest call, if known."""

    def close(self) -> None: ...


class AllhandsSystem:
    """allhands through its public calls."""

    def __init__(self, name: str) -> None:
        import allhands as ah

        self._ah: Any = ah  # what only later releases have is asked for by name
        self._uses_heap_arrays = name == "allhands-arena"
        self._is_persistent = name == "allhands-persistent"
        if name == UNRECORDED:
            os.environ["ALLHANDS_RECORDER_SIZE"] = "0"
        ah.init_process_group(backend=_BACKENDS.get(name, "auto"))
        self.rank, self.size = ah.get_rank(), ah.get_world_size()
        self.about = {"python": platform.python_version(), "numpy": np.__version__}

    def allocate(self, elements: int, dtype: str) -> Array:
        if self._uses_heap_arrays and elements:
            array: Array = self._ah.empty(elements, get_carrier(dtype))
            return array
        return np.empty(elements, get_carrier(dtype))

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call:
        ah, own_type = self._ah, _get_numpy_type(case.dtype)
        x, out = x.view(own_type), out.view(own_type)
        if self._is_persistent:
            return self._bind_persistent(case, x, out)
        match case.operation:
            case "all_reduce":
                return lambda: ah.all_reduce(x)
            case "all_gather":
                return lambda: ah.all_gather_into_tensor(out, x)
            case "reduce_scatter":
                return lambda: ah.reduce_scatter_tensor(out, x)
            case "broadcast":
                return lambda: ah.broadcast(x, 0)
            case "reduce":
                return lambda: ah.reduce(x, 0)
            case "gather":
                places = self._split_shares(out)
                return lambda: ah.gather(x, places, 0)
            case "scatter":
                shares = self._split_shares(x)
                return lambda: ah.scatter(out, shares, 0)
            case "all_to_all":
                return lambda: ah.all_to_all_single(out, x)
            case "sendrecv":
                return _make_round_trip(
                    self.rank, lambda to: ah.send(x, to), lambda by: ah.recv(out, by)
                )
            case "barrier":
                return lambda: ah.barrier()
            case "async_all_reduce":
                return lambda: ah.all_reduce(x, async_op=True).wait()
            case "future_all_reduce":
                return lambda: ah.all_reduce(x, async_op=True).get_future().result()
            case "exchange":
                return _make_exchange(ah, self.rank, self.size, x, out)
        raise Unsupported(f"allhands is not measured on {case.operation}")

    def _split_shares(self, array: Array) -> list[Array] | None:
        return np.split(array, self.size) if self.rank == 0 else None

    def _bind_persistent(self, case: BenchCase, x: Array, out: Array) -> Call:
        names = {
            "all_reduce": ("all_reduce_init", (x,)),
            "all_gather": ("all_gather_into_tensor_init", (out, x)),
            "reduce_scatter": ("reduce_scatter_tensor_init", (out, x)),
            "broadcast": ("broadcast_init", (x, 0)),
            "all_to_all": ("all_to_all_single_init", (out, x)),
            "barrier": ("barrier_init", ()),
        }
        name, arguments = names.get(case.operation, ("", ()))
        if not name or not hasattr(self._ah, name):
            raise Unsupported(f"{case.operation} has no persistent form")
        ready = getattr(self._ah, name)(*arguments)
        start, wait = ready.start, ready.wait

        def call() -> None:
            start()
            wait()

        return call

    def barrier(self) -> None:
        self._ah.barrier()

    def get_variant(self) -> str | None:
        explain = getattr(self._ah.default_group(), "explain", None)
        return None if explain is None else str(explain()) or None

    def close(self) -> None:
        self._ah.destroy_process_group()


class TorchSystem:
    """torch.distributed with a given backend, on tensors over the arrays' memory."""

    def __init__(self, backend: str, store_file: Path) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, f"file://{store_file}", rank=rank, world_size=size)
        self._torch: Any = torch
        self._dist: Any = dist
        self._backend = backend
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.about = {"torch": str(torch.__version__), "python": platform.python_version()}

    def allocate(self, elements: int, dtype: str) -> Array:
        return np.empty(elements, get_carrier(dtype))

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call:
        dist, mine, theirs = self._dist, self._to_tensor(x, case), self._to_tensor(out, case)
        match case.operation:
            case "all_reduce":
                return lambda: dist.all_reduce(mine)
            case "all_gather":
                gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
                return lambda: gather(theirs, mine)
            case "reduce_scatter":
                scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
                return lambda: scatter(theirs, mine)
            case "broadcast":
                return lambda: dist.broadcast(mine, 0)
            case "reduce":
                return lambda: dist.reduce(mine, 0)
            case "gather":
                places = list(theirs.chunk(self.size)) if self.rank == 0 else None
                return lambda: dist.gather(mine, places, 0)
            case "scatter":
                shares = list(mine.chunk(self.size)) if self.rank == 0 else None
                return lambda: dist.scatter(theirs, shares, 0)
            case "all_to_all":
                return lambda: dist.all_to_all_single(theirs, mine)
            case "sendrecv":
                return _make_round_trip(
                    self.rank, lambda to: dist.send(mine, to), lambda by: dist.recv(theirs, by)
                )
            case "barrier":
                return lambda: dist.barrier()
            case "async_all_reduce":
                return lambda: dist.all_reduce(mine, async_op=True).wait()
            case "future_all_reduce":
                return lambda: dist.all_reduce(mine, async_op=True).get_future().wait()
            case "exchange":
                return _make_exchange(dist, self.rank, self.size, mine, theirs)
            case "ddp_step":
                if case.dtype != "float32":
                    raise Unsupported("models are measured in float32")
                return training.make_step(case, x, out, seed)
        raise Unsupported(f"{self._backend} is not measured on {case.operation}")

    def _to_tensor(self, array: Array, case: BenchCase) -> Any:
        # torch has no unsigned type of two bytes that it could share with NumPy everywhere.
        if case.dtype == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def barrier(self) -> None:
        self._dist.barrier()

    def get_variant(self) -> str | None:
        return None

    def close(self) -> None:
        self._dist.destroy_process_group()


class MpiSystem:
    """An MPI through mpi4py, on NumPy arrays."""

    def __init__(self) -> None:
        import mpi4py

        # Without locks it is faster. But MPICH yields its core to other ranks only if it expects
        # threads: of more ranks than cores, each would wait for the others to be preempted.
        mpi4py.rc.threads = int(os.environ.get("PMI_SIZE", "0")) > len(os.sched_getaffinity(0))
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
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

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call:
        world, in_place = self._world, self._mpi.IN_PLACE
        if case.operation != "barrier":
            self._refuse_unknown(case.dtype)
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
                return _make_round_trip(
                    self.rank, lambda to: world.Send(x, to), lambda by: world.Recv(out, by)
                )
            case "barrier":
                return lambda: world.Barrier()
            case "async_all_reduce":
                return lambda: world.Iallreduce(in_place, x).Wait()
            case "exchange":
                after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
                return lambda: self._mpi.Request.Waitall(
                    [world.Irecv(out, before), world.Isend(x, after)]
                )
        raise Unsupported(f"MPI is not measured on {case.operation}")

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

    def barrier(self) -> None:
        self._world.Barrier()

    def get_variant(self) -> str | None:
        return None

    def close(self) -> None:
        self._mpi.Finalize()


def join_system(name: str, store_file: Path) -> System:
    """Join the world of this process's contender; those of PyTorch find each other in a file."""
    if name == TORCH:
        return TorchSystem("allhands", store_file)
    if name in ALLHANDS:
        return AllhandsSystem(name)
    return TorchSystem(name, store_file) if name == "gloo" else MpiSystem()


def _get_numpy_type(dtype: str) -> Any:
    if dtype != "bfloat16":
        return np.dtype(dtype)
    try:
        import ml_dtypes
    except ImportError:
        raise Unsupported("bfloat16 needs `pip install ml_dtypes`") from None
    return ml_dtypes.bfloat16


def _make_round_trip(
    rank: int, send: Callable[[int], object], receive: Callable[[int], object]
) -> Call:
    def send_first() -> None:
        send(1)
        receive(1)

    def receive_first() -> None:
        receive(0)
        send(0)

    return send_first if rank == 0 else receive_first


def _make_exchange(module: Any, rank: int, size: int, x: Any, out: Any) -> Call:
    """Return the call of an exchange, with a module that has torch.distributed's names."""
    batch = [
        module.P2POp(module.isend, x, (rank + 1) % size),
        module.P2POp(module.irecv, out, (rank - 1) % size),
    ]

    def call() -> None:
        for work in module.batch_isend_irecv(batch):
            work.wait()

    return call
