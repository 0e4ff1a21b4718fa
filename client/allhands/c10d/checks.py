"""Argument checks of process group methods, before anything happens.

Each function takes what a caller gave, whatever it is, and returns it as what it is then known to
be. The texts are c10d's, behind the operation's name, with what is wrong and what would be right.
"""

from collections.abc import Sequence
from typing import NoReturn

from allhands.collectives import arguments, reduction, sparse
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.data import sparse_array
from allhands.data.sparse_array import SparseArray
from allhands.errors import InvalidArgument, InvalidType


def is_sparse(array: object) -> bool:
    """Return whether an argument is a sparse array, of allhands or SciPy."""
    return isinstance(array, sparse_array.SparseArray) or sparse_array.is_scipy_sparse(array)


def refuse(operation: str, text: str) -> NoReturn:
    raise InvalidArgument(f"{operation}: {text}")


# ---------------------------------------------------------------- one operation each


def check_broadcast(tensors: object, root: int, root_tensor: int, size: int) -> list[AnyArray]:
    """Return the arrays of a broadcast; the root sends item `root_tensor`."""
    given = _check_list("broadcast", tensors, "tensors")
    _check_root_rank("broadcast", root, size)
    _check_root_tensor("broadcast", root_tensor, given)
    arrays = _check_dense("broadcast", given, "tensors")
    _check_alike("broadcast", arrays, arrays[0])
    return arrays


def check_allreduce(tensors: object, op: ReduceOp) -> list[AnyArray] | list[SparseArray]:
    """Return the arrays of an allreduce, all dense or all sparse."""
    given = _check_list("allreduce", tensors, "tensors")
    _check_not_empty("allreduce", given, "tensor list")
    arrays = _check_one_layout("allreduce", given)
    _check_alike("allreduce", arrays, arrays[0])
    if isinstance(arrays[0], SparseArray) and op not in sparse.OPS:
        known = ", ".join(one.name for one in sparse.OPS)
        refuse("allreduce", f"unsupported reduction operation: {op} of sparse arrays; use {known}")
    check_reducible("allreduce", op, arrays[0])
    return arrays


def check_allreduce_coalesced(tensors: object, op: ReduceOp) -> list[AnyArray]:
    """Return the checked arrays of a coalesced call; shapes may differ."""
    name = "allreduce_coalesced"
    given = _check_list(name, tensors, "tensors")
    _check_not_empty(name, given, "tensor list")
    arrays: Sequence[AnyArray | SparseArray] = _check_one_layout(name, given)
    for at, array in enumerate(arrays):
        if array.dtype != arrays[0].dtype:
            refuse(
                name,
                f"tensors must all have the same type: {arrays[0].dtype} at index 0, "
                f"{array.dtype} at index {at}",
            )
    if isinstance(arrays[0], SparseArray):
        refuse(name, "unsupported layout: sparse arrays go through allreduce")
    check_reducible(name, op, arrays[0])
    return _check_dense(name, arrays, "tensors")


def check_reduce(tensors: object, op: ReduceOp, root: int, root_tensor: int, size: int) -> AnyArray:
    """Return the single array of a reduce, given in a list."""
    given = _check_list("reduce", tensors, "tensors")
    _check_root_rank("reduce", root, size)
    _check_root_tensor("reduce", root_tensor, given)
    array = _check_single_dense("reduce", given, "tensors", "tensor list")
    check_reducible("reduce", op, array)
    return array


def check_allgather(
    outputs: object, inputs: object, size: int
) -> tuple[list[list[AnyArray]], list[AnyArray]]:
    """Return n lists of n times `size` arrays to be filled, and the n inputs."""
    given = _check_list("allgather", inputs, "input_tensors")
    lists = _check_list("allgather", outputs, "output_tensors")
    _check_not_empty("allgather", given, "input tensor list")
    if len(lists) != len(given):
        refuse(
            "allgather",
            "requires input/output tensor lists to have the same length: "
            f"{len(given)} inputs, {len(lists)} output lists",
        )
    filled = [
        _check_list("allgather", one, f"output_tensors[{at}]") for at, one in enumerate(lists)
    ]
    expected = len(given) * size
    for at, one in enumerate(filled):
        if len(one) != expected:
            refuse(
                "allgather",
                f"invalid output tensor list at index {at} "
                f"(expected length {expected}, got {len(one)})",
            )
    read = _check_dense("allgather", given, "input_tensors")
    _check_alike("allgather", read, read[0])
    written = [
        _check_dense("allgather", one, f"output_tensors[{at}]") for at, one in enumerate(filled)
    ]
    for arrays in written:
        _check_alike("allgather", arrays, read[0])
    return written, read


