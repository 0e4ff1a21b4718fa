"""GradBucket: gradients of one bucket, as given to a communication hook."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from allhands.collectives.arguments import AnyArray
from allhands.data.sparse_array import SparseArray
from allhands.group.group import Group
from allhands.parallel.bucket_layout import BucketLayout

Gradient: TypeAlias = AnyArray | SparseArray


class GradBucket:
    """A bucket of one step; the hook owns its buffer until the hook's future ends.

    Buckets come to a hook by their index, the same on all ranks.
    """

    def __init__(
        self,
        index: int,
        layout: BucketLayout,
        buffer: Gradient,
        parameters: Sequence[AnyArray],
        is_last: bool,
        group: Group,
    ) -> None:
        self._index = index
        self._layout = layout
        self._buffer = buffer
        self._parameters = list(parameters)
        self._is_last = is_last
        self._group = group

    def index(self) -> int:
        """Return the place among the buckets of a step, from 0."""
        return self._index

    def is_last(self) -> bool:
        """Return whether this is the last bucket of the step."""
        return self._is_last

    def buffer(self) -> Any:
        """Return this rank's gradients, concatenated in a flat array; not averaged.

        A sparse gradient is alone in its bucket: the buffer is a `SparseArray`.
        """
        return self._buffer

    def is_sparse(self) -> bool:
        """Return whether the bucket holds a sparse gradient."""
        return isinstance(self._buffer, SparseArray)

    def set_buffer(self, buffer: Gradient) -> None:
        """Replace the array of `buffer` and `gradients`, flat or sparse.

        Raises:
            ValueError: it has another dtype or shape.
        """
        wanted = (self._layout.dtype, self._buffer.shape)
        if (buffer.dtype, buffer.shape) != wanted:
            raise ValueError(
                f"bucket {self._index} is {wanted[0]} of shape {wanted[1]}, "
                f"not {buffer.dtype} of {buffer.shape}"
            )
        self._buffer = buffer

    def gradients(self) -> list[Any]:
        """Return the gradient of each parameter, in its shape: views of the buffer."""
        if isinstance(self._buffer, SparseArray):
            return [self._buffer]
        flat = self._buffer
        shapes = (one.shape for one in self._parameters)
        parts = (flat[span] for span in self._layout.spans)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def parameters(self) -> list[AnyArray]:
        """Return the parameters of the gradients."""
        return list(self._parameters)

    def indices(self) -> tuple[int, ...]:
        """Return the reducer's index of each parameter; buckets are disjoint."""
        return self._layout.parameters

    def group(self) -> Group:
        """Return the ranks to average the gradients over."""
        return self._group

    def __repr__(self) -> str:
        return f"GradBucket({self._index}, {self._layout.dtype} x {self._layout.count})"
