"""Communication hooks of DDP: PyTorch's own and the user's, alone and beside Gloo's."""

import re
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.nn.parallel import DistributedDataParallel

from support.torch.ranks import on_ranks, run_ranks
from support.torch.training import (
    SMALL,
    assert_all_close,
    loss_of,
    parallel,
    parameters,
    rows,
    trained,
)

SIZE = 2


def power_sgd() -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=1
    )


def losses_with(hook: Any, state: Any = None, **options: Any) -> list[float]:
    model = parallel(**options)
    model.register_comm_hook(state, hook)
    return trained(model, rows(dist.get_rank()))


# ---------------------------------------------------------------- as over Gloo


def like_gloo(rank: int) -> dict[str, list[float]]:
    local = post_localSGD_hook.PostLocalSGDState(
        None, dist.new_subgroups(1)[0], start_localSGD_iter=3
    )
    builtin = {}
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        model = parallel(bucket_cap_mb=SMALL)
        model._register_builtin_comm_hook(kind)
        builtin[str(kind)] = trained(model, rows(rank))
    small = {"bucket_cap_mb": SMALL}
    return builtin | {
        "none": trained(parallel(**small), rows(rank)),
        "allreduce": losses_with(default_hooks.allreduce_hook, **small),
        "fp16": losses_with(default_hooks.fp16_compress_hook, **small),
        "fp16 around": losses_with(
            default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), **small
        ),
        "noop": losses_with(debugging_hooks.noop_hook),
        "PowerSGD": losses_with(powerSGD_hook.powerSGD_hook, power_sgd()),
        "post-local SGD": losses_with(post_localSGD_hook.post_localSGD_hook, local, **small),
    }


def test_p117_hooks_give_the_losses_that_they_give_over_gloo():
    wanted = run_ranks(SIZE, like_gloo, backend="gloo")
    found = run_ranks(SIZE, like_gloo)
    assert found[0].keys() == wanted[0].keys()
    for mine, theirs in zip(found, wanted, strict=True):
        for name, losses in theirs.items():
            assert_all_close(mine[name], losses)
    other = [found[0][name] for name in ("fp16", "noop", "PowerSGD", "post-local SGD")]
    assert found[0]["none"] not in other, "they do nothing"


# ---------------------------------------------------------------- beyond Gloo


@on_ranks(SIZE)
def test_p117_bfloat16_and_quantisation_average_as_well_as_they_can(rank: int) -> None:
    exact = trained(parallel(bucket_cap_mb=SMALL), rows(rank))
    for hook in (
        default_hooks.bf16_compress_hook,
        default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
        quantization_hooks.quantization_pertensor_hook,
        quantization_hooks.quantization_perchannel_hook,
    ):
        losses = losses_with(hook, bucket_cap_mb=SMALL)
        assert losses != exact
        assert_all_close(losses, exact, rtol=0.02)


def test_p117_hooks_that_call_on_do_so_in_one_order_on_all_ranks():
    """With many buckets, whose callbacks would otherwise call in a different order on each rank."""

    def body(rank: int) -> list[float]:
        model = parallel(bucket_cap_mb=SMALL)
        model.register_comm_hook(power_sgd(), powerSGD_hook.powerSGD_hook)
        trained(model, rows(rank, 10))
        return parameters(model)

    found = run_ranks(3, body)
    assert found[0] == found[1] == found[2]


