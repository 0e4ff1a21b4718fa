"""Connections made on a thread beside the loop."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from allhands.coordinator import dialling
from allhands.coordinator.dialling import HostPort, connect_on_thread

ADDRESSES: list[HostPort] = [("127.0.0.1", 1)]


class Maker:
    """Makes a connection when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connection, self.other_end = socket.socketpair()
        self.is_allowed, self.has_made = threading.Event(), threading.Event()
        monkeypatch.setattr(dialling, "connect_to_any", self._connect)

    def _connect(self, *_: object) -> tuple[socket.socket, str]:
        assert self.is_allowed.wait(60)
        self.has_made.set()
        return self.connection, "here"


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    made = Maker(monkeypatch)
    yield made
    made.connection.close()
    made.other_end.close()


async def test_a_connection_is_returned_open(maker: Maker) -> None:
    maker.is_allowed.set()
    assert await connect_on_thread(ADDRESSES, 1) == (maker.connection, "here")
    assert maker.connection.fileno() >= 0


@pytest.mark.parametrize("has_come", [False, True], ids=["under way", "made"])
async def test_a_connection_that_nobody_waits_for_is_closed(maker: Maker, has_come: bool) -> None:
    waiting = asyncio.create_task(connect_on_thread(ADDRESSES, 1))
    await asyncio.sleep(0)
    if has_come:
        maker.is_allowed.set()
        assert maker.has_made.wait(60)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert waiting.cancelled()
    maker.is_allowed.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert maker.connection.fileno() < 0
