"""Refusals of broadcast, allgather, gather and scatter of a process group: with c10d's texts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import run_threads
from support.ranks.refused_calls import SIZE, Attempt, Given, check_refusal, coo, rooted


def refused(kind: type[Exception], text: str, attempt: Attempt) -> None:
    """Make a failing call on four ranks; check the error's class and `text`."""
    run_threads(SIZE)(lambda: check_refusal(kind, text, attempt))


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