@on_ranks(3)
def test_p085_a_hook_may_call_on_in_callbacks_and_wait_there(rank: int) -> None:
    group = dist.group.WORLD

    def in_two(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sum over pairs of steps: to the first rank, and back."""
        tensor = bucket.buffer()
        first = dist.reduce(tensor, 0, group=group, async_op=True).get_future()

        def back(_: Any) -> torch.Tensor:
            again = dist.broadcast(tensor, 0, group=group, async_op=True).get_future()
            return again.then(lambda done: done.value()[0].div_(3)).wait()

        return first.then(back)

    plain, hooked = parallel(bucket_cap_mb=SMALL), parallel(bucket_cap_mb=SMALL)
    hooked.register_comm_hook(None, in_two)
    assert_all_close(trained(hooked, rows(rank)), trained(plain, rows(rank)))
    assert_all_close(parameters(hooked), parameters(plain))


@on_ranks(2)
def test_p085_what_follows_runs_for_one_bucket_at_a_time_and_in_their_order(rank: int) -> None:
    """Hooks share state between buckets without a lock, as ZeRO's hooks with their steps."""
    model = parallel(bucket_cap_mb=SMALL / 10)
    works: list[Any] = []
    order: list[int] = []
    running: list[int] = []
    looked: list[bool] = []
    are_all_called, intrudes = threading.Event(), threading.Event()

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        works.append(work)
        of_hook = threading.get_ident()
        if bucket.is_last():
            are_all_called.set()

        def follow(done: Any) -> torch.Tensor:
            order.append(bucket.index())
            running.append(bucket.index())
            if len(running) > 1:
                intrudes.set()
            is_first = bucket.index() == 0 and not bucket.is_last()
            if is_first and threading.get_ident() != of_hook:  # else it had ended by then
                looked.append(True)
                assert are_all_called.wait(20)
                for one in works:
                    one.wait()
                assert not intrudes.wait(0.2)  # the others could follow by now
            running.remove(bucket.index())
            return done.value()[0]

        return work.get_future().then(follow)

    model.register_comm_hook(None, hook)
    for _ in range(10):
        for x, wanted in rows(rank):  # one step to see the buckets
            for one in (works, order):
                one.clear()
            are_all_called.clear()
            loss_of(model, x, wanted).backward()
        have_all_looked = torch.tensor(float(bool(looked)))
        dist.all_reduce(have_all_looked, dist.ReduceOp.MIN)
        if have_all_looked:  # else each first call had ended before its hook followed it
            break
    assert order == list(range(len(works)))
    assert len(order) > 2
    assert looked
    assert not intrudes.is_set()


@on_ranks(2)
def test_p085_the_hook_of_the_last_bucket_may_complete_the_others(rank: int) -> None:
    kept: list[tuple[Any, torch.Tensor]] = []

    def in_one(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        kept.append((torch.futures.Future(), bucket.buffer()))
        mine = kept[-1][0]
        if bucket.is_last():
            parts, whole = list(kept), torch.cat([buffer for _, buffer in kept])
            kept.clear()

            def share(_: object) -> None:
                pieces = whole.div_(2).split([buffer.numel() for _, buffer in parts])
                for (future, _), piece in zip(parts, pieces, strict=True):
                    future.set_result(piece.clone())  # DDP reads from the start of its storage

            dist.all_reduce(whole, async_op=True).get_future().then(share)
        return mine

    plain, hooked = parallel(bucket_cap_mb=SMALL), parallel(bucket_cap_mb=SMALL)
    hooked.register_comm_hook(None, in_one)
    assert_all_close(trained(hooked, rows(rank)), trained(plain, rows(rank)))


# ---------------------------------------------------------------- of the user


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Any) -> torch.Tensor:
        return self.p + x


@on_ranks(SIZE)
def test_p085_a_hook_returns_a_future_whose_value_is_the_gradient(rank: int) -> None:
    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(torch.ones_like(bucket.buffer()))

        def double(done: Any) -> torch.Tensor:
            return 2 * done.value()

        return future.then(double)

    model = DistributedDataParallel(Task())
    model.register_comm_hook(None, hook)
    model(rank).mean().backward()
    assert model.module.p.grad.eq(2).all()


@on_ranks(SIZE)
def test_p085_a_hook_averages_sparse_gradients(rank: int) -> None:
    plain = nn.EmbeddingBag(10, 3, sparse=True)
    hooked = nn.EmbeddingBag(10, 3, sparse=True)
    hooked.load_state_dict(plain.state_dict())

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / SIZE)

    model = DistributedDataParallel(hooked)
    model.register_comm_hook(None, hook)
    indices = torch.tensor([[rank, 3, 5], [rank, 3 + rank, 9]])
    model(indices).mean().backward()
    beside = DistributedDataParallel(plain)
    beside(indices).mean().backward()
    torch.testing.assert_close(hooked.weight.grad.to_dense(), plain.weight.grad.to_dense())
    assert hooked.weight.grad.is_sparse


@on_ranks(SIZE)
def test_p086_hooks_are_checked_when_they_are_registered(rank: int) -> None:
    def bucket_is_int(state: object, bucket: int) -> torch.futures.Future[torch.Tensor]:
        raise AssertionError

    def gives_int(state: object, bucket: dist.GradBucket) -> int:
        raise AssertionError

    model = DistributedDataParallel(Task())
    with pytest.raises(TypeError, match=re.escape("Communication hook must be callable.")):
        model.register_comm_hook(None, 1)
    with pytest.raises(ValueError, match=r"bucket annotation should be dist.GradBucket"):
        model.register_comm_hook(None, bucket_is_int)
    with pytest.raises(ValueError, match=r"return annotation should be torch.futures.Future"):
        model.register_comm_hook(None, gives_int)


@on_ranks(SIZE)
def test_p086_what_a_hook_returns_must_be_a_future(rank: int) -> None:
    model = DistributedDataParallel(Task())
    model.register_comm_hook(None, lambda state, bucket: 1)
    text = "callback must return a torch.futures.Future object, but got"
    with pytest.raises(RuntimeError, match=text):
        model(rank).mean().backward()


@on_ranks(SIZE)
def test_p086_a_hook_can_be_registered_once(rank: int) -> None:
    model = DistributedDataParallel(Task())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    text = "register_comm_hook or register_builtin_comm_hook can only be called once."
    with pytest.raises(RuntimeError, match=text):
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError, match=text):
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)


@on_ranks(SIZE)
def test_p085_what_a_hook_raises_is_what_the_backward_pass_raises(rank: int) -> None:
    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        def fail(_: Any) -> torch.Tensor:
            raise ValueError("what the hook says")

        return future.then(fail)

    model = DistributedDataParallel(Task())
    model.register_comm_hook(None, hook)
    with pytest.raises(RuntimeError, match="what the hook says"):
        model(rank).mean().backward()
