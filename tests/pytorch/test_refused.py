"""What a process group refuses: with c10d's texts, before anything happens, as Gloo does.

All cases of one operation are tried in one world: each must be refused on every rank, and leave
what it was given as it was, and the number of the next call. A call at the end must go well.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torch_ranks import run_ranks

SIZE = 3
pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed.:FutureWarning")

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Refused:
    """A call that must be refused, with an error of a kind that says `text`."""

    text: str
    attempt: Callable[[Any, Tensors, int], Any]
    kind: type[Exception] = RuntimeError
    gloo: bool = True
    """Whether Gloo refuses it with that text, too."""


def coo(length: int, dtype: Any = torch.float32) -> Any:
    """Return a sparse tensor with a one at its first place."""
    return torch.sparse_coo_tensor([[0]], [1], size=(length,), dtype=dtype, check_invariants=True)


def tensors() -> Tensors:
    return {
        "t1": torch.zeros(1),
        "t2": torch.zeros(1, dtype=torch.float64),
        "t3": torch.zeros(2),
        "t4": torch.zeros(1),
        "long": torch.zeros(1, dtype=torch.int64),
        "sparse": coo(2),
        "sparser": coo(4),
        "sparse long": coo(1, torch.int64),
    }


def tried(*cases: Refused, backend: str = "allhands") -> None:
    """Try all cases in one world."""

    def body(rank: int) -> None:
        group = dist.distributed_c10d._get_default_group()
        if backend == "gloo":  # before it what is given passes a dispatcher that has its own texts
            group = group._get_backend(torch.device("cpu"))
        for case in cases:
            if backend == "gloo" and not case.gloo:
                continue
            given, before = tensors(), tensors()
            number = group._get_sequence_number_for_group()
            with pytest.raises(case.kind, match=case.text):
                case.attempt(group, given, rank)
            if backend == "allhands":
                assert group._get_sequence_number_for_group() == number, case.text
            for name, tensor in given.items():
                assert torch.equal(tensor.to_dense(), before[name].to_dense()), (case.text, name)
        x = torch.tensor([rank])
        dist.all_reduce(x)
        assert x.item() == 3

    run_ranks(SIZE, body, backend=backend)


def both(*cases: Refused) -> None:
    """Try all cases over Gloo as well: the texts are those that its users know."""
    tried(*cases)
    tried(*cases, backend="gloo")


def options(kind: Any, **said: Any) -> Any:
    """Return options as programs make them."""
    opts = kind()
    for name, value in said.items():
        setattr(opts, name, value)
    return opts


def of_broadcast(root: int, tensor: int = 0) -> Any:
    return options(dist.BroadcastOptions, rootRank=root, rootTensor=tensor)


# ---------------------------------------------------------------- whole tensors


def test_p006_broadcast_refuses_what_does_not_fit() -> None:
    both(
        Refused("invalid root rank", lambda pg, t, me: pg.broadcast([t["t1"]], of_broadcast(-1))),
        Refused("invalid root rank", lambda pg, t, me: pg.broadcast([t["t1"]], of_broadcast(SIZE))),
        Refused(
            "invalid root tensor", lambda pg, t, me: pg.broadcast([t["t1"]], of_broadcast(me, -1))
        ),
        Refused(
            "invalid root tensor", lambda pg, t, me: pg.broadcast([t["t1"]], of_broadcast(me, 1))
        ),
        Refused("invalid root tensor", lambda pg, t, me: pg.broadcast([], of_broadcast(me))),
        Refused(
            "invalid tensor type",
            lambda pg, t, me: pg.broadcast([t["t1"], t["t2"]], of_broadcast(me)),
        ),
        Refused(
            "invalid tensor size",
            lambda pg, t, me: pg.broadcast([t["t1"], t["t3"]], of_broadcast(me)),
        ),
        Refused(
            "only supports dense tensors",
            lambda pg, t, me: pg.broadcast([t["sparse"]], of_broadcast(me)),
            gloo=False,  # it ends the process
        ),
    )


def of_allreduce(op: Any) -> Any:
    return options(dist.AllreduceOptions, reduceOp=op)


def test_p007_allreduce_refuses_what_does_not_fit() -> None:
    both(
        Refused("requires non-empty tensor list", lambda pg, t, me: pg.allreduce([])),
        Refused("invalid tensor type", lambda pg, t, me: pg.allreduce([t["t1"], t["t2"]])),
        Refused("invalid tensor size", lambda pg, t, me: pg.allreduce([t["t1"], t["t3"]])),
        *(
            Refused(
                f"Cannot use ReduceOp.{name} with non-integral dtype",
                lambda pg, t, me, op=op: pg.allreduce([t["t1"]], of_allreduce(op)).wait(),
            )
            for name, op in (
                ("BAND", dist.ReduceOp.BAND),
                ("BOR", dist.ReduceOp.BOR),
                ("BXOR", dist.ReduceOp.BXOR),
            )
        ),
    )


def test_p008_allreduce_coalesced_refuses_what_does_not_fit() -> None:
    both(
        Refused("requires non-empty tensor list", lambda pg, t, me: pg.allreduce_coalesced([])),
        Refused(
            "tensors must all have the same type",
            lambda pg, t, me: pg.allreduce_coalesced([t["t1"], t["t2"]]),
        ),
        Refused(
            "invalid tensor layout at index 1",
            lambda pg, t, me: pg.allreduce_coalesced([t["t1"], t["sparse long"]]),
        ),
        Refused(
            "unsupported layout",
            lambda pg, t, me: pg.allreduce_coalesced([t["sparse"], t["sparse"].clone()]),
        ),
    )


def test_p009_tensors_of_a_device_without_memory_here_are_refused() -> None:
    """CUDA's, which the seeds have here, are staged; those of the meta device are nowhere."""
    nowhere = torch.empty(1, device="meta")
    tried(
        Refused(
            "allreduce_coalesced: unsupported device type meta",
            lambda pg, t, me: pg.allreduce_coalesced([nowhere]),
        ),
        Refused(
            "broadcast: unsupported device type meta",
            lambda pg, t, me: pg.broadcast([t["t1"], nowhere]),
        ),
        Refused(
            "allgather: unsupported device type meta",
            lambda pg, t, me: pg.allgather([[t["t1"]] * SIZE], [nowhere]),
        ),
    )


