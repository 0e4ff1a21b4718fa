"""Differentiated, traced and compiled collectives."""

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental.proxy_tensor import make_fx

from support.torch.shared_world import SharedWorld

on_two_ranks = SharedWorld(2, "Dynamo does not know how to trace", deadline=110.0)

WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda act: act,
    "compiled": lambda act: torch.compile(act, fullgraph=True, backend="aot_eager"),
}


def _reduced(group: Any, x: Any) -> Any:
    return funcol.all_reduce(x, "sum", group=group) + 1


@on_two_ranks
def test_p068_gradients_of_the_functional_all_reduce(rank: int) -> None:
    x, y = (torch.rand(4, requires_grad=True) for _ in range(2))
    (funcol.all_reduce(x, "sum", dist.group.WORLD) + y).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [1.0] * 4
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 4  # as PyTorch has it since 2.13


@on_two_ranks
def test_p069_the_graph_of_a_traced_all_reduce(rank: int) -> None:
    mesh = DeviceMesh("cpu", torch.arange(2))
    for group in (dist.group.WORLD, mesh, (mesh, 0)):
        graph = make_fx(functools.partial(_reduced, group))(torch.rand(4))
        text = str(graph.graph)
        assert re.search(r"all_reduce\.default(.|\n)*wait_tensor\.default", text)
        assert "get_attr" not in text
        assert graph(torch.full((4,), rank + 1.0)).tolist() == [4.0] * 4


@on_two_ranks
def test_p071_functional_and_plain_collectives_compile_to_one_graph(rank: int) -> None:
    world = dist.group.WORLD
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def functional(x: Any) -> Any:
        return funcol.all_reduce(x * 2, "sum", world) + dist.get_rank() * world.size()

    @torch.compile(fullgraph=True, backend=counter)
    def plain(x: Any) -> Any:
        dist.all_reduce(x, dist.ReduceOp.AVG)
        half, swapped, parts = torch.empty(2), torch.empty(4), [torch.empty(4) for _ in range(2)]
        dist.reduce_scatter_single(half, x)
        dist.all_to_all_single(swapped, x)
        dist.all_gather(parts, x)
        return half.sum() + swapped + parts[0] + parts[1]

    x = torch.full((4,), rank + 1.0)
    assert functional(x).tolist() == [6.0 + 2 * rank] * 4
    assert plain(x.clone()).tolist() == [6.0 + 1.5 * 3] * 4
    assert counter.frame_count == 2


@on_two_ranks
def test_p052_work_is_waited_for_where_a_compiled_function_has_to_stop(rank: int) -> None:
    @torch.compile(backend="aot_eager")
    def act(x: Any) -> Any:
        x = x * 2
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        y = x + 1
        sent, got = dist.isend(y, 1 - rank), torch.empty_like(y)
        dist.irecv(got, 1 - rank).wait()
        sent.wait()
        parts = [torch.empty_like(y) for _ in range(2)] if rank == 0 else None
        dist.gather(got, parts)
        dist.scatter(got, parts)
        dist.barrier()
        return got * 2

    for step in range(3):
        assert act(torch.full((3,), rank + step + 1.0)).tolist() == [14.0 + 8 * step] * 3


