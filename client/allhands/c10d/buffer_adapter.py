"""Buffer adapters: the array library of a process group's callers, behind one protocol."""

from typing import Any, Final, Protocol, TypeVar

import numpy as np

from allhands.c10d.options import AnyOptions, merge_options
from allhands.collectives.reduction import ReduceOp
from allhands.deadlines import Timeout
from allhands.engine.work.work import Work

Buffer = TypeVar("Buffer")
"""Dense arrays of a library."""

AnyBuffer = TypeVar("AnyBuffer")
"""Dense and sparse arrays of a library."""

CallWork = TypeVar("CallWork", covariant=True)
"""Works of the calls of a face."""


class BufferViews(Protocol):
    """NumPy views of the buffers of one call.

    Lists are lists or tuples. Anything else passes unchanged to the checks of the call.
    """

    def view_input(self, buffer: Any) -> Any:
        """Return an array of a buffer's elements, to be read."""

    def view_inout(self, buffer: Any) -> Any:
        """Return an array to be written in place of a buffer."""

    def view_inputs(self, buffers: Any) -> Any:
        """Return an input view for each buffer of a list."""

    def view_inouts(self, buffers: Any) -> Any:
        """Return a writable view for each buffer of a list."""

    def view_input_lists(self, lists: Any) -> Any:
        """Return input views for each list of buffers."""

    def view_outputs(self, buffers: Any) -> Any:
        """Return a writable view for each buffer of a list, none of which may overlap."""

    def view_output_lists(self, lists: Any) -> Any:
        """Return writable views for each list of buffers, none of which may overlap."""

    def check_rows(self, *buffers: Any) -> None:
        """Check that buffers can be cut into rows, a block for each rank."""

    def check_reduction(self, op: ReduceOp) -> None:
        """Check that the viewed buffers can be reduced by `op`, as far as the library says."""


Views = TypeVar("Views", bound=BufferViews)


class BufferAdapter(Protocol[Views, CallWork]):
    """Translation between the calls of a face and NumPy arrays."""

    def is_buffer(self, value: object) -> bool:
        """Return whether a value is an array of the library."""

    def open_views(self, operation: str) -> Views:
        """Begin a call; `operation` begins the text of refusals."""

    def make_options(self, kind: type[AnyOptions], opts: Any, timeout: Any) -> AnyOptions:
        """Return the options of a call; None: the defaults.

        Raises:
            TypeError: they are of another kind.
        """

    def make_rooted_options(
        self, kind: type[AnyOptions], opts: Any, root: Any, timeout: Any, op: Any = None
    ) -> AnyOptions:
        """Return the options of a call; a root may stand in place of them."""

    def make_reduction_options(
        self, kind: type[AnyOptions], opts: Any, op: Any, timeout: Any
    ) -> AnyOptions:
        """Return the options of a call; an operation may stand in place of them."""

    def to_work(self, work: Work, views: Views, result: Any) -> CallWork:
        """Return the work of a call, of which the given buffers are the result."""


class ArrayViews:
    """Views of NumPy arrays: the arrays."""

    def view_input(self, buffer: Any) -> Any:
        return buffer

    view_inout = view_inputs = view_inouts = view_input_lists = view_input
    view_outputs = view_output_lists = view_input

    def check_rows(self, *buffers: Any) -> None:
        """Nothing: `arguments` checks outputs, and copies inputs."""

    def check_reduction(self, op: ReduceOp) -> None:
        """Nothing: `checks` knows the operations of arrays."""


_VIEWS: Final = ArrayViews()


class ArrayAdapter:
    """Adapter for NumPy arrays and the options of this package."""

    def is_buffer(self, value: object) -> bool:
        return isinstance(value, np.ndarray)

    def open_views(self, operation: str) -> ArrayViews:
        return _VIEWS

    def make_options(
        self, kind: type[AnyOptions], opts: AnyOptions | None, timeout: Timeout | None
    ) -> AnyOptions:
        return merge_options(kind, opts, timeout=timeout)

    def make_rooted_options(
        self,
        kind: type[AnyOptions],
        opts: AnyOptions | int | None,
        root: int | None,
        timeout: Timeout | None,
        op: ReduceOp | None = None,
    ) -> AnyOptions:
        if isinstance(opts, int):
            opts, root = None, opts
        return merge_options(kind, opts, timeout=timeout, rootRank=root, reduceOp=op)

    def make_reduction_options(
        self,
        kind: type[AnyOptions],
        opts: AnyOptions | ReduceOp | None,
        op: ReduceOp | None,
        timeout: Timeout | None,
    ) -> AnyOptions:
        if isinstance(opts, ReduceOp):
            opts, op = None, opts
        return merge_options(kind, opts, timeout=timeout, reduceOp=op)

    def to_work(self, work: Work, views: ArrayViews, result: Any) -> Work:
        return work


ARRAYS: Final[BufferAdapter[ArrayViews, Work]] = ArrayAdapter()
