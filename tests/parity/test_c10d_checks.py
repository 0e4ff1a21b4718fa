"""Refusals of a process group's methods: with c10d's texts, before any data moves.

Each test is one call that must be refused on every rank, and then a call on the same group that
must go well: a refused one has taken no number, and nobody waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import run_threads

SIZE = 4
Array = npt.NDArray[Any]
Given = dict[str, Array]
Attempt = Callable[[ah.ProcessGroup, Given], object]


def coo(values: Array, length: int) -> ah.SparseArray:
    """Return a sparse array of a single element, at the first index."""
    return ah.SparseArray([[0]], values, (length,))


def arrays() -> Given:
    return {
        "t1": np.zeros(1, np.float32),
        "t2": np.zeros(1, np.float64),
        "t3": np.zeros(2, np.float32),
        "t4": np.zeros(1, np.float32),
    }


def refused(kind: type[Exception], text: str, attempt: Attempt) -> None:
    """Make a call on four ranks that must fail with an error's class and `text`."""

    def body() -> None:
        pg = ah.process_group()
        given = arrays()
        with pytest.raises(kind, match=text):
            attempt(pg, given)
        assert pg.group.sequence == 0
        assert not any(array.any() for array in given.values())
        x = np.array([pg.rank()])
        pg.allreduce(x).wait(20)
        assert x == sum(range(SIZE))

    run_threads(SIZE)(body)


def rooted(kind: type[Any], rank: int, tensor: int | None = None) -> Any:
    """Return options, built as programs build them."""
    opts = kind()
    opts.rootRank = rank
    if tensor is not None:
        opts.rootTensor = tensor
    return opts


def combining(kind: type[Any], op: ah.ReduceOp) -> Any:
    opts = kind()
    opts.reduceOp = op
    return opts


# ---------------------------------------------------------------- broadcast


@pytest.mark.parametrize("root", [-1, SIZE])
def test_p006_broadcast_refuses_a_root_that_is_no_rank(root: int) -> None:
    opts = rooted(c10d.BroadcastOptions, root, 0)
    refused(
        RuntimeError,
        f"^broadcast: invalid root rank: {root}",
        lambda pg, a: pg.broadcast([a["t1"]], opts),
    )


@pytest.mark.parametrize("index", [-1, 1])
def test_p006_broadcast_refuses_a_root_tensor_that_is_not_there(index: int) -> None:
    refused(
        RuntimeError,
        "invalid root tensor",
        lambda pg, a: pg.broadcast([a["t1"]], rooted(c10d.BroadcastOptions, pg.rank(), index)),
    )


def test_p006_broadcast_refuses_an_empty_list() -> None:
    refused(
        RuntimeError,
        "invalid root tensor",
        lambda pg, a: pg.broadcast([], rooted(c10d.BroadcastOptions, pg.rank(), 0)),
    )


@pytest.mark.parametrize(("other", "text"), [("t2", "type"), ("t3", "size")])
def test_p006_broadcast_refuses_arrays_that_are_not_alike(other: str, text: str) -> None:
    refused(
        RuntimeError,
        f"invalid tensor {text} at index 1",
        lambda pg, a: pg.broadcast([a["t1"], a[other]], rooted(c10d.BroadcastOptions, 0, 0)),
    )


def test_p006_broadcast_refuses_a_sparse_array() -> None:
    refused(
        RuntimeError,
        "only supports dense tensors",
        lambda pg, a: pg.broadcast([coo(a["t1"], 2)]),
    )


# ---------------------------------------------------------------- allreduce


def test_p007_allreduce_refuses_an_empty_list() -> None:
    refused(
        RuntimeError,
        "^allreduce: requires non-empty tensor list",
        lambda pg, a: pg.allreduce([], c10d.AllreduceOptions()),
    )


@pytest.mark.parametrize(("other", "text"), [("t2", "type"), ("t3", "size")])
def test_p007_allreduce_refuses_arrays_that_are_not_alike(other: str, text: str) -> None:
    refused(
        RuntimeError,
        f"invalid tensor {text}",
        lambda pg, a: pg.allreduce([a["t1"], a[other]], c10d.AllreduceOptions()),
    )


@pytest.mark.parametrize("op", [ah.ReduceOp.BAND, ah.ReduceOp.BOR, ah.ReduceOp.BXOR])
def test_p007_allreduce_refuses_bits_of_floats(op: ah.ReduceOp) -> None:
    for kind in (RuntimeError, TypeError):
        refused(
            kind,
            f"Cannot use ReduceOp.{op.name} with non-integral dtype",
            lambda pg, a: pg.allreduce([a["t1"]], combining(c10d.AllreduceOptions, op)),
        )


def test_p008_allreduce_coalesced_refuses_an_empty_list() -> None:
    refused(
        RuntimeError,
        "requires non-empty tensor list",
        lambda pg, a: pg.allreduce_coalesced([], c10d.AllreduceCoalescedOptions()),
    )


