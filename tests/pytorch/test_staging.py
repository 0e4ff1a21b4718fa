"""Tensors of devices with memory out of reach: staged in host memory, and written back.

Tests run on a device that is made up, and on CUDA where there is one; where there is more than one
each rank takes its own.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from allhands.torch import tensors
from support import c10d_cases
from support.torch import fake_device
from support.torch.fake_device import to_device
from support.torch.ranks import run_ranks
from support.torch.reduction_cases import TENSORS, equal
from support.torch.training import STEPS, network, parameters, rows, trained, trained_alone

# Newer names for what programs call as they always have.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")

SIZE = 2
_FRESH = "ALLHANDS_TEST_IS_FRESH"
"""Set in a process that runs nothing but one test."""

Body = Callable[[int, Callable[[Any], Any]], Any]
"""Of a rank, and what takes values to its device."""


def made_up(body: Body) -> list[Any]:
    def on_rank(rank: int) -> Any:
        tensors._DEVICES = (*tensors._DEVICES, fake_device.DEVICE)  # type: ignore[misc]
        held = fake_device.make_device([])
        found = body(rank, to_device)
        del held
        return found

    return run_ranks(SIZE, on_rank)


def on_cuda(body: Body) -> list[Any]:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")

    def on_rank(rank: int) -> Any:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        return body(rank, lambda values: torch.as_tensor(values).to(device))

    return run_ranks(SIZE, on_rank)


on_devices = pytest.mark.parametrize("run", [made_up, on_cuda], ids=["made up", "cuda"])
Run = Callable[[Body], list[Any]]


def test_tensors_of_a_device_are_staged_and_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_DEVICES", (*tensors._DEVICES, fake_device.DEVICE))

    def body(rank: int) -> Any:
        copies: list[str] = []
        held = fake_device.make_device(copies)
        x = to_device([rank + 1.0, 10.0])
        assert x.device.type == fake_device.DEVICE
        copies.clear()
        dist.all_reduce(x)
        assert copies == ["back", "there"]
        assert x.cpu().tolist() == [3.0, 20.0]

        work = dist.all_reduce(x, async_op=True)
        copies.clear()
        work.get_future().wait()
        assert x.cpu().tolist() == [6.0, 40.0]

        each = [to_device([0.0, 0.0]) for _ in range(2)]
        dist.all_gather(each, to_device([float(rank), 5.0]))
        assert [one.cpu().tolist() for one in each] == [[0.0, 5.0], [1.0, 5.0]]
        if rank == 0:
            dist.send(to_device([7.0]), 1)
        else:
            x = to_device([0.0])
            dist.recv(x, 0)
            assert x.cpu().tolist() == [7.0]
        copies.clear()
        dist.broadcast(to_device([1.0]), 0)
        del held
        return copies

    assert run_ranks(2, body) == [["there", "back", "there"]] * 2


@on_devices
def test_p017_broadcast_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        for root in range(SIZE):
            for index in range(2):
                xs = [there([2.0 * rank + at]) for at in range(2)]
                opts = dist.BroadcastOptions()
                opts.rootRank, opts.rootTensor = root, index
                dist.group.WORLD.broadcast(xs, opts).wait()
                assert [x.cpu().tolist() for x in xs] == [[2.0 * root + index]] * 2

    run(body)


@on_devices
def test_p020_allreduce_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        for op, mine, wanted in c10d_cases.list_reductions(TENSORS, rank, SIZE):
            x = there(mine)
            dist.all_reduce(x, op)
            equal(x.cpu(), wanted)
        for op, several, wanted in c10d_cases.list_twofold_reductions(TENSORS, rank, SIZE):
            xs = [there(one) for one in several]
            opts = dist.AllreduceOptions()
            opts.reduceOp = op
            dist.group.WORLD.allreduce(xs, opts).wait()
            equal([x.cpu() for x in xs], [wanted, wanted])

    run(body)


@on_devices
def test_p023_allreduce_coalesced_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        for op, mine, wanted in c10d_cases.list_coalesced_reductions(TENSORS, rank, SIZE):
            xs = [there(one) for one in mine]
            opts = dist.AllreduceCoalescedOptions()
            opts.reduceOp = op
            dist.group.WORLD.allreduce_coalesced(xs, opts).wait()
            equal([x.cpu() for x in xs], wanted)
        with dist._coalescing_manager(async_ops=True) as works:
            xs = [there([rank + 1.0]), there([rank + 2.0])]
            for x in xs:
                dist.all_reduce(x)
        works.wait()
        assert [x.cpu().tolist() for x in xs] == [[3.0], [5.0]]

    run(body)


@on_devices
def test_p026_reduce_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        for root in range(SIZE):
            for op, mine, wanted in c10d_cases.list_reductions(TENSORS, rank, SIZE):
                x = there(mine)
                dist.reduce(x, root, op)
                equal(x.cpu(), wanted if rank == root else mine)

    run(body)


@on_devices
def test_p028_gather_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        for root in range(SIZE):
            found = [there([-1.0, 0.0]) for _ in range(SIZE)] if rank == root else None
            dist.gather(there([float(rank), 5.0]), found, root)
            assert [x.cpu().tolist() for x in found or ()] == (
                [[0.0, 5.0], [1.0, 5.0]] if rank == root else []
            )

    run(body)


@on_devices
def test_p031_scatter_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        for root in range(SIZE):
            given = [there([root, 10 * to]) for to in range(SIZE)] if rank == root else None
            x = there([-1, -1])
            dist.scatter(x, given, root)
            assert x.cpu().tolist() == [root, 10 * rank]

    run(body)


@on_devices
def test_p033_allgather_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        found = [there([-1]) for _ in range(SIZE)]
        dist.all_gather(found, there([rank]))
        assert [x.cpu().tolist() for x in found] == [[0], [1]]
        whole = there([-1] * SIZE)
        dist.all_gather_into_tensor(whole, there([rank]))
        assert whole.cpu().tolist() == [0, 1]
        lists = [[there([-1]), there([-1, -1])] for _ in range(SIZE)]
        dist.group.WORLD.allgather_coalesced(lists, [there([rank]), there([rank, 5])]).wait()
        assert [[x.cpu().tolist() for x in one] for one in lists] == [
            [[one], [one, 5]] for one in range(SIZE)
        ]

    run(body)


@on_devices
def test_p038_reduce_scatter_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        for op, wanted in ((dist.ReduceOp.SUM, 2.0 * rank + 1), (dist.ReduceOp.AVG, rank + 0.5)):
            x = there([-1.0])
            dist.reduce_scatter(x, [there([float(rank + to)]) for to in range(SIZE)], op)
            assert x.cpu().tolist() == [wanted]
            whole = there([float(rank + to) for to in range(SIZE)])
            dist.reduce_scatter_tensor(x, whole, op)
            assert x.cpu().tolist() == [wanted]

    run(body)


@on_devices
def test_p041_all_to_all_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        given = [there([10 * rank + to]) for to in range(SIZE)]
        found = [there([-1]) for _ in range(SIZE)]
        dist.all_to_all(found, given)
        assert [x.cpu().tolist() for x in found] == [[rank], [10 + rank]]

    run(body)


@on_devices
def test_p042_all_to_all_single_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        mine, theirs = [1 + rank] * SIZE, [1, 2]
        x = there([10 * rank + to for to in range(SIZE) for _ in range(1 + rank)])
        found = there([-1] * sum(theirs))
        dist.all_to_all_single(found, x, theirs, mine)
        assert found.cpu().tolist() == [rank, 10 + rank, 10 + rank]

    run(body)


@on_devices
def test_p025_sparse_allreduce_on_a_device(run: Run) -> None:
    def body(rank: int, there: Callable[[Any], Any]) -> None:
        indices, values = there([[rank, 2]]), there([1.0, 10.0])
        x = torch.sparse_coo_tensor(indices, values, (3,), check_invariants=False)
        assert x.device.type != "cpu"
        dist.all_reduce(x)
        assert x.device.type != "cpu"
        assert x.cpu().to_dense().tolist() == [1.0, 1.0, 20.0]

    run(body)


@on_devices
def test_p079_data_parallel_training_on_a_device(run: Run, request: pytest.FixtureRequest) -> None:
    if run is made_up and _FRESH not in os.environ:
        # PyTorch counts the devices with the first gradients of a process, which forked ranks keep.
        again = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", request.node.nodeid]
        environment = os.environ | {_FRESH: "1"}
        root = request.config.rootpath
        done = subprocess.run(again, cwd=root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return

    def body(rank: int, there: Callable[[Any], Any]) -> list[float]:
        where = there([0.0]).device
        model = DistributedDataParallel(network().to(where))
        batches = [(there(x), there(wanted)) for x, wanted in rows(rank, STEPS)]
        trained(model, batches)
        assert all(one.grad.device == where for one in model.parameters())
        return parameters(model.cpu())

    first, second = run(body)
    assert first == second
    torch.testing.assert_close(first, trained_alone(SIZE), rtol=1e-4, atol=1e-5)
