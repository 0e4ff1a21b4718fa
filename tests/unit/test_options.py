"""Options of calls and worlds: unknown names are refused, with the call's name."""

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands import functional
from allhands.aio import AsyncGroup
from allhands.api.joining import JoinOptions
from allhands.config import resolve_config
from allhands.group.non_member import NonMember
from allhands.options import WORLD_DEFAULTS, CallOptions, GroupPolicy, read_options
from surface.describe import list_parameters

ARRAY = np.ones(2, np.float32)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "all_gather": ([ARRAY], ARRAY),
    "all_gather_coalesced": ([[ARRAY.copy()]], [ARRAY]),
    "all_gather_into_tensor": (ARRAY.copy(), ARRAY),
    "all_gather_into_tensor_coalesced": ([ARRAY.copy()], [ARRAY]),
    "all_gather_object": ([None], 1),
    "all_reduce_coalesced": ([ARRAY],),
    "all_reduce_sparse": (ah.SparseArray(np.zeros((1, 1), np.int64), np.ones(1), (2,)),),
    "all_to_all": ([ARRAY.copy()], [ARRAY]),
    "all_to_all_single": (ARRAY.copy(), ARRAY),
    "all_to_all_v": ([ARRAY],),
    "barrier": (),
    "batch_isend_irecv": ([],),
    "broadcast": (ARRAY, 0),
    "broadcast_coalesced": ([ARRAY], 0),
    "broadcast_object_list": ([1], 0),
    "gather": (ARRAY, [ARRAY.copy()], 0),
    "gather_object": (1, [None], 0),
    "gather_v": (ARRAY, 0),
    "init_process_group": (),
    "monitored_barrier": (),
    "permute_tensor": (ARRAY, [0]),
    "reduce": (ARRAY, 0),
    "reduce_scatter": (ARRAY.copy(), [ARRAY]),
    "reduce_scatter_tensor": (ARRAY.copy(), ARRAY),
    "reduce_scatter_tensor_coalesced": ([ARRAY.copy()], [ARRAY]),
    "reduce_scatter_v": ([ARRAY],),
    "send": (ARRAY, 1),
    "scatter": (ARRAY, [ARRAY.copy()], 0),
    "scatter_object": ([1], 0),
    "scatter_object_list": ([None], [1], 0),
    "scatter_v": ([ARRAY], 0),
}
"""Arguments of a call in a world of one, or else an array."""
METHODS = {"all_gather_object": (1,), "gather_object": (1, 0)}
"""Arguments of methods that differ from those of the plain call."""
FUNCTIONAL = {
    "all_gather_into_tensor_coalesced": ([ARRAY],),
    "all_to_all_single": (ARRAY,),
    "reduce_scatter_tensor": (ARRAY,),
    "reduce_scatter_tensor_coalesced": ([ARRAY],),
}
"""Arguments of functional calls that differ from those of the plain call."""


def _list_calls(holder: Any, own: dict[str, tuple[Any, ...]]) -> list[tuple[str, tuple[Any, ...]]]:
    """List a face's calls with a timeout, with valid arguments."""
    found = []
    for name in dir(holder):
        call = getattr(holder, name)
        if name.startswith("_") or not inspect.isfunction(inspect.unwrap(call)):
            continue
        if {"timeout", "label"} <= {one.name for one in list_parameters(call)}:
            found.append((name, own.get(name, ARGUMENTS.get(name, (ARRAY,)))))
    return found


@pytest.fixture(autouse=True)
def _world_of_one() -> Iterator[None]:
    ah.init_process_group(backend="fake", rank=0, world_size=1)
    yield
    ah.destroy_process_group()


def _check_refusal(call: Callable[[], object], name: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).endswith(f"{name}() got an unexpected keyword argument 'timout'")


@pytest.mark.parametrize(("name", "arguments"), _list_calls(ah, {}))
def test_a_plain_call_names_itself_and_the_keyword_that_it_has_not(
    name: str, arguments: tuple[Any, ...]
) -> None:
    _check_refusal(lambda: getattr(ah, name)(*arguments, timout=1.0), name)


@pytest.mark.parametrize(("name", "arguments"), _list_calls(functional, FUNCTIONAL))
def test_a_functional_call_names_itself_and_the_keyword_that_it_has_not(
    name: str, arguments: tuple[Any, ...]
) -> None:
    _check_refusal(lambda: getattr(functional, name)(*arguments, timout=1.0), name)


@pytest.mark.parametrize(("name", "arguments"), _list_calls(ah.Group, METHODS))
def test_a_method_names_itself_and_the_keyword_that_it_has_not(
    name: str, arguments: tuple[Any, ...]
) -> None:
    _check_refusal(lambda: getattr(ah.default_group(), name)(*arguments, timout=1.0), name)


@pytest.mark.parametrize(("name", "arguments"), _list_calls(AsyncGroup, METHODS))
def test_an_awaited_call_names_itself_and_the_keyword_that_it_has_not(
    name: str, arguments: tuple[Any, ...]
) -> None:
    async def call() -> None:
        await getattr(AsyncGroup(ah.default_group()), name)(*arguments, timout=1.0)

    _check_refusal(lambda: asyncio.run(call()), name)


def test_joining_on_an_event_loop_names_itself_and_the_keyword_at_once() -> None:
    _check_refusal(lambda: ah.aio.connect(backend="fake", timout=1.0), "connect")  # type: ignore[call-arg]


def test_options_of_groups_reach_the_configuration() -> None:
    given: GroupPolicy = {
        "deterministic": True,
        "on_failure": "wait",
        "retryable": True,
        "min_size": 2,
        "max_size": 3,
        "abort_on_exception": False,
        "verify": True,
        "allow_pickle": True,
    }
    assert given.keys() == GroupPolicy.__annotations__.keys()
    config = resolve_config({"ALLHANDS_URL": "ah://host:1"}, **given)
    assert {name: getattr(config, name) for name in given} == given


def test_a_rank_outside_of_the_group_is_told_of_the_keyword_too() -> None:
    _check_refusal(lambda: ah.gather(ARRAY, None, 0, NonMember("others"), timout=1.0), "gather")


def test_a_call_has_its_options_and_none_by_default() -> None:
    assert read_options("scan", CallOptions()) == (None, None)
    assert read_options("scan", CallOptions(label="x")) == (None, "x")
    assert read_options("scan", CallOptions(timeout=2.0)) == (2.0, None)


@pytest.mark.parametrize("join", [ah.init_process_group, ah.aio.connect])
def test_help_on_joining_shows_every_option(join: Callable[..., Any]) -> None:
    shown = inspect.signature(join).parameters
    assert [*shown][1:] == [*JoinOptions.__annotations__]
    assert {name: shown[name].default for name in WORLD_DEFAULTS} == WORLD_DEFAULTS
    for name in shown:
        entries = re.findall(rf"(?m)^ {{8}}{name}: \S", join.__doc__ or "")
        assert len(entries) == 1, f"{name} is described {len(entries)} times"


def test_options_need_no_docstrings() -> None:
    program = "import allhands as ah; ah.init_process_group, ah.aio.connect"
    subprocess.run([sys.executable, "-OO", "-c", program], check=True, timeout=60)
