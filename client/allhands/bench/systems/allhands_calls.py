"""allhands as a benchmarked system, through its public calls."""

import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.bench import overlap
from allhands.bench.case import BenchCase
from allhands.bench.data import Array, get_carrier
from allhands.bench.systems import forms
from allhands.bench.systems.names import BACKENDS, POLICIES, UNRECORDED
from allhands.bench.systems.system import (
    BoundCall,
    Call,
    Unsupported,
    concatenate,
    make_batch,
    make_round_trip,
)


class AllhandsSystem:
    """One rank of allhands."""

    def __init__(self, name: str) -> None:
        import allhands as ah

        self._ah: Any = ah  # what only later releases have is asked for by name
        self._uses_heap_arrays = name == "allhands-arena"
        self._is_persistent = name == "allhands-persistent"
        self._matmuls = overlap.MatmulCache()
        if name == UNRECORDED:
            os.environ["ALLHANDS_RECORDER_SIZE"] = "0"
        policy: Any = POLICIES.get(name, {})
        ah.init_process_group(backend=BACKENDS.get(name, "auto"), **policy)
        self.rank, self.size = ah.get_rank(), ah.get_world_size()
        self.about = {"python": platform.python_version(), "numpy": np.__version__}

    def allocate(self, elements: int, dtype: str) -> Array:
        if self._uses_heap_arrays and elements:
            array: Array = self._ah.empty(elements, get_carrier(dtype))
            return array
        return np.empty(elements, get_carrier(dtype))

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call | BoundCall:
        own_type = get_numpy_type(case.dtype)
        x, out = x.view(own_type), out.view(own_type)
        if self._is_persistent:
            return self._bind_persistent(case, x, out)
        found = self._bind_collective(case, x, out) or self._bind_composite(case, x)
        found = found or self._bind_many(case, x) or self._bind_asynchronous(case, x, out)
        if found is None:
            raise forms.refuse("allhands", case.operation)
        return found

    def _bind_collective(self, case: BenchCase, x: Array, out: Array) -> Call | None:
        ah = self._ah
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
                return make_round_trip(
                    self.rank, lambda to: ah.send(x, to), lambda by: ah.recv(out, by)
                )
            case "barrier":
                return lambda: ah.barrier()
        return None

    def _bind_composite(self, case: BenchCase, x: Array) -> Call | BoundCall | None:
        ah = self._ah
        match case.operation:
            case "scan":
                return lambda: ah.scan(x)
            case "exscan":
                return lambda: ah.exscan(x)
            case "all_gather_v":
                return BoundCall(lambda: ah.all_gather_v(x), concatenate)
            case "all_to_all_v":
                blocks = np.split(x, case.list_block_ends(self.rank))
                return BoundCall(lambda: ah.all_to_all_v(blocks), concatenate)
            case "gather_v":
                read = concatenate if self.rank == 0 else (lambda _: x[:0])
                return BoundCall(lambda: ah.gather_v(x), read)
            case "scatter_v":
                given = np.split(x, case.list_block_ends(0)) if self.rank == 0 else None
                return BoundCall(lambda: ah.scatter_v(given), np.asarray)
            case "reduce_scatter_v":
                blocks = np.split(x, case.list_block_ends(0))
                return BoundCall(lambda: ah.reduce_scatter_v(blocks), np.asarray)
            case "all_gather_object":
                return forms.bind_object(case, x, self._all_gather_object)
            case "broadcast_object_list":
                return forms.bind_object(case, x, self._broadcast_object)
        return None

    def _all_gather_object(self, mine: object) -> Sequence[Any]:
        objects: list[Any] = [None] * self.size
        self._ah.all_gather_object(objects, mine)
        return objects

    def _broadcast_object(self, mine: object) -> Sequence[Any]:
        objects = [mine if self.rank == 0 else None]
        self._ah.broadcast_object_list(objects, 0)
        return objects

    def _bind_many(self, case: BenchCase, x: Array) -> Call | None:
        """Return the call of an operation on many arrays."""
        if case.arrays == 1:
            return None
        ah, parts = self._ah, np.split(x, case.arrays)

        def coalesce() -> None:
            with ah.coalescing():
                for part in parts:
                    ah.all_reduce(part)

        def begin_all() -> None:
            for work in [ah.all_reduce(part, async_op=True) for part in parts]:
                work.wait()

        match case.form:
            case "":
                return begin_all
            case "coalescing":
                return coalesce
            case "packed":
                return forms.bind_packed(ah.all_reduce, parts, np.empty_like(x))
        return forms.bind_one_by_one(ah.all_reduce, parts)

    def _bind_asynchronous(self, case: BenchCase, x: Array, out: Array) -> Call | None:
        ah = self._ah
        match case.operation:
            case "async_all_reduce":
                return lambda: ah.all_reduce(x, async_op=True).wait()
            case "future_all_reduce":
                return lambda: ah.all_reduce(x, async_op=True).get_future().result()
            case "exchange":
                return make_batch(ah, self.rank, self.size, x, out)
            case "overlap_all_reduce":
                return overlap.bind(
                    case, self._matmuls, lambda: ah.all_reduce(x, async_op=True).wait
                )
        return None

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

    def get_variant(self) -> str | None:
        explain = getattr(self._ah.default_group(), "explain", None)
        return None if explain is None else str(explain()) or None

    def close(self) -> None:
        self._ah.destroy_process_group()


def get_numpy_type(dtype: str) -> Any:
    """Return the type of an array as allhands takes it; NumPy itself has no bfloat16."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    try:
        import ml_dtypes
    except ImportError:
        raise Unsupported("bfloat16 needs `pip install ml_dtypes`") from None
    return ml_dtypes.bfloat16