def test_p008_allreduce_coalesced_refuses_several_dtypes() -> None:
    refused(
        RuntimeError,
        "tensors must all have the same type",
        lambda pg, a: pg.allreduce_coalesced([a["t1"], a["t2"]]),
    )


def test_p008_allreduce_coalesced_refuses_a_sparse_array_among_dense_ones() -> None:
    refused(
        RuntimeError,
        "invalid tensor layout at index 1",
        lambda pg, a: pg.allreduce_coalesced([a["t1"], coo(np.zeros(1, np.int64), 1)]),
    )


def test_p008_allreduce_coalesced_refuses_sparse_arrays() -> None:
    refused(
        RuntimeError,
        "unsupported layout",
        lambda pg, a: pg.allreduce_coalesced([coo(a["t1"], 1), coo(a["t4"], 1)]),
    )


def test_allreduce_coalesced_refuses_what_is_no_array_of_numpy() -> None:
    refused(
        TypeError,
        r"allreduce_coalesced: tensors\[0\] must be a numpy.ndarray, not memoryview",
        lambda pg, a: pg.allreduce_coalesced([memoryview(a["t1"])]),  # type: ignore[list-item]
    )


def test_p010_sparse_allreduce_refuses_an_empty_list() -> None:
    refused(RuntimeError, "requires non-empty tensor list", lambda pg, a: pg.allreduce([]))


def test_p010_sparse_allreduce_refuses_a_dense_array_before_it_looks_at_dtypes() -> None:
    refused(
        RuntimeError,
        "invalid tensor layout",
        lambda pg, a: pg.allreduce([a["t1"], coo(a["t2"], 2)]),
    )


def test_p010_sparse_allreduce_refuses_arrays_of_other_shapes() -> None:
    refused(
        RuntimeError,
        "invalid tensor size",
        lambda pg, a: pg.allreduce([coo(a["t1"], 2), coo(a["t4"], 4)]),
    )


def test_p010_allreduce_refuses_what_is_neither_dense_nor_sparse() -> None:
    refused(
        TypeError,
        r"allreduce: tensors\[0\] must be a numpy.ndarray, not list",
        lambda pg, a: pg.allreduce([[1.0, 2.0]]),  # type: ignore[list-item]
    )


@pytest.mark.parametrize("op", [ah.ReduceOp.PRODUCT, ah.ReduceOp.BAND])
def test_p010_sparse_allreduce_refuses_what_zeros_would_spoil(op: ah.ReduceOp) -> None:
    refused(
        RuntimeError,
        "unsupported reduction operation",
        lambda pg, a: pg.allreduce(
            [coo(np.zeros(1, np.int64), 4)],
            combining(c10d.AllreduceOptions, op),
        ),
    )


# ---------------------------------------------------------------- devices


class Faraway:
    """An array of another library, in the memory of a device."""

    def __init__(self, device: int, is_seen_by_cuda: bool = False) -> None:
        self._device = device
        if is_seen_by_cuda:
            self.__cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False)}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


@pytest.mark.parametrize(
    ("array", "device"),
    [(Faraway(2), "cuda"), (Faraway(1, True), "cuda"), (Faraway(10), "rocm"), (Faraway(99), "99")],
)
def test_p009_arrays_in_the_memory_of_devices_are_refused(array: Any, device: str) -> None:
    for kind in (RuntimeError, TypeError):
        refused(
            kind,
            rf"allreduce_coalesced: tensors\[1\]: unsupported device type .*{device}.*: copy it",
            lambda pg, a: pg.allreduce_coalesced([a["t1"], array]),
        )
    refused(RuntimeError, "unsupported device type", lambda pg, a: pg.broadcast(array))
    refused(RuntimeError, "unsupported device type", lambda pg, a: ah.all_reduce(array))


def test_p009_arrays_of_other_libraries_in_host_memory_are_to_be_wrapped() -> None:
    refused(
        TypeError,
        r"must be a numpy\.ndarray, not Faraway; wrap it",
        lambda pg, a: ah.all_reduce(Faraway(1)),  # type: ignore[arg-type]
    )


# ---------------------------------------------------------------- allgather


def test_p011_allgather_refuses_to_gather_nothing() -> None:
    refused(
        RuntimeError, "requires non-empty input tensor list", lambda pg, a: pg.allgather([], [])
    )


@pytest.mark.parametrize("lists", [0, 2])
def test_p011_allgather_wants_a_list_for_each_input(lists: int) -> None:
    refused(
        RuntimeError,
        "requires input/output tensor lists to have the same length",
        lambda pg, a: pg.allgather([[a["t1"]] * SIZE] * lists, [a["t1"]]),
    )


