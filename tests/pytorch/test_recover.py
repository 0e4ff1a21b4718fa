"""Recovery after a loss: a new default group, the rest of the groups, the ranks required."""

import importlib
import os
import signal
import socket
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import allhands as ah
import allhands.torch
import allhands.torch.recovery  # once, before ranks are forked that would all read it
from allhands.testing.daemon import run_daemon
from allhands.testing.poll import poll_until
from support.torch.ranks import run_ranks


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def total(group: Any = None) -> float:
    """Return the sum of the default group's ranks within the group."""
    x = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(x, group=group)
    return float(x[0])


def lose(*ranks: int) -> None:
    """Check the error of a call: of the loss, or of a rank that recovers already."""
    with pytest.raises((ah.PeerFailed, ah.GroupAborted)) as it:
        dist.barrier()
    if isinstance(it.value, ah.GroupAborted):
        assert "calls allhands.torch.recover()" in it.value.reason
    elif ranks:
        assert it.value.failed_ranks == ranks


def part_total(ranks: list[int]) -> float | None:
    """Return the sum of some ranks, by a new group; None: not a member."""
    group = dist.new_group(ranks)
    return None if group is dist.GroupMember.NON_GROUP_MEMBER else total(group)


def test_the_ranks_that_are_left_go_on_as_the_default_group() -> None:
    def body(rank: int) -> tuple[Any, ...]:
        assert total() == 6
        if rank == 1:
            die()
        lose(1)
        group = allhands.torch.recover()
        assert group is dist.group.WORLD
        assert dist.get_backend() == "allhands"
        assert dist.get_process_group_ranks(None) == [0, 1, 2]
        told: list[Any] = [None] * 3
        dist.all_gather_object(told, rank)
        return dist.get_rank(), dist.get_world_size(), total(), told

    assert run_ranks(4, body, dies=(1,)) == [
        (0, 3, 3.0, [0, 2, 3]),
        None,
        (1, 3, 3.0, [0, 2, 3]),
        (2, 3, 3.0, [0, 2, 3]),
    ]


def test_ranks_that_call_elsewhere_are_released_and_told_to_come() -> None:
    """A rank in a call of living ranks learns of the loss from the recovering ranks."""

    def body(rank: int) -> None:
        pair = dist.new_group([1, 2])
        if rank == 3:
            die()
        if rank == 1:
            with pytest.raises(ah.GroupAborted, match=r"allhands\.torch\.recover\(\).*must"):
                dist.barrier(pair)  # rank 2 does not come: it has noticed
        else:
            lose()
        allhands.torch.recover()
        assert total() == 3

    run_ranks(4, body, dies=(3,))


def test_groups_made_before_have_ended_and_say_why() -> None:
    def body(rank: int) -> None:
        pair, tagged = dist.new_group([0, 1]), dist.new_group([0, 1], group_desc="both")
        before = dist.group.WORLD
        if rank == 2:
            die()
        lose()
        after = allhands.torch.recover()
        for group in (pair, tagged, before):
            with pytest.raises(ValueError, match="not initialized in the world group map"):
                dist.all_reduce(torch.ones(1), group=group)
            with pytest.raises(ah.AllhandsError, match=r"put group .* in the place of the one"):
                group.allreduce(torch.ones(1)).wait()
            with pytest.raises(ah.AllhandsError, match="make them anew"):
                group.send([torch.ones(1)], 1 - rank).wait()
            with pytest.raises(ValueError, match="Invalid process group"):
                dist.destroy_process_group(group)
            group.shutdown()  # ends nothing of the group that took its place
        assert list(dist.distributed_c10d._world.pg_map) == [after]
        again = dist.new_group([1, 0])
        assert len({one.group_name for one in (pair, tagged, before, after, again)}) == 5
        assert total(again) == total() == 1

    run_ranks(3, body, dies=(2,))


def test_one_loss_after_the_other() -> None:
    def body(rank: int) -> list[float | None]:
        sums: list[float | None] = [total()]
        for victim in (3, 1):
            if rank == victim:
                die()
            lose()
            allhands.torch.recover()
            sums += [total(), part_total([0, dist.get_world_size() - 1])]
        return sums

    assert run_ranks(4, body, dies=(1, 3)) == [[6, 3, 2, 1, 1], None, [6, 3, 2, 1, 1], None]


def test_a_rank_that_dies_instead_of_coming_is_left_behind_too() -> None:
    def body(rank: int) -> tuple[int, int]:
        if rank == 3:
            die()
        lose()
        if rank == 2:
            die()
        allhands.torch.recover()
        return dist.get_rank(), dist.get_world_size()

    assert run_ranks(4, body, dies=(2, 3))[:2] == [(0, 2), (1, 2)]


