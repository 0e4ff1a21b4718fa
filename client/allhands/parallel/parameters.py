"""Parameters of a reducer, by name and by index."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from allhands.collectives.arguments import AnyArray, check_array, check_target
from allhands.collectives.reduction import check_mean
from allhands.data.sparse_array import SparseArray
from allhands.parallel.grad_bucket import Gradient

Key = int | str
"""A parameter: its place among all, or its name."""

_MAX_NAMED = 8


class Parameters:
    """Parameters in the given order."""

    def __init__(
        self,
        parameters: Mapping[str, AnyArray] | Sequence[AnyArray],
        ignore: Collection[Key],
        sparse: Collection[Key],
    ) -> None:
        """Check the parameters that are not ignored.

        Raises:
            TypeError: a parameter is no array, or of a dtype that cannot hold averages.
            ValueError: no parameter is left, or a name or index to ignore does not exist.
        """
        if isinstance(parameters, Mapping):
            self._names: list[str] | None = [*parameters]
            self.arrays: list[AnyArray] = [*parameters.values()]
        else:
            self._names = None
            self.arrays = [*parameters]
        ignored = {self._find_index(key) for key in ignore}
        self.indices = [one for one in range(len(self.arrays)) if one not in ignored]
        """Of those that are not ignored."""
        if not self.indices:
            raise ValueError("there are no parameters whose gradients could be averaged")
        for place in self.indices:
            array = check_array(self.arrays[place], self.format_names([place]))
            check_mean(array.dtype)
        self.sparse = {self.get_index(key) for key in sparse}
        """Those whose gradients are sparse."""
        if flat := [place for place in self.sparse if not self.arrays[place].ndim]:
            raise ValueError(
                f"{self.format_names(flat)} has no rows of which a gradient could have some"
            )

    def get_index(self, key: Key) -> int:
        """Return the index of a parameter with averaged gradient.

        Raises:
            ValueError: there is none, or it is ignored.
        """
        found = self._find_index(key)
        if found not in self.indices:
            raise ValueError(f"{self.format_names([found])} is ignored by this Reducer")
        return found

    def format_names(self, indices: Iterable[int]) -> str:
        """Name some parameters for people, the first few of many."""
        listed = sorted(indices)
        names = [repr(self._names[one]) if self._names else str(one) for one in listed]
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        return f"parameter{'' if len(names) == 1 else 's'} {', '.join(names[:_MAX_NAMED])}{more}"

    def check_gradient(self, index: int, gradient: Gradient, is_written: bool) -> None:
        """Check that a gradient matches its parameter.

        Raises:
            TypeError: not an array, or not sparse where the parameter is declared sparse.
            ValueError: the shape or dtype differs, or `is_written` and the array is read-only.
        """
        name = f"the gradient of {self.format_names([index])}"
        found: Gradient
        array = self.arrays[index]
        if index not in self.sparse:
            found = check_array(gradient, name)
        elif isinstance(gradient, SparseArray):
            found = gradient
        else:
            raise TypeError(f"{name} must be an ah.SparseArray, not {type(gradient).__name__}")
        if (found.shape, found.dtype) != (array.shape, array.dtype):
            raise ValueError(
                f"{name} is {found.dtype} of shape {found.shape}, the parameter "
                f"{array.dtype} of {array.shape}: they must be alike"
            )
        if isinstance(found, SparseArray):
            if found.sparse_dims != 1:
                raise ValueError(
                    f"{name} must store whole rows, with indices of shape (1, n), not of "
                    f"{found.indices.shape}"
                )
        elif is_written:
            check_target(gradient, name)

    def describe(self) -> object:
        """Return the facts that all ranks must agree on."""
        arrays = [(one, self.arrays[one].dtype.str, self.arrays[one].shape) for one in self.indices]
        return arrays, sorted(self.sparse)

    def _find_index(self, key: Key) -> int:
        if isinstance(key, str):
            if self._names is None or key not in self._names:
                known = "they have none" if self._names is None else f"there are {self._names}"
                raise ValueError(f"no parameter has the name {key!r}: {known}")
            return self._names.index(key)
        if not isinstance(key, int | np.integer) or not 0 <= key < len(self.arrays):
            raise ValueError(f"no parameter has the place {key!r}: there are {len(self.arrays)}")
        return int(key)
