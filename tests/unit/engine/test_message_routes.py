"""Routes of messages: which ways a message tries, in which order, and under which condition."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from allhands.engine.group_engine import GroupEngine
from allhands.engine.inline_limits import BEGUN_MESSAGE_BYTES
from allhands.engine.message_routes import (
    MessageRoute,
    choose_message_route,
    list_message_starts,
)
from allhands.engine.numbering import CallNumbering
from allhands.engine.work.completed import CompletedSend
from allhands.engine.work.work import Work
from allhands.group.interfaces import LoopExecutor
from allhands.group.messages import MessageSubmitter

X = np.ones(2)


class Group:
    """A group that writes down which routes its messages try."""

    def __init__(self, *, has_shm: bool, takes: str = "") -> None:
        self.tried: list[str] = []
        self.takes = takes
        self.router = SimpleNamespace(
            shm_path=SimpleNamespace(begin=lambda _: self.note("begin")) if has_shm else None,
            start=lambda _: self.note("post"),
            cancel="cancel",
        )
        self.lends = False
        recorder = SimpleNamespace(record_message=lambda *_: None)
        engine = SimpleNamespace(name="world", ranks=(0, 7), caller_ranks=(0, 7), recorder=recorder)
        engine.p2p_router = self.router
        executor = SimpleNamespace(
            callbacks=None, call=lambda *_: self.note("start"), run_on_caller_thread=self.lend
        )
        self.order = CallNumbering(5.0)
        if has_shm:
            self.order.p2p = cast(Any, SimpleNamespace(try_send=lambda *_: self.note("try_send")))
        self.submitter = MessageSubmitter(
            cast(GroupEngine, engine), cast(LoopExecutor, executor), self.order
        )

    def lend(self, act: Callable[[], bool]) -> bool:
        self.note("lend")
        if self.lends:
            assert not act(), "the loop has nothing to do at once"
        return self.lends

    def note(self, name: str) -> bool:
        self.tried.append(name)
        return name == self.takes

    def start(self, operation: str) -> Work:
        return self.submitter.start_p2p(operation, X, None, 7, 0, None, None)


def test_only_a_send_may_have_ended_before_it_has_a_work() -> None:
    assert list_message_starts(sends=True, has_work=False) == (MessageRoute.EAGER,)
    assert list_message_starts(sends=False, has_work=False) == ()


def test_messages_try_shared_memory_before_the_loop_and_receives_its_lent_one() -> None:
    memory, lent, queue = MessageRoute.SHARED_MEMORY, MessageRoute.LENT_LOOP, MessageRoute.QUEUE
    assert list_message_starts(sends=True, has_work=True) == (memory, queue)
    assert list_message_starts(sends=False, has_work=True) == (memory, lent, queue)


def test_on_the_loop_a_message_waits_until_the_ranks_agree_on_shared_memory() -> None:
    choose = choose_message_route
    assert choose(is_undecided=True, has_failed=False, has_p2p=False) is MessageRoute.HELD
    assert choose(is_undecided=True, has_failed=False, has_p2p=True) is MessageRoute.HELD
    assert choose(is_undecided=True, has_failed=True, has_p2p=False) is MessageRoute.LINKS
    assert choose(is_undecided=False, has_failed=False, has_p2p=True) is MessageRoute.SHARED_MEMORY
    assert choose(is_undecided=False, has_failed=False, has_p2p=False) is MessageRoute.LINKS


@pytest.mark.parametrize(
    ("operation", "has_shm", "takes", "tried"),
    [
        ("send", True, "try_send", ["try_send"]),
        ("send", True, "begin", ["try_send", "begin"]),
        ("recv", True, "begin", ["begin"]),
        ("send", False, "", ["start"]),
        ("recv", False, "", ["start"]),
    ],
)
def test_a_message_begins_by_the_first_route_that_takes_it(
    operation: str, has_shm: bool, takes: str, tried: list[str]
) -> None:
    group = Group(has_shm=has_shm, takes=takes)
    work = group.start(operation)
    assert group.tried == tried
    assert isinstance(work, CompletedSend) == (takes == "try_send")
    assert group.order.queued_messages == (tried == ["start"])


@pytest.mark.parametrize("takes", ["send", ""])
def test_a_send_over_links_has_ended_if_they_take_it_at_once(takes: str) -> None:
    group = Group(has_shm=False, takes=takes)
    links = SimpleNamespace(send=lambda *_: group.note("send"))
    group.order.direct_p2p = cast(Any, links)
    work = group.start("send")
    assert group.tried == (["send"] if takes else ["send", "start"])
    assert isinstance(work, CompletedSend) == bool(takes)
    assert work.explain() == ""


@pytest.mark.parametrize(
    ("lends", "queued", "length", "tried"),
    [
        (True, 0, 2, ["lend", "post"]),
        (False, 0, 2, ["lend", "start"]),
        (True, 1, 2, ["lend", "start"]),
        (True, 0, BEGUN_MESSAGE_BYTES // 8 + 1, ["start"]),
    ],
    ids=["lent", "not lent", "behind another", "large"],
)
def test_a_receive_over_links_is_posted_where_the_loop_is_lent(
    lends: bool, queued: int, length: int, tried: list[str]
) -> None:
    group = Group(has_shm=False)
    group.lends, group.order.queued_messages = lends, queued
    group.order.direct_p2p = cast(Any, SimpleNamespace())
    group.submitter.start_p2p("recv", np.ones(length), None, 7, 0, None, None)
    assert group.tried == tried


def test_a_message_does_not_pass_those_that_left_the_loop_meanwhile() -> None:
    """The way over shared memory opens just before the message would be queued."""
    group = Group(has_shm=False)

    def begin(_: object) -> bool:
        group.tried.append("begin late")
        return True

    class Opening:
        """A lock under which the loop has opened the way."""

        def __enter__(self) -> None:
            group.router.shm_path = SimpleNamespace(begin=begin)

        def __exit__(self, *_: object) -> None:
            pass

    group.order.lock = Opening()
    group.start("send")
    assert group.tried == ["begin late"]
    assert group.order.queued_messages == 0
