"""LightGBM's network over a world: no `machines=`, no ports.

with allhands.lightgbm.network() as parameters:
    booster = lightgbm.train({"objective": "binary", "tree_learner": "data", **parameters}, data)
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from lightgbm.basic import _LIB, _safe_call
from numpy.typing import NDArray

from allhands.api.calls import resolve_group
from allhands.api.default_world import AnyGroup
from allhands.group.group import Group

_Size = ctypes.c_int32
_Sizes = ctypes.POINTER(_Size)
_Reduce = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, _Size)
"""Input, output, bytes of an element, bytes of both: output = output (+) input."""
_ReduceScatter = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, _Size, ctypes.c_int, _Sizes, _Sizes, ctypes.c_int),
    *(ctypes.c_void_p, _Size, ctypes.POINTER(ctypes.c_void_p)),
)
_AllGather = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, _Size, _Sizes, _Sizes, ctypes.c_int, ctypes.c_void_p, _Size),
)
"""As LightGBM's include/LightGBM/meta.h has them."""


@contextmanager
def network(group: AnyGroup = None) -> Iterator[dict[str, Any]]:
    """Let LightGBM of this thread use the ranks of a group within a block; all ranks enter it.

    Yields the parameters `num_machines` and `pre_partition`, for `lightgbm.train` and
    `lightgbm.Dataset`: each rank brings its own rows. A group of one rank yields none.

    Raises:
        AllhandsError: a call failed, as when a rank was lost; raised when the block ends, and
            what LightGBM made meanwhile is worth nothing.
        ValueError: this rank is not in the group.
    """
    found = resolve_group(group, True, "network")
    if found is None:
        raise ValueError("this rank is not in the group")
    if found.size == 1:
        yield {}
        return
    calls = _NetworkCalls(found)
    _safe_call(
        _LIB.LGBM_NetworkInitWithFunctions(
            ctypes.c_int(found.size), ctypes.c_int(found.rank), calls.reduce_scatter, calls.gather
        )
    )
    try:
        yield {"num_machines": found.size, "pre_partition": True}
    except Exception as error:
        if calls.error is not None:  # of which LightGBM's is a consequence
            raise calls.error from error
        raise
    finally:
        _safe_call(_LIB.LGBM_NetworkFree())
    if calls.error is not None:
        raise calls.error


class _NetworkCalls:
    """The two functions that LightGBM calls, and the first error in one of them.

    An exception cannot leave a function that C++ has called. So after an error nothing is sent
    any more, outputs are zeros, and the error is raised where the block ends.
    """

    def __init__(self, group: Group) -> None:
        self._group = group.here
        self.error: Exception | None = None
        self.reduce_scatter = _ReduceScatter(self._reduce_scatter)
        self.gather = _AllGather(self._all_gather)

    def _reduce_scatter(
        self,
        source: int,
        source_nbytes: int,
        element_nbytes: int,
        starts: Any,
        lengths: Any,
        count: int,
        target: int,
        target_nbytes: int,
        reducer: Any,
    ) -> None:
        """Exchange the blocks, and combine those for this rank in the order of the ranks."""
        own = _view(source, source_nbytes)
        rank, output = self._group.rank, _view(target, target_nbytes)
        blocks = [own[starts[i] : starts[i] + lengths[i]] for i in range(count)]
        received = [np.empty(lengths[rank], np.uint8) for _ in range(count)]
        if not self._try(lambda: self._group.all_to_all(received, blocks).wait()):
            output[:] = 0
            return
        reduce = _Reduce(reducer[0])
        total = output[: lengths[rank]]
        total[:] = received[0]
        for block in received[1:]:
            reduce(block.ctypes.data, total.ctypes.data, element_nbytes, lengths[rank])

    def _all_gather(
        self,
        source: int,
        source_nbytes: int,
        starts: Any,
        lengths: Any,
        count: int,
        target: int,
        target_nbytes: int,
    ) -> None:
        output = _view(target, target_nbytes)
        own = _view(source, source_nbytes)[: lengths[self._group.rank]].copy()
        blocks = [output[starts[i] : starts[i] + lengths[i]] for i in range(count)]
        if len(set(lengths[:count])) == 1:
            done = self._try(lambda: self._group.all_gather(blocks, own).wait())
        else:
            done = self._try(lambda: self._gather_unequal(blocks, own))
        if not done:
            output[:] = 0

    def _gather_unequal(self, blocks: list[NDArray[np.uint8]], own: NDArray[np.uint8]) -> None:
        work = self._group.all_gather_v(own)
        work.wait()
        for block, part in zip(blocks, work.result(), strict=True):
            block[:] = part

    def _try(self, call: Any) -> bool:
        if self.error is not None:
            return False
        try:
            call()
        except Exception as error:
            self.error = error
            return False
        return True


def _view(address: int | None, nbytes: int) -> NDArray[np.uint8]:
    """Return memory of LightGBM, which it keeps for the time of the call."""
    if not nbytes or address is None:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
