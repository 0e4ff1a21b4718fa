"""Group commit to the log, its failures, and the reading of what it wrote."""

import asyncio
from collections.abc import Iterable, Iterator

import pytest

from allhands_server.log import journal as journals
from allhands_server.log.engine import Snapshot
from allhands_server.log.errors import LogDamaged, LogError, LogFull
from allhands_server.log.frame import decode_frame, encode_frame, make_frame
from allhands_server.log.journal import Journal
from allhands_server.log.recovery import LogHead, read_log
from allhands_server.machine.changes import Change, KeyPut
from support.faulty_log import FaultyEngine


def put(number: int, nbytes: int = 1) -> tuple[Change, ...]:
    return (KeyPut("j", f"k{number}", bytes(nbytes), number, number, 1),)


class Owner:
    """What a journal has told its owner; the state is the changes themselves."""

    def __init__(self) -> None:
        self.durable = 0
        self.refused: list[LogFull] = []
        self.lost: list[LogError] = []
        self.state: list[Change] = []
        self.heard = asyncio.Condition()

    def on_durable(self, commits: int) -> None:
        self.durable += commits
        self._wake()

    def on_refused(self, error: LogFull) -> None:
        self.refused.append(error)
        self._wake()

    def on_lost(self, error: LogError) -> None:
        self.lost.append(error)
        self._wake()

    def copy_state(self) -> Iterator[Change]:
        return iter(list(self.state))

    def restore(self, changes: Iterable[Change]) -> None:
        self.state.extend(changes)

    def _wake(self) -> None:
        async def wake() -> None:
            async with self.heard:
                self.heard.notify_all()

        self._waking = asyncio.create_task(wake())

    async def until(self, *, durable: int = 0, refused: int = 0, lost: int = 0) -> None:
        def is_so() -> bool:
            counts = len(self.refused) >= refused and len(self.lost) >= lost
            return counts and self.durable >= durable

        async with asyncio.timeout(10), self.heard:
            await self.heard.wait_for(is_so)


async def reopen(engine: FaultyEngine) -> tuple[list[Change], LogHead]:
    owner = Owner()
    head = await read_log(engine, owner.restore)
    return owner.state, head


async def test_commits_that_come_during_an_append_share_the_next_frame() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, LogHead(), owner)
    engine.gate.clear()
    journal.append(put(1))
    await engine.has_begun.wait()
    for number in range(2, 101):
        journal.append(put(number))
    assert owner.durable == 0
    engine.gate.set()
    await owner.until(durable=100)
    await journal.close()
    assert engine.is_closed
    assert len(await engine.list_slots()) == 2
    assert (await reopen(engine))[0] == [put(number)[0] for number in range(1, 101)]


async def test_a_frame_ends_before_its_limit() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, LogHead(), owner)
    for number in range(1, 11):
        journal.append(put(number, 200 << 10))
    journal.append(put(11, 3 << 20))
    await owner.until(durable=11)
    await journal.close()
    sizes = [len(slot.data) >> 10 for slot in await engine.list_slots()]
    assert sizes == [400] * 5 + [3072]


async def test_each_opening_is_a_new_term() -> None:
    engine = FaultyEngine()
    for number in range(1, 4):
        _, head = await reopen(engine)
        owner = Owner()
        journal = Journal(engine, head, owner)
        journal.append(put(number))
        await owner.until(durable=1)
        await journal.close()
    frames = [decode_frame(slot.data, slot.index) for slot in await engine.list_slots()]
    assert [frame.term for frame in frames] == [1, 2, 3]


async def test_a_full_log_refuses_and_goes_on_when_there_is_room() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, LogHead(), owner)
    engine.is_full = True
    journal.append(put(1))
    journal.append(put(2))
    await owner.until(refused=1)
    assert owner.durable == 0
    engine.is_full = False
    journal.append(put(3))
    await owner.until(durable=1)
    await journal.close()
    assert (await reopen(engine))[0] == list(put(3))


