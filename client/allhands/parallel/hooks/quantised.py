"""int8: gradients as integers from -127 to 127, with a scale for each chunk.

Each rank adds up one share of the bucket: an all_to_all brings it everybody's numbers for that
share, and an all_gather takes its average, as whole numbers again, to all. Both move a byte for
each element, so a rank sends a quarter of what an all_reduce of float32 takes, for any number of
ranks. An all_reduce of the numbers themselves would need one scale for all ranks, and sums of 16
bits or more; an all_gather of them would send more than an all_reduce does from eight ranks on.

What is rounded off is added to the next gradient, on both ways, as in Tang et al. 2021, "1-bit
Adam", section 4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from allhands.collectives.arguments import AnyArray
from allhands.futures import Future
from allhands.group.group import Group
from allhands.parallel.grad_bucket import GradBucket
from allhands.parallel.hooks.calls import BucketCollectives
from allhands.parallel.hooks.elementary import allreduce, is_compressible
from allhands.parallel.hooks.residuals import Residuals, widen
from allhands.parallel.lazy_future import LazyFuture

_MAX_INT8 = 127


class Int8State:
    """The state of `int8`, for one reducer."""

    def __init__(self, group: Group | None = None, chunk: int = 256) -> None:
        """Take the group to average over, None for the reducer's, and how many share a scale.

        Raises:
            ValueError: a chunk of less than one element.
        """
        if chunk < 1:
            raise ValueError(f"a scale is for at least one element, not for {chunk}")
        self.group = group
        self.chunk = chunk
        self.own = Residuals()
        """Of this rank's gradients."""
        self.averages = Residuals()
        """Of the averages that this rank hands out."""

    def state_dict(self) -> dict[str, Any]:
        """Return the values left out on this rank, to be saved with its model."""
        return {"own": self.own.state_dict(), "averages": self.averages.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict` on this rank."""
        self.own.load_state_dict(saved["own"])
        self.averages.load_state_dict(saved["averages"])


def int8(state: Int8State, bucket: GradBucket) -> Future[Any]:
    """Average in 8 bits and a float32 a `chunk`; non-floats unchanged.

    Every rank gets the same bits. Where a gradient is infinite or no number, the averages of its
    chunk are no numbers.
    """
    buffer, owner = bucket.buffer(), bucket.indices()
    if not is_compressible(bucket, "f"):
        return allreduce(state.group, bucket)
    calls = BucketCollectives(state.group, bucket)
    length = -(-buffer.size // calls.size)
    values = state.own.add_to(owner, widen(buffer))
    shares = np.zeros((calls.size, length), values.dtype)
    shares.reshape(-1)[: buffer.size] = values
    packed = pack(shares, state.chunk)
    others = np.empty_like(packed)
    work = calls.all_to_all(others, packed)

    def finish() -> Any:
        left_out = (shares - unpack(packed, length, state.chunk)).reshape(-1)[: buffer.size]
        work.wait()
        share = unpack(others, length, state.chunk).mean(axis=0, dtype=values.dtype)
        share = state.averages.add_to(owner, share)
        mine = pack(share[np.newaxis], state.chunk)
        gathered = np.empty_like(packed)
        calls.all_gather(gathered, mine).wait()
        state.own.keep(owner, left_out)
        state.averages.keep(owner, share - unpack(mine, length, state.chunk)[0])
        averages = unpack(gathered, length, state.chunk).reshape(-1)[: buffer.size]
        np.copyto(buffer, averages, casting="unsafe")
        return buffer

    return LazyFuture(finish)


def pack(rows: AnyArray, chunk: int) -> AnyArray:
    """Return rows of floats as bytes: an integer each, then the chunks' scales."""
    count, length = rows.shape
    chunks = -(-length // chunk)
    values = np.zeros((count, chunks * chunk), rows.dtype)
    values[:, :length] = rows
    values = values.reshape(count, chunks, chunk)
    with np.errstate(all="ignore"):  # of what is not finite
        scales = (np.abs(values).max(axis=2) / _MAX_INT8).astype(np.float32)
        steps = np.where(scales == 0, np.float32(1), scales).astype(rows.dtype)
        values /= steps[:, :, np.newaxis]
        numbers = np.rint(values, out=values).astype(np.int8).reshape(count, -1)[:, :length]
    return np.concatenate([numbers.view(np.uint8), scales.view(np.uint8)], axis=1)


def unpack(packed: AnyArray, length: int, chunk: int) -> AnyArray:
    """Return rows of float32 from the bytes of `pack`."""
    numbers = packed[:, :length].view(np.int8).astype(np.float32)
    scales = np.ascontiguousarray(packed[:, length:]).view(np.float32)
    with np.errstate(all="ignore"):
        return numbers * np.repeat(scales, chunk, axis=1)[:, :length]
