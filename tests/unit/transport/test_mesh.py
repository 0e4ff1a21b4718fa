"""The links of a rank while peers come and go."""

import asyncio
import math
import time

import pytest

from allhands.transport.frame import Frame, FrameKind, Header, MessageKey, whole
from allhands.transport.inbox import PostedReceive
from allhands.transport.inproc import InprocFabric, InprocNetwork
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import COPIED_EAGER_BYTES, EAGER_BYTES, PendingSend


class Silent:
    def on_nack(self, peer: int, key: MessageKey, call: str) -> None: ...

    def on_mismatch(self, peer: int, key: MessageKey) -> None: ...

    def on_link_broken(self, peer: int, reason: str) -> None: ...


class Told(Silent):
    def __init__(self) -> None:
        self.broken: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    def on_link_broken(self, peer: int, reason: str) -> None:
        self.broken.put_nowait((peer, reason))


class Verifying:
    def on_corrupt_frame(self, peer: int, key: MessageKey) -> None: ...

    def on_corruption_report(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None: ...


class Held:
    """A fabric with a single link, which holds frames until released."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.room = asyncio.Event()
        self.sent: list[bytes] = []
        self.events: list[str] = []

    async def dial(self, peer: int) -> "Held":
        return self

    def offer(self, frame: Frame) -> bool:
        return False

    async def send(self, frame: Frame) -> None:
        self.events.append("send")
        self.begun.set()
        await self.room.wait()
        self.sent.append(whole(frame))

    def let_go(self) -> None:
        self.events.append("let go")

    async def close(self) -> None: ...

    def abort(self) -> None: ...

    async def aclose(self) -> None: ...


async def test_memory_of_a_message_under_way_is_let_go_when_its_call_ends() -> None:
    fabric, mesh = Held(), Mesh(Silent())
    mesh.attach(fabric)
    told: list[bool] = []
    first, second = (
        PendingSend(
            MessageKey(1, 1, step), [memoryview(bytes(COPIED_EAGER_BYTES + 1))], 0, told.append
        )
        for step in (0, 1)
    )
    mesh.send(1, first)
    mesh.send(1, second)
    async with asyncio.timeout(5):
        await fabric.begun.wait()
    mesh.cancel_send(1, second)  # not under way: nothing holds its memory
    assert fabric.events == ["send"]
    mesh.cancel_send(1, first)
    assert fabric.events == ["send", "let go"]
    fabric.room.set()
    async with asyncio.timeout(5):
        await mesh.drain()
    assert len(fabric.sent) == 1
    await mesh.aclose()


async def test_a_message_is_done_when_its_link_has_taken_it() -> None:
    fabric, mesh = Held(), Mesh(Silent())
    mesh.attach(fabric)
    told: list[bool] = []
    mesh.send(
        1,
        PendingSend(MessageKey(1, 1), [memoryview(bytes(COPIED_EAGER_BYTES + 1))], 0, told.append),
    )
    async with asyncio.timeout(5):
        await fabric.begun.wait()
    assert told == []
    fabric.room.set()
    async with asyncio.timeout(5):
        await mesh.drain()
    assert told == [True]
    await mesh.aclose()


async def test_what_a_rank_that_left_never_took_in_does_not_hold_up_leaving() -> None:
    board = InprocNetwork()
    meshes = [Mesh(Silent()), Mesh(Silent())]
    for rank, mesh in enumerate(meshes):
        mesh.attach(InprocFabric(board, rank, mesh))
    waiting = PendingSend(MessageKey(1, 1), [memoryview(bytes(EAGER_BYTES + 1))], 0, lambda _: None)
    meshes[0].send(1, waiting)  # nobody ever asks for it
    await asyncio.sleep(0)
    meshes[0].close_link(1)
    async with asyncio.timeout(5):
        await meshes[0].drain()
    for mesh in meshes:
        await mesh.aclose()


@pytest.mark.parametrize("is_tagged", [False, True])
async def test_what_came_without_a_digest_before_its_group_was_opened_is_not_used(
    is_tagged: bool,
) -> None:
    listener = Told()
    mesh = Mesh(listener)
    mesh.attach(Held())
    key = MessageKey(1, 1, is_p2p=is_tagged)
    frame = whole([Header(FrameKind.DATA, key, 5, 3, 0, 3).pack(), memoryview(b"3.0")])
    mesh.accept(4, frame)
    mesh.enable_digests(1, Verifying())
    landed: list[bytes] = []
    incoming = PostedReceive(3, 5, lambda _, payload: landed.append(bytes(payload)), lambda _: None)
    if is_tagged:
        mesh.post_p2p(4, 1, 0, incoming)
    else:
        mesh.post(4, key, incoming)
    async with asyncio.timeout(5):
        peer, reason = await listener.broken.get()
    assert peer == 4
    assert "without digest" in reason
    assert landed == []
    await mesh.aclose()


class Quiet(Held):
    """A fabric whose peers never answer, over a network with a known time of recovery."""

    def __init__(self, recovery_seconds: float) -> None:
        super().__init__()
        self.recovery_seconds = recovery_seconds

    def get_last_activity(self, peer: int) -> float:
        return -math.inf

    def get_recovery_seconds(self, peer: int) -> float:
        return self.recovery_seconds


@pytest.mark.parametrize(
    ("recovery_seconds", "silent_after", "silent_before"),
    [
        pytest.param(0.0, 1.0, 0.9, id="unknown"),
        pytest.param(0.21, 1.0, 0.9, id="a near host"),
        pytest.param(2.0, 4.1, 3.9, id="a slow network"),
    ],
)
async def test_a_peer_is_silent_once_a_lost_packet_would_have_been_answered(
    recovery_seconds: float,
    silent_after: float,
    silent_before: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = Mesh(Silent())
    mesh.attach(Quiet(recovery_seconds))
    mesh.ping(1)
    pinged = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: pinged + silent_before)
    assert mesh.find_silent(1.0) == {}
    monkeypatch.setattr("time.monotonic", lambda: pinged + silent_after)
    assert mesh.find_silent(1.0).keys() == {1}
    monkeypatch.setattr("time.monotonic", lambda: pinged + 1.0)
    assert mesh.find_silent(1.0, behind_data=True).keys() == {1}
    monkeypatch.undo()
    await mesh.aclose()
