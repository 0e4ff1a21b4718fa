"""Answers that are lost on their way: each request is sent again, and has its effect once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.aio.control import AsyncControl
from allhands.coordinator.client import Control
from support.linearizability.altered_daemon import lose_answers, make_command
from support.served_daemon import ServedDaemon

CALLS = 60
WRITERS = 3


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ServedDaemon]:
    """Start a daemon that breaks connections in the place of every tenth answer."""
    daemon = ServedDaemon(tmp_path, make_command(lose_answers))
    daemon.start()
    yield daemon
    daemon.close()


@pytest.mark.parametrize("use_lines", [True, False], ids=["lines", "grpc"])
def test_a_client_makes_each_change_once(daemon: ServedDaemon, use_lines: bool) -> None:
    with Control(daemon.endpoint, job="j", timeout=60, use_lines=use_lines) as control:
        for number in range(CALLS):
            assert control.add("sum", 2) == 2 * (number + 1)
            assert control.append("text", "x") == number + 1
            control.queue_push("queue", f"{number}")
        assert control.queue_length("queue") == CALLS
        popped = [control.queue_pop("queue") for _ in range(CALLS)]
        assert popped == [f"{number}".encode() for number in range(CALLS)]
        held = b""
        for number in range(CALLS):
            desired = f"{number}".encode()
            assert control.cas("lock", held, desired).swapped
            held = desired
        for number in range(10):
            assert control.barrier("alone", "me", ["me"]) == number + 1


async def test_tasks_make_each_change_once(daemon: ServedDaemon) -> None:
    async def write(control: AsyncControl, place: int) -> None:
        for _ in range(CALLS):
            await control.add("sum", 1)
            await control.add(f"sum{place}", 1)

    async with AsyncControl(daemon.endpoint, job="j", timeout=60) as control:
        async with asyncio.TaskGroup() as tasks:
            for place in range(WRITERS):
                tasks.create_task(write(control, place))
        assert await control.add("sum", 0) == WRITERS * CALLS
        for place in range(WRITERS):
            assert await control.get(f"sum{place}") == f"{CALLS}".encode()