def check_allgather_coalesced(
    output_lists: object, inputs: object, size: int
) -> tuple[list[list[AnyArray]], list[AnyArray]]:
    """Return for each rank a list of n output arrays, and n inputs like those."""
    name, into = "allgather_coalesced", "output_tensor_lists"
    given = _check_list(name, inputs, "input_tensor_list")
    lists = _check_list(name, output_lists, into)
    filled = [_check_list(name, one, f"{into}[{at}]") for at, one in enumerate(lists)]
    _check_not_empty(name, given, "input tensor list")
    if len(filled) != size:
        refuse(name, f"output lists should be equal to world size: {len(filled)}, not {size}")
    read = _check_dense(name, given, "input_tensor_list")
    written = []
    for rank, one in enumerate(filled):
        if len(one) != len(given):
            refuse(
                name,
                f"invalid output size: (expected length {len(given)}, got {len(one)}) "
                f"in {into}[{rank}]",
            )
        arrays = _check_dense(name, one, f"{into}[{rank}]")
        for at, (have, want) in enumerate(zip(arrays, read, strict=True)):
            if have.shape != want.shape:
                refuse(
                    name,
                    f"invalid size of output tensor at index {at} "
                    f"(expected {_format_shape(want)}, got {_format_shape(have)}) in "
                    f"{into}[{rank}]",
                )
            if have.dtype != want.dtype:
                refuse(
                    name,
                    f"invalid tensor type at index {at} "
                    f"(expected {want.dtype}, got {have.dtype}) in {into}[{rank}]",
                )
        written.append(arrays)
    return written, read


def check_gather(
    outputs: object, inputs: object, root: int, rank: int, size: int
) -> tuple[list[AnyArray], AnyArray]:
    """Return the list of output arrays of the root, and the single input."""
    _check_root_rank("gather", root, size)
    given = _check_list("gather", inputs, "input_tensors")
    lists = _check_list("gather", outputs, "output_tensors")
    array = _check_single_dense("gather", given, "input_tensors", "input tensor list")
    return _check_root_list("gather", lists, "output", array, root == rank, size), array


def check_scatter(
    outputs: object, inputs: object, root: int, rank: int, size: int
) -> tuple[AnyArray, list[AnyArray]]:
    """Return the single output, and the root's list of input arrays."""
    _check_root_rank("scatter", root, size)
    filled = _check_list("scatter", outputs, "output_tensors")
    lists = _check_list("scatter", inputs, "input_tensors")
    array = _check_single_dense("scatter", filled, "output_tensors", "output tensor list")
    return array, _check_root_list("scatter", lists, "input", array, root == rank, size)


def check_reduce_scatter(
    outputs: object, inputs: object, op: ReduceOp, rank: int, size: int
) -> tuple[AnyArray, list[AnyArray]]:
    """Return the single output, and the list of arrays, one for each rank's sum.

    They may have several shapes: the output has that of this rank's.
    """
    name = "reduce_scatter"
    filled = _check_list(name, outputs, "output_tensors")
    lists = _check_list(name, inputs, "input_tensors")
    array = _check_single_dense(name, filled, "output_tensors", "output tensor list")
    given = _check_rank_list(name, _check_single(name, lists, "input list"), "input", size)
    if len({one.shape for one in given}) == 1:
        _check_alike(name, given, array)
    else:
        _check_alike(name, given[rank : rank + 1], array)
        _check_dtype(name, given, array)
    check_reducible(name, op, array)
    return array, given


def check_sizes(
    operation: str, long_arrays: object, short_arrays: object, size: int, names: tuple[str, str]
) -> tuple[list[AnyArray], list[AnyArray]]:
    """Return arrays; each long array has room for `size` of its short array."""
    given = (
        _check_list(operation, long_arrays, names[0]),
        _check_list(operation, short_arrays, names[1]),
    )
    _check_not_empty(operation, given[1], "tensor list")
    if len(given[0]) != len(given[1]):
        refuse(
            operation,
            "requires input/output tensor lists to have the same length: "
            f"{len(given[0])} {names[0]}, {len(given[1])} {names[1]}",
        )
    many, few = (
        _check_dense(operation, given[0], names[0]),
        _check_dense(operation, given[1], names[1]),
    )
    for at, (long, short) in enumerate(zip(many, few, strict=True)):
        if long.dtype != short.dtype:
            refuse(
                operation,
                f"invalid tensor type at index {at} "
                f"({names[0]} has {long.dtype}, {names[1]} has {short.dtype})",
            )
        if long.size != short.size * size:
            refuse(
                operation,
                f"invalid tensor size at index {at}: {names[0]} has {long.size} elements; "
                f"{size} ranks times the {short.size} of {names[1]} are {short.size * size}",
            )
    return many, few


def check_message(operation: str, tensors: object) -> AnyArray:
    """Return the single array of a message, given in a list."""
    given = _check_list(operation, tensors, "tensors")
    return _check_single_dense(operation, given, "tensors", "tensor list")


