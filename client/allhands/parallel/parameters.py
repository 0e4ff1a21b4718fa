"""Parameters: what a reducer averages gradients for, by name and by place."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from allhands.collectives.arguments import AnyArray, checked, target
from allhands.collectives.reduction import check_mean
from allhands.data.sparse_array import SparseArray
from allhands.parallel.grad_bucket import Gradient

Key = int | str
"""A parameter: its place among all, or its name."""

_NAMED = 8


class Parameters:
    """Parameters in the order in which they were given."""

    def __init__(
        self,
        given: Mapping[str, AnyArray] | Sequence[AnyArray],
        ignore: Collection[Key],
        sparse: Collection[Key],
    ) -> None:
        """Check the parameters that are not ignored.

        Raises:
            TypeError: no array, or of a dtype that does not hold averages.
            ValueError: none is left; a name or place to ignore that does not exist.
        """
        if isinstance(given, Mapping):
            self._names: list[str] | None = [*given]
            self.arrays: list[AnyArray] = [*given.values()]
        else:
            self._names = None
            self.arrays = [*given]
        ignored = {self._index(key) for key in ignore}
        self.places = [one for one in range(len(self.arrays)) if one not in ignored]
        """Of those that are not ignored."""
        if not self.places:
            raise ValueError("there are no parameters whose gradients could be averaged")
        for place in self.places:
            array = checked(self.arrays[place], self.named([place]))
            check_mean(array.dtype)
        self.sparse = {self.place(key) for key in sparse}
        """Those whose gradients are sparse."""
        if flat := [place for place in self.sparse if not self.arrays[place].ndim]:
            raise ValueError(f"{self.named(flat)} has no rows of which a gradient could have some")

    def place(self, key: Key) -> int:
        """Return the place of a parameter whose gradient is averaged.

        Raises:
            ValueError: there is none, or it is ignored.
        """
        found = self._index(key)
        if found not in self.places:
            raise ValueError(f"{self.named([found])} is ignored by this Reducer")
        return found

    def named(self, places: Iterable[int]) -> str:
        """Name some parameters for people, the first few of many."""
        listed = sorted(places)
        names = [repr(self._names[one]) if self._names else str(one) for one in listed]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"parameter{'' if len(names) == 1 else 's'} {', '.join(names[:_NAMED])}{more}"

    def check_gradient(self, place: int, gradient: Gradient, is_written: bool) -> None:
        """Refuse what is not like the parameter.

        Raises:
            TypeError: no array, or none that is sparse where it has to be.
            ValueError: another shape or dtype, or it is to be written and cannot be.
        """
        name = f"the gradient of {self.named([place])}"
        found: Gradient
        array = self.arrays[place]
        if place not in self.sparse:
            found = checked(gradient, name)
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
            target(gradient, name)

    def described(self) -> object:
        """Return what must be the same on all ranks."""
        arrays = [(one, self.arrays[one].dtype.str, self.arrays[one].shape) for one in self.places]
        return arrays, sorted(self.sparse)

    def _index(self, key: Key) -> int:
        if isinstance(key, str):
            if self._names is None or key not in self._names:
                known = "they have none" if self._names is None else f"there are {self._names}"
                raise ValueError(f"no parameter has the name {key!r}: {known}")
            return self._names.index(key)
        if not isinstance(key, int | np.integer) or not 0 <= key < len(self.arrays):
            raise ValueError(f"no parameter has the place {key!r}: there are {len(self.arrays)}")
        return int(key)
