"""The plain calls and those of asyncio are the same: names, parameters, defaults, descriptions."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import allhands as ah
from allhands.aio import AsyncGroup, AsyncWorld
from allhands.api import (
    checked_coalesced,
    coalesced,
    collectives,
    monitored_barrier,
    objects,
    persistent,
    ragged,
    scans,
)
from surface.describe import list_parameters

ROOT = Path(__file__).parents[2]
MODULES = (
    collectives,
    coalesced,
    checked_coalesced,
    ragged,
    scans,
    objects,
    persistent,
    monitored_barrier,
)
ELSEWHERE = {
    "broadcast_object_list": "the list is called values",
    "all_reduce_init": "a persistent call is waited for by its own methods",
    "recv_object_list": "a list of objects is received by a call that blocks",
    "register_dataclass": "it concerns the process, not a group",
    "scatter_object_list": "scatter_object returns the object instead",
    "send_object_list": "a list of objects is sent by a call that blocks",
    "gather_object": "the result is returned instead of written into a list",
    "all_gather_object": "the result is returned instead of written into a list",
}
"""Plain calls whose asyncio form differs, and why."""
GROUP_ONLY = {"group", "async_op", "group_src", "group_dst"}
"""Parameters of plain calls for which a method has its object and `await`; ranks are of that."""


def _plain_calls() -> Iterator[str]:
    for module in MODULES:
        for name, value in vars(module).items():
            is_call = inspect.isfunction(inspect.unwrap(value))
            is_own = is_call and value.__module__ == module.__name__
            if is_own and not name.startswith("_") and name in dir(ah) and name not in ELSEWHERE:
                yield name


SHARED = sorted(_plain_calls())


def _parameters(call: Callable[..., Any], left_out: set[str]) -> list[tuple[str, object, object]]:
    found = [*list_parameters(call)]
    has_other_root = any(one.name in ("group_src", "group_dst") for one in found)
    return [
        (one.name, one.kind, 0 if has_other_root and one.name in ("src", "dst") else one.default)
        for one in found
        if one.name not in left_out
    ]


def test_the_calls_of_both_faces_have_been_found() -> None:
    assert len(SHARED) == 25
    assert {"all_reduce", "barrier", "scan", "all_gather_v"} <= {*SHARED}
    assert all(hasattr(ah, name) for name in ELSEWHERE)


def test_the_functional_calls_are_listed_without_what_they_are_made_of() -> None:
    assert {"all_reduce", "all_gather_tensor", "GroupLike"} <= {*dir(ah.functional)}
    assert dir(ah.functional) == sorted(ah.functional.__all__)


def test_generated_calls_are_as_the_methods_of_groups_describe_them() -> None:
    """`make faces` generates the files anew."""
    subprocess.run([sys.executable, ROOT / "client/generate_faces.py", "--check"], check=True)


@pytest.mark.parametrize("name", SHARED)
def test_a_plain_call_has_an_asyncio_form_with_the_same_parameters(name: str) -> None:
    method = getattr(AsyncGroup, name)
    assert inspect.iscoroutinefunction(method)
    assert _parameters(method, {"self"}) == _parameters(getattr(ah, name), GROUP_ONLY)


@pytest.mark.parametrize("name", SHARED)
def test_both_forms_of_a_call_are_described_alike(name: str) -> None:
    plain, method = getattr(ah, name).__doc__, getattr(AsyncGroup, name).__doc__
    assert method.splitlines()[0] == plain.splitlines()[0]


def test_a_collective_of_a_group_is_awaited_too() -> None:
    composite = {
        name
        for name, value in inspect.getmembers(ah.Group, inspect.isfunction)
        if not name.startswith("_") and "label" in {one.name for one in list_parameters(value)}
    }
    assert composite - {"all_reduce_init"} <= {*dir(AsyncGroup)}


def test_joining_takes_the_same_options_on_both_faces() -> None:
    plain = _parameters(ah.init_process_group, {"init_method"})
    assert _parameters(ah.aio.connect, {"url"}) == plain


def test_making_a_group_takes_the_same_options_on_both_faces() -> None:
    assert _parameters(AsyncWorld.new_group, {"self"}) == _parameters(ah.new_group, set())


def test_joining_outside_an_event_loop_of_asyncio_says_what_is_needed() -> None:
    entering = ah.aio.connect().__aenter__()
    with pytest.raises(RuntimeError, match="event loop of asyncio; trio is not supported"):
        entering.send(None)
