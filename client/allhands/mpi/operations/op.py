"""Reduction operations: handles, and how packed arrays are reduced by them."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from allhands.collectives import reduction
from allhands.collectives.reduction import ReduceOp, parse_op
from allhands.mpi import errors
from allhands.mpi.buffers.messages import check_alike, parse_receive, parse_send
from allhands.mpi.constants import ERR_OP
from allhands.mpi.datatypes.basics import BY_NAME
from allhands.mpi.datatypes.copying import Bytes
from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.handles import Handle
from allhands.mpi.memory.buffer import buffer
from allhands.mpi.operations.functions import Standard, choose_pairs
from allhands.mpi.runtime import runtime

_MOST_OPS = 32
"""Operations of a program at a time, as in mpi4py."""


class Op(Handle):
    """A reduction operation."""

    _standard: Standard | None
    _function: "Callable[[Any, Any, Any], Any] | None"
    _token: object | None
    _commutes: bool
    _is_original: bool
    """Whether it was made as this handle, which a pickle can make again."""
    _natives: dict[Any, ReduceOp | None]
    """Operations of allhands, by dtype, as far as they were asked for."""

    def __new__(cls, op: "Op | None" = None) -> Self:
        self = super().__new__(cls, op)
        if op is None:
            self._token = self._standard = self._function = None
            self._commutes = self._is_original = False
            self._natives = {}
        else:
            self._is_original = False
        return self

    @classmethod
    def _of(cls, standard: Standard) -> Self:
        self = cls.__new__(cls)
        self._token = self._standard = standard
        self._commutes = standard.name not in ("REPLACE", "NO_OP")
        return self

    def _identity(self) -> object:
        return None if self._token is None else id(self._token)

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Any], None], commute: bool = False) -> Self:
        """Return an operation of the program.

        Args:
            function: gets two buffers and their datatype, and writes the combination of both to
                the second. On objects it gets them and None, and returns the combination.
            commute: whether the order of the two makes no difference.

        Raises:
            RuntimeError: there are 32 already.
        """
        made = _made()
        if len(made) >= _MOST_OPS:
            raise RuntimeError(f"there are {_MOST_OPS} operations already: Free some")
        self = cls.__new__(cls)
        self._token = token = object()
        made.append(token)
        self._function, self._commutes, self._is_original = function, bool(commute), True
        return self

    def _reduce(self) -> Any:
        if not self._is_original:
            return super()._reduce()
        return type(self).Create, (self._function, self._commutes)

    def Free(self) -> None:
        """Free an operation of the program."""
        if self._token is None or self._standard is not None:
            said = "a null operation" if self._token is None else f"{self._builtin}"
            raise errors.make_error(ERR_OP, f"{said} cannot be freed")
        made = _made()
        if self._token in made:
            made.remove(self._token)
        self._make_null()

    def Is_commutative(self) -> bool:
        """Say whether the order of the two makes no difference."""
        if self._token is None:
            raise errors.make_error(ERR_OP, "the operation is null")
        return bool(self._commutes)

    is_commutative = property(Is_commutative, doc="Whether the order makes no difference.")

    @property
    def is_predefined(self) -> bool:
        """Whether it is of the standard; null is so too."""
        return self._token is None or self._standard is not None

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Combine two buffers of this process into the second."""
        output = parse_receive(inoutbuf)
        message = parse_send(inbuf)
        check_alike(message, output)
        result = output.pack().copy()
        self.reduce_into(message.pack(), result, output.datatype, output.count)
        output.unpack(result)

    def __call__(self, x: Any, y: Any) -> Any:
        """Return the combination of two objects."""
        if self._standard is not None:
            return self._standard.function(x, y)
        if self._function is None:
            raise ValueError("the operation is null")
        return self._function(x, y, None)

    # ------------------------------------------------------------ arrays

    def native(self, dtype: Any) -> ReduceOp | None:
        """Return the operation of allhands on such numbers; None: it has no kernels for it."""
        try:
            return self._natives[dtype]
        except KeyError:
            found = self._natives[dtype] = self._find_native(dtype)
            return found

    def _find_native(self, dtype: Any) -> ReduceOp | None:
        standard = self._standard
        if self._token is None:
            raise errors.make_error(ERR_OP, "the operation is null")
        if standard is None or not standard.native or dtype.kind not in standard.kinds:
            return None
        if dtype.char in "gG":  # whose padding bytes are of no number
            return None
        op = parse_op(standard.native)
        try:
            reduction.check(op, dtype)
        except (TypeError, ValueError):
            return None
        return op

    def reduce_into(self, left: Bytes, right: Bytes, datatype: Datatype, count: int) -> None:
        """Write the combination of two packed arrays to the second.

        Raises:
            Exception: the operation is not for the datatype.
        """
        if self._token is None:
            raise errors.make_error(ERR_OP, "the operation is null")
        if self._standard is None:
            self._reduce_by_program(left, right, datatype, count)
            return
        standard = self._standard
        if standard.arrays is None:
            dtype = _find_pair(datatype)
            if dtype is None:
                raise self._unfit(datatype)
            mine, theirs = left.view(dtype), right.view(dtype)
            theirs[...] = choose_pairs(mine, theirs, standard.name)
            return
        base = datatype.base
        if base is None or base.kind not in standard.kinds:
            if standard.name == "REPLACE":
                right[...] = left
            elif standard.name != "NO_OP":
                raise self._unfit(datatype)
            return
        numbers = right.view(base)
        with np.errstate(all="ignore"):
            numbers[...] = standard.arrays(left.view(base), numbers)

    def _reduce_by_program(self, left: Bytes, right: Bytes, datatype: Datatype, count: int) -> None:
        assert self._function is not None
        if datatype.is_contiguous:
            mine = left if left.flags.writeable else left.copy()
            self._function(buffer.frombuffer(mine), buffer.frombuffer(right), datatype)
            return
        nbytes = datatype.extent * count
        spread = [np.zeros(nbytes, np.uint8) for _ in range(2)]
        for packed, data in zip((left, right), spread, strict=True):
            datatype.unpack(packed, data, 0, count)
        self._function(buffer.frombuffer(spread[0]), buffer.frombuffer(spread[1]), datatype)
        right[...] = datatype.pack(spread[1], 0, count)

    def _unfit(self, datatype: Datatype) -> Exception:
        return errors.make_error(
            ERR_OP,
            f"MPI.{self._builtin} is not for elements of {datatype.Get_name() or 'that datatype'}",
        )


def _made() -> list[object]:
    """Return the operations of the program that exist."""
    made: list[object] = runtime.storage.setdefault("operations", [])
    return made


def _find_pair(datatype: Datatype) -> "np.dtype[Any] | None":
    """Return packed values with an index; None: the elements are none such."""
    basics = datatype.layout.basics
    if len(basics) == 2 and basics[1] == ("INT", 1) and basics[0][1] == 1:
        value = BY_NAME[basics[0][0]].dtype
    elif len(basics) == 1 and basics[0][0] == "INT" and basics[0][1] % 2 == 0:
        value = np.dtype("i4")
    else:
        return None
    return np.dtype([("value", value), ("index", "i4")])
