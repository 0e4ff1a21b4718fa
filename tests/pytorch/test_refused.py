"""Refusals of calls on whole tensors: see `support.torch.refusals`."""

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.torch.reduction_cases import options
from support.torch.refusals import SIZE, Refused, both, tried

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed.:FutureWarning")


def of_broadcast(root: int, tensor: int = 0) -> Any:
    return options(dist.BroadcastOptions, rootRank=root, rootTensor=tensor)


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
        Refused("requires non-empty tensor list", lambda pg, t, me: pg.allreduce([])),
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