@pytest.mark.parametrize("length", [SIZE - 1, SIZE + 1])
def test_p011_allgather_wants_room_for_all_ranks(length: int) -> None:
    refused(
        RuntimeError,
        "invalid output tensor list at index 0",
        lambda pg, a: pg.allgather([[a["t1"]] * length], [a["t1"]]),
    )


@pytest.mark.parametrize(("other", "text"), [("t2", "type"), ("t3", "size")])
def test_p011_allgather_refuses_inputs_that_are_not_alike(other: str, text: str) -> None:
    refused(
        RuntimeError,
        f"invalid tensor {text}",
        lambda pg, a: pg.allgather([[a["t1"], a["t1"]] * SIZE] * 2, [a["t1"], a[other]]),
    )


@pytest.mark.parametrize(("other", "text"), [("t2", "type"), ("t3", "size")])
def test_p011_allgather_refuses_outputs_that_are_not_alike(other: str, text: str) -> None:
    refused(
        RuntimeError,
        f"invalid tensor {text}",
        lambda pg, a: pg.allgather([([a["t1"], a[other]] * SIZE)[:SIZE]], [a["t1"]]),
    )


def refused_coalesced(
    kind: type[Exception], text: str, outputs: Callable[[Given], list[Any]]
) -> None:
    """Try both the method and the plain call."""
    refused(kind, text, lambda pg, a: pg.allgather_coalesced(outputs(a), [a["t1"]]))
    refused(kind, text, lambda pg, a: ah.all_gather_coalesced(outputs(a), [a["t1"]]))


def test_p012_allgather_coalesced_refuses_an_output_of_another_shape() -> None:
    refused_coalesced(
        RuntimeError,
        "invalid size of output tensor at index 0",
        lambda a: [[np.zeros(0, np.float32)], *([a["t1"]] for _ in range(SIZE - 1))],
    )


def test_p012_allgather_coalesced_refuses_an_output_of_another_dtype() -> None:
    refused_coalesced(
        RuntimeError,
        "invalid tensor type at index 0",
        lambda a: [[a["t2"]], *([a["t1"]] for _ in range(SIZE - 1))],
    )


def test_p012_allgather_coalesced_wants_a_list_for_each_rank() -> None:
    refused_coalesced(
        RuntimeError,
        "output lists should be equal to world size",
        lambda a: [[a["t1"]] for _ in range(SIZE + 1)],
    )


def test_p012_allgather_coalesced_wants_lists_of_lists() -> None:
    refused_coalesced(
        TypeError,
        "Invalid function argument.*output_tensor_lists",
        lambda a: [a["t1"]],
    )


# ---------------------------------------------------------------- reduce, gather, scatter


@pytest.mark.parametrize("root", [-1, SIZE])
def test_p013_reduce_refuses_a_root_that_is_no_rank(root: int) -> None:
    refused(
        RuntimeError,
        "invalid root rank",
        lambda pg, a: pg.reduce([a["t1"]], rooted(c10d.ReduceOptions, root, 0)),
    )


def test_p013_reduce_refuses_a_root_tensor_that_is_not_there() -> None:
    refused(
        RuntimeError,
        "invalid root tensor",
        lambda pg, a: pg.reduce([a["t1"]], rooted(c10d.ReduceOptions, pg.rank(), 1)),
    )


def test_p013_reduce_takes_one_array_alone() -> None:
    refused(
        RuntimeError,
        "requires a single-element tensor list",
        lambda pg, a: pg.reduce([a["t1"], a["t4"]], rooted(c10d.ReduceOptions, pg.rank(), 0)),
    )


Lists = Callable[[Given, bool], tuple[list[Any], list[Any]]]


@pytest.mark.parametrize(
    ("lists", "text"),
    [
        (lambda a, root: ([], []), "requires a single-element {one} tensor list"),
        (lambda a, root: ([a["t1"], a["t4"]], []), "requires a single-element {one} tensor list"),
        (
            lambda a, root: ([a["t1"]], [] if root else [[a["t1"]] * SIZE]),
            "requires a single-element {many} list|requires empty {many} on non-root",
        ),
        (
            lambda a, root: ([a["t1"]], [[a["t1"]] * SIZE] * 2),
            "requires a single-element {many} list|requires empty {many} on non-root",
        ),
        (
            lambda a, root: ([a["t1"]], [[a["t1"]] * (SIZE - 1)]),
            "Incorrect {many} list size 3. {Many} list size should be 4|requires empty {many}",
        ),
        (
            lambda a, root: ([a["t1"]], [[a["t1"]] * (SIZE + 1)]),
            "Incorrect {many} list size 5. {Many} list size should be 4|requires empty {many}",
        ),
        (
            lambda a, root: ([a["t1"]], [[a["t2"]] * SIZE]),
            "invalid tensor type|requires empty {many}",
        ),
        (
            lambda a, root: ([a["t1"]], [[a["t3"]] * SIZE]),
            "invalid tensor size|requires empty {many}",
        ),
    ],
)
@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_p013_gather_and_scatter_want_lists_of_one(operation: str, lists: Lists, text: str) -> None:
    many = "output" if operation == "gather" else "input"
    one = "input" if operation == "gather" else "output"
    said = text.format(one=one, many=many, Many=many.capitalize())

    def attempt(pg: ah.ProcessGroup, given: Given) -> object:
        of_root, *of_others = said.split("|")
        alone, each = lists(given, pg.rank() == 1)
        try:
            if operation == "gather":
                return pg.gather(each, alone, rooted(c10d.GatherOptions, 1))
            return pg.scatter(alone, each, rooted(c10d.ScatterOptions, 1))
        except RuntimeError as error:
            wanted = of_root if pg.rank() == 1 else (of_others or [of_root])[0]
            if wanted not in str(error):
                pytest.fail(f"{wanted!r} is not in {error}")
            raise

    refused(RuntimeError, said, attempt)


