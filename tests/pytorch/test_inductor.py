"""Functional collectives after inductor's compilation, on four processes over both backends."""

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from support.torch.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)
SIZE = 4


def _all_of_them(x: Any, swapped: Any, part: Any) -> Any:
    """Return the results of every functional collective on 16 numbers, in two groups."""
    world = dist.group.WORLD
    whole = funcol.all_gather_tensor(x * 2, 0, world)
    share = funcol.reduce_scatter_tensor(whole + 1, "sum", 0, world)
    first, second = funcol.all_reduce_coalesced([share, share * 2], "avg", world)
    wholes = funcol.all_gather_into_tensor_coalesced([first, second], world)
    shares = funcol.reduce_scatter_tensor_coalesced(wholes, "max", [0, 0], world)
    there = funcol.all_to_all_single(shares[0] + shares[1], swapped, swapped, world)
    given = funcol.broadcast(there.relu(), 1, world)
    turned = funcol.permute_tensor(given, [1, 2, 3, 0], world)
    return funcol.all_reduce(given * x, "sum", part) + turned


def _outcome(rank: int, compiles: bool) -> Any:
    part = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    swapped = [4] * SIZE
    act = functools.partial(_all_of_them, swapped=swapped, part=part)
    if compiles:
        act = torch.compile(act, fullgraph=True)
    return [act(torch.arange(16.0) - 5 * rank + step).tolist() for step in range(3)]


def _gradients(rank: int, compiles: bool) -> Any:
    name = dist.group.WORLD.group_name

    def act(x: Any) -> Any:
        there = funcol.all_to_all_single_autograd(x * 3, [1] * SIZE, [1] * SIZE, name)
        whole = funcol.all_gather_tensor_autograd(there, 0, name)
        return (funcol.reduce_scatter_tensor_autograd(whole, "sum", 0, name) * (rank + 1)).sum()

    if compiles:
        act = torch.compile(act, fullgraph=True)
    x = (torch.arange(8.0).view(SIZE, 2) + rank).requires_grad_()
    total = act(x)
    total.backward()
    return total.item(), x.grad.tolist()


def test_what_inductor_compiles_for_four_processes_gives_what_it_gives_over_gloo() -> None:
    def ran(backend: str, compiles: bool) -> Any:
        def act(rank: int) -> Any:
            with _what_pytorch_deprecates_unheard():
                return _outcome(rank, compiles), _gradients(rank, compiles)

        return run_ranks(SIZE, act, backend=backend, timeout=200.0, deadline=250.0)

    with _what_pytorch_deprecates_unheard():
        # Read once, and not by each of the forked ranks.
        importlib.import_module("torch._inductor.compile_fx")
    ours = ran("allhands", compiles=True)
    assert ours == ran("allhands", compiles=False)
    assert ours == ran("gloo", compiles=True)


@contextlib.contextmanager
def _what_pytorch_deprecates_unheard() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
