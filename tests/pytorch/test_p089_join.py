"""PyTorch's Join over allhands: ranks with uneven inputs, alone and under DDP and ZeRO."""

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from support.torch.ranks import on_ranks, run_ranks
from support.torch.training import (
    SMALL,
    ZeroRedundancyOptimizer,
    assert_all_close,
    loss_of,
    network,
    parallel,
    parameters,
    rows,
)

SIZE = 3
INPUTS = 2
"""Of rank 0; every other rank has one more than that before it."""
BEFORE, AFTER = 41, 42


class Shadow(JoinHook):
    def __init__(self, summing: "Summing", count: int, has_post_hook: bool) -> None:
        self._summing = summing
        self._count = count
        self._has_post_hook = has_post_hook

    def main_hook(self) -> None:
        for _ in range(self._count):
            dist.all_reduce(torch.zeros(1))

    def post_hook(self, is_last_joiner: bool) -> None:
        if not self._has_post_hook:
            return
        last = torch.tensor([dist.get_rank() if is_last_joiner else -1])
        dist.all_reduce(last, dist.ReduceOp.MAX)
        if dist.get_rank() == last.item():
            self._summing.given = torch.tensor([AFTER])
        dist.broadcast(self._summing.given, int(last.item()))
        self._summing.last = int(last.item())


class Summing(Joinable):
    def __init__(self) -> None:
        super().__init__()
        self.given = torch.tensor([BEFORE])
        self.last = -1

    def __call__(self, count: int) -> int:
        Join.notify_join_context(self)
        total = 0
        for _ in range(count):
            one = torch.ones(1)
            dist.all_reduce(one)
            total += int(one.item())
        return total

    def join_hook(self, **kwargs: Any) -> JoinHook:
        return Shadow(self, kwargs.get("count", 1), kwargs.get("has_post_hook", False))

    @property
    def join_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        return dist.group.WORLD


def summed(rank: int, joinables: list[Summing], count: int, inputs: int, **options: Any) -> int:
    """Return the sum of all calls of a rank with `inputs` inputs."""
    total = 0
    with Join(joinables, count=count, **options):
        for _ in range(inputs):
            for one in joinables:
                total += one(count)
    return total


def expected(rank: int) -> int:
    """Return the sum of ones, a call for each input: fewer ranks have inputs each time."""
    return sum(SIZE - max(step - INPUTS + 1, 0) for step in range(INPUTS + rank))


@on_ranks(SIZE)
def test_p089_main_hooks_stand_in_for_ranks_without_inputs(rank: int) -> None:
    assert summed(rank, [Summing()], 1, INPUTS + rank) == expected(rank)
    assert summed(rank, [Summing()], 3, INPUTS + rank) == 3 * expected(rank)


@on_ranks(SIZE)
def test_p090_post_hooks_know_who_was_last(rank: int) -> None:
    one, other = Summing(), Summing()
    assert summed(rank, [one], 0, INPUTS + rank, has_post_hook=True) == 0
    assert summed(rank, [other], 1, INPUTS + rank, has_post_hook=True) == expected(rank)
    assert (one.given.item(), one.last) == (other.given.item(), other.last) == (AFTER, SIZE - 1)


@on_ranks(SIZE)
def test_p091_several_joinables_shadow_each_other_in_turn(rank: int) -> None:
    both = [Summing(), Summing()]
    found = summed(rank, both, 1, INPUTS + rank, has_post_hook=True)
    assert found == 2 * expected(rank)
    assert [one.given.item() for one in both] == [AFTER] * 2


@on_ranks(SIZE)
def test_p092_a_disabled_join_changes_nothing(rank: int) -> None:
    for joinables in ([Summing()], [Summing(), Summing()]):
        found = summed(rank, joinables, 1, INPUTS, enable=False, has_post_hook=True)
        assert found == len(joinables) * SIZE * INPUTS
        assert all(one.given.item() == BEFORE for one in joinables)


@on_ranks(SIZE)
def test_p093_early_termination_throws_on_all_ranks(rank: int) -> None:
    text = (
        "Rank 0 exhausted all inputs."
        if rank == 0
        else ("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
    )
    for joinables in ([Summing()], [Summing(), Summing()]):
        with pytest.raises(RuntimeError) as raised:
            summed(rank, joinables, 1, INPUTS + rank, throw_on_early_termination=True)
        assert text in str(raised.value)
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == SIZE


@on_ranks(SIZE)
def test_p094_named_arguments_reach_the_hooks(rank: int) -> None:
    seen: dict[str, Any] = {}

    class Seeing(Summing):
        def join_hook(self, **kwargs: Any) -> JoinHook:
            seen.update(kwargs)
            return super().join_hook(**kwargs)

    summed(rank, [Seeing()], 2, INPUTS + rank, has_post_hook=False, other="so")
    assert seen == {"count": 2, "has_post_hook": False, "other": "so"}


# ---------------------------------------------------------------- with what PyTorch has


def joined(rank: int) -> dict[str, Any]:
    """Train on more rows the higher the rank; return losses and parameters of several ways."""
    found = {}
    ways: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "shared by all": ({"bucket_cap_mb": SMALL}, {}),
        "by those there": (
            {"find_unused_parameters": True},
            {"divide_by_initial_world_size": False},
        ),
        "static": ({"static_graph": True, "gradient_as_bucket_view": True}, {}),
        "zero": ({"bucket_cap_mb": SMALL}, {}),
    }
    for way, (options, how) in ways.items():
        model = parallel(**options)
        if way == "zero":
            kind: Any = ZeroRedundancyOptimizer
            optimizer = kind(model.parameters(), torch.optim.Adam, lr=0.01)
            join: Any = Join([model, optimizer])
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            join = model.join(**how)
        losses = []
        with join:
            for x, wanted in rows(rank, 2 + 2 * rank):
                optimizer.zero_grad()
                loss = loss_of(model, x, wanted)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        found[way] = losses, parameters(model)
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_p089_uneven_inputs_give_the_losses_that_they_give_over_gloo(size: int) -> None:
    found, wanted = run_ranks(size, joined), run_ranks(size, joined, backend="gloo")
    for mine, theirs in zip(found, wanted, strict=True):
        for way, (losses, end) in theirs.items():
            assert_all_close(mine[way][0], losses)
            assert_all_close(mine[way][1], end, rtol=1e-4)
    assert found[0]["shared by all"][1] == found[1]["shared by all"][1]


@on_ranks(2)
def test_p089_who_stays_divides_by_those_there(rank: int) -> None:
    """A call counts the ranks present; C++ alone holds the call until the backward pass."""
    model = parallel()
    with model.join(divide_by_initial_world_size=False):
        for x, wanted in rows(rank, 1 + 2 * rank):
            loss = loss_of(model, x, wanted)
            gc.collect()
            model.zero_grad()
            loss.backward()
    if rank == 1:
        alone = network()
        *_, (x, wanted) = rows(1, 3)
        loss_of(alone, x, wanted).backward()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
