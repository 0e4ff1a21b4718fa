"""Bucket: the memory of gradients that travel together, and how far they are in a step."""

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.api import sync
from allhands.deadlines import effective
from allhands.engine.arguments import AnyArray
from allhands.group import Group
from allhands.parallel import comm_hook
from allhands.parallel.buckets import Layout
from allhands.parallel.comm_hook import CommHook
from allhands.parallel.grad_bucket import GradBucket

_GRACE_SECONDS = 1.0


class Bucket:
    """One of the buckets of a reducer; used again in every step."""

    def __init__(
        self,
        index: int,
        layout: Layout,
        parameters: Sequence[AnyArray],
        is_last: bool,
        group: Group,
    ) -> None:
        """Take memory for the gradients of some of all parameters."""
        self.layout = layout
        self._index = index
        self._members = [parameters[one] for one in layout.parameters]
        self._is_last = is_last
        self._group = group
        self._buffer = _memory(layout.count, layout.dtype, group)
        self._future: concurrent.futures.Future[AnyArray] | None = None
        self.missing = len(layout.parameters)
        """How many of its gradients are not there yet."""
        self.views = dict(zip(layout.parameters, self._face().gradients(), strict=True))
        """The part of the buffer for each parameter, in its shape."""

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
        average = comm_hook.averaged(given, self.layout)
        if average.ctypes.data != self._buffer.ctypes.data:
            np.copyto(self._buffer, average)

    def _face(self) -> GradBucket:
        return GradBucket(
            self._index, self.layout, self._buffer, self._members, self._is_last, self._group
        )


def _memory(count: int, dtype: "np.dtype[Any]", group: Group) -> AnyArray:
    """Return memory that collectives copy least; any where that is used up."""
    if count == 0:
        return np.zeros(0, dtype)
    try:
        return sync.empty(count, dtype, group)
    except MemoryError:
        return np.zeros(count, dtype)
