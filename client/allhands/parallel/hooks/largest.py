"""top_k: send only the largest gradients of each bucket, with indices."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from allhands.futures import Future
from allhands.group.group import Group
from allhands.parallel.grad_bucket import GradBucket
from allhands.parallel.hooks.calls import BucketCollectives
from allhands.parallel.hooks.elementary import allreduce, is_compressible
from allhands.parallel.hooks.residuals import Residuals, widen
from allhands.parallel.lazy_future import LazyFuture

_INDEX_DTYPE = np.dtype(np.uint32)


class TopKState:
    """The state of `top_k`, for one reducer."""

    def __init__(self, group: Group | None = None, ratio: float = 0.01) -> None:
        """Take the group to average over, None for the reducer's, and the share that is sent.

        Raises:
            ValueError: a share that is not above 0 and at most 1.
        """
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio is the share that is sent, above 0 up to 1, not {ratio}")
        self.group = group
        self.ratio = ratio
        self.residuals = Residuals()

    def state_dict(self) -> dict[str, Any]:
        """Return the values left out on this rank, to be saved with its model."""
        return {"residuals": self.residuals.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict` on this rank."""
        self.residuals.load_state_dict(saved["residuals"])


def top_k(state: TopKState, bucket: GradBucket) -> Future[Any]:
    """Average the largest gradients of each rank: the fraction `ratio`, at least one element.

    Each rank chooses its own, and adds the left-out rest to its next gradients (Stich et al. 2018,
    "Sparsified SGD with Memory"). One all_gather moves an index and a value for each chosen
    element; elements that no rank sends become 0. Every rank receives the elements of all ranks, so
    that this saves traffic only while `ratio` times the number of ranks is well below 1. bfloat16
    is sent as is.
    """
    buffer, owner = bucket.buffer(), bucket.indices()
    if not is_compressible(bucket, "fc"):
        return allreduce(state.group, bucket)
    calls = BucketCollectives(state.group, bucket)
    values = state.residuals.add_to(owner, widen(buffer))
    count = math.ceil(state.ratio * values.size)
    places = np.argpartition(np.abs(values), values.size - count)[values.size - count :]
    places = places.astype(_INDEX_DTYPE)
    packed = np.concatenate([places.view(np.uint8), values[places].view(np.uint8)])
    gathered = np.empty((calls.size, packed.size), np.uint8)
    work = calls.all_gather(gathered, packed)

    def finish() -> Any:
        work.wait()
        total = np.zeros_like(values)
        for row in gathered:
            at = row[: places.nbytes].view(_INDEX_DTYPE)
            total[at] += np.ascontiguousarray(row[places.nbytes :]).view(values.dtype)
        values[places] = 0
        state.residuals.keep(owner, values)
        np.copyto(buffer, total / calls.size, casting="unsafe")
        return buffer

    return LazyFuture(finish)
