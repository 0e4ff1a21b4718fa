"""The sender's end of a raw-socket link with a slow reader."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from allhands.runtime import native_core
from allhands.testing.link_suite import make_frame
from allhands.transport.frame import HEADER_BYTES, MAX_PAYLOAD_BYTES
from allhands.transport.link import LinkBroken
from allhands.transport.socket_link import SocketLink


class Slow:
    """A link, and the far end of the connection, read at the test's command."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.breaks: list[str] = []
        self.link = SocketLink(self.near, self.breaks.append)

    async def read(self, nbytes: int) -> bytes:
        """Read so much while the loop goes on."""
        self.far.setblocking(False)
        text = b""
        async with asyncio.timeout(10):
            while len(text) < nbytes:
                text += await asyncio.get_running_loop().sock_recv(self.far, nbytes - len(text))
        return text

    async def fill(self, text: bytes) -> "tuple[bytearray, asyncio.Task[None]]":
        """Begin a frame larger than the room; return memory and task."""
        memory = bytearray(text)
        head, payload = memory[:HEADER_BYTES], memoryview(memory)[HEADER_BYTES:]
        task = asyncio.create_task(self.link.send([bytes(head), payload]))
        await asyncio.sleep(0)
        assert not task.done()
        return memory, task


@pytest.fixture
async def slow() -> Iterator[Slow]:  # type: ignore[misc]
    made = Slow()
    yield made
    made.link.abort()
    made.far.close()


LARGE = make_frame(1, bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256))


async def test_a_frame_is_sent_when_all_of_it_is_out(slow: Slow) -> None:
    _, task = await slow.fill(LARGE)
    assert await slow.read(len(LARGE)) == LARGE
    async with asyncio.timeout(10):
        await task


async def test_memory_that_is_let_go_may_change_at_once(slow: Slow) -> None:
    memory, task = await slow.fill(LARGE)
    slow.link.let_go()
    memory[:] = bytes(len(memory))
    assert await slow.read(len(LARGE)) == LARGE
    await task


async def test_memory_is_free_when_sending_is_cancelled(slow: Slow) -> None:
    memory, task = await slow.fill(LARGE)
    task.cancel()
    await asyncio.wait([task])
    memory[:] = bytes(len(memory))
    following = asyncio.create_task(slow.link.send([make_frame(2)]))
    assert await slow.read(len(LARGE) + HEADER_BYTES) == LARGE + make_frame(2)
    await following


async def test_nothing_is_taken_beside_a_frame_under_way(slow: Slow) -> None:
    _, task = await slow.fill(LARGE)
    assert not slow.link.offer([make_frame(2)])
    assert await slow.read(len(LARGE)) == LARGE
    await task
    assert slow.link.offer([make_frame(3)])
    assert await slow.read(HEADER_BYTES) == make_frame(3)


def _offer(slow: Slow, frame: bytes) -> bool:
    return slow.link.offer([frame])


def _write_when_lent(slow: Slow, frame: bytes) -> bool:
    """Borrow the link and write to its connection, as a call in the native core does."""
    core, reason = native_core.find()
    if core is None:
        pytest.skip(reason)
    return slow.link.lend(core.LinkState(0)) and slow.near.send(frame) == len(frame)


@pytest.mark.parametrize("attempt", [_offer, _write_when_lent])
async def test_nothing_overtakes_a_frame_that_waited_for_room(
    slow: Slow, attempt: Callable[[Slow, bytes], bool]
) -> None:
    """Neither in the turn of the loop between there being room and the frame being written."""
    assert slow.link.offer([LARGE])
    waiting = asyncio.create_task(slow.link.send([make_frame(2)]))
    slow.far.setblocking(False)
    text, is_taken = b"", False
    async with asyncio.timeout(10):
        while len(text) < len(LARGE) + 2 * HEADER_BYTES:
            await asyncio.sleep(0)
            is_taken = is_taken or attempt(slow, make_frame(3))
            with contextlib.suppress(BlockingIOError):
                text += slow.far.recv(len(LARGE))
    assert text == LARGE + make_frame(2) + make_frame(3)
    await waiting


async def test_what_was_offered_and_taken_is_out_of_its_memory(slow: Slow) -> None:
    memory = bytearray(LARGE)
    assert slow.link.offer([bytes(memory[:HEADER_BYTES]), memoryview(memory)[HEADER_BYTES:]])
    memory[:] = bytes(len(memory))
    assert await slow.read(len(LARGE)) == LARGE


async def test_a_link_that_breaks_ends_the_send_under_way(slow: Slow) -> None:
    _, task = await slow.fill(LARGE)
    slow.far.close()
    async with asyncio.timeout(10):
        with pytest.raises(LinkBroken):
            await task
    assert len(slow.breaks) == 1
    assert not slow.link.offer([make_frame(2)])
    with pytest.raises(LinkBroken):
        await slow.link.send([make_frame(2)])


async def test_a_frame_of_very_many_pieces_goes_out_whole(slow: Slow) -> None:
    pieces = [memoryview(bytes([number % 256])) for number in range(3000)]
    whole = make_frame(1, b"".join(pieces))
    task = asyncio.create_task(slow.link.send([whole[:HEADER_BYTES], *pieces]))
    assert await slow.read(len(whole)) == whole
    await task


async def test_a_peer_that_answers_nonsense_to_the_end_breaks_the_link(slow: Slow) -> None:
    closing = asyncio.create_task(slow.link.close())
    await slow.read(HEADER_BYTES)
    slow.far.send(b"?" * HEADER_BYTES)
    async with asyncio.timeout(10):
        with pytest.raises(LinkBroken):
            await closing
