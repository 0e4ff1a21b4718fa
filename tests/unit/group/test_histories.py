"""Random histories of successful calls and of every kind of failure.

Nothing of a call that failed is found in a later one: calls that end well are exact on every rank,
outputs of those that say so are untouched, and in the end nothing is left over.
"""

import asyncio
import random
from collections.abc import Sequence

import pytest

from allhands.collectives.primitive_table import PRIMITIVES
from allhands.engine.failures import tracker
from allhands.errors import AllhandsError, CollectiveMismatch, CollectiveTimeout
from allhands.testing.inproc_world import InprocWorld, inproc_world, wait_outcomes
from support.arrays.collective_cases import EVERY, Case, case

pytestmark = pytest.mark.usefixtures("miniature")

STEPS = 40
SOON = 0.02


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for absent ranks."""
    monkeypatch.setattr(tracker, "_ANSWER_DELAY", 0.005)
    monkeypatch.setattr(tracker, "_MISMATCH_SECONDS", 0.1)


def cases(chance: random.Random, size: int) -> list[Case]:
    """Make a random call, in each rank's form."""
    name, length, seed = chance.choice(EVERY), chance.choice([0, 1, 5, 150]), chance.randrange(9)
    root = chance.randrange(size)
    return [case(name, rank, size, length, root=root, seed=seed) for rank in range(size)]


def check(one: Case, before: Sequence[bytes], ended: object) -> None:
    """Check the outputs of a call against the outcome."""
    if not isinstance(ended, BaseException):
        assert one.wrong() == ""
        return
    assert isinstance(ended, AllhandsError), ended
    assert ended.outputs_intact is not None
    if ended.outputs_intact:
        assert [array.tobytes() for array in one.written] == before


async def step(world: InprocWorld, chance: random.Random, what: str) -> None:
    size = len(world.groups)
    mine = cases(chance, size)
    odd = chance.randrange(size)
    if what == "mismatch":
        other = cases(chance, size)
        while [one.name for one in other] == [one.name for one in mine]:
            other = cases(chance, size)
        mine[odd] = other[odd]
    before = [[array.tobytes() for array in one.written] for one in mine]
    timeout = SOON if what in ("late", "cancelled") else 10
    works = {
        rank: mine[rank].run(world.groups[rank], timeout=timeout)
        for rank in chance.sample(range(size), size)
        if what != "late" or rank != odd
    }
    if what == "cancelled":
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        works[odd].cancel()
    if what == "late":
        await wait_outcomes(works.values())
        works[odd] = mine[odd].run(world.groups[odd], timeout=timeout)
    ended = await wait_outcomes(works[rank] for rank in range(size))
    for one, said, error in zip(mine, before, ended, strict=True):
        check(one, said, error)
    if what == "good":
        assert ended == [one for one in ended if not isinstance(one, BaseException)], ended
    if what == "mismatch":
        raised = [error for error in ended if isinstance(error, CollectiveMismatch)]
        assert raised
        assert all(error.outputs_intact for error in raised)
        # Only who need not wait for the others in a call like one made before may have gone on.
        for one, error in zip(mine, ended, strict=True):
            assert isinstance(error, CollectiveMismatch) or PRIMITIVES[one.name].is_rooted, ended
    if what == "late":
        early = [error for rank, error in enumerate(ended) if rank != odd]
        assert all(
            error.outputs_intact for error in early if isinstance(error, CollectiveTimeout)
        ), early


@pytest.mark.parametrize("hosts", ["", "aabb", "abb"])
@pytest.mark.parametrize("seed", range(4))
async def test_what_goes_wrong_in_one_call_is_not_found_in_another(hosts: str, seed: int) -> None:
    chance = random.Random(f"{hosts}/{seed}")
    size = len(hosts) or chance.choice([2, 3, 4])
    async with inproc_world(size, hosts=hosts) as world:
        for _ in range(STEPS):
            what = chance.choice(["good", "good", "mismatch", "late", "cancelled"])
            await step(world, chance, what)
        await step(world, chance, "good")
        await world.call_on_all(lambda group: group.barrier())
        await world.run_until_idle()
        for rank in world.ranks:
            inbox, mesh = rank.mesh._inbox, rank.mesh
            assert not inbox._early
            assert not inbox._posted
            assert not any(inbox._held_bytes.values())
            assert not mesh._arrival_waits
            assert not mesh._queriers
