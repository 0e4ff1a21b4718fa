"""Collectives started by hooks: on a bucket, labelled by the bucket, async."""

from typing import Any

from allhands.api import collectives
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work
from allhands.group.group import Group
from allhands.parallel.grad_bucket import GradBucket


class BucketCollectives:
    """Starts the collectives of one bucket on one group."""

    def __init__(self, group: Group | None, bucket: GradBucket) -> None:
        """Take the group of the hook's state; None: the reducer's."""
        self.group = group or bucket.group()
        self._label = f"bucket {bucket.index()}"

    @property
    def size(self) -> int:
        return self.group.size

    def all_reduce(self, x: Any, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Reduce an array, dense or sparse."""
        return _require_work(
            collectives.all_reduce(x, op, self.group, async_op=True, label=self._label)
        )

    def all_gather(self, output: AnyArray, x: AnyArray) -> Work:
        return _require_work(
            collectives.all_gather_into_tensor(
                output, x, self.group, async_op=True, label=self._label
            )
        )

    def all_to_all(self, output: AnyArray, x: AnyArray) -> Work:
        """Send row r of `x` to rank r; receive rank r's row in row r of `output`."""
        return _require_work(
            collectives.all_to_all_single(
                output, x, group=self.group, async_op=True, label=self._label
            )
        )


def _require_work(work: Work | None) -> Work:
    assert work is not None, "this rank is in the group"
    return work
