"""Failed works: state, and state of the outputs."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from allhands.deadlines import deadline
from allhands.engine.work.work import Work
from allhands.errors import CollectiveTimeout, PeerFailed
from allhands.group.group import Group
from allhands.testing.inproc_world import InprocWorld, inproc_world, wait_outcomes, wait_results
from support.ranks.inproc_calls import ones

pytestmark = pytest.mark.usefixtures("miniature")


# ---------------------------------------------------------------- work


async def test_a_work_tells_how_it_stands(three: InprocWorld) -> None:
    x = ones(3)
    work = three.groups[0].all_reduce(x, label="loss")
    assert (work.operation, work.sequence, work.label) == ("all_reduce", 1, "loss")
    assert not work.is_completed()
    assert not work.is_success()
    assert work.exception() is None
    assert repr(work) == "all_reduce #1 of group 'world' (loss)"
    with pytest.raises(CollectiveTimeout, match="goes on until its own deadline"):
        work.wait(0.001)
    others = [group.all_reduce(ones(3), label="loss") for group in three.groups[1:]]
    await wait_results([work, *others])
    assert work.wait()
    assert work.is_success()
    assert work.result() is x
    with pytest.raises(ValueError, match="has received nothing"):
        work.source_rank()


async def test_a_failed_work_raises_from_wait_and_result(three: InprocWorld) -> None:
    work = three.groups[0].barrier(timeout=0.01)
    await wait_outcomes([work])
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), CollectiveTimeout)
    for ask in (work.wait, work.result):
        with pytest.raises(CollectiveTimeout, match=r"timed out after 0\.01 s"):
            ask()


# ---------------------------------------------------------------- what becomes of outputs

WRITING: dict[str, Callable[[Group, np.ndarray], Work]] = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "broadcast": lambda group, x: group.broadcast(x, 0),
    "reduce": lambda group, x: group.reduce(x, 1),
    "all_gather": lambda group, x: group.all_gather_into_tensor(x, np.ones(len(x) // 3)),
    "reduce_scatter": lambda group, x: group.reduce_scatter_tensor(x, np.ones(len(x) * 3)),
    "all_to_all": lambda group, x: group.all_to_all_single(x, np.ones(len(x))),
    "scatter": lambda group, x: group.scatter(
        x, [np.ones(len(x)) for _ in range(3)] if group.rank == 0 else None, 0
    ),
}


@pytest.mark.parametrize("length", [3, 150])
@pytest.mark.parametrize("operation", WRITING)
async def test_a_rank_that_never_comes_touches_no_output(operation: str, length: int) -> None:
    for absent in range(3):
        async with inproc_world(3) as world:
            members = [group for group in world.groups if group.rank != absent]
            xs = [np.arange(length, dtype=float) for _ in members]
            with deadline(0.05):
                works = [WRITING[operation](group, x) for group, x in zip(members, xs, strict=True)]
            ended = await wait_outcomes(works)
            for x, error in zip(xs, ended, strict=True):
                assert isinstance(error, CollectiveTimeout), (absent, ended)
                assert error.outputs_intact
                np.testing.assert_array_equal(x, np.arange(length))


@pytest.mark.parametrize("hosts", ["", "aabb", "abbb"])
async def test_an_error_says_truly_whether_outputs_were_touched(hosts: str) -> None:
    said = set()
    for turns in range(0, 120, 3):
        async with inproc_world(4, hosts=hosts) as world:
            xs = [np.ones(600) for _ in range(4)]
            works = [group.all_reduce(x) for group, x in zip(world.groups, xs, strict=True)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await world.fail(3)
            for x, error in zip(xs, (await wait_outcomes(works))[:3], strict=False):
                if isinstance(error, PeerFailed):
                    said.add(error.outputs_intact)
                    state = "untouched" if error.outputs_intact else "undefined"
                    assert str(error).endswith(f"outputs are {state}")
                    assert not error.outputs_intact or (x == 1).all()
                else:
                    assert (x == 4).all()
    assert said == {True, False}