@pytest.mark.parametrize("root", [-1, SIZE])
@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_p013_gather_and_scatter_refuse_a_root_that_is_no_rank(operation: str, root: int) -> None:
    def attempt(pg: ah.ProcessGroup, given: Given) -> object:
        if operation == "gather":
            return pg.gather([], [given["t1"]], rooted(c10d.GatherOptions, root))
        return pg.scatter([given["t1"]], [], rooted(c10d.ScatterOptions, root))

    refused(RuntimeError, f"{operation}: invalid root rank", attempt)


# ---------------------------------------------------------------- plain calls


@dataclass
class Halves:
    """Arrays of which some are of another dtype."""

    x: Array = field(default_factory=lambda: np.zeros((2, 2), np.float32))
    half: Array = field(default_factory=lambda: np.zeros((2, 2), np.float16))
    each: list[Array] = field(
        default_factory=lambda: [np.zeros((2, 2), np.float32) for _ in range(SIZE)]
    )

    @property
    def mixed(self) -> list[Array]:
        return [self.each[0], self.half.copy(), *self.each[2:]]


PLAIN: dict[str, Callable[[Halves], object]] = {
    "all_gather, outputs": lambda a: ah.all_gather(a.mixed, a.x),
    "all_gather, input": lambda a: ah.all_gather(a.each, a.half),
    "all_gather_into_tensor": lambda a: ah.all_gather_into_tensor(np.zeros((8, 2)), a.x),
    "reduce_scatter, inputs": lambda a: ah.reduce_scatter(a.x, a.mixed),
    "reduce_scatter, output": lambda a: ah.reduce_scatter(a.half, a.each),
    "reduce_scatter_tensor": lambda a: ah.reduce_scatter_tensor(a.x, np.zeros((8, 2))),
    "all_to_all, outputs": lambda a: ah.all_to_all(a.mixed, a.each),
    "all_to_all, inputs": lambda a: ah.all_to_all(a.each, a.mixed),
    "all_to_all_single": lambda a: ah.all_to_all_single(np.zeros((4, 2)), np.zeros((4, 2), "f4")),
    "all_gather_coalesced, outputs": lambda a: ah.all_gather_coalesced(
        [a.each, a.mixed, a.each, a.each], a.each
    ),
    "all_gather_coalesced, inputs": lambda a: ah.all_gather_coalesced([a.each] * SIZE, a.mixed),
    "all_reduce_coalesced": lambda a: ah.all_reduce_coalesced(a.mixed),
    "all_gather_into_tensor_coalesced": lambda a: ah.all_gather_into_tensor_coalesced(
        [np.zeros((8, 2))], [a.x]
    ),
    "reduce_scatter_tensor_coalesced": lambda a: ah.reduce_scatter_tensor_coalesced(
        [a.x], [np.zeros((8, 2))]
    ),
    "gather, outputs": lambda a: ah.gather(a.x, a.mixed),
    "gather, input": lambda a: ah.gather(a.half, a.each),
    "scatter, inputs": lambda a: ah.scatter(a.x, a.mixed),
    "scatter, output": lambda a: ah.scatter(a.half, a.each),
}


@pytest.mark.parametrize("call", PLAIN)
def test_p014_plain_calls_refuse_several_dtypes(call: str) -> None:
    """On every rank: also on those that should give no list to gather and scatter."""
    refused(ValueError, "tensors with different dtypes", lambda pg, a: PLAIN[call](Halves()))


def test_p015_all_to_all_single_wants_contiguous_arrays() -> None:
    x = np.zeros((SIZE, SIZE), np.float32)
    for kind in (RuntimeError, ValueError):
        refused(
            kind,
            "Tensors must be contiguous",
            lambda pg, a: ah.all_to_all_single(np.zeros_like(x), x.T),
        )