def test_tensors_that_are_no_arrays_are_refused() -> None:
    with warnings.catch_warnings(action="ignore"):  # that such tensors are new
        rows = torch.zeros(2, 2).to_sparse_csr()
        nested = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])
    tried(
        Refused(
            "allreduce: unsupported layout torch.sparse_csr", lambda pg, t, me: pg.allreduce([rows])
        ),
        Refused(
            "broadcast: unsupported layout torch.strided, nested",
            lambda pg, t, me: pg.broadcast([nested]),
        ),
        Refused(
            "allreduce: elements of a tensor .* share memory",
            lambda pg, t, me: pg.allreduce([t["t1"].expand(3)]),
        ),
        Refused(
            "two arrays of .* share memory",
            lambda pg, t, me: dist.all_gather([t["t1"]] * SIZE, t["t4"]),
            ValueError,
        ),
        Refused(
            "no array has elements of torch.bits8",
            lambda pg, t, me: pg.broadcast(torch.zeros(1, dtype=torch.uint8).view(torch.bits8)),
            TypeError,
        ),
        Refused(
            "A torch.Tensor is expected, not float",
            lambda pg, t, me: pg.allreduce([1.5]),
            TypeError,
        ),
        Refused(
            "allreduce: cannot reduce .*'real', '<f2'",
            lambda pg, t, me: pg.allreduce(
                [torch.ones(2, dtype=torch.int32).view(torch.complex32)]
            ),
            TypeError,
        ),
    )


def test_p010_sparse_allreduce_refuses_what_does_not_fit() -> None:
    both(
        Refused(
            "invalid tensor layout", lambda pg, t, me: pg.allreduce([t["t1"], t["sparse long"]])
        ),
        Refused("invalid tensor size", lambda pg, t, me: pg.allreduce([t["sparse"], t["sparser"]])),
        *(
            Refused(
                "unsupported reduction operation",
                lambda pg, t, me, op=op: pg.allreduce([t["sparser"]], of_allreduce(op)).wait(),
            )
            for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
        ),
    )


# ---------------------------------------------------------------- lists


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
    """Return a call of gather or scatter with what is alone and what is a list, and the root."""

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
