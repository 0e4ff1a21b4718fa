"""Random plans of faults over random calls, in virtual time: never a wrong number, never a hang."""

import asyncio
import random

import numpy as np
import pytest

import allhands as ah
from allhands.group.group import Group
from allhands.testing import COORDINATOR, FaultyWorld, Plan, faults, faulty_world
from allhands.testing.virtual_time import run
from support.arrays.collective_cases import EVERY, Case, allowed, case

RANKS = 4
TIMEOUT = 5.0
STEPS = 12
LENGTHS = (0, 1, 7, 40, 150)
"""In a miniature world 150 elements are several slices, and each of their messages many frames."""
DTYPES = (np.float32, np.int16, np.float64, np.uint8)
LASTING = (ah.PeerFailed, ah.MembershipChanged)
"""After which a group is over."""

pytestmark = pytest.mark.usefixtures("miniature")


def random_plan(draw: random.Random, seed: int) -> tuple[Plan, bool]:
    """Draw a plan; return the plan and whether bits flip."""
    plan, flips = faults(seed), False

    def link() -> tuple[int | None, int | None]:
        if draw.random() < 0.3:
            return None, None
        start, end = draw.sample(range(RANKS), 2)
        return start, end

    def chance() -> float:
        return draw.choice((0.01, 0.05, 0.3))

    for _ in range(draw.randint(1, 4)):
        rank, after = draw.randrange(RANKS), draw.uniform(0, 4)
        match draw.randrange(12):
            case 0:
                plan.delay(draw.choice((0.01, 0.3, 2.0)), link=link(), probability=chance())
            case 1:
                plan.slow(draw.choice((200, 5000)), link=link(), after=after)
            case 2:
                plan.drop(link=link(), probability=chance())
            case 3:
                plan.duplicate(link=link(), probability=chance())
            case 4:
                plan.reorder(link=link(), probability=chance())
            case 5:
                plan.flip(link=link(), probability=chance())
                flips = True
            case 6:
                plan.cut(link=link(), nth=draw.randint(1, 40))
            case 7:
                one = {*draw.sample(range(RANKS), draw.randint(1, 3))}
                other = {COORDINATOR, *range(RANKS)} - one
                if draw.random() < 0.5:
                    other.discard(COORDINATOR)
                plan.partition(one, other, after=after, seconds=draw.choice((0.5, 3.0, 30.0)))
            case 8:
                plan.stall(rank, after=after, seconds=draw.choice((0.5, 1.5, 4.0)))
            case 9:
                plan.kill(draw.choice((rank, rank, COORDINATOR)), at=after)
            case 10:
                plan.delay(draw.choice((0.1, 1.0)), link=(rank, COORDINATOR), probability=0.5)
            case 11:
                ways = ((rank, COORDINATOR), (COORDINATOR, rank))
                plan.cut(link=draw.choice(ways), nth=draw.randint(1, 8))
    return plan, flips


async def called(one: Case, group: Group) -> None:
    await asyncio.wrap_future(one.run(group).get_future())
    assert not one.wrong(), f"rank {group.rank}: {one.wrong()}"


async def pass_on(group: Group, step: int) -> None:
    """Send the message of the previous rank to the next rank."""
    rank, size = group.rank, group.size
    there, here = np.full(step, rank, np.int64), np.zeros(step, np.int64)
    works = [group.send(there, (rank + 1) % size, step), group.recv(here, (rank - 1) % size, step)]
    for work in works:
        await asyncio.wrap_future(work.get_future())
    assert (here == (rank - 1) % size).all(), f"rank {rank}, step {step}: {here}"


async def play(world: FaultyWorld, group: Group, seed: int) -> list[str]:
    """Make a history's calls on one rank; return faults and outcomes."""
    history, rank = random.Random(seed), group.rank
    pace = random.Random(f"{seed} {rank}")
    ended = []
    for step in range(STEPS):
        name, dtype = history.choice(EVERY), history.choice(DTYPES)
        length, root = history.choice(LENGTHS), history.randrange(RANKS)
        op = history.choice([one for one in allowed(dtype) if one is not ah.ReduceOp.PRODUCT])
        one = case(name, rank, RANKS, length, dtype, op=op, root=root, seed=step)
        if pace.random() < 0.2:
            await asyncio.sleep(pace.random() * 0.5)
        begun = world.now()
        try:
            await (pass_on(group, step) if step % 4 == 3 else called(one, group))
        except ah.AllhandsError as error:
            ended.append(type(error).__name__)
        else:
            ended.append("well")
        due = begun + TIMEOUT
        # Who is stalled makes its call when it wakes.
        due = max(due, world.plan.held_until((rank, rank), begun) + TIMEOUT)
        assert world.now() <= due + 1, f"rank {rank}, step {step} {name}: {ended[-1]} too late"
    return ended


def carry_out(seed: int) -> tuple[list[list[str]], Plan]:
    draw = random.Random(seed)
    plan, flips = random_plan(draw, seed)
    verify = flips or draw.random() < 0.3

    async def main() -> list[list[str]]:
        unexpected: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unexpected.append(what))
        async with faulty_world(RANKS, plan, timeout=TIMEOUT, verify=verify) as world:
            ended = await asyncio.gather(*(play(world, one, seed) for one in world.groups))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left
        assert not unexpected
        return ended

    return run(main()), plan


@pytest.mark.parametrize(
    "batch", [*range(5), *(pytest.param(at, marks=pytest.mark.nightly) for at in range(5, 10))]
)
def test_every_call_under_a_random_plan_is_exact_or_a_named_error_in_time(batch: int) -> None:
    for seed in range(batch * 20, batch * 20 + 20):
        try:
            carry_out(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_random_plans_end_calls_alike_each_time() -> None:
    for seed in range(20):
        ended, plan = carry_out(seed)
        again, other = carry_out(seed)
        assert (ended, plan.log) == (again, other.log), f"seed {seed}"


def test_random_plans_end_calls_in_many_ways() -> None:
    awaited = {"well", "CollectiveTimeout", "PeerFailed", "DataCorrupted"}
    for seed in range(200):
        awaited -= {one for rank in carry_out(seed)[0] for one in rank}
        if not awaited:
            return
    pytest.fail(f"no call of 200 plans ended so: {awaited}")
