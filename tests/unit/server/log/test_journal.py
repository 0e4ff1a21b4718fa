"""Group commit to the log, its failures, and the reading of what it wrote."""

import pytest

from allhands_server.log.errors import LogDamaged
from allhands_server.log.frame import decode_frame, encode_frame, make_frame
from allhands_server.log.journal import Journal
from allhands_server.log.recovery import RestoredLog
from allhands_server.machine.changes import KeyPut
from support.faulty_log import FaultyEngine
from support.journals import Owner, put, reopen, write


async def test_commits_that_come_during_an_append_share_the_next_frame() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, RestoredLog(), owner)
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
    journal = Journal(engine, RestoredLog(), owner)
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
        _, restored = await reopen(engine)
        owner = Owner()
        journal = Journal(engine, restored, owner)
        journal.append(put(number))
        await owner.until(durable=1)
        await journal.close()
    frames = [decode_frame(slot.data, slot.index) for slot in await engine.list_slots()]
    assert [frame.term for frame in frames] == [1, 2, 3]


async def test_a_full_log_refuses_and_goes_on_when_there_is_room() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, RestoredLog(), owner)
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
    journal = Journal(engine, RestoredLog(), owner)
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
    journal = Journal(engine, RestoredLog(), owner)
    journal.append((KeyPut("j", "no UTF-8: \ud800", b"", 1, 1, 1),))
    await owner.until(lost=1)
    await journal.close()
    assert "UnicodeEncodeError" in str(owner.lost[0])


async def test_a_slot_of_another_writer_ends_the_journal() -> None:
    engine, owner = FaultyEngine(), Owner()
    journal = Journal(engine, RestoredLog(), owner)
    await engine.append(1, encode_frame(make_frame(7, 1, 0, b"")))
    journal.append(put(1))
    await owner.until(lost=1)
    await journal.close()
    assert "slot 1 of the log is damaged: another daemon has written it" in str(owner.lost[0])


async def test_a_log_that_lost_frames_in_the_middle_is_refused() -> None:
    engine = FaultyEngine()
    await write(engine, range(1, 6))
    slots = await engine.list_slots()
    frame = decode_frame(slots[2].data, 3)
    other = make_frame(frame.term, 3, frame.chain, b"")
    engine.replace(3, encode_frame(other))
    with pytest.raises(LogDamaged, match=r"slot 4 .* lost or exchanged"):
        await reopen(engine)


async def test_a_missing_beginning_is_refused() -> None:
    engine = FaultyEngine()
    await write(engine, range(1, 4))
    engine._first = 2
    with pytest.raises(LogDamaged, match=r"slot 1 .* begins with slot 2"):
        await reopen(engine)