def test_a_rank_that_does_not_come_is_named_and_it_may_be_tried_again() -> None:
    def body(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 2:
            die()
        lose()
        if rank == 0:
            with pytest.raises(ah.CollectiveTimeout, match="rank 1 "):
                allhands.torch.recover(timeout=0.5)
            assert dist.get_world_size() == 3
            store.set("tried", "")
        else:
            store.wait(["tried"])
        allhands.torch.recover()
        assert total() == 1

    run_ranks(3, body, dies=(2,))


def test_what_is_compiled_is_compiled_again_for_the_ranks_that_are_left() -> None:
    importlib.import_module("torch._dynamo")  # once for all ranks

    def body(rank: int) -> None:
        @torch.compile(backend="eager", fullgraph=True)
        def mean(x: torch.Tensor) -> torch.Tensor:
            return x / dist.get_world_size()

        assert mean(torch.ones(1)).item() == pytest.approx(1 / 3)
        if rank == 2:
            die()
        lose()
        allhands.torch.recover()
        assert mean(torch.ones(1)).item() == 0.5

    run_ranks(3, body, dies=(2,))


def test_a_loss_met_by_a_backward_pass_is_told_by_failure() -> None:
    """C++ keeps an error's text, not the class: `failure()` has both."""

    def body(rank: int) -> None:
        model = torch.nn.Linear(2, 1)
        wrapped = DistributedDataParallel(model)
        wrapped(torch.ones(1, 2)).sum().backward()
        assert allhands.torch.failure() is None
        loss = wrapped(torch.ones(1, 2)).sum()
        if rank == 2:
            die()
        with pytest.raises(RuntimeError, match=r"rank 2 .* is dead|calls allhands.torch.recover"):
            loss.backward()
        found = allhands.torch.failure()
        assert isinstance(found, ah.PeerFailed | ah.GroupAborted)
        assert isinstance(found, ah.GroupAborted) or found.failed_ranks == (2,)
        allhands.torch.recover()
        assert allhands.torch.failure() is None
        with pytest.raises(RuntimeError, match="such as DistributedDataParallel"):
            wrapped(torch.ones(1, 2)).sum().backward()
        wrapped = DistributedDataParallel(model)
        model.zero_grad()
        wrapped(torch.full((1, 2), rank + 1.0)).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.tolist() == [[1.5, 1.5]]

    run_ranks(3, body, dies=(2,))


def test_a_thread_in_a_call_of_a_group_that_ends_is_released() -> None:
    def body(rank: int) -> None:
        pair = dist.new_group([0, 1])
        if rank == 2:
            die()
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                dist.recv(torch.ones(1), 1 - rank, group=pair)
            except ah.GroupAborted as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        records = pair.world.get_records
        # It may have been released by then, by the other rank.
        poll_until(lambda: bool(raised) or any(one.operation == "recv" for one in records()))
        lose()
        allhands.torch.recover()
        waiting.join(20)
        assert not waiting.is_alive()
        assert len(raised) == 1

    run_ranks(3, body, dies=(2,))


def test_other_backends_meet_again_though_the_store_that_all_met_by_is_gone(
    tmp_path: Path,
) -> None:
    """Rank 0 hosts PyTorch's own store, and dies."""
    with run_daemon(tmp_path) as daemon, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        target = daemon.endpoint.address.target
        environment = {
            "XDG_RUNTIME_DIR": daemon.environ["XDG_RUNTIME_DIR"],  # where its token is
            "ALLHANDS_URL": f"ah://{target}/outlives",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "3",
        }

        def body(rank: int) -> None:
            os.environ["RANK"] = str(rank)
            dist.init_process_group("allhands", timeout=timedelta(seconds=30))
            dist.barrier()
            if rank == 0:
                die()
            lose()
            for _ in range(2):  # the second time nobody has been lost
                store = allhands.torch.recover().owned_store
                assert total(dist.new_group(backend="gloo")) == total() == 1
            assert store.add("after", 1) > 0
            dist.destroy_process_group()
            with pytest.raises(RuntimeError):
                store.add("after", 1)

        run_ranks(3, body, init=False, environment=environment, dies=(0,))


def test_ranks_that_met_at_a_coordinator_outlive_rank_0(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon:
        url = f"ah://{daemon.endpoint.address.target}/outlives"

        def body(rank: int) -> tuple[int, float]:
            dist.init_process_group("allhands", init_method=url, rank=rank, world_size=3)
            if rank == 0:
                die()
            lose()
            allhands.torch.recover()
            found = dist.get_rank(), total(dist.new_group([1, 0]))
            dist.destroy_process_group()
            return found

        environment = {"XDG_RUNTIME_DIR": daemon.environ["XDG_RUNTIME_DIR"]}
        found = run_ranks(3, body, init=False, environment=environment, dies=(0,))
        assert found == [None, (0, 1.0), (1, 1.0)]


def test_where_the_coordinator_is_lost_nobody_can_tell_and_it_is_said_what_to_do() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            die()
        lose()
        with pytest.raises(ah.CoordinatorUnavailable, match="set ALLHANDS_URL"):
            allhands.torch.recover()

    run_ranks(2, body, dies=(0,))


def test_a_recovered_world_is_left_like_any_other_and_another_can_be_joined() -> None:
    def body(rank: int) -> None:
        if rank == 2:
            die()
        lose()
        world = allhands.torch.recover().world
        part = dist.new_group([0, 1])
        dist.destroy_process_group()
        assert not dist.is_initialized()
        assert not world.is_open(part.group)
        assert not [one for one in threading.enumerate() if one.name.startswith("allhands ")]

    run_ranks(3, body, dies=(2,))


def test_another_backend_is_refused() -> None:
    def body(rank: int) -> None:
        for call in (allhands.torch.recover, allhands.torch.failure):
            with pytest.raises(RuntimeError, match="backend 'allhands', not of 'gloo'"):
                call()
        with pytest.raises(RuntimeError, match="not of 'gloo'"):
            allhands.torch.shrink_group([0])

    run_ranks(2, body, backend="gloo")


def test_without_a_world_there_is_nothing_to_recover() -> None:
    with pytest.raises(ValueError, match="not been initialized"):
        allhands.torch.recover()
    with pytest.raises(AttributeError, match="no attribute 'revive'"):
        allhands.torch.revive  # noqa: B018
    assert "allhands.torch.recovery" in sys.modules
