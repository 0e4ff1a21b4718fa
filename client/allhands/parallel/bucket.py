"""Bucket: gradients that travel together, and how far they are in a step."""

import concurrent.futures
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.api import sync
from allhands.collectives.arguments import AnyArray
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import effective
from allhands.group.group import Group
from allhands.parallel import comm_hook
from allhands.parallel.buckets import Layout
from allhands.parallel.comm_hook import CommHook
from allhands.parallel.grad_bucket import GradBucket, Gradient

_GRACE_SECONDS = 1.0


class Bucket(ABC):
    """One of the buckets of a reducer; used again in every step."""

    def __init__(
        self,
        index: int,
        layout: Layout,
        parameters: Sequence[AnyArray],
        is_last: bool,
        group: Group,
    ) -> None:
        """Make the bucket for the gradients of some of all parameters."""
        self.layout = layout
        self._index = index
        self._members = [parameters[one] for one in layout.parameters]
        self._is_last = is_last
        self._group = group
        self._future: concurrent.futures.Future[Any] | None = None
        self.missing = len(layout.parameters)
        """How many of its gradients are not there yet."""

    @property
    @abstractmethod
    def buffer(self) -> Gradient:
        """What hooks are given; after `collect` it has the averages."""

    @abstractmethod
    def fill(self, place: int, gradient: Any) -> None:
        """Take over the gradient of a parameter."""

    @abstractmethod
    def clear(self, place: int) -> None:
        """Take zeros as the gradient of a parameter."""

    @abstractmethod
    def hand_out(self, place: int, wanted: Any) -> Gradient:
        """Return the average of a parameter: in what is wanted, or for None in something new."""

    @abstractmethod
    def _settle(self, average: Any) -> None:
        """Have averages that are like the buffer."""

    def reset(self) -> None:
        """Wait for gradients once more."""
        self.missing = len(self.layout.parameters)
        self._future = None

    def launch(self, hook: CommHook, state: Any) -> None:
        """Begin to average what is in the buffer; the errors are those of the hook.

        Raises:
            RuntimeError: the hook does not answer with a future.
        """
        self._future = comm_hook.answered(hook(state, self._face()))

    def collect(self) -> None:
        """Wait for the averages, and have them where the gradients were.

        Raises:
            TimeoutError: the future of a hook is not completed within the group's timeout.
        """
        assert self._future is not None, "it has been launched"
        seconds = max(effective(self._group.timeout), 0)
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
        self._settle(comm_hook.averaged(given, self.buffer))

    def _face(self) -> GradBucket:
        return GradBucket(
            self._index, self.layout, self.buffer, self._members, self._is_last, self._group
        )


class DenseBucket(Bucket):
    """Gradients one after the other in memory that collectives copy least."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._buffer = _memory(self.layout.count, self.layout.dtype, self._group)
        self.views: dict[int, AnyArray] = dict(
            zip(self.layout.parameters, self._face().gradients(), strict=True)
        )
        """The part of the buffer for each parameter, in its shape."""

    @property
    def buffer(self) -> AnyArray:
        return self._buffer

    def fill(self, place: int, gradient: AnyArray) -> None:
        if gradient is not self.views[place]:
            np.copyto(self.views[place], gradient)

    def clear(self, place: int) -> None:
        self.views[place][...] = 0

    def hand_out(self, place: int, wanted: AnyArray | None) -> AnyArray:
        view: AnyArray = self.views[place]
        if wanted is None:
            return view.copy()
        np.copyto(wanted, view)
        return wanted

    def _settle(self, average: AnyArray) -> None:
        if average.ctypes.data != self._buffer.ctypes.data:
            np.copyto(self._buffer, average)


class SparseBucket(Bucket):
    """The gradient of one parameter of which some rows are stored."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        (self._parameter,) = self._members
        self.clear()

    @property
    def buffer(self) -> SparseArray:
        return self._buffer

    def fill(self, place: int, gradient: SparseArray) -> None:
        # A call gives this one new arrays, and leaves those of the one given as they are.
        self._buffer = SparseArray(gradient.indices, gradient.values, gradient.shape)

    def clear(self, place: int = 0) -> None:
        shape = self._parameter.shape
        nothing = np.zeros((0, *shape[1:]), self._parameter.dtype)
        self._buffer = SparseArray(np.zeros((1, 0), np.int64), nothing, shape)

    def hand_out(self, place: int, wanted: SparseArray | None) -> SparseArray:
        if wanted is None:
            return self._buffer
        wanted.become(self._buffer.indices, self._buffer.values)
        return wanted

    def _settle(self, average: SparseArray) -> None:
        self._buffer = average


def _memory(count: int, dtype: "np.dtype[Any]", group: Group) -> AnyArray:
    """Return memory that the ranks of a host share; any where that is used up."""
    if count == 0:
        return np.zeros(0, dtype)
    try:
        return sync.empty(count, dtype, group)
    except MemoryError:
        return np.zeros(count, dtype)
