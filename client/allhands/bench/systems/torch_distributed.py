"""torch.distributed as a benchmarked system, on tensors over the arrays' memory."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allhands.bench import overlap, training
from allhands.bench.case import BenchCase
from allhands.bench.data import Array, get_carrier
from allhands.bench.systems import forms
from allhands.bench.systems.system import (
    BoundCall,
    Call,
    Unsupported,
    concatenate,
    make_batch,
    make_round_trip,
)


class TorchSystem:
    """One rank of torch.distributed with a given backend."""

    def __init__(self, backend: str, store_file: Path) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, f"file://{store_file}", rank=rank, world_size=size)
        self._torch: Any = torch
        self._dist: Any = dist
        self._backend = backend
        self._matmuls = overlap.MatmulCache()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.about = {"torch": str(torch.__version__), "python": platform.python_version()}

    def allocate(self, elements: int, dtype: str) -> Array:
        return np.empty(elements, get_carrier(dtype))

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call | BoundCall:
        mine, theirs = self._to_tensor(x, case), self._to_tensor(out, case)
        found = self._bind_collective(case, mine, theirs) or self._bind_composite(case, x, mine)
        found = found or self._bind_many(case, x, mine)
        found = found or self._bind_asynchronous(case, mine, theirs)
        if found is None and case.operation == "ddp_step":
            if case.dtype != "float32":
                raise Unsupported("models are measured in float32")
            found = training.make_step(case, x, out, seed)
        if found is None:
            raise forms.refuse(self._backend, case.operation)
        return found

    def _bind_collective(self, case: BenchCase, mine: Any, theirs: Any) -> Call | None:
        dist = self._dist
        match case.operation:
            case "all_reduce":
                return lambda: dist.all_reduce(mine)
            case "all_gather":
                gather = self._all_gather
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
                return make_round_trip(
                    self.rank, lambda to: dist.send(mine, to), lambda by: dist.recv(theirs, by)
                )
            case "barrier":
                return lambda: dist.barrier()
        return None

    @property
    def _all_gather(self) -> Any:
        return getattr(self._dist, "all_gather_single", None) or self._dist.all_gather_into_tensor

    def _bind_composite(self, case: BenchCase, x: Array, mine: Any) -> BoundCall | None:
        match case.operation:
            case "all_gather_v":
                return BoundCall(lambda: self._all_gather_v(mine), concatenate)
            case "all_to_all_v":
                sizes = [case.count_block(self.rank, to) for to in range(self.size)]
                return BoundCall(lambda: self._all_to_all_v(mine, sizes), np.asarray)
            case "all_gather_object":
                return forms.bind_object(case, x, self._all_gather_object)
            case "broadcast_object_list":
                return forms.bind_object(case, x, self._broadcast_object)
        return None

    def _all_gather_v(self, mine: Any) -> Sequence[Any]:
        """Gather the sizes, then arrays of the largest size: Gloo takes no others."""
        torch = self._torch
        counts = torch.empty(self.size, dtype=torch.int64)
        self._all_gather(counts, torch.tensor([mine.numel()]))
        most = int(counts.max())
        padded = torch.empty(most, dtype=mine.dtype)
        padded[: mine.numel()] = mine
        gathered = torch.empty(most * self.size, dtype=mine.dtype)
        self._all_gather(gathered, padded)
        rows = gathered.view(self.size, most)
        return [row[:count] for row, count in zip(rows, counts.tolist(), strict=True)]

    def _all_to_all_v(self, mine: Any, sizes: Sequence[int]) -> Any:
        torch, dist = self._torch, self._dist
        counts = torch.empty(self.size, dtype=torch.int64)
        dist.all_to_all_single(counts, torch.tensor(sizes))
        received = torch.empty(int(counts.sum()), dtype=mine.dtype)
        dist.all_to_all_single(received, mine, counts.tolist(), sizes)
        return received

    def _all_gather_object(self, mine: object) -> Sequence[Any]:
        objects: list[Any] = [None] * self.size
        self._dist.all_gather_object(objects, mine)
        return objects

    def _broadcast_object(self, mine: object) -> Sequence[Any]:
        objects = [mine if self.rank == 0 else None]
        self._dist.broadcast_object_list(objects, 0)
        return objects

    def _bind_many(self, case: BenchCase, x: Array, mine: Any) -> Call | None:
        """Return the call of an operation on many arrays."""
        if case.arrays == 1:
            return None
        dist, parts = self._dist, list(mine.chunk(case.arrays))

        def begin_all() -> None:
            for work in [dist.all_reduce(part, async_op=True) for part in parts]:
                work.wait()

        match case.form:
            case "":
                return begin_all
            case "coalescing":
                if not hasattr(dist, "all_reduce_coalesced"):
                    raise Unsupported("this torch has no all_reduce_coalesced")
                return lambda: dist.all_reduce_coalesced(parts)
            case "packed":
                packed = self._to_tensor(np.empty_like(x), case)
                return forms.bind_packed(dist.all_reduce, np.split(x, case.arrays), packed)
        return forms.bind_one_by_one(dist.all_reduce, parts)

    def _bind_asynchronous(self, case: BenchCase, mine: Any, theirs: Any) -> Call | None:
        dist = self._dist
        match case.operation:
            case "async_all_reduce":
                return lambda: dist.all_reduce(mine, async_op=True).wait()
            case "future_all_reduce":
                return lambda: dist.all_reduce(mine, async_op=True).get_future().wait()
            case "exchange":
                return make_batch(dist, self.rank, self.size, mine, theirs)
            case "overlap_all_reduce":
                return overlap.bind(
                    case, self._matmuls, lambda: dist.all_reduce(mine, async_op=True).wait
                )
        return None

    def _to_tensor(self, array: Array, case: BenchCase) -> Any:
        # torch has no unsigned type of two bytes that it could share with NumPy everywhere.
        if case.dtype == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def get_variant(self) -> str | None:
        return None

    def close(self) -> None:
        self._dist.destroy_process_group()
