"""Calls through PyTorch's dispatcher: counted, traced, without data, in flight; beside Gloo."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._C._distributed_c10d import _get_work_registry_size as works_in_flight
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx

from support.torch.ranks import on_ranks, run_ranks

BACKENDS = ("allhands", "gloo")


def on_both(size: int, body: Any) -> tuple[list[Any], list[Any]]:
    """Return the body's results over each backend, by rank."""
    mine, theirs = (run_ranks(size, body, backend=backend) for backend in BACKENDS)
    return mine, theirs


def test_a_mode_that_counts_sees_every_call_as_over_gloo() -> None:
    def body(rank: int) -> tuple[dict[str, int], list[Any]]:
        parts = [torch.empty(2) for _ in range(2)]
        x, whole, half = torch.arange(2.0) + rank, torch.empty(4), torch.empty(1)
        sparse = torch.sparse_coo_tensor([[rank, 2]], torch.ones(2), (4,), check_invariants=True)
        first = rank == 0
        with CommDebugMode() as counter:
            for _ in range(2):
                dist.all_reduce(x)
            dist.all_reduce(sparse)
            dist.all_gather(parts, x)
            dist.all_gather_single(whole, x)
            dist.reduce_scatter_single(half, x)
            dist.gather(x, parts if first else None)
            dist.scatter(x, parts if first else None)
            dist.all_to_all(parts, [x.clone(), x])
            dist.all_to_all_single(whole, whole.clone())
            dist.reduce(x, 1, dist.ReduceOp.MAX)
            dist.broadcast(x, 1)
            sent, got = dist.isend(half, 1 - rank), torch.empty(1)
            dist.irecv(got, 1 - rank).wait()
            sent.wait()
        counts = {str(name): count for name, count in counter.get_comm_counts().items()}
        tensors = [x, whole, half, got, sparse.to_dense(), *parts]
        return counts, [one.tolist() for one in tensors]

    mine, theirs = on_both(2, body)
    assert mine == theirs
    assert mine[0][0]["c10d.allreduce_"] == 3
    assert len(mine[0][0]) == 10


def test_tensors_without_data_go_through_every_call_as_over_gloo() -> None:
    def body(rank: int) -> list[Any]:
        with FakeTensorMode():
            x, whole = torch.empty(2), torch.empty(4)
            dist.all_reduce(x)
            work = dist.all_gather_single(whole, x, async_op=True)
            work.wait()
            dist.broadcast(x, 1)
            shapes = [tuple(x.shape), tuple(whole.shape)]
        nowhere = torch.empty(3, device="meta")
        dist.all_reduce(nowhere)
        here = torch.ones(1)
        dist.all_reduce(here)
        return [shapes, nowhere.device.type, here.tolist()]

    mine, theirs = on_both(2, body)
    assert mine == theirs == [[[(2,), (4,)], "meta", [2.0]]] * 2


@on_ranks(2)
def test_a_mode_leaves_a_call_its_options_and_its_work(rank: int) -> None:
    x = torch.full((2,), rank + 1.0)
    with CommDebugMode():
        work = dist.all_reduce(x, dist._make_nccl_premul_sum(2.0), async_op=True)
        work.wait()
        assert (type(work).__module__, work.is_success()) == ("allhands.torch.work", True)
        assert work.get_future().wait()[0] is x
        with pytest.raises(RuntimeError, match="invalid root rank"):
            dist.group.WORLD.broadcast(x, root=2)
    assert x.tolist() == [6.0, 6.0]


@on_ranks(2)
def test_p052_a_traced_call_is_in_the_graph_and_has_ended_when_its_result_is_read(
    rank: int,
) -> None:
    def doubled(x: Any) -> Any:
        dist.all_reduce(x, async_op=True).wait()
        return x * 2

    graph = make_fx(doubled)(torch.ones(4))
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert "c10d.allreduce_.default" in called
    assert called.index("c10d.allreduce_.default") < called.index("aten.mul.Tensor")
    for step in range(20):  # nothing in the graph waits for it
        assert graph(torch.full((50_000,), rank + step + 1.0)).unique().tolist() == [
            4.0 * step + 6.0
        ]


