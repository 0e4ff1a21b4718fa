"""Output of the ranks, forwarded in whole lines, one rank at a time."""

import asyncio
import contextlib
import fcntl
import os
import queue
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

from allhands.launcher.line_splitter import LineSplitter, prefix_lines
from allhands_proto.quick_dataclass import dataclass

_CHUNK = 64 * 1024

Portion: TypeAlias = tuple[int, bytes]
"""A file descriptor, and what to write to it."""


class Writer:
    """Writes to descriptors that may block, without blocking the loop.

    If the terminal or the pager is slow, then only the ranks that write wait; an embedded
    coordinator on the loop goes on. A thread, because a descriptor made non-blocking would be so
    for every process that shares it. A daemon thread, because a reader that never reads must not
    keep a launcher alive that was told to end.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[list[Portion], asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="allhands-output", daemon=True)
        self._thread.start()

    async def write(self, portions: list[Portion]) -> None:
        """Write the portions in order; return when the system has accepted all.

        Raises:
            OSError: one of them could not be written.
        """
        await self._queue(portions)

    def _queue(self, portions: list[Portion]) -> asyncio.Future[None]:
        """Have the portions written after those before; return what ends when they are."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._requests.put((portions, done))
        return done

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write on the thread."""
        write_all(descriptor, data)

    def close(self) -> None:
        """End the thread after the queued writes; does not wait."""
        self._requests.put(None)

    def _run(self) -> None:
        while (order := self._requests.get()) is not None:
            portions, done = order
            error: OSError | None = None
            try:
                for descriptor, data in portions:
                    self._write(descriptor, data)
            except OSError as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(_complete, done, error)


def _complete(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():  # cancelled meanwhile
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, in as many system calls as needed."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class OutputPriority:
    """Order of the ranks' output: while there are holders, only the first may write."""

    def __init__(self) -> None:
        self._holders: list[int] = []
        self._changed = asyncio.Event()

    def grant(self, rank: int) -> None:
        """Give a rank the sole right to write, after earlier holders, until released."""
        if rank not in self._holders:
            self._holders.append(rank)

    def release(self, rank: int) -> None:
        """Pass the right to write to the next holder, if this rank has the right."""
        if rank in self._holders:
            self._holders.remove(rank)
            self._changed.set()
            self._changed = asyncio.Event()

    async def wait_turn(self, rank: int) -> None:
        """Wait until `rank` may speak: for as long as the holders take to be released."""
        while self._holders and self._holders[0] != rank:
            await self._changed.wait()


@dataclass(slots=True)
class Pump:
    """Carries the output stream of a rank: prefixed lines to `target`, raw bytes to `tee`.

    Owns `source`, the reading end of a pipe in non-blocking mode, and closes it at the end.
    """

    rank: int
    source: int
    target: int
    tee: int | None
    writer: Writer
    priority: OutputPriority
    before_write: Callable[[], None]
    """Called with output at hand, so that what caused it can be dealt with before it is shown."""
    _splitter: LineSplitter = field(default_factory=LineSplitter)
    _has_ended: bool = False
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    def on_rank_exit(self) -> None:
        """Note the end of the rank: the rest of the output is in the pipe already.

        Children of it that hold the other end may write on, but they are not waited for.
        """
        self._has_ended = True
        self._wakeup.set()

    async def run(self) -> None:
        """Carry on until the stream or the rank has ended.

        Raises:
            OSError: the output could not be written.
        """
        try:
            while not self._has_ended and await self._forward_chunk(_CHUNK) != 0:
                pass
            left = _count_readable(self.source)
            while left > 0 and (taken := await self._forward_chunk(min(left, _CHUNK))):
                left -= taken
            await self._emit(self._splitter.flush())
        finally:
            os.close(self.source)

    async def _forward_chunk(self, max_bytes: int) -> int | None:
        """Forward a chunk and return the length: 0 at the end of the stream.

        If nothing is there, wait for it or for the rank's end, and return None.
        """
        try:
            chunk = os.read(self.source, max_bytes)
        except BlockingIOError:
            await self._wait_readable()
            return None
        await self._emit(self._splitter.feed(chunk))
        return len(chunk)

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        # Only while there is nothing to read: the loop would spin on a pipe that is not emptied.
        loop.add_reader(self.source, self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            loop.remove_reader(self.source)
            self._wakeup.clear()

    async def _emit(self, lines: bytes) -> None:
        if not lines:
            return
        self.before_write()
        await self.priority.wait_turn(self.rank)
        portions = [(self.target, prefix_lines(b"[%d] " % self.rank, lines))]
        if self.tee is not None:
            portions.append((self.tee, lines))
        await self.writer.write(portions)


def _count_readable(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)
