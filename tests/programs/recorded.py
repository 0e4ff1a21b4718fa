"""Ranks with recorded calls, inspected from outside."""

import asyncio
import inspect
import os
import time
from types import FrameType
from typing import Any

import numpy as np

import allhands as ah
from allhands import aio
from programs.protocol import failure, hear, tell, until


class _Ways:
    """A method for each route of a call; each notes the line of the call."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self._me = ah.get_rank()
        self._x, self._y = np.ones(4, np.float32), np.zeros(4, np.float32)

    def _line(self, way: str) -> None:
        """Note the line after the caller's under the name of a way of calling."""
        frame = inspect.currentframe()
        assert isinstance(frame, FrameType)
        assert isinstance(frame.f_back, FrameType)
        self.lines[way] = frame.f_back.f_lineno + 1

    def fast(self) -> None:
        self._line("fast")
        ah.all_reduce(self._x, label="fast")

    def queued(self) -> None:
        self._line("queued")
        ah.all_reduce(self._x, async_op=True, label="queued").wait()

    def prepared(self) -> None:
        call = ah.all_reduce_init(self._x, label="prepared")
        self._line("prepared")
        call.start()
        call.wait()

    def method(self) -> None:
        self._line("method")
        ah.default_group().barrier(label="method").wait()

    def list_of_arrays(self) -> None:
        self._line("list")
        ah.all_gather([self._y, self._y.copy()], self._x, label="list")

    def message(self) -> None:
        if self._me == 0:
            self._line("message")
            ah.send(self._x, 1, label="message")
        else:
            self._line("message")
            ah.recv(self._y, 0, label="message")

    def later(self) -> None:
        if self._me == 0:
            self._line("later")
            ah.isend(self._x, 1, tag=3, label="later").wait()
        else:
            self._line("later")
            ah.irecv(self._y, 0, tag=3, label="later").wait()

    def mailed(self) -> None:
        if self._me == 0:
            self._line("mailed")
            ah.send(self._x, 1, label="mailed")
        else:
            self._line("mailed")
            ah.recv(self._y, 0, label="mailed")

    async def awaited(self) -> None:
        group = aio.AsyncGroup(ah.default_group())
        self._line("awaited")
        await group.all_reduce(self._x, label="awaited")

    def find_way_of_messages(self, links: str) -> None:
        """Exchange first messages: later messages take their final route."""
        (ah.send if self._me == 0 else ah.recv)(self._y, 1 - self._me)
        if links == "auto":
            until(lambda: ah.default_group().order.p2p is not None)


def call_every_way(links: str) -> None:
    ah.init_process_group(timeout=30)
    ways = _Ways()
    ah.barrier()
    for way in (ways.fast, ways.queued, ways.prepared, ways.method, ways.list_of_arrays):
        way()
    ways.message()
    ways.later()
    ways.find_way_of_messages(links)
    ways.mailed()
    asyncio.run(ways.awaited())
    tell("recorded", lines=ways.lines, records=[_shown(one) for one in ah.flight_recorder()])
    ah.destroy_process_group()


def _shown(record: ah.OperationRecord) -> dict[str, Any]:
    where = ah.default_group().submitter.engine._failures.find_call_site
    return {
        "label": record.label,
        "line": record.line,
        "function": record.function,
        "file": record.file,
        "outcome": record.outcome,
        "operation": record.operation,
        "sequence": record.sequence,
        "nbytes": record.nbytes,
        "how": record.how,
        "signature": record.signature,
        "ordered": record.created <= record.started <= record.finished,
        "source": record.source,
        "where": where(record.sequence) if record.sequence else "",
    }


def call_often() -> None:
    ah.init_process_group()
    x = np.zeros(1)
    for _ in range(200):
        ah.all_reduce(x)
    for _ in range(70):
        ah.all_reduce(x, async_op=True).wait()
    tell("recorded", numbers=[one.sequence for one in ah.flight_recorder()])
    ah.destroy_process_group()


def busy() -> None:
    tell("in place")
    hear()


def get_stuck(is_async: bool) -> None:
    """Leave rank 0 in no call, rank 3 in a call of a pair, the rest in the world's third call."""
    ah.init_process_group(timeout=60)
    me, x = ah.get_rank(), np.ones(4, np.float32)
    ah.all_reduce(x)
    if is_async:
        ah.all_reduce(x, async_op=True).wait()
    else:
        ah.all_reduce(x)

    def step() -> None:
        ah.all_reduce(x, label="grad")

    if me == 0:
        busy()
    elif me == 3:
        pair = ah.new_group([0, 3])
        tell("in place")
        ah.barrier(pair, label="odd")
    else:
        tell("in place")
        step()


def straggle() -> None:
    ah.init_process_group(timeout=60)
    x = np.ones(4)
    for _ in range(20):
        if ah.get_rank() == 5:
            time.sleep(0.05)
        ah.all_reduce(x)
    tell("in place")
    hear()
    ah.destroy_process_group()


def call_ten_times() -> None:
    ah.init_process_group(timeout=60)
    x = np.ones(4)
    ah.barrier()
    for number in range(10):
        ah.all_reduce(x, label=f"call {number}")
    tell("in place", begun={one.label: one.started for one in ah.flight_recorder()})
    hear()
    ah.destroy_process_group()


def call_alone() -> None:
    """Rank 0 makes a call without its peer."""
    ah.init_process_group(timeout=60)
    x = np.ones(4)
    ah.barrier()
    if ah.get_rank() == 0:
        tell("failed", **failure(lambda: ah.all_reduce(x, timeout=0.3, label="lonely")))
    else:
        hear()
    tell("over")
    hear()
    os._exit(0)
