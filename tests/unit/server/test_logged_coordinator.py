"""A coordinator with a log: answers wait for it, and its failures have a name."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from allhands_server.coordinator import Coordinator
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.store.keys import Add, Count, Delete, Get, Set
from support.faulty_log import FaultyEngine


@pytest.fixture
async def engine() -> FaultyEngine:
    return FaultyEngine()


@pytest.fixture
async def coordinator(engine: FaultyEngine) -> AsyncIterator[Coordinator]:
    coordinator = await Coordinator.open(engine)
    yield coordinator
    engine.gate.set()
    coordinator.close()
    await coordinator.close_log()


async def test_answers_wait_until_what_they_say_is_durable(
    coordinator: Coordinator, engine: FaultyEngine
) -> None:
    await coordinator.ask(Set("j", "old", b"1"), None)
    engine.gate.clear()
    writing = asyncio.create_task(coordinator.ask(Set("j", "new", b"2"), None))
    reading = asyncio.create_task(coordinator.ask(Get("j", "new"), None))
    engine.has_begun.clear()
    await engine.has_begun.wait()
    assert not writing.done()
    assert not reading.done()  # it has seen what may still be lost
    engine.gate.set()
    assert await writing == 2
    assert (await reading).value == b"2"


async def test_a_caller_that_goes_away_meanwhile_leaves_the_others_their_answers(
    coordinator: Coordinator, engine: FaultyEngine
) -> None:
    engine.gate.clear()
    gone = asyncio.create_task(coordinator.ask(Add("j", "n", 1), None))
    stays = asyncio.create_task(coordinator.ask(Add("j", "n", 1), None))
    await engine.has_begun.wait()
    gone.cancel()
    await asyncio.wait([gone])
    engine.gate.set()
    assert await stays == 2


async def test_a_full_log_refuses_writes_by_name_and_serves_what_it_has(
    coordinator: Coordinator, engine: FaultyEngine
) -> None:
    await coordinator.ask(Set("j", "a", b"1"), None)
    engine.is_full = True
    for request in (Set("j", "a", b"2"), Add("j", "n", 1)):
        with pytest.raises(Refused) as raised:
            await coordinator.ask(request, None)
        assert raised.value.refusal.status is Status.FAILED_PRECONDITION
        assert "the coordinator's log is full: the disk is full" in raised.value.refusal.text
    assert (await coordinator.ask(Get("j", "a"), None)).value == b"1"
    assert await coordinator.ask(Count("j"), None) == 1
    engine.is_full = False
    assert await coordinator.ask(Add("j", "n", 1), None) == 1
    coordinator.close()
    again = await Coordinator.open(engine)
    assert (await again.ask(Get("j", "a"), None)).value == b"1"
    assert (await again.ask(Get("j", "n"), None)).value == b"1"
    again.close()
    await again.close_log()


@pytest.mark.parametrize("fault", ["loses_next", "hides_next"])
async def test_a_log_that_fails_ends_the_coordinator_and_every_wait(
    coordinator: Coordinator, engine: FaultyEngine, fault: str
) -> None:
    waiting = asyncio.create_task(coordinator.ask(Get("j", "never", wait=True), None))
    setattr(engine, fault, True)
    with pytest.raises(Refused, match="log is gone: input/output error"):
        await coordinator.ask(Set("j", "a", b"1"), None)
    assert "input/output error" in str(await coordinator.failure)
    with pytest.raises(Refused, match="gone down"):
        await waiting
    with pytest.raises(Refused, match="gone down"):
        await coordinator.ask(Count("j"), None)


async def test_a_full_log_takes_back_what_a_refusal_has_said_too(
    coordinator: Coordinator, engine: FaultyEngine
) -> None:
    await coordinator.ask(Set("j", "a", b"1"), None)
    engine.gate.clear()
    deleting = asyncio.create_task(coordinator.ask(Delete("j", "a"), None))
    reading = asyncio.create_task(coordinator.ask(Get("j", "a"), None))
    engine.has_begun.clear()
    await engine.has_begun.wait()
    engine.is_full = True
    engine.gate.set()
    with pytest.raises(Refused, match="log is full: the disk is full") as of_write:
        await deleting
    assert of_write.value.refusal.status is Status.FAILED_PRECONDITION
    with pytest.raises(Refused, match=r"log is full.* ask again") as of_read:
        await reading  # not that there is no such key
    assert of_read.value.refusal.status is Status.UNAVAILABLE
    assert (await coordinator.ask(Get("j", "a"), None)).value == b"1"