@on_two_ranks
def test_p071_messages_compile_to_one_graph_where_pytorch_is_asked_to(rank: int) -> None:
    def one_by_one(x: Any) -> Any:
        got = torch.empty_like(x)
        sent, received = dist.isend(x, 1 - rank), dist.irecv(got, 1 - rank)
        sent.wait()
        received.wait()
        return got * 2

    def together(x: Any) -> Any:
        got = torch.empty_like(x)
        calls = [dist.P2POp(dist.irecv, got, 1 - rank), dist.P2POp(dist.isend, x * 2, 1 - rank)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return got

    with torch._dynamo.config.patch(enable_p2p_compilation=True):
        for act in (one_by_one, together):
            compiled = torch.compile(act, fullgraph=True, backend="aot_eager")
            for step in range(3):
                x = torch.full((3,), rank + step + 1.0)
                assert compiled(x).tolist() == [2.0 * (2 - rank + step)] * 3


@on_two_ranks
def test_a_collective_in_flight_may_be_the_input_of_a_graph(rank: int) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def tripled(x: Any) -> Any:
        return torch.ops._c10d_functional.wait_tensor(x) * 3

    for _ in range(10):
        x = torch.full((100_000,), rank + 1.0)
        with funcol.allow_inflight_collective_as_graph_input_ctx():
            work = dist.all_reduce(x, async_op=True)
            result = tripled(x)
        assert result.unique().tolist() == [9.0]
        work.wait()


@on_two_ranks
def test_p073_gradients_of_all_to_all_single(rank: int) -> None:
    name = dist.group.WORLD.group_name

    def act(x: Any) -> Any:
        return funcol.all_to_all_single_autograd(x * 2, [1, 1], [1, 1], name) + 0

    for way in WAYS.values():
        x = torch.full((2, 2), rank + 1.0, requires_grad=True)
        out = way(act)(x)
        assert out.requires_grad
        assert out.grad_fn is not None
        assert out.tolist() == [[2.0, 2.0], [4.0, 4.0]]
        (out * (rank + 1)).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [[2.0, 2.0], [4.0, 4.0]]


@on_two_ranks
def test_p074_gradients_of_all_gather_and_reduce_scatter(rank: int) -> None:
    name = dist.group.WORLD.group_name

    def gathered(x: Any, dim: int) -> Any:
        return funcol.all_gather_tensor_autograd(x * 1.0, gather_dim=dim, group=name) * 1.0

    def shared(x: Any, dim: int) -> Any:
        out = funcol.reduce_scatter_tensor_autograd(x * 1.0, "sum", scatter_dim=dim, group=name)
        return out * 1.0

    for way in WAYS.values():
        for dim in range(3):
            x = torch.ones([3, 3, 3], requires_grad=True)
            whole = way(gathered)(x, dim)
            assert whole.shape[dim] == 6
            assert whole.unique().tolist() == [1.0]
            (whole.sum() * (rank + 1)).backward()
            assert x.grad is not None
            assert x.grad.unique().tolist() == [3.0]
        for dim in range(2):
            shape = [3, 3]
            shape[dim] = 6
            x = torch.ones(shape, requires_grad=True)
            share = way(shared)(x, dim)
            assert share.tolist() == [[2.0] * 3] * 3
            (share.sum() * (rank + 1)).backward()
            assert x.grad is not None
            assert [part.unique().item() for part in x.grad.chunk(2, dim)] == [1.0, 2.0]


@on_two_ranks
def test_p075_a_backward_pass_uses_the_group_of_its_forward_pass(rank: int) -> None:
    group = dist.new_group()

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.thread, context.group = threading.get_ident(), group
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            assert context.thread == threading.get_ident()
            assert dist.get_rank(context.group) == rank
            summed = gradient.clone()
            dist.all_reduce(summed, group=context.group)
            return summed

    x = torch.full((2,), rank + 1.0, requires_grad=True)
    (Summed.apply(x) * (rank + 1)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]


@on_two_ranks
def test_what_cannot_be_done_is_refused_by_name_in_compiled_code_too(rank: int) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def act(x: Any) -> Any:
        return funcol.all_reduce(x, "band", dist.group.WORLD) + 1

    with pytest.raises(RuntimeError, match=r"Cannot use ReduceOp\.BAND with non-integral dtype"):
        act(torch.ones(2))
    assert act(torch.tensor([3, 1 + rank])).tolist() == [4, 1]


@on_two_ranks
def test_p073_inductor_makes_one_all_to_all_single_and_one_wait_of_each_pass(rank: int) -> None:
    name = dist.group.WORLD.group_name

    def act(x: Any) -> Any:
        return (funcol.all_to_all_single_autograd(x * 10, [1, 1], [1, 1], name) + 2).sum()

    x = torch.rand((2, 2), requires_grad=True)
    _, codes = run_and_get_code(lambda: torch.compile(act, fullgraph=True)(x).backward())
    assert len(codes) == 2
    for code in codes:
        assert code.count("_c10d_functional.all_to_all_single.default(") == 1
        assert code.count("_c10d_functional.wait_tensor.default(") == 1
    assert x.grad is not None
    assert x.grad.tolist() == [[10.0, 10.0]] * 2


@on_two_ranks
def test_p071_what_inductor_makes_gives_what_the_function_gives(rank: int) -> None:
    world = dist.group.WORLD

    def act(x: Any) -> Any:
        whole = funcol.all_gather_tensor(x * 2, 0, world)
        share = funcol.reduce_scatter_tensor(whole + 1, "sum", 0, world)
        first, second = funcol.all_reduce_coalesced([share, share * 2], "sum", world)
        return (first.relu() + second) * rank

    x = torch.arange(8.0) - 3 * rank
    assert torch.compile(act, fullgraph=True)(x).tolist() == act(x).tolist()
