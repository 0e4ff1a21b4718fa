"""Snapshots of the log: when they are made, of which state, and their failures."""

import asyncio
import logging
from collections.abc import AsyncIterable, Iterator

import pytest

from allhands_server.log import journal as journals
from allhands_server.log.change_codec import decode_changes
from allhands_server.log.engine import AppendResult, Snapshot
from allhands_server.log.errors import LogDamaged, LogFull, LogUnavailable
from allhands_server.log.frame import decode_frame
from allhands_server.log.journal import Journal
from allhands_server.log.recovery import LogHead, RestoredLog, encode_snapshot
from allhands_server.machine.changes import Change
from support.faulty_log import FaultyEngine, iterate_chunks
from support.journals import Owner, put, reopen, write


async def write_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[FaultyEngine, list[Change], Snapshot]:
    """Write one frame, and a snapshot of 2,500 changes in two chunks behind it."""
    engine, owner = FaultyEngine(), Owner()
    owner.state = [put(number, 100)[0] for number in range(1, 2501)]
    with monkeypatch.context() as soon:
        soon.setattr(journals, "_LEAST_LOG_NBYTES", 1)
        journal = Journal(engine, RestoredLog(), owner)
        journal.append(put(2500, 100))
        await owner.until(durable=1)
        await journal.close()
    snapshot = await engine.load_snapshot()
    assert snapshot is not None
    return engine, owner.state, snapshot


async def test_a_log_goes_on_behind_its_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, state, snapshot = await write_snapshot(monkeypatch)
    assert (snapshot.index, len(snapshot.chunks)) == (1, 3)  # the last one is the end
    assert list(await engine.list_slots()) == []
    found, restored = await reopen(engine)
    assert found == state
    assert (restored.head.index, restored.head.term) == (1, 1)
    assert restored.snapshot_nbytes == sum(map(len, snapshot.chunks))
    await write(engine, [2501])
    assert (await reopen(engine))[0] == [*state, *put(2501)]