def check_dense_list(operation: str, tensors: object, name: str) -> list[AnyArray]:
    """Return a list of dense arrays."""
    return _check_dense(operation, _check_list(operation, tensors, name), name)


# ---------------------------------------------------------------- what they have in common


def check_reducible(operation: str, op: ReduceOp, array: AnyArray | SparseArray) -> None:
    """Check that `op` is defined for the array's dtype."""
    try:
        reduction.check(op, array.dtype)
    except TypeError as error:
        raise InvalidType(f"{operation}: {error}") from None


def _check_list(operation: str, given: object, name: str) -> Sequence[object]:
    if not isinstance(given, list | tuple):
        raise TypeError(
            f"{operation}: Invalid function argument. {name} must be a list, "
            f"not {type(given).__name__}"
        )
    return given


def _check_not_empty(operation: str, given: Sequence[object], what: str) -> None:
    if not given:
        refuse(operation, f"requires non-empty {what}")


def _check_root_rank(operation: str, root: int, size: int) -> None:
    if not 0 <= root < size:
        refuse(operation, f"invalid root rank: {root}; ranks of the group go from 0 to {size - 1}")


def _check_root_tensor(operation: str, index: int, given: Sequence[object]) -> None:
    if not 0 <= index < len(given):
        refuse(operation, f"invalid root tensor: {index}, the list has {len(given)}")


def _check_single(operation: str, given: Sequence[object], what: str) -> object:
    if len(given) != 1:
        refuse(operation, f"requires a single-element {what}, this one has {len(given)}")
    return given[0]


def _check_single_dense(operation: str, given: Sequence[object], name: str, what: str) -> AnyArray:
    _check_single(operation, given, what)
    return _check_dense(operation, given, name)[0]


def _check_dense(operation: str, given: Sequence[object], name: str) -> list[AnyArray]:
    for at, array in enumerate(given):
        if is_sparse(array):
            refuse(operation, f"only supports dense tensors: {name}[{at}] is sparse")
    return [
        arguments.check_array(array, f"{operation}: {name}[{at}]") for at, array in enumerate(given)
    ]


def _check_one_layout(
    operation: str, given: Sequence[object]
) -> list[AnyArray] | list[SparseArray]:
    names = ["dense", "sparse"]
    wanted = is_sparse(given[0])
    for at, array in enumerate(given):
        if is_sparse(array) != wanted:
            refuse(
                operation,
                f"invalid tensor layout at index {at} "
                f"(expected {names[wanted]}, got {names[not wanted]})",
            )
    if wanted:
        return [
            array if isinstance(array, SparseArray) else sparse_array.ScipySparseArray(array)
            for array in given
        ]
    return _check_dense(operation, given, "tensors")


def _check_alike(
    operation: str, arrays: Sequence[AnyArray | SparseArray], expected: AnyArray | SparseArray
) -> None:
    for at, array in enumerate(arrays):
        _check_dtype(operation, [array], expected, at)
        if tuple(array.shape) != tuple(expected.shape):
            refuse(
                operation,
                f"invalid tensor size at index {at} "
                f"(expected {_format_shape(expected)}, got {_format_shape(array)})",
            )


def _check_dtype(
    operation: str,
    arrays: Sequence[AnyArray | SparseArray],
    expected: AnyArray | SparseArray,
    first_index: int = 0,
) -> None:
    for at, array in enumerate(arrays, first_index):
        if array.dtype != expected.dtype:
            refuse(
                operation,
                f"invalid tensor type at index {at} (expected {expected.dtype}, got {array.dtype})",
            )


def _check_root_list(
    operation: str,
    lists: Sequence[object],
    what: str,
    example: AnyArray,
    is_root: bool,
    size: int,
) -> list[AnyArray]:
    """Return the single list, given by the root only; elsewhere nothing."""
    if is_root:
        return _check_rank_list_like(
            operation, _check_single(operation, lists, f"{what} list"), what, example, size
        )
    if lists:
        refuse(operation, f"requires empty {what} on non-root: pass []")
    return []


def _check_rank_list_like(
    operation: str, given: object, what: str, example: AnyArray, size: int
) -> list[AnyArray]:
    """Return a list with an array for each rank, each like the given array."""
    arrays = _check_rank_list(operation, given, what, size)
    _check_alike(operation, arrays, example)
    return arrays


def _check_rank_list(operation: str, given: object, what: str, size: int) -> list[AnyArray]:
    """Return a list with an array for each rank."""
    name = f"{what}_tensors[0]"
    found = _check_list(operation, given, name)
    if len(found) != size:
        refuse(
            operation,
            f"Incorrect {what} list size {len(found)}. {what.capitalize()} list size should be "
            f"{size}, same as size of the process group",
        )
    return _check_dense(operation, found, name)


def _format_shape(array: AnyArray | SparseArray) -> str:
    return str(list(array.shape))
