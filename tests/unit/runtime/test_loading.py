"""Imports without collections of garbage."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from allhands.runtime.loading import load_command, pause_gc


@pytest.fixture(autouse=True)
def _unfreeze() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("load", [pause_gc, load_command])
def test_nothing_is_collected_during_imports_whatever_ends_them(
    load: Callable[[], AbstractContextManager[None]],
) -> None:
    is_enabled = True

    def fail() -> None:
        nonlocal is_enabled
        with load():
            is_enabled = gc.isenabled()
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert not is_enabled
    assert gc.isenabled()


@pytest.mark.parametrize("load", [pause_gc, load_command])
def test_collections_that_the_program_has_turned_off_stay_off(
    load: Callable[[], AbstractContextManager[None]],
) -> None:
    gc.disable()
    with load():
        pass
    assert not gc.isenabled()


def test_collections_never_look_at_what_a_command_has_loaded() -> None:
    loaded: list[object] = []
    with load_command():
        loaded.append(loaded)
    assert not any(one is loaded for one in gc.get_objects())


def test_collections_look_at_what_a_program_has_loaded() -> None:
    loaded: list[object] = []
    with pause_gc():
        loaded.append(loaded)
    assert any(one is loaded for one in gc.get_objects())
