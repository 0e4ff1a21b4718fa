"""Statuses: what became of a message or another request."""

from typing import Any, Self

import numpy as np

from allhands.mpi.constants import (
    ANY_SOURCE,
    ANY_TAG,
    F_ERROR,
    F_SOURCE,
    F_STATUS_SIZE,
    F_TAG,
    SUCCESS,
    UNDEFINED,
)


class Status:
    """Sender, tag, size and error of a request that has ended."""

    __slots__ = ("__weakref__", "_record")
    _record: Any
    __hash__ = None  # type: ignore[assignment]

    def __new__(cls, status: "Status | None" = None) -> Self:
        self = super().__new__(cls)
        if status is None:
            self._record = np.array([ANY_SOURCE, ANY_TAG, SUCCESS, 0, 0, 0], np.int32)
        elif isinstance(status, Status):
            self._record = status._record.copy()
        else:
            raise TypeError(f"expected a Status, not {type(status).__name__}")
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Status):
            return NotImplemented
        return bool((self._record == other._record).all())

    def __reduce__(self) -> Any:
        return type(self), (), self.__getstate__()

    def __getstate__(self) -> dict[str, int]:
        return {
            "source": self.source,
            "tag": self.tag,
            "error": self.error,
            "count": self.nbytes,
            "cancelled": self.cancelled,
        }

    def __setstate__(self, state: dict[str, int]) -> None:
        self.source, self.tag, self.error = state["source"], state["tag"], state["error"]
        self.nbytes, self.cancelled = state["count"], bool(state["cancelled"])

    def Get_source(self) -> int:
        """Return the rank of the sender."""
        return int(self._record[0])

    def Set_source(self, source: int) -> None:
        """Set the rank of the sender."""
        self._record[0] = source

    def Get_tag(self) -> int:
        """Return the tag."""
        return int(self._record[1])

    def Set_tag(self, tag: int) -> None:
        """Set the tag."""
        self._record[1] = tag

    def Get_error(self) -> int:
        """Return the error."""
        return int(self._record[2])

    def Set_error(self, error: int) -> None:
        """Set the error."""
        self._record[2] = error

    def Is_cancelled(self) -> bool:
        """Say whether the request was cancelled."""
        return bool(self._record[3])

    def Set_cancelled(self, flag: bool) -> None:
        """Set whether the request was cancelled."""
        self._record[3] = bool(flag)

    @property
    def nbytes(self) -> int:
        """Bytes received."""
        return int(self._record[4:].view(np.int64)[0])

    @nbytes.setter
    def nbytes(self, nbytes: int) -> None:
        self._record[4:].view(np.int64)[0] = nbytes

    def Get_count(self, datatype: Any = None) -> int:
        """Return the number of elements of a datatype; UNDEFINED: they are not whole."""
        if datatype is None:
            return self.nbytes
        return int(datatype.count_elements(self.nbytes))

    def Get_elements(self, datatype: Any) -> int:
        """Return the number of basic elements in a datatype."""
        return int(datatype.measure_elements(self.nbytes))

    def Set_elements(self, datatype: Any, count: int) -> None:
        """Set the size, by a number of elements."""
        self.nbytes = UNDEFINED if count == UNDEFINED else datatype.size * count

    source = property(Get_source, Set_source, doc="Rank of the sender.")
    tag = property(Get_tag, Set_tag, doc="Tag of the message.")
    error = property(Get_error, Set_error, doc="Error of the request.")
    cancelled = property(Is_cancelled, Set_cancelled, doc="Whether it was cancelled.")

    @property
    def count(self) -> int:
        """Bytes received."""
        return self.nbytes

    @count.setter
    def count(self, value: int) -> None:
        self.nbytes = value

    def tomemory(self) -> memoryview:
        """Return the memory of the status, as numbers of 32 bits."""
        return memoryview(self._record)

    def py2f(self) -> list[int]:
        """Return the status as Fortran has it."""
        return [int(one) for one in self._record]

    @classmethod
    def f2py(cls, arg: list[int]) -> Self:
        """Return a status from that of Fortran."""
        self = cls.__new__(cls)
        self._record[:] = arg[:F_STATUS_SIZE]
        return self


assert (F_SOURCE, F_TAG, F_ERROR) == (0, 1, 2), "a status begins as in Fortran"
