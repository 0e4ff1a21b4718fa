"""Stateless hooks: plain averages, fewer bits, or nothing at all."""

from typing import Any

import numpy as np

from allhands.collectives.reduction import ReduceOp
from allhands.futures import Future
from allhands.group.group import Group
from allhands.parallel.grad_bucket import GradBucket
from allhands.parallel.hooks.calls import BucketCollectives
from allhands.parallel.lazy_future import LazyFuture


def noop(state: object, bucket: GradBucket) -> Future[Any]:
    """Leave each rank's gradients unchanged, to measure communication cost."""
    given: Future[Any] = Future()
    given.set_result(bucket.buffer())
    return given


def is_compressible(bucket: GradBucket, kinds: str) -> bool:
    """Say whether a bucket holds elements of these kinds, to be compressed."""
    buffer = bucket.buffer()
    return not bucket.is_sparse() and buffer.size > 0 and buffer.dtype.kind in kinds


def allreduce(group: Group | None, bucket: GradBucket) -> Future[Any]:
    """Average by an all_reduce in the gradients' dtype, as reducers do by default.

    The state is the group to average over; None: that of the reducer.
    """
    buffer = bucket.buffer()
    work = BucketCollectives(group, bucket).all_reduce(buffer, ReduceOp.AVG)

    def finish() -> Any:
        work.wait()
        return buffer

    return LazyFuture(finish)


def fp16_compress(group: Group | None, bucket: GradBucket) -> Future[Any]:
    """Average in float16: half the bytes of float32, a quarter of float64.

    Gradients are divided by the number of ranks before they are rounded, so that sums overflow no
    sooner than averages; what is below 3e-8 then is lost. Gradients that are no wider, no
    floats, or sparse, travel as they are. The state is as for `allreduce`.
    """
    return _average_in_dtype(group, bucket, np.dtype(np.float16))


def bf16_compress(group: Group | None, bucket: GradBucket) -> Future[Any]:
    """Average in bfloat16, which has the bytes of float16, the range of float32, and 8 digits.

    Otherwise it is as `fp16_compress`.

    Raises:
        ImportError: ml_dtypes is not installed, whose bfloat16 it is.
    """
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            "bf16_compress needs the bfloat16 of ml_dtypes: pip install ml_dtypes, "
            "or use fp16_compress"
        ) from error
    return _average_in_dtype(group, bucket, np.dtype(ml_dtypes.bfloat16))


def _average_in_dtype(
    group: Group | None, bucket: GradBucket, dtype: "np.dtype[np.generic]"
) -> Future[Any]:
    buffer = bucket.buffer()
    if not is_compressible(bucket, "f") or buffer.dtype.itemsize <= dtype.itemsize:
        return allreduce(group, bucket)
    calls = BucketCollectives(group, bucket)
    with np.errstate(over="ignore"):  # infinite gradients are for the optimizer to see
        narrow = (buffer / calls.size).astype(dtype)
    work = calls.all_reduce(narrow)

    def finish() -> Any:
        work.wait()
        np.copyto(buffer, narrow, casting="unsafe")
        return buffer

    return LazyFuture(finish)
