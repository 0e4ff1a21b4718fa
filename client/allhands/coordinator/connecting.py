"""Several daemons or addresses asked side by side: the first that answers is called.

Each is asked a quarter of a second after the one before, or as soon as that one has failed. So an
address that does not answer costs no more than that.
"""

import asyncio
import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import grpc

from allhands.coordinator.daemon_choice import Unavailable
from allhands.coordinator.dialling import STAGGER_SECONDS
from allhands.coordinator.http2.stub import Channel, make_stub
from allhands.coordinator.protocol_versions import make_describe_request
from allhands_proto.v1 import coordinator_pb2_grpc

_CANCEL_SECONDS = 0.5
"""Between two looks whether another thread has cancelled the call."""
_NO_ANSWERS = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)

C = TypeVar("C")


class NoAnswer(Unavailable):
    """Failure of a call for which no address had answered at its deadline."""

    def __init__(self, targets: Sequence[str]) -> None:
        super().__init__(f"failed to connect in time to any of {', '.join(targets)}")


def find_answering(
    channels: Sequence[tuple[C, Callable[[], grpc.Channel]]],
    metadata: Any,
    deadline: float,
    is_cancelled: Callable[[], bool],
) -> C | None:
    """Ask over one channel after the other; return the key of the first answer.

    Returns None where each has failed.

    Raises:
        TimeoutError: none has answered at the deadline (monotonic clock), and not each has failed.
        grpc.FutureCancelledError: the call was cancelled meanwhile.
    """
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    asked: list[Any] = []
    count, next_start = 0, time.monotonic()
    try:
        while count < len(channels):
            now, at = time.monotonic(), len(asked)
            if now >= deadline:
                raise TimeoutError
            if at < len(channels) and (now >= next_start or count == at):
                call = _describe(channels[at][1](), metadata, deadline - now)
                asked.append(call)
                call.add_done_callback(partial(_put_place, ended, at))
                next_start = now + STAGGER_SECONDS
                continue
            if is_cancelled():
                raise grpc.FutureCancelledError
            until = next_start if at < len(channels) else now + _CANCEL_SECONDS
            try:
                place = ended.get(timeout=min(until, deadline) - now)
            except queue.Empty:
                continue
            if asked[place].code() not in _NO_ANSWERS:
                return channels[place][0]
            count += 1
        if time.monotonic() >= deadline:
            raise TimeoutError
        return None
    finally:
        for call in asked:
            call.cancel()


def _describe(channel: grpc.Channel, metadata: Any, timeout: float) -> Any:
    """Begin to ask a daemon what it is."""
    stub = coordinator_pb2_grpc.CoordinatorStub(channel)
    return stub.DescribeCoordinator.future(
        make_describe_request(), timeout=timeout, metadata=metadata
    )


def _put_place(ended: "queue.SimpleQueue[int]", place: int, _: object) -> None:
    ended.put(place)


async def find_answering_async(
    channels: Sequence[tuple[C, Callable[[], Channel]]],
    metadata: Any,
    timeout: float | None,
) -> C | None:
    """Do the same on the running loop; a timeout of None ends with the caller's task.

    Raises:
        TimeoutError: none has answered within the timeout, and not each has failed.
    """
    tasks: dict[asyncio.Task[bool], C] = {}
    waiting: set[asyncio.Task[bool]] = set()
    try:
        async with asyncio.timeout(timeout):
            for key, open_channel in channels:
                task = asyncio.ensure_future(_has_answer(open_channel(), metadata))
                tasks[task] = key
                waiting.add(task)
                stagger = STAGGER_SECONDS if len(tasks) < len(channels) else None
                while waiting:
                    done, waiting = await asyncio.wait(
                        waiting, timeout=stagger, return_when=asyncio.FIRST_COMPLETED
                    )
                    for one in done:
                        if one.result():
                            return tasks[one]
                    if not done:
                        break
        return None
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _has_answer(channel: Channel, metadata: Any) -> bool:
    stub = make_stub(channel)
    try:
        await stub.DescribeCoordinator(make_describe_request(), metadata=metadata)
    except grpc.RpcError as error:
        return error.code() not in _NO_ANSWERS
    return True
