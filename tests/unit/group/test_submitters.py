"""Submitters: routes of attempts, and groups that share or replace a submitter."""

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from allhands.collectives import plan
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.request import CollectiveRequest
from allhands.engine.group_engine import GroupEngine
from allhands.engine.inline_limits import AWAITED, WAITED, InlineLimits
from allhands.engine.numbering import CallNumbering, QueueOnlyNumbering
from allhands.engine.routes import Route
from allhands.engine.work.work import Work
from allhands.group.begun import BegunSubmitter
from allhands.group.coalescing import coalesce
from allhands.group.inline import InlineSubmitter
from allhands.group.interfaces import LoopExecutor
from allhands.group.queued import Attempt, QueuedSubmitter
from allhands.group.round_robin import RoundRobin
from allhands.testing.inproc_world import inproc_world

CALL = PrimitiveCall(CollectiveRequest("barrier"), plan.barrier, None)
ENGINE = cast(GroupEngine, SimpleNamespace())
EXECUTOR = cast(LoopExecutor, SimpleNamespace(callbacks=None))


class Log:
    """A log of attempts, of which a single route takes the call."""

    taker = Route.QUEUE

    def __init__(self) -> None:
        self.tried: list[tuple[Route, float]] = []
        self.work = Work(CALL.request.call, 1, None, "world")

    def make(self, route: Route) -> Attempt:
        def attempt(*arguments: Any) -> Work | None:
            self.tried.append((route, arguments[1]))
            return self.work if route is self.taker else None

        return attempt


def record(
    kind: type[QueuedSubmitter], monkeypatch: pytest.MonkeyPatch, *, has_comm: bool
) -> tuple[QueuedSubmitter, Log]:
    """Return a submitter with attempts that are only logged."""
    log, order, attempts = Log(), CallNumbering(7.0), kind._map_attempts
    if has_comm:
        order.comm = cast(Any, SimpleNamespace())

    def logged(self: QueuedSubmitter) -> Mapping[Route, Attempt]:
        return {route: log.make(route) for route in attempts(self)}

    monkeypatch.setattr(kind, "_map_attempts", logged)
    return kind(ENGINE, EXECUTOR, order), log


@pytest.mark.parametrize(
    ("kind", "has_comm", "routes"),
    [
        (BegunSubmitter, False, [Route.LENT_LOOP, Route.QUEUE]),
        (BegunSubmitter, True, [Route.COMM_QUEUE, Route.QUEUE]),
        (InlineSubmitter, False, [Route.LENT_LOOP, Route.QUEUE]),
        (InlineSubmitter, True, [Route.INLINE, Route.COMM_QUEUE, Route.QUEUE]),
    ],
)
def test_routes_are_tried_in_their_order_until_one_takes_the_call(
    kind: type[QueuedSubmitter],
    has_comm: bool,
    routes: list[Route],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitter, log = record(kind, monkeypatch, has_comm=has_comm)
    assert submitter.start(CALL, None, None) is log.work
    assert log.tried == [(route, 7.0) for route in routes]
    log.taker, log.tried = routes[0], []
    assert submitter.start(CALL, 3.0, None) is log.work
    assert log.tried == [(routes[0], 3.0)]


@pytest.mark.parametrize(
    ("links", "limits"),
    [
        (None, AWAITED),
        (SimpleNamespace(is_held=lambda: False), AWAITED),
        (SimpleNamespace(is_held=lambda: True), WAITED),
    ],
)
def test_who_goes_on_is_held_for_moments_unless_it_waits_at_once(
    links: Any, limits: InlineLimits
) -> None:
    order = CallNumbering(7.0)
    order.links = links
    assert BegunSubmitter(ENGINE, EXECUTOR, order).limits is limits


def test_a_timeout_that_is_refused_tries_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    submitter, log = record(InlineSubmitter, monkeypatch, has_comm=True)
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds, not -1"):
        submitter.start(CALL, -1, None)
    assert log.tried == []


def test_a_numbering_without_communicator_hides_that_of_the_group() -> None:
    order = CallNumbering(7.0)
    order.comm = cast(Any, SimpleNamespace(last_number=3))
    hidden = QueueOnlyNumbering(QueueOnlyNumbering(order))
    assert hidden.comm is None
    assert (hidden.latest_sequence, hidden.clip_timeout(None), hidden.clip_timeout(2)) == (3, 7, 2)


async def test_the_inline_view_of_a_group_shares_all_but_the_submitter() -> None:
    async with inproc_world(2) as world:
        group = world.groups[0]
        here = group.here
        assert (here.order, here.objects) == (group.order, group.objects)
        assert isinstance(here.submitter, InlineSubmitter)
        assert not isinstance(group.submitter, InlineSubmitter)
        assert here.here is here is group.here
        group.timeout = 12
        assert here.timeout == 12


async def test_groups_without_inline_calls_are_their_own_view() -> None:
    async with inproc_world(2) as world:
        dealt = RoundRobin(world.open_group("one", [0, 1])[:1])
        assert dealt.here is dealt


async def test_while_calls_are_coalesced_none_goes_past_them() -> None:
    async with inproc_world(2) as world:
        group = world.groups[0]
        order, here = group.order, group.here
        collecting = coalesce(group, threading.get_ident())
        view = collecting.redirect()
        assert view is not None
        assert view.here is view is not here
        assert (view.order, view.coalescer) == (order, None)
        collecting.end()
        collecting = coalesce(group, 0)
        assert group.order.comm is None
        assert group.order is not order
        assert collecting.redirect() is None  # another thread's
        collecting.end()
        assert group.order is order
        assert group.coalescer is None


async def test_a_round_robin_counts_refused_calls_for_nothing() -> None:
    async with inproc_world(1) as world:
        parts = [world.open_group(name, [0])[0] for name in ("one", "two")]
        dealt = RoundRobin(parts)
        x = np.ones(2)
        with pytest.raises(ValueError, match="timeout must be"):
            dealt.all_reduce(x, timeout=-1)
        for _ in range(3):
            dealt.all_reduce(x)
        dealt.pass_over("nobody makes it")
        assert dealt.sequence == 4
        assert [part.sequence for part in parts] == [2, 2]
