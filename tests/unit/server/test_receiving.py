"""Receiving of messages: who waits is admitted or cancelled, who is slow is aborted."""

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from allhands_server.machine.refusals import Refused
from allhands_server.resource_limits import ResourceLimits
from allhands_server.rpc import receiving
from allhands_server.rpc.receive_room import ReceiveRoom
from allhands_server.rpc.receiving import MessageReceiver, make_receiver


class Context:
    """A call of a peer, which is aborted once."""

    def __init__(self, port: int = 1) -> None:
        self._port = port
        self.aborted: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def peer(self) -> str:
        return f"ipv4:127.0.0.1:{self._port}"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        self.aborted.set_result(details)
        raise grpc.aio.AbortError


def hold_loop(seconds: float) -> None:
    time.sleep(seconds)  # what a busy daemon does


def make(most: int = 1, most_waiting: int = 10) -> MessageReceiver:
    return MessageReceiver(ReceiveRoom(most, most_waiting), ": buy more")


async def begin(receiver: MessageReceiver, context: Any = None) -> "asyncio.Task[Any]":
    """Begin to ask for room."""
    task = asyncio.create_task(receiver.take_room(context or Context()))
    await asyncio.sleep(0)
    return task


async def test_calls_wait_and_are_admitted_in_turn() -> None:
    receiver = make()
    first, second, third = [await begin(receiver) for _ in range(3)]
    assert [task.done() for task in (first, second, third)] == [True, False, False]
    receiver.give_room(await first)
    receiver.give_room(await first)
    receiver.give_room(await second)
    receiver.give_room(await third)
    assert (len(receiver.room), receiver.room.waiting_count) == (0, 0)


async def test_a_call_that_is_cancelled_passes_its_room_on() -> None:
    receiver = make()
    first, second, third, fourth = [await begin(receiver) for _ in range(4)]
    third.cancel()
    receiver.give_room(await first)
    second.cancel()  # it was admitted in this turn of the loop
    receiver.give_room(await fourth)
    assert (len(receiver.room), receiver.room.waiting_count) == (0, 0)
    assert second.cancelled()


async def test_a_slow_call_is_aborted_by_name_when_another_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "GRACE_SECONDS", 0.0)
    receiver = make()
    slow = Context()
    reception = await (await begin(receiver, slow))
    other = await begin(receiver)
    assert await slow.aborted == (
        "the message did not come within 0 s, and others wait: "
        "1 messages are received at a time: buy more"
    )
    receiver.give_room(reception)
    receiver.give_room(await other)


async def test_a_daemon_that_was_late_itself_aborts_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(receiving, "_LOOK_SECONDS", 0.01)
    receiver = make()
    slow = Context()
    reception = await (await begin(receiver, slow))
    other = await begin(receiver)
    for _ in range(20):
        hold_loop(0.1)
        await asyncio.sleep(0)
        assert not slow.aborted.done()
    receiver.give_room(reception)
    receiver.give_room(await other)


async def test_too_many_calls_that_wait_are_refused_by_name() -> None:
    receiver = make(most_waiting=1)
    tasks = [await begin(receiver) for _ in range(3)]
    with pytest.raises(Refused, match="1 calls wait, the most that may: 1 messages are received"):
        await asyncio.wait_for(tasks[1], 10)
    receiver.give_room(await tasks[0])
    receiver.give_room(await tasks[2])


async def test_the_peers_of_calls_are_told_before_their_messages_come() -> None:
    peers: list[str] = []
    receiver = make_receiver(ResourceLimits(memory=1 << 30), peers.append)
    assert receiver.room.most == 8
    receiver.give_room(await (await begin(receiver, Context(7))))
    assert peers == ["ipv4:127.0.0.1:7"]