@on_ranks(2)
def test_p052_traced_collectives_give_what_they_give_untraced(rank: int) -> None:
    def gathered(x: Any, parts: list[Any]) -> Any:
        dist.all_gather(parts, x, async_op=True).wait()
        return parts[0] * 2 + parts[1]

    def broadcast(x: Any, parts: list[Any]) -> Any:
        dist.broadcast(x, 1, async_op=True).wait()
        return x * 2

    def scattered(x: Any, parts: list[Any]) -> Any:
        whole = [x * 3, x * 4] if rank == 0 else None
        dist.scatter(parts[0], whole, async_op=True).wait()
        return parts[0] + 1

    def exchanged(x: Any, parts: list[Any]) -> Any:
        dist.all_to_all(parts, [x * 3, x * 4], async_op=True).wait()
        return parts[0] - parts[1]

    def shared(x: Any, parts: list[Any]) -> Any:
        dist.reduce_scatter(parts[0], [x * 3, x * 4], async_op=True).wait()
        return parts[0] + 1

    x = torch.arange(4.0).view(2, 2) + rank
    for call in (gathered, broadcast, scattered, exchanged, shared):
        graph = make_fx(call)(torch.ones(2, 2), [torch.zeros(2, 2) for _ in range(2)])
        assert any(str(node.target).startswith("c10d.") for node in graph.graph.nodes)
        traced = graph(x.clone(), [torch.zeros(2, 2) for _ in range(2)])
        called = call(x.clone(), [torch.zeros(2, 2) for _ in range(2)])
        assert traced.tolist() == called.tolist(), call


@on_ranks(2)
def test_p052_calls_in_a_row_and_nested_are_each_waited_for_in_a_graph(rank: int) -> None:
    def call(x: Any) -> Any:
        first, second = x * 1, x * 2
        works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
        for work in works:
            work.wait()
        nested = first * second
        dist.all_reduce(nested, async_op=True).wait()
        return nested + first

    graph = make_fx(call)(torch.ones(2))
    assert graph(torch.full((2,), rank + 1.0)).tolist() == [39.0, 39.0]


def test_the_result_of_a_functional_call_may_be_given_to_a_plain_one() -> None:
    def body(rank: int) -> list[Any]:
        reduced = funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
        dist.all_reduce(reduced)
        again = funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
        parts = [torch.empty(3) for _ in range(2)]
        dist.all_gather(parts, again)
        return [reduced.tolist(), *(one.tolist() for one in parts)]

    mine, theirs = on_both(2, body)
    assert mine == theirs == [[[4.0] * 3, [2.0] * 3, [2.0] * 3]] * 2


def test_what_is_in_flight_is_waited_for_where_a_graph_takes_it() -> None:
    def body(rank: int) -> tuple[int, list[float], int]:
        x, before = torch.full((2,), rank + 1.0), works_in_flight()
        with funcol.allow_inflight_collective_as_graph_input_ctx():
            work = dist.all_reduce(x, async_op=True)
            flying = works_in_flight() - before
            waited = torch.ops._c10d_functional.wait_tensor(x).tolist()
            after = works_in_flight() - before
        work.wait()
        return flying, waited, after

    mine, theirs = on_both(2, body)
    assert mine == theirs == [(1, [3.0, 3.0], 0)] * 2


def test_operators_that_write_where_they_are_told_are_waited_for_over_both_in_one_process() -> None:
    def body(rank: int) -> list[Any]:
        functional, store = torch.ops._c10d_functional, dist.group.WORLD.get_group_store()

        def in_flight(name: str, call: Callable[[], Any]) -> Any:
            """Make a call, on rank 1 only after rank 0."""
            if rank == 1:
                store.wait([name])
            made = call()
            store.set(name, "made")
            return made

        seen = []
        for backend in BACKENDS:
            group = dist.new_group(backend=backend)
            name = group.group_name
            out, x, given = torch.empty(4), torch.arange(2.0) + rank, torch.zeros(2)
            whole = in_flight(
                f"{backend} gather",
                lambda out=out, x=x, name=name: functional.all_gather_into_tensor_out(
                    x, 2, name, out=out
                ),
            )
            gathered = functional.wait_tensor(whole).tolist()
            pair, to = ["irecv", "isend"], [1 - rank] * 2
            got, sent = in_flight(
                f"{backend} messages",
                lambda x=x, given=given, name=name, pair=pair, to=to: functional.batch_p2p_ops(
                    pair, to, [0, 0], [given, x], name
                ),
            )
            received = functional.wait_tensor(got).tolist()
            functional.wait_tensor(sent)
            with CommDebugMode() as counter:
                dist.all_reduce(x, group=group)
            seen.append((gathered, received, x.tolist(), counter.get_total_counts()))
        return seen

    for rank, seen in enumerate(run_ranks(2, body)):
        wanted = ([0.0, 1.0, 1.0, 2.0], [1.0 - rank, 2.0 - rank], [1.0, 3.0], 1)
        assert seen == [wanted, wanted]


def test_groups_of_gloo_go_on_as_before_once_our_kernels_are_in_front_of_theirs() -> None:
    def body(rank: int) -> float:
        with CommDebugMode():
            dist.all_reduce(torch.ones(1), group=dist.new_group(backend="allhands"))
        total = torch.zeros(1000)
        for _ in range(400):  # their threads want the interpreter's lock while calls are made
            works, given = [], [torch.ones(1000) for _ in range(4)]
            for one in given:
                works.append(dist.all_reduce(one, async_op=True))
            for one, work in zip(given, works, strict=True):
                work.wait()
                total += one
        return total.unique().item()

    assert run_ranks(2, body, backend="gloo") == [3200.0] * 2
