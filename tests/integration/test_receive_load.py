"""Large frames at the key-value port: read when there is room, in turns, never from slow peers."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from allhands_proto.framing import LARGEST_FRAME, encode_frame
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.kv import receive_load as load_module
from allhands_server.kv.incoming import split_calls
from allhands_server.kv.listener import KvListener
from allhands_server.resource_limits import ResourceLimits
from support.kv_lines import MIB, PATIENCE, Line, get, listen, put, read_to_end, wait_until

_SMALLEST = ResourceLimits(memory=256 * MIB)
"""With room for one frame of the largest size."""
SLOW = (
    "it is slow, and others wait for the 8,388,608 bytes that may be received at a time: "
    "1/32 of the daemon's memory (`allhands serve --limit memory=SIZE`)"
)
CROWDED = "others wait with 1,048,576 bytes of their frames"


@pytest.fixture
async def listener() -> AsyncIterator[KvListener]:
    async with asyncio.timeout(PATIENCE), listen(_SMALLEST) as (_, listener):
        assert listener.receive_load.most == LARGEST_FRAME
        yield listener
        listener.abort()
        await wait_until(lambda: not listener._connections)
        assert listener.receive_load.nbytes == 0
        assert listener.receive_load._waiting_nbytes == 0


async def begin_frame(line: Line, nbytes: int = LARGEST_FRAME, come: int = 100_000) -> None:
    """Send the beginning of a large frame."""
    await line.send(struct.pack(">I", nbytes) + bytes(come))


@pytest.fixture
def reasons(listener: KvListener, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons for which connections were dropped."""
    reasons: list[str] = []
    monkeypatch.setattr(listener, "warn", lambda _, why: reasons.append(why))
    return reasons


async def test_a_slow_frame_is_dropped_when_others_wait_for_room(
    listener: KvListener, reasons: list[str]
) -> None:
    slow, other, small = [await Line.open(listener.port) for _ in range(3)]
    await begin_frame(slow)
    await wait_until(lambda: listener.receive_load.nbytes == LARGEST_FRAME)
    (dropped,) = (one for one in listener._connections if one._todo._reserved)
    waiting = asyncio.create_task(other.call(put(1, "k", bytes(4 * MIB))))
    await wait_until(lambda: listener.receive_load._waiting_nbytes > 0)
    await small.call(put(2, "small", b"1"))
    assert (await small.read_replies(1))[0].id == 2  # small calls never wait
    assert not reasons
    await waiting
    assert not (await other.read_replies(1))[0].HasField("refused")
    assert reasons == [SLOW]
    await read_to_end(slow)
    assert dropped._todo._decoder.held == 0
    for line in (slow, other, small):
        line.close()


async def test_hosts_take_turns_for_room(listener: KvListener) -> None:
    slow = [await Line.open(listener.port) for _ in range(20)]
    for line in slow:
        await begin_frame(line)
    await wait_until(lambda: len(listener.receive_load._awaited) == len(slow) - 1)
    other = await Line.open(listener.port, "127.0.0.2")
    await other.call(put(1, "k", bytes(4 * MIB)))
    assert not (await other.read_replies(1))[0].HasField("refused")
    assert len(listener.receive_load._awaited) > len(slow) // 2
    for line in (*slow, other):
        line.close()


async def test_a_slow_frame_is_received_as_long_as_nobody_waits(
    listener: KvListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(load_module, "PAUSE_SECONDS", 0.01)
    line = await Line.open(listener.port)
    frame = encode_frame(wire.Calls(calls=[put(1, "k", bytes(MIB))]).SerializeToString())
    for begin in range(0, len(frame), len(frame) // 8):
        await line.send(frame[begin : begin + len(frame) // 8])
        await asyncio.sleep(0.02)  # what a slow network does
    assert not (await line.read_replies(1))[0].HasField("refused")
    line.close()


async def test_who_is_silent_in_a_frame_is_dropped(
    listener: KvListener, reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "SILENCE_SECONDS", 0.2)
    line = await Line.open(listener.port)
    await begin_frame(line)
    await read_to_end(line)
    assert reasons == ["nothing of its frame has come for 0.2 s"]
    line.close()


async def test_a_peer_that_does_not_read_gives_its_room_to_others(
    listener: KvListener, reasons: list[str]
) -> None:
    deaf = [await Line.open(listener.port) for _ in range(2)]
    other = await Line.open(listener.port)
    await other.call(put(1, "k", bytes(4 * MIB)))
    await other.read_replies(1)
    for line in deaf:
        await line.call(*(get(id, "k") for id in range(2, 12)), put(12, "l", bytes(5 * MIB)))
    await wait_until(lambda: listener.receive_load.nbytes > LARGEST_FRAME)
    await wait_until(lambda: sum(one._is_choked for one in listener._connections) == 2)
    assert not reasons
    await other.call(put(2, "m", bytes(4 * MIB)))
    assert not (await other.read_replies(1))[0].HasField("refused")
    assert reasons == [SLOW]
    for line in (*deaf, other):
        line.close()


async def test_frames_that_wait_hold_no_more_than_there_is_room(
    listener: KvListener, reasons: list[str]
) -> None:
    load = listener.receive_load
    load.most = MIB
    lines = [await Line.open(listener.port) for _ in range(60)]
    begun = [asyncio.create_task(begin_frame(line, come=MIB // 4)) for line in lines]
    await wait_until(lambda: any(one.startswith(CROWDED) for one in reasons))
    assert load._waiting_nbytes <= MIB
    assert sum(one._todo._decoder.held for one in listener._connections) <= 2 * MIB
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
    for line in lines:
        line.close()


async def test_calls_of_a_large_frame_are_decoded_one_by_one(
    listener: KvListener, reasons: list[str]
) -> None:
    line = await Line.open(listener.port)
    calls = [put(id, f"k{id}", bytes(500)) for id in range(200)]
    body = wire.Calls(calls=calls).SerializeToString()
    await line.send(encode_frame(body))
    assert [reply.id for reply in await line.read_replies(200)] == list(range(200))
    assert not reasons
    await line.send(encode_frame(body + b"\xff" * 9))
    await read_to_end(line)
    assert reasons == ["a frame that is no list of calls"]
    line.close()


def test_calls_are_split_as_they_are_encoded() -> None:
    sizes = [0, 1, 127, 128, 20_000, 3_000_000]
    calls = [wire.Call(id=size, set=wire.SetRequest(value=bytes(size))) for size in sizes]
    encoded = list(split_calls(wire.Calls(calls=calls).SerializeToString()))
    assert [wire.Call.FromString(one) for one in encoded] == calls