@pytest.mark.parametrize("fault", ["loses_next", "hides_next"])
async def test_an_append_of_unknown_outcome_is_the_last(fault: str) -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, LogHead(), owner)
    setattr(engine, fault, True)
    journal.append(put(1))
    await owner.until(lost=1)
    journal.append(put(2))
    await journal.close()
    assert owner.durable == 0
    assert engine.appends == 1
    assert "input/output error" in str(owner.lost[0])


async def test_a_commit_that_cannot_be_written_leaves_nobody_waiting() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, LogHead(), owner)
    journal.append((KeyPut("j", "no UTF-8: \ud800", b"", 1, 1, 1),))
    await owner.until(lost=1)
    await journal.close()
    assert "UnicodeEncodeError" in str(owner.lost[0])


async def test_a_slot_of_another_writer_ends_the_journal() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, LogHead(), owner)
    await engine.append(1, encode_frame(make_frame(7, 1, 0, b"")))
    journal.append(put(1))
    await owner.until(lost=1)
    await journal.close()
    assert "slot 1 of the log is damaged: another daemon has written it" in str(owner.lost[0])


async def write(engine: FaultyEngine, numbers: Iterable[int]) -> None:
    """Write a frame for each number."""
    _, head = await reopen(engine)
    owner = Owner()
    journal = Journal(engine, head, owner)
    for done, number in enumerate(numbers, 1):
        journal.append(put(number))
        await owner.until(durable=done)
    await journal.close()


async def test_a_log_that_lost_frames_in_the_middle_is_refused() -> None:
    engine = FaultyEngine()
    await write(engine, range(1, 6))
    slots = await engine.list_slots()
    frame = decode_frame(slots[2].data, 3)
    other = make_frame(frame.term, 3, frame.chain, b"")
    engine.replace(3, encode_frame(other))
    with pytest.raises(LogDamaged, match=r"slot 4 .* lost or exchanged"):
        await reopen(engine)


async def write_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[FaultyEngine, list[Change], Snapshot]:
    """Write one frame, and a snapshot of 2,500 changes behind it."""
    engine, owner = FaultyEngine(), Owner()
    owner.state = [put(number)[0] for number in range(1, 2501)]
    with monkeypatch.context() as soon:
        soon.setattr(journals, "_LEAST_LOG_NBYTES", 1)
        journal = Journal(engine, LogHead(), owner)
        journal.append(put(2500))
        await owner.until(durable=1)
        await journal.close()
    snapshot = await engine.load_snapshot()
    assert snapshot is not None
    return engine, owner.state, snapshot


async def test_a_log_goes_on_behind_its_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, state, snapshot = await write_snapshot(monkeypatch)
    assert (snapshot.index, len(snapshot.chunks)) == (1, 4)  # of 1,000 each, and the end
    assert list(await engine.list_slots()) == []
    found, head = await reopen(engine)
    assert found == state
    assert (head.index, head.term) == (1, 1)
    await write(engine, [2501])
    assert (await reopen(engine))[0] == [*state, *put(2501)]


async def test_the_first_frame_behind_a_snapshot_follows_the_frame_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "_LEAST_LOG_NBYTES", 1)
    engine, owner = FaultyEngine(), Owner()
    owner.state = [*put(1, 1 << 10)]
    journal = Journal(engine, LogHead(), owner)
    journal.append(put(1, 1 << 10))
    await owner.until(durable=1)
    assert journal._snapshot is not None
    await journal._snapshot
    journal.append(put(2))
    await owner.until(durable=2)
    await journal.close()
    assert [slot.index for slot in await engine.list_slots()] == [2]
    assert (await reopen(engine))[0] == [*put(1, 1 << 10), *put(2)]


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_a_snapshot_that_is_cut_short_is_refused(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    engine, _, snapshot = await write_snapshot(monkeypatch)
    await engine.save_snapshot(1, snapshot.chunks[:kept])
    with pytest.raises(LogDamaged, match=r"slot 1 .* cut short"):
        await reopen(engine)


async def test_a_missing_beginning_is_refused() -> None:
    engine = FaultyEngine()
    await write(engine, range(1, 4))
    engine._first = 2
    with pytest.raises(LogDamaged, match=r"slot 1 .* begins with slot 2"):
        await reopen(engine)
