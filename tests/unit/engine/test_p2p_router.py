"""Router of messages: when it opens shared memory, and that it does so once."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from allhands.collectives.signature import CallSignature
from allhands.engine.failures.losses import FailureLog
from allhands.engine.numbering import CallNumbering
from allhands.engine.p2p.message import P2PRequest
from allhands.engine.p2p.router import ShmOrLinksRouter
from allhands.engine.work.work import Work
from allhands.runtime.helper_threads import HelperThreads


class ShmP2P:
    """Messages that end as soon as they are begun."""

    timeout = 0.0

    def start(self, *given: Any) -> Any:
        return SimpleNamespace(outcome="ok", claim=lambda: True, context=given[-1], way="eager")


def make_router(order: CallNumbering, made: list[ShmP2P]) -> ShmOrLinksRouter:
    """Return the router of a group that shares memory."""

    def make(**_: object) -> ShmP2P:
        made.append(ShmP2P())
        return made[-1]

    channel = SimpleNamespace(
        is_undecided=False,
        p2p_maker=lambda: make,
        recorder=SimpleNamespace(report_failure=lambda _: None),
    )
    nothing = cast(Any, SimpleNamespace())
    return ShmOrLinksRouter(
        "world",
        (0, 1),
        0,
        order,
        cast(Any, channel),
        nothing,
        nothing,
        FailureLog(),
        lambda: 0,
        (0, 1),
        HelperThreads(),
    )


def make_request() -> P2PRequest:
    work = Work(CallSignature("send"), 0, None, "world")
    call = CallSignature("message", "float64", 1)
    return P2PRequest(work, call, np.ones(1), None, 1, 0, 5.0, 5.0)


def test_messages_need_no_queue_once_shared_memory_was_opened_early() -> None:
    order, made = CallNumbering(5.0), list[ShmP2P]()
    router = make_router(order, made)
    assert order.p2p is None
    router.open_early()
    assert order.p2p is cast(Any, made[0])
    assert router.shm_path is not None


def test_shared_memory_is_not_opened_early_while_a_message_is_queued() -> None:
    order, made = CallNumbering(5.0), list[ShmP2P]()
    router = make_router(order, made)
    order.queued_messages = 1
    router.open_early()
    assert not made
    assert order.p2p is None


def test_shared_memory_that_a_message_has_opened_is_not_opened_again() -> None:
    order, made = CallNumbering(5.0), list[ShmP2P]()

    async def send() -> None:
        router = make_router(order, made)
        order.queued_messages = 1
        request = make_request()
        router.start(request)
        request.work.wait()
        router.open_early()

    asyncio.run(send())
    assert len(made) == 1
    assert order.p2p is cast(Any, made[0])
