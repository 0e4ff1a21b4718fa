"""Helpers imported by the listings and absent from PyTorch's wheel, under the imported names.

The helpers are of this project: they check what the names of the tests say. The record marks the
tests that rest on them.
"""

import copy
import functools
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import TEST_SKIPS, MultiProcessTestCase
from torch.testing._internal.common_utils import find_free_port

LOOPBACK = "lo"


def gpus_for_rank(world_size: int) -> list[list[int]]:
    """Return the GPUs of each rank: as many each."""
    share = torch.cuda.device_count() // world_size
    return [list(range(rank * share, (rank + 1) * share)) for rank in range(world_size)]


def exit_if_lt_x_gpu(count: int) -> None:
    """End this rank as skipped where there are fewer GPUs."""
    if torch.cuda.device_count() < count:
        sys.exit(TEST_SKIPS[f"multi-gpu-{count}"].exit_code)


def with_comms() -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorate a test to run within a default group."""

    def decorate(test: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(test)
        def run(self: Any) -> None:
            self.dist_init()
            test(self)
            self.destroy_comms()

        return run

    return decorate


# ---------------------------------------------------------------- modules


class Task(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Any) -> Any:
        return self.p + x


class ModuleForDdpCommHook(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.t0 = Task()

    def forward(self, x: Any, rank: int) -> Any:
        return self.t0(x + rank)


class SparseGradientModule(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(10, 10, sparse=True)

    def forward(self, x: Any) -> Any:
        return nn.functional.softmax(self.embedding(x), dim=1)


class _Layers(nn.Module):  # type: ignore[misc]
    """Layers on devices in turn."""

    def __init__(self, devices: Sequence[Any]) -> None:
        super().__init__()
        places = [devices[at % len(devices)] for at in range(max(2, len(devices)))]
        self.layers = nn.ModuleList(nn.Linear(6, 6).to(place) for place in places)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x.to(layer.weight.device)).relu()
        return x


# ---------------------------------------------------------------- bases of tests


_LIMIT = 2
"""Seconds that a world has to form, too: a machine that is busy wants so many."""


class AbstractTimeoutTest:
    def _test_default_store_timeout(self: Any, backend: str) -> None:
        for url in self._urls():
            dist.init_process_group(
                backend, init_method=url, world_size=1, rank=0, timeout=timedelta(seconds=_LIMIT)
            )
            store = dist.distributed_c10d._get_default_store()
            began = time.monotonic()
            with self.assertRaisesRegex(RuntimeError, "(?i)timeout"):
                store.get("nobody sets it")
            took = time.monotonic() - began
            dist.destroy_process_group()
            self.assertGreaterEqual(took, _LIMIT)
            self.assertLess(took, 10 * _LIMIT)

    def _urls(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            yield f"file://{folder}/store"
        yield f"tcp://127.0.0.1:{find_free_port()}"


class CommonDistributedDataParallelTest:
    @property
    def world_size(self) -> int:
        return 2

    def _get_store(self: Any) -> Any:
        return dist.FileStore(self.file_name, self.world_size)

    def _test_ddp_with_process_group(
        self: Any,
        process_group: Any,
        devices: Sequence[Any],
        device_ids: Any,
        multi_device: bool = False,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        """Train on parts of each batch, and on the whole batch alone: the same parameters."""
        torch.manual_seed(self.world_size)
        alone = _Layers(devices)
        together = DistributedDataParallel(
            copy.deepcopy(alone),
            device_ids=None if multi_device else device_ids,
            process_group=process_group,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )
        optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (alone, together)]
        for _ in range(4):
            x = torch.randn(4 * self.world_size, 6, device=devices[0])
            parts = (x, x.chunk(self.world_size)[self.rank])
            for model, part, optimizer in zip((alone, together), parts, optimizers, strict=True):
                optimizer.zero_grad()
                model(part).square().mean().backward()
                optimizer.step()
            self.assertEqual(list(alone.parameters()), list(together.module.parameters()))

    def _simple_hook(self, state, bucket):  # type: ignore[no-untyped-def]
        """Return a future of twos; DDP checks annotations, so there are none."""
        ones: Any = torch.futures.Future()
        ones.set_result(torch.ones_like(bucket.buffer()))
        return ones.then(lambda future: 2 * future.value())

    def _run_and_verify_hook(self: Any, model: Any, x: Any, gradient: Any) -> None:
        model(x, self.rank).mean().backward()
        for parameter in model.parameters():
            self.assertEqual(parameter.grad, gradient)


_ROWS = [[float(rank), 1.0] for rank in range(16)]


class AbstractCommTest:
    @property
    def world_size(self) -> int:
        return 4

    def _join(self: Any, backend: str) -> Any:
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)
        return dist.group.WORLD

    # ------------------------------------------------------------ sequence numbers

    def _numbers(self, group: Any, others: Any) -> list[int]:
        """Return the sequence number of a group on each rank, told over another group."""
        told: list[Any] = [None] * dist.get_world_size(others)
        dist.all_gather_object(told, group._get_sequence_number_for_group(), others)
        return told

    def _test_sequence_num_set_default_pg(self: Any, backend: str) -> None:
        world = self._join(backend)
        self.assertEqual(len(set(self._numbers(world, dist.new_group()))), 1)

    def _test_sequence_num_set_new_group(self: Any, backend: str) -> None:
        self._join(backend)
        part = dist.new_group([0, 1])
        if self.rank < 2:
            self.assertEqual(len(set(self._numbers(part, part))), 1)

    def _test_sequence_num_incremented_default_group(self: Any, backend: str) -> None:
        self._counted(self._join(backend), dist.new_group())

    def _test_sequence_num_incremented_subgroup(self: Any, backend: str) -> None:
        self._join(backend)
        ranks = [0, 1, 3]
        part, others = dist.new_group(ranks), dist.new_group(ranks)
        if self.rank in ranks:
            self._counted(part, others)

    def _counted(self: Any, group: Any, others: Any) -> None:
        """Check that each call increments the count, and that ranks without a call are seen."""
        (before,) = set(self._numbers(group, others))
        for calls in range(1, 11):
            dist.all_reduce(torch.ones(1), group=group)
            self.assertEqual(set(self._numbers(group, others)), {before + calls})
        place = dist.get_rank(group)
        last = torch.ones(1)
        if place == 1:
            work = dist.all_reduce(last, group=group, async_op=True)
        numbers = self._numbers(group, others)
        self.assertEqual(numbers, [before + 10 + (at == 1) for at in range(len(numbers))])
        if place != 1:
            work = dist.all_reduce(last, group=group, async_op=True)
        work.wait()
        self.assertEqual(last.item(), len(numbers))

    # ------------------------------------------------------------ membership

    def _test_warn_not_in_group(self: Any, backend: str) -> None:
        self._join(backend)
        part = dist.new_group([1])
        if self.rank == 1:
            return
        x, parts = torch.ones(2, 2), [torch.ones(2, 2)]
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(x, group=part),
            lambda: dist.all_gather(parts, x, group=part),
            lambda: dist.reduce(x, 1, group=part),
            lambda: dist.broadcast(x, 1, group=part),
            lambda: dist.reduce_scatter(x, parts, group=part),
            lambda: dist.all_to_all(parts, parts, group=part),
            lambda: dist.barrier(group=part),
        ]
        for call in calls:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
            self.assertTrue(any("does not belong to" in str(one.message) for one in caught))

    def _test_rank_membership(self: Any, backend: str) -> None:
        self._join(backend)
        part = dist.new_group([1])
        self.assertEqual(dist.get_group_rank(part, 1), 0)
        self.assertEqual(dist.get_global_rank(part, 0), 1)
        self.assertEqual(dist.get_process_group_ranks(part), [1])
        with self.assertRaisesRegex(ValueError, "not part of group"):
            dist.get_group_rank(part, 0)
        with self.assertRaisesRegex(ValueError, "not part of group"):
            dist.get_global_rank(part, 1)
        unknown = dist.ProcessGroup(self.rank, self.world_size)
        for ask in (dist.get_group_rank, dist.get_global_rank):
            with self.assertRaisesRegex(ValueError, "not registered"):
                ask(unknown, 0)

    # ------------------------------------------------------------ dtypes

    def _test_tensor_dtype_mismatch(self: Any, backend: str) -> None:
        self._join(backend)
        x, size = torch.ones(4), self.world_size
        mixed = [torch.ones(4, dtype=torch.int64 if at else torch.float32) for at in range(size)]
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_gather(mixed, x),
            lambda: dist.all_gather_coalesced([mixed], [x]),
            lambda: dist.all_reduce_coalesced(mixed),
            lambda: dist.all_to_all(mixed, mixed),
            lambda: dist.all_to_all_single(x, torch.ones(4, dtype=torch.int64)),
            lambda: dist.gather(x, mixed if self.rank == 0 else [x.long()]),
            lambda: dist.reduce_scatter(x, mixed),
            lambda: dist.scatter(x, mixed if self.rank == 0 else [x.long()]),
        ]
        for call in calls:
            with self.assertRaisesRegex(ValueError, "tensors with different dtypes"):
                call()

    def _test_tensor_dtype_complex(self: Any, backend: str) -> None:
        self._join(backend)
        real = torch.tensor([float(self.rank), 1.0])
        for x in (real, torch.view_as_complex(real)):
            parts = [torch.empty(2) for _ in range(self.world_size)]
            mixed = [
                torch.view_as_complex(part) if at % 2 else part for at, part in enumerate(parts)
            ]
            for outputs in (parts, mixed):
                for part in parts:
                    part.fill_(-1)
                dist.all_gather(outputs, x)
                self.assertEqual([part.tolist() for part in parts], _ROWS[: self.world_size])

    def _test_bool_tensors(self: Any, backend: str) -> None:
        self._join(backend)
        for root in range(self.world_size):
            wanted = torch.arange(self.world_size) != root
            x = wanted.clone() if self.rank == root else torch.zeros_like(wanted)
            dist.broadcast(x, root)
            self.assertEqual(x, wanted)


class ProcessGroupWithDispatchedCollectivesTests(MultiProcessTestCase):  # type: ignore[misc]
    """Calls of `torch.distributed` in a world of one."""

    @property
    def world_size(self) -> int:
        return 1

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _join(self, backend: str) -> None:
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)

    def _test_collectives(self, backend: str) -> None:
        self._join(backend)
        x, other = torch.arange(4.0), torch.zeros(4)
        dist.reduce(x, 0)
        dist.broadcast(x, 0)
        dist.all_reduce(x)
        dist.barrier()
        self.assertEqual(x, torch.arange(4.0))
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_gather([other], x),
            lambda: dist.reduce_scatter(other, [x]),
            lambda: dist.all_to_all([other], [x]),
            lambda: dist.scatter(other, [x]),
        ]
        for call in calls:
            other.zero_()
            call()
            self.assertEqual(other, x)

    def _test_allreduce_coalesced(self, backend: str) -> None:
        self._join(backend)
        tensors = [torch.full((60 + at,), float(at)) for at in range(5)]
        dist.all_reduce_coalesced(tensors)
        self.assertEqual(tensors, [torch.full((60 + at,), float(at)) for at in range(5)])

    def _test_all_to_all_single(self, backend: str) -> None:
        self._join(backend)
        x, other = torch.arange(6.0).view(2, 3), torch.zeros(2, 3)
        dist.all_to_all_single(other, x)
        self.assertEqual(other, x)
        with self.assertRaisesRegex((RuntimeError, ValueError), "Tensors must be contiguous"):
            dist.all_to_all_single(other, x.t())


class CompilerTest(MultiProcessTestCase):  # type: ignore[misc]
    """Calls with a wait: traced into a graph, run again, and compiled."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _same_when_traced(self, x: Any, act: Callable[[Any], Any], *names: str) -> None:
        graph = make_fx(act)(x.clone())
        found = [str(node.target) for node in graph.graph.nodes if "c10d" in str(node.target)]
        awaited = ["wait_tensor"] * len(names)
        self.assertEqual(sorted(one.split(".")[1] for one in found), sorted([*names, *awaited]))
        self._same_as(graph, act, x)

    def _same_as(self, made: Callable[[Any], Any], act: Callable[[Any], Any], x: Any) -> None:
        for step in range(3):
            self.assertEqual(made(x + step), act(x + step))

    def _test_allreduce_work_wait(self, x: Any) -> None:
        group = self._get_default_group()
        self._same_when_traced(
            x, lambda y: funcol.all_reduce(y + y, "sum", group) * 2, "all_reduce"
        )

    def _test_allgather_work_wait(self, x: Any) -> None:
        group = self._get_default_group()
        self._same_when_traced(
            x, lambda y: funcol.all_gather_tensor(y + y, 0, group) * 2, "all_gather_into_tensor"
        )

    def _test_broadcast_work_wait(self, x: Any) -> None:
        group = self._get_default_group()
        self._same_when_traced(x, lambda y: funcol.broadcast(y + y, 0, group) * 2, "broadcast")

    def _test_scatter_work_wait(self, x: Any) -> None:
        group = self._get_default_group()

        def act(given: Any) -> Any:
            y = torch.empty_like(given)
            parts = [given + at for at in range(2)] if self.rank == 0 else None
            dist.scatter(y, parts, 0, group=group, async_op=True).wait()
            return y * 2

        self._same_as(torch.compile(act, backend="eager"), act, x)

    def _test_nested_comm_tensor_wrapping(self, x: Any) -> None:
        group = self._get_default_group()

        def act(given: Any) -> Any:
            y = funcol.all_reduce(given + given, "sum", group)
            return funcol.all_reduce(y * given, "sum", group) * y

        self._same_when_traced(x, act, "all_reduce", "all_reduce")

    def _test_consecutive_comm_work_wait(self, x: Any) -> None:
        group = self._get_default_group()

        def act(given: Any) -> Any:
            return funcol.all_reduce(funcol.all_reduce(given, "sum", group), "sum", group) * 2

        self._same_when_traced(x, act, "all_reduce", "all_reduce")


