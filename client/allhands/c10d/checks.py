"""What may be given to the methods of a process group, before anything happens.

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
    """Say whether it is a sparse array, of this package or of SciPy."""
    return isinstance(array, sparse_array.SparseArray) or sparse_array.is_foreign(array)


def refuse(operation: str, text: str) -> NoReturn:
    raise InvalidArgument(f"{operation}: {text}")


# ---------------------------------------------------------------- one operation each


def broadcast(tensors: object, root: int, root_tensor: int, size: int) -> list[AnyArray]:
    """Return the arrays of a broadcast, of which the root gives the one at `root_tensor`."""
    given = _listed("broadcast", tensors, "tensors")
    _root_rank("broadcast", root, size)
    _root_tensor("broadcast", root_tensor, given)
    arrays = _dense("broadcast", given, "tensors")
    _like("broadcast", arrays, arrays[0])
    return arrays


def allreduce(tensors: object, op: ReduceOp) -> list[AnyArray] | list[SparseArray]:
    """Return the arrays of an allreduce, all dense or all sparse."""
    given = _listed("allreduce", tensors, "tensors")
    _not_empty("allreduce", given, "tensor list")
    arrays = _one_layout("allreduce", given)
    _like("allreduce", arrays, arrays[0])
    if isinstance(arrays[0], SparseArray) and op not in sparse.OPS:
        known = ", ".join(one.name for one in sparse.OPS)
        refuse("allreduce", f"unsupported reduction operation: {op} of sparse arrays; use {known}")
    reducible("allreduce", op, arrays[0])
    return arrays


def allreduce_coalesced(tensors: object, op: ReduceOp) -> list[AnyArray]:
    """Return the arrays of one call, which may differ in their shapes."""
    name = "allreduce_coalesced"
    given = _listed(name, tensors, "tensors")
    _not_empty(name, given, "tensor list")
    arrays: Sequence[AnyArray | SparseArray] = _one_layout(name, given)
    for at, array in enumerate(arrays):
        if array.dtype != arrays[0].dtype:
            refuse(
                name,
                f"tensors must all have the same type: {arrays[0].dtype} at index 0, "
                f"{array.dtype} at index {at}",
            )
    if isinstance(arrays[0], SparseArray):
        refuse(name, "unsupported layout: sparse arrays go through allreduce")
    reducible(name, op, arrays[0])
    return _dense(name, arrays, "tensors")


def reduce(tensors: object, op: ReduceOp, root: int, root_tensor: int, size: int) -> AnyArray:
    """Return the one array of a reduce, which comes in a list."""
    given = _listed("reduce", tensors, "tensors")
    _root_rank("reduce", root, size)
    _root_tensor("reduce", root_tensor, given)
    array = _single("reduce", given, "tensors", "tensor list")
    reducible("reduce", op, array)
    return array


def allgather(
    outputs: object, inputs: object, size: int
) -> tuple[list[list[AnyArray]], list[AnyArray]]:
    """Return n lists of n times `size` arrays to be filled, and the n inputs."""
    given = _listed("allgather", inputs, "input_tensors")
    lists = _listed("allgather", outputs, "output_tensors")
    _not_empty("allgather", given, "input tensor list")
    if len(lists) != len(given):
        refuse(
            "allgather",
            "requires input/output tensor lists to have the same length: "
            f"{len(given)} inputs, {len(lists)} output lists",
        )
    filled = [_listed("allgather", one, f"output_tensors[{at}]") for at, one in enumerate(lists)]
    expected = len(given) * size
    for at, one in enumerate(filled):
        if len(one) != expected:
            refuse(
                "allgather",
                f"invalid output tensor list at index {at} "
                f"(expected length {expected}, got {len(one)})",
            )
    read = _dense("allgather", given, "input_tensors")
    _like("allgather", read, read[0])
    written = [_dense("allgather", one, f"output_tensors[{at}]") for at, one in enumerate(filled)]
    for arrays in written:
        _like("allgather", arrays, read[0])
    return written, read


def allgather_coalesced(
    output_lists: object, inputs: object, size: int
) -> tuple[list[list[AnyArray]], list[AnyArray]]:
    """Return for each rank a list of n arrays to be filled, and n inputs like them."""
    name, into = "allgather_coalesced", "output_tensor_lists"
    given = _listed(name, inputs, "input_tensor_list")
    lists = _listed(name, output_lists, into)
    filled = [_listed(name, one, f"{into}[{at}]") for at, one in enumerate(lists)]
    _not_empty(name, given, "input tensor list")
    if len(filled) != size:
        refuse(name, f"output lists should be equal to world size: {len(filled)}, not {size}")
    read = _dense(name, given, "input_tensor_list")
    written = []
    for rank, one in enumerate(filled):
        if len(one) != len(given):
            refuse(
                name,
                f"invalid output size: (expected length {len(given)}, got {len(one)}) "
                f"in {into}[{rank}]",
            )
        arrays = _dense(name, one, f"{into}[{rank}]")
        for at, (have, want) in enumerate(zip(arrays, read, strict=True)):
            if have.shape != want.shape:
                refuse(
                    name,
                    f"invalid size of output tensor at index {at} "
                    f"(expected {_sized(want)}, got {_sized(have)}) in {into}[{rank}]",
                )
            if have.dtype != want.dtype:
                refuse(
                    name,
                    f"invalid tensor type at index {at} "
                    f"(expected {want.dtype}, got {have.dtype}) in {into}[{rank}]",
                )
        written.append(arrays)
    return written, read


def gather(
    outputs: object, inputs: object, root: int, rank: int, size: int
) -> tuple[list[AnyArray], AnyArray]:
    """Return the list of arrays that are filled on the root, and the one input."""
    _root_rank("gather", root, size)
    given = _listed("gather", inputs, "input_tensors")
    lists = _listed("gather", outputs, "output_tensors")
    array = _single("gather", given, "input_tensors", "input tensor list")
    return _only_at_root("gather", lists, "output", array, root == rank, size), array


def scatter(
    outputs: object, inputs: object, root: int, rank: int, size: int
) -> tuple[AnyArray, list[AnyArray]]:
    """Return the one output, and the list of arrays that the root gives out."""
    _root_rank("scatter", root, size)
    filled = _listed("scatter", outputs, "output_tensors")
    lists = _listed("scatter", inputs, "input_tensors")
    array = _single("scatter", filled, "output_tensors", "output tensor list")
    return array, _only_at_root("scatter", lists, "input", array, root == rank, size)


def reduce_scatter(
    outputs: object, inputs: object, op: ReduceOp, rank: int, size: int
) -> tuple[AnyArray, list[AnyArray]]:
    """Return the one output, and the list of arrays of which each rank gets a sum.

    They may have several shapes: the output has that of this rank's.
    """
    name = "reduce_scatter"
    filled = _listed(name, outputs, "output_tensors")
    lists = _listed(name, inputs, "input_tensors")
    array = _single(name, filled, "output_tensors", "output tensor list")
    given = _one_each(name, _only(name, lists, "input list"), "input", size)
    if len({one.shape for one in given}) == 1:
        _like(name, given, array)
    else:
        _like(name, given[rank : rank + 1], array)
        _of_dtype(name, given, array)
    reducible(name, op, array)
    return array, given


def whole(
    operation: str, longs: object, shorts: object, size: int, names: tuple[str, str]
) -> tuple[list[AnyArray], list[AnyArray]]:
    """Return arrays of which each long one has room for `size` of its short one."""
    given = _listed(operation, longs, names[0]), _listed(operation, shorts, names[1])
    _not_empty(operation, given[1], "tensor list")
    if len(given[0]) != len(given[1]):
        refuse(
            operation,
            "requires input/output tensor lists to have the same length: "
            f"{len(given[0])} {names[0]}, {len(given[1])} {names[1]}",
        )
    many, few = _dense(operation, given[0], names[0]), _dense(operation, given[1], names[1])
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


def message(operation: str, tensors: object) -> AnyArray:
    """Return the one array of a message, which comes in a list."""
    given = _listed(operation, tensors, "tensors")
    return _single(operation, given, "tensors", "tensor list")


def listed(operation: str, tensors: object, name: str) -> list[AnyArray]:
    """Return a list of dense arrays."""
    return _dense(operation, _listed(operation, tensors, name), name)


# ---------------------------------------------------------------- what they have in common


def reducible(operation: str, op: ReduceOp, array: AnyArray | SparseArray) -> None:
    """Check that `op` is defined for what the array holds."""
    try:
        reduction.check(op, array.dtype)
    except TypeError as error:
        raise InvalidType(f"{operation}: {error}") from None


def _listed(operation: str, given: object, name: str) -> Sequence[object]:
    if not isinstance(given, list | tuple):
        raise TypeError(
            f"{operation}: Invalid function argument. {name} must be a list, "
            f"not {type(given).__name__}"
        )
    return given


def _not_empty(operation: str, given: Sequence[object], what: str) -> None:
    if not given:
        refuse(operation, f"requires non-empty {what}")


def _root_rank(operation: str, root: int, size: int) -> None:
    if not 0 <= root < size:
        refuse(operation, f"invalid root rank: {root}; ranks of the group go from 0 to {size - 1}")


def _root_tensor(operation: str, index: int, given: Sequence[object]) -> None:
    if not 0 <= index < len(given):
        refuse(operation, f"invalid root tensor: {index}, the list has {len(given)}")


def _only(operation: str, given: Sequence[object], what: str) -> object:
    if len(given) != 1:
        refuse(operation, f"requires a single-element {what}, this one has {len(given)}")
    return given[0]


def _single(operation: str, given: Sequence[object], name: str, what: str) -> AnyArray:
    _only(operation, given, what)
    return _dense(operation, given, name)[0]


def _dense(operation: str, given: Sequence[object], name: str) -> list[AnyArray]:
    for at, array in enumerate(given):
        if is_sparse(array):
            refuse(operation, f"only supports dense tensors: {name}[{at}] is sparse")
    return [
        arguments.checked(array, f"{operation}: {name}[{at}]") for at, array in enumerate(given)
    ]


def _one_layout(operation: str, given: Sequence[object]) -> list[AnyArray] | list[SparseArray]:
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
            array if isinstance(array, SparseArray) else sparse_array.Foreign(array)
            for array in given
        ]
    return _dense(operation, given, "tensors")


def _like(
    operation: str, arrays: Sequence[AnyArray | SparseArray], wanted: AnyArray | SparseArray
) -> None:
    for at, array in enumerate(arrays):
        _of_dtype(operation, [array], wanted, at)
        if tuple(array.shape) != tuple(wanted.shape):
            refuse(
                operation,
                f"invalid tensor size at index {at} "
                f"(expected {_sized(wanted)}, got {_sized(array)})",
            )


def _of_dtype(
    operation: str,
    arrays: Sequence[AnyArray | SparseArray],
    wanted: AnyArray | SparseArray,
    first: int = 0,
) -> None:
    for at, array in enumerate(arrays, first):
        if array.dtype != wanted.dtype:
            refuse(
                operation,
                f"invalid tensor type at index {at} (expected {wanted.dtype}, got {array.dtype})",
            )


def _only_at_root(
    operation: str,
    lists: Sequence[object],
    what: str,
    one: AnyArray,
    is_root: bool,
    size: int,
) -> list[AnyArray]:
    """Return the one list that only the root gives; elsewhere nothing."""
    if is_root:
        return _for_each_rank(operation, _only(operation, lists, f"{what} list"), what, one, size)
    if lists:
        refuse(operation, f"requires empty {what} on non-root: pass []")
    return []


def _for_each_rank(
    operation: str, given: object, what: str, one: AnyArray, size: int
) -> list[AnyArray]:
    """Return a list with an array for each rank, each like the single one."""
    arrays = _one_each(operation, given, what, size)
    _like(operation, arrays, one)
    return arrays


def _one_each(operation: str, given: object, what: str, size: int) -> list[AnyArray]:
    """Return a list with an array for each rank."""
    name = f"{what}_tensors[0]"
    found = _listed(operation, given, name)
    if len(found) != size:
        refuse(
            operation,
            f"Incorrect {what} list size {len(found)}. {what.capitalize()} list size should be "
            f"{size}, same as size of the process group",
        )
    return _dense(operation, found, name)


def _sized(array: AnyArray | SparseArray) -> str:
    return str(list(array.shape))
