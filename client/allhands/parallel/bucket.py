"""Bucket: gradients reduced as one array, and their progress in a step."""

import concurrent.futures
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.api import world_queries
from allhands.collectives.arguments import AnyArray
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import clip_timeout
from allhands.group.group import Group
from allhands.parallel import comm_hook
from allhands.parallel.bucket_layout import BucketLayout
from allhands.parallel.comm_hook import CommHook
from allhands.parallel.grad_bucket import GradBucket, Gradient

_GRACE_SECONDS = 1.0


class Bucket(ABC):
    """A bucket of a reducer, used again in every step."""

    def __init__(
        self,
        index: int,
        layout: BucketLayout,
        parameters: Sequence[AnyArray],
        is_last: bool,
        group: Group,
    ) -> None:
        """Make the bucket for the gradients of some of all parameters."""
        self.layout = layout
        self._index = index
        self._parameters = [parameters[one] for one in layout.parameters]
        self._is_last = is_last
        self._group = group
        self._future: concurrent.futures.Future[Any] | None = None
        self.missing_count = len(layout.parameters)
        """How many of its gradients are not there yet."""

    @property
    @abstractmethod
    def buffer(self) -> Gradient:
        """The array given to hooks; after `collect` the averages."""

    @abstractmethod
    def fill(self, index: int, gradient: Any) -> None:
        """Take over the gradient of a parameter."""

    @abstractmethod
    def clear(self, index: int) -> None:
        """Take zeros as the gradient of a parameter."""

    @abstractmethod
    def take_average(self, index: int, out: Any) -> Gradient:
        """Return a parameter's average in a given array; None: in a new array."""

    @abstractmethod
    def _store_average(self, average: Any) -> None:
        """Store averages of the buffer's shape and dtype."""

    def reset(self) -> None:
        """Wait for gradients once more."""
        self.missing_count = len(self.layout.parameters)
        self._future = None

    def launch(self, hook: CommHook, state: Any) -> None:
        """Start averaging the buffer; errors are those of the hook.

        Raises:
            RuntimeError: the hook does not answer with a future.
        """
        self._future = comm_hook.check_future(hook(state, self._make_grad_bucket()))

    def collect(self) -> None:
        """Wait for the averages, and write each in place of its gradient.

        Raises:
            TimeoutError: the future of a hook did not complete within the group's timeout; the
                gradients are undefined then.
        """
        assert self._future is not None, "it has been launched"
        seconds = max(clip_timeout(self._group.timeout), 0)
        try:
            # That of a call ends by itself, at the call's own deadline, which has to come first.
            given = self._future.result(seconds + _GRACE_SECONDS)
        except concurrent.futures.TimeoutError as error:
            if self._future.done():
                raise
            raise TimeoutError(
                f"the communication hook has not completed the future of bucket {self._index} "
                f"within {seconds:.3g} s"
            ) from error
        self._store_average(comm_hook.check_average(given, self.buffer))

    def _make_grad_bucket(self) -> GradBucket:
        return GradBucket(
            self._index, self.layout, self.buffer, self._parameters, self._is_last, self._group
        )


class DenseBucket(Bucket):
    """Gradients concatenated in memory cheap for collectives."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._buffer = _allocate(self.layout.count, self.layout.dtype, self._group)
        self.views: dict[int, AnyArray] = dict(
            zip(self.layout.parameters, self._make_grad_bucket().gradients(), strict=True)
        )
        """The part of the buffer for each parameter, in its shape."""

    @property
    def buffer(self) -> AnyArray:
        return self._buffer

    def fill(self, index: int, gradient: AnyArray) -> None:
        if gradient is not self.views[index]:
            np.copyto(self.views[index], gradient)

    def clear(self, index: int) -> None:
        self.views[index][...] = 0

    def take_average(self, index: int, out: AnyArray | None) -> AnyArray:
        view: AnyArray = self.views[index]
        if out is None:
            return view.copy()
        np.copyto(out, view)
        return out

    def _store_average(self, average: AnyArray) -> None:
        if average.ctypes.data != self._buffer.ctypes.data:
            np.copyto(self._buffer, average)


class SparseBucket(Bucket):
    """The gradient of a parameter with only some rows stored."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        (self._parameter,) = self._parameters
        self.clear()

    @property
    def buffer(self) -> SparseArray:
        return self._buffer

    def fill(self, index: int, gradient: SparseArray) -> None:
        # A call gives this one new arrays, and leaves those of the one given as they are.
        self._buffer = SparseArray(gradient.indices, gradient.values, gradient.shape)

    def clear(self, index: int = 0) -> None:
        shape = self._parameter.shape
        nothing = np.zeros((0, *shape[1:]), self._parameter.dtype)
        self._buffer = SparseArray(np.zeros((1, 0), np.int64), nothing, shape)

    def take_average(self, index: int, out: SparseArray | None) -> SparseArray:
        if out is None:
            return self._buffer
        out.become(self._buffer.indices, self._buffer.values)
        return out

    def _store_average(self, average: SparseArray) -> None:
        self._buffer = average


def _allocate(count: int, dtype: "np.dtype[Any]", group: Group) -> AnyArray:
    """Return memory shared by the ranks of a host, or private when exhausted."""
    if count == 0:
        return np.zeros(0, dtype)
    try:
        return world_queries.empty(count, dtype, group)
    except MemoryError:
        return np.zeros(count, dtype)
