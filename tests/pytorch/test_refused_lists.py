"""Refusals of calls on lists of tensors: see `support.torch.refusals`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.torch.reduction_cases import options
from support.torch.refusals import SIZE, Refused, Tensors, both

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed.:FutureWarning")


def test_p011_allgather_refuses_what_does_not_fit() -> None:
    both(
        Refused("requires non-empty input tensor list", lambda pg, t, me: pg.allgather([], [])),
        *(
            Refused(
                "requires input/output tensor lists to have the same length",
                lambda pg, t, me, n=n: pg.allgather([[t["t1"]] * SIZE] * n, [t["t1"]]),
            )
            for n in (0, 2)
        ),
        *(
            Refused(
                "invalid output tensor list",
                lambda pg, t, me, n=n: pg.allgather([[t["t1"]] * n], [t["t1"]]),
            )
            for n in (SIZE - 1, SIZE + 1)
        ),
        *(
            Refused(
                f"invalid tensor {what}",
                lambda pg, t, me, other=other: pg.allgather(
                    [[t["t1"], t["t1"]] * SIZE] * 2, [t["t1"], t[other]]
                ),
            )
            for other, what in (("t2", "type"), ("t3", "size"))
        ),
        *(
            Refused(
                f"invalid tensor {what}",
                lambda pg, t, me, other=other: pg.allgather(
                    [([t["t1"], t[other]] * SIZE)[:SIZE]], [t["t1"]]
                ),
            )
            for other, what in (("t2", "type"), ("t3", "size"))
        ),
    )


def test_p012_allgather_coalesced_refuses_what_does_not_fit() -> None:
    both(
        Refused(
            "invalid size of output tensor at index 0",
            lambda pg, t, me: dist.all_gather_coalesced(
                [[torch.zeros(0)], *([t["t1"]] for _ in range(SIZE - 1))], [t["t1"]]
            ),
        ),
        Refused(
            "invalid tensor type at index 0",
            lambda pg, t, me: dist.all_gather_coalesced(
                [[t["t2"]], *([t["t1"]] for _ in range(SIZE - 1))], [t["t1"]]
            ),
        ),
        Refused(
            "output lists should be equal to world size",
            lambda pg, t, me: dist.all_gather_coalesced(
                [[t["t1"]] for _ in range(SIZE + 1)], [t["t1"]]
            ),
        ),
        Refused(
            "Invalid function argument.*output_tensor_lists",
            lambda pg, t, me: dist.all_gather_coalesced([t["t1"]], [t["t1"]]),
            TypeError,
        ),
    )


# ---------------------------------------------------------------- roots


def of_reduce(root: int, tensor: int = 0) -> Any:
    return options(dist.ReduceOptions, rootRank=root, rootTensor=tensor)


def test_p013_reduce_refuses_what_does_not_fit() -> None:
    both(
        Refused("invalid root rank", lambda pg, t, me: pg.reduce([t["t1"]], of_reduce(-1))),
        Refused("invalid root rank", lambda pg, t, me: pg.reduce([t["t1"]], of_reduce(SIZE))),
        Refused("invalid root tensor", lambda pg, t, me: pg.reduce([t["t1"]], of_reduce(me, 1))),
        Refused(
            "requires a single-element tensor list",
            lambda pg, t, me: pg.reduce([t["t1"], t["t4"]], of_reduce(me)),
        ),
    )


def _calls(operation: str) -> Callable[[Any, Any, Any, int], Any]:
    """Return a gather or scatter call, with the single tensor, the list and the root."""

    def gather(pg: Any, alone: Any, each: Any, root: int) -> Any:
        return pg.gather(each, alone, options(dist.GatherOptions, rootRank=root))

    def scatter(pg: Any, alone: Any, each: Any, root: int) -> Any:
        return pg.scatter(alone, each, options(dist.ScatterOptions, rootRank=root))

    return {"gather": gather, "scatter": scatter}[operation]


@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_p013_gather_and_scatter_refuse_what_does_not_fit(operation: str) -> None:
    call = _calls(operation)
    many, one = {"gather": ("output", "input"), "scatter": ("input", "output")}[operation]
    here = f"requires a single-element {one} tensor list"
    roots = f"requires a single-element {many} list"

    def length(n: int) -> str:
        return f"Incorrect {many} list size {n}. {many.capitalize()} list size should be {SIZE}"

    both(
        *(
            Refused(
                "invalid root rank",
                lambda pg, t, me, root=root: call(pg, [t["t1"]], [], root),
            )
            for root in (-1, SIZE)
        ),
        Refused(here, lambda pg, t, me: call(pg, [], [], 0)),
        Refused(here, lambda pg, t, me: call(pg, [t["t1"], t["t1"]], [], 0)),
        Refused(roots, lambda pg, t, me: call(pg, [t["t1"]], [], me)),
        Refused(roots, lambda pg, t, me: call(pg, [t["t1"]], [[t["t1"]] * SIZE] * 2, me)),
        *(
            Refused(length(n), lambda pg, t, me, n=n: call(pg, [t["t1"]], [[t["t1"]] * n], me))
            for n in (SIZE - 1, SIZE + 1)
        ),
        *(
            Refused(
                f"invalid tensor {what}",
                lambda pg, t, me, other=other: call(pg, [t["t1"]], [[t[other]] * SIZE], me),
            )
            for other, what in (("t2", "type"), ("t3", "size"))
        ),
        Refused(
            f"requires empty {many} on non-root",
            lambda pg, t, me: call(pg, [t["t1"]], [[t["t1"]] * SIZE], (me + 1) % SIZE),
        ),
    )


# ---------------------------------------------------------------- torch.distributed's functions


def test_p014_plain_calls_refuse_several_dtypes() -> None:
    text = "tensors with different dtypes"

    def refused(call: Callable[[Any, Any, list[Any], list[Any]], Any]) -> Refused:
        def attempt(pg: Any, t: Tensors, me: int) -> Any:
            x, half = torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.float16)
            each = [torch.zeros(2, 2) for _ in range(SIZE)]
            return call(x, half, each, [each[0], half.clone(), *each[2:]])

        return Refused(text, attempt, ValueError)

    both(
        refused(lambda x, half, each, mixed: dist.all_gather(mixed, x)),
        refused(lambda x, half, each, mixed: dist.all_gather(each, half)),
        refused(lambda x, half, each, mixed: dist.all_gather_coalesced([each] * 3, mixed)),
        refused(lambda x, half, each, mixed: dist.all_gather_coalesced([each, mixed, each], each)),
        refused(lambda x, half, each, mixed: dist.all_reduce_coalesced(mixed)),
        refused(lambda x, half, each, mixed: dist.reduce_scatter(x, mixed)),
        refused(lambda x, half, each, mixed: dist.reduce_scatter(half, each)),
        refused(
            lambda x, half, each, mixed: dist.all_to_all_single(
                torch.zeros(3), torch.zeros(3, dtype=torch.float16)
            )
        ),
        refused(lambda x, half, each, mixed: dist.all_to_all(each, mixed)),
        refused(lambda x, half, each, mixed: dist.all_to_all(mixed, each)),
        refused(lambda x, half, each, mixed: dist.gather(x, mixed)),
        refused(lambda x, half, each, mixed: dist.gather(half, each)),
        refused(lambda x, half, each, mixed: dist.scatter(x, mixed)),
        refused(lambda x, half, each, mixed: dist.scatter(half, each)),
    )


def test_p015_all_to_all_single_wants_contiguous_tensors() -> None:
    def into(pg: Any, t: Tensors, me: int) -> Any:
        return dist.all_to_all_single(torch.zeros(SIZE, SIZE).t(), torch.zeros(SIZE, SIZE))

    def out_of(pg: Any, t: Tensors, me: int) -> Any:
        return dist.all_to_all_single(torch.zeros(SIZE, SIZE), torch.zeros(SIZE, SIZE).t())

    text = "Tensors must be contiguous"
    both(
        Refused(text, out_of, ValueError),
        Refused(text, out_of, RuntimeError, gloo=False),
        Refused(text, into, gloo=False),  # it lets them pass, and fills them in the wrong order
    )


def test_all_to_all_single_refuses_splits_that_do_not_fit() -> None:
    def splits(given: list[int]) -> Callable[..., Any]:
        return lambda pg, t, me: dist.all_to_all_single(
            torch.zeros(SIZE, 2), torch.zeros(SIZE, 2), [1] * SIZE, given
        )

    both(
        Refused("Number of tensor splits not equal to group size", splits([SIZE])),
        Refused("Split sizes doesn't match total dim 0 size", splits([1] * (SIZE - 1) + [2])),
    )