class AbstractLargeCommTest:
    """Groups made by their members alone."""

    @property
    def world_size(self) -> int:
        return 4

    def _join(self: Any, backend: str) -> None:
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)

    def _total(self: Any, group: Any) -> float:
        x = torch.full((2,), float(self.rank))
        dist.all_reduce(x, group=group)
        return float(x[0])

    def _test_new_group_local_sync(self: Any, backend: str) -> None:
        self._join(backend)
        mine = [self.rank, (self.rank + 2) % self.world_size]
        part = dist.new_group(mine, use_local_synchronization=True)
        self.assertEqual(dist.get_rank(part), sorted(mine).index(self.rank))
        self.assertEqual(dist.get_process_group_ranks(part), sorted(mine))
        self.assertEqual(self._total(part), sum(mine))

    def _test_new_group_local_sync_sanity_check(self: Any, backend: str) -> None:
        self._join(backend)
        other = (self.rank + 1) % self.world_size
        part = dist.new_group([other], use_local_synchronization=True)
        self.assertIsNone(part)

    def _test_new_group_local_sync_duplicate_pg(self: Any, backend: str) -> None:
        self._join(backend)
        mine = sorted([self.rank, (self.rank + 2) % self.world_size])
        groups = [dist.new_group(mine, use_local_synchronization=True) for _ in range(2)]
        self.assertIsNot(groups[0], groups[1])
        self.assertNotEqual(groups[0].group_name, groups[1].group_name)
        self.assertEqual([self._total(group) for group in groups], [sum(mine)] * 2)
