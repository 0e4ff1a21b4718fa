"""Numbers of calls that the native core carries out over links."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from allhands.engine.numbering import CallNumbering, HookedNumbering, QueueOnlyNumbering


@pytest.mark.parametrize(
    ("thread", "label", "clashes"), [(0, None, False), (1, None, True), (1, "mine", False)]
)
def test_a_call_of_another_thread_under_the_same_label_is_a_clash(
    thread: int, label: str | None, clashes: bool
) -> None:
    order = CallNumbering()
    inside = (threading.get_ident() + thread, 7, "all_reduce", None)
    order.direct_calls = cast(Any, SimpleNamespace(inline_call=lambda: inside))
    found = order.find_clash(label)
    assert (found is not None and found.sequence == 7) is clashes


def test_a_group_that_shares_memory_has_its_communicator_tried_first() -> None:
    order, comm = CallNumbering(), cast(Any, SimpleNamespace())
    order.comm = comm
    assert order.direct_calls is comm
    assert QueueOnlyNumbering(order).direct_calls is None
    order.comm = None
    assert order.direct_calls is None


def test_a_group_with_hooks_hides_its_communicator_until_they_are_removed() -> None:
    order, comm, p2p = CallNumbering(), cast(Any, SimpleNamespace()), cast(Any, SimpleNamespace())
    order.comm, order.p2p = comm, p2p
    hooked = HookedNumbering(order)
    assert (hooked.comm, hooked.direct_calls, hooked.vector_calls) == (None, None, None)
    assert (hooked.p2p, hooked.direct_p2p) == (None, None)
    hooked.release()  # whoever has kept it, such as a persistent call, has the core again
    assert (hooked.comm, hooked.p2p, hooked.direct_p2p) == (comm, p2p, p2p)