async def test_the_first_frame_behind_a_snapshot_follows_the_frame_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "_LEAST_LOG_NBYTES", 1)
    engine, owner = FaultyEngine(), Owner()
    owner.state = [*put(1, 1 << 10)]
    journal = Journal(engine, RestoredLog(), owner)
    journal.append(put(1, 1 << 10))
    await owner.until(durable=1)
    assert journal._snapshot is not None
    await journal._snapshot
    journal.append(put(2))
    await owner.until(durable=2)
    await journal.close()
    assert [slot.index for slot in await engine.list_slots()] == [2]
    assert (await reopen(engine))[0] == [*put(1, 1 << 10), *put(2)]


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_a_snapshot_that_is_cut_short_is_refused(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    engine, _, snapshot = await write_snapshot(monkeypatch)
    await engine.save_snapshot(1, iterate_chunks(*snapshot.chunks[:kept]))
    with pytest.raises(LogDamaged, match=r"slot 1 .* cut short"):
        await reopen(engine)


class StatefulOwner(Owner):
    """An owner whose state is all commits that it has made."""

    journal: Journal

    def commit(self, number: int, nbytes: int = 1) -> None:
        self.state += put(number, nbytes)
        self.journal.append(put(number, nbytes))


@pytest.fixture
async def engine() -> FaultyEngine:
    return FaultyEngine()


@pytest.fixture
async def owner(engine: FaultyEngine) -> StatefulOwner:
    owner = StatefulOwner()
    owner.journal = Journal(engine, RestoredLog(), owner)
    return owner


class SteppedEngine(FaultyEngine):
    """An engine whose appends are let through one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.steps = asyncio.Semaphore(0)

    async def append(self, index: int, data: bytes) -> AppendResult:
        self.begun.put_nowait(index)
        await self.steps.acquire()
        return await super().append(index, data)


async def test_a_copy_of_the_state_is_that_of_its_place_in_the_log() -> None:
    engine, owner = SteppedEngine(), StatefulOwner()
    owner.journal = Journal(engine, RestoredLog(), owner)
    owner.commit(1)
    assert await engine.begun.get() == 1
    for number in (2, 3):
        owner.commit(number, 400 << 10)  # a frame each
    copying = asyncio.create_task(owner.journal.copy_state())
    await asyncio.sleep(0)
    engine.steps.release()
    assert await engine.begun.get() == 2
    owner.commit(4)  # fits into the frame of 3, which is not of the copy's state then
    engine.steps.release()
    assert await engine.begun.get() == 3
    assert not copying.done()  # what it holds is not durable
    engine.steps.release()
    engine.steps.release()
    head, changes = await copying
    assert list(changes) == owner.state[:3]
    await owner.journal.close()
    written = [decode_frame(slot.data, slot.index) for slot in await engine.list_slots()]
    assert (head.index, head.crc) == (3, written[2].crc)
    in_log = [one for frame in written[:3] for one in decode_changes(frame.payload, 0)]
    assert in_log == owner.state[:3]


class SlowEngine(FaultyEngine):
    """An engine during whose appends other tasks run."""

    def __init__(self) -> None:
        super().__init__()
        self.has_snapshot = asyncio.Event()

    async def append(self, index: int, data: bytes) -> AppendResult:
        await asyncio.sleep(0)
        return await super().append(index, data)

    async def save_snapshot(self, index: int, chunks: AsyncIterable[bytes]) -> None:
        await super().save_snapshot(index, chunks)
        self.has_snapshot.set()


class BusyOwner(StatefulOwner):
    """An owner with one commit more, always."""

    is_busy = True

    def on_durable(self, commits: int) -> None:
        super().on_durable(commits)
        if self.is_busy:
            self.commit(len(self.state) + 1)


async def test_a_snapshot_is_made_though_commits_never_cease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "_LEAST_LOG_NBYTES", 1)
    engine, owner = SlowEngine(), BusyOwner()
    owner.journal = Journal(engine, RestoredLog(), owner)
    owner.commit(1)
    owner.commit(2)
    async with asyncio.timeout(30):
        await engine.has_snapshot.wait()
    owner.is_busy = False
    await owner.journal.close()
    state, _ = await reopen(engine)
    assert state == owner.state


async def test_a_copy_of_what_the_log_refuses_is_not_given(
    engine: FaultyEngine, owner: StatefulOwner
) -> None:
    engine.gate.clear()
    owner.commit(1)
    await engine.has_begun.wait()
    owner.commit(2)
    copying = asyncio.create_task(owner.journal.copy_state())
    await asyncio.sleep(0)
    engine.is_full = True
    engine.gate.set()
    with pytest.raises(LogFull):
        await copying
    await owner.journal.close()


async def test_a_journal_that_is_closed_or_gone_gives_no_copy(
    engine: FaultyEngine, owner: StatefulOwner
) -> None:
    engine.loses_next = True
    owner.commit(1)
    await owner.until(lost=1)
    with pytest.raises(LogUnavailable):
        await owner.journal.copy_state()
    await owner.journal.close()
    with pytest.raises(LogUnavailable):
        await owner.journal.copy_state()


async def test_other_tasks_run_while_a_snapshot_is_encoded() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    changes = iter([put(number)[0] for number in range(1, 20_001)])
    chunks = [chunk async for chunk in encode_snapshot(LogHead(1, 0, 1), changes)]
    counting.cancel()
    assert len(chunks) == 3  # about 26 bytes a change, and the end
    assert turns >= 200


async def test_a_snapshot_of_large_values_is_of_chunks_that_a_frame_holds() -> None:
    engine, owner = FaultyEngine(), Owner()
    owner.state = [put(number, 1 << 20)[0] for number in range(1, 31)]
    chunks = encode_snapshot(LogHead(1, 0, 1), iter(owner.state))
    await engine.save_snapshot(1, chunks)
    assert (await reopen(engine))[0] == owner.state


async def test_a_snapshot_that_fails_is_reported_and_made_later(
    engine: FaultyEngine,
    owner: StatefulOwner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(journals, "_LEAST_LOG_NBYTES", 1)

    def fail() -> Iterator[Change]:
        yield put(1)[0]
        raise ZeroDivisionError

    with monkeypatch.context() as failing, caplog.at_level(logging.ERROR):
        failing.setattr(owner, "copy_state", fail)
        owner.commit(1)
        await owner.until(durable=1)
        assert owner.journal._snapshot is not None
        await owner.journal._snapshot
    assert "the snapshot of the coordinator's log failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert not owner.lost
    assert len(await engine.list_slots()) == 1
    owner.commit(2)
    await owner.until(durable=2)
    await owner.journal.close()
    assert await engine.load_snapshot() is not None
    assert (await reopen(engine))[0] == owner.state


async def test_frames_from_before_a_restart_count_for_the_next_snapshot(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(engine, range(1, 11))
    monkeypatch.setattr(journals, "_LEAST_LOG_NBYTES", 500)
    await write(engine, [11])
    snapshot = await engine.load_snapshot()
    assert snapshot is not None
    assert snapshot.index == 11
