"""A pool process, which runs tests of thread ranks together with others; see rank_pool.

Each process calls the whole test. Where the test has `allhands.testing` run a body on threads, the
processes are the ranks instead: each joins a world of that size and calls the body, and all go on
with the results of all. Ranks share no object then, only what they send.
"""

import base64
import functools
import importlib.util
import itertools
import json
import os
import pickle
import sys
import traceback
import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import allhands as ah
from allhands import testing
from allhands.api import default_world
from allhands.testing import rank_errors, threads
from support.ranks.parameters import parametrized


@dataclass(frozen=True)
class Outcome:
    """The outcome of a body on one rank."""

    value: Any = None
    error: BaseException | None = None


def serve(rank: int, url: str, backend: str) -> None:
    """Run the tests requested on standard input, until it ends."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is no answer
    member = _Member(rank, url, backend, told)
    threads.run_threads = testing.run_threads = member.run_threads
    # As pytest has them in this project.
    warnings.simplefilter("error")
    while text := sys.stdin.readline():
        member.carry_out(json.loads(text))


class _Member:
    def __init__(self, rank: int, url: str, backend: str, told: Any) -> None:
        self._rank = rank
        self._url = url
        self._backend = backend
        self._told = told
        self._worlds = itertools.count()
        self._test = 0

    def carry_out(self, request: dict[str, Any]) -> None:
        """Run a test; report its outcome."""
        self._test, self._worlds = request["number"], itertools.count()
        error = skipped = ""
        try:
            _test(_module(request["path"]), request["name"], request["places"])()
        except (pytest.skip.Exception, unittest.SkipTest) as skip:
            skipped = str(skip) or "skipped"
        except BaseException:
            error = traceback.format_exc()
        self._tell(what="ended", error=error, skipped=skipped)

    def run_threads(
        self, size: int, *, init: bool = True, deadline: float = 0, **options: Any
    ) -> Callable[[Callable[..., Any]], list[Any]]:
        """Stand in for `allhands.testing.run_threads`, with processes."""

        def call(body: Callable[..., Any]) -> list[Any]:
            assert init, "processes do not join by themselves: this is for threads alone"
            world = f"{self._url}/test-{self._test}-{next(self._worlds)}"
            mine = Outcome()
            if self._rank < size:
                mine = self._called(threads._accept_rank(body), world, size, options)
            outcomes = self._exchanged(mine)[:size]
            errors = {at: one.error for at, one in enumerate(outcomes) if one.error is not None}
            if errors:
                rank_errors.raise_first(errors, size)
            return [one.value for one in outcomes]

        return call

    def _called(
        self, body: Callable[[int], Any], world: str, size: int, options: Mapping[str, Any]
    ) -> Outcome:
        try:
            ah.init_process_group(
                world, rank=self._rank, world_size=size, backend=self._backend, **options
            )
            outcome = Outcome(body(self._rank))
            if ah.is_initialized():
                ah.destroy_process_group()
        except BaseException as error:
            error.add_note(traceback.format_exc())
            if (left := default_world.find_world()) is not None:
                left.fail(error)
                ah.destroy_process_group()
            outcome = Outcome(error=error)
        return outcome

    def _exchanged(self, mine: Outcome) -> Sequence[Outcome]:
        """Return the body's outcome on every process."""
        self._tell(what="outcome", data=base64.b64encode(_packed(mine)).decode())
        told = json.loads(sys.stdin.readline())
        return [pickle.loads(base64.b64decode(one)) for one in told]  # noqa: S301 our own

    def _tell(self, **what: Any) -> None:
        self._told.write(json.dumps(what) + "\n")
        self._told.flush()


def _packed(outcome: Outcome) -> bytes:
    try:
        packed = pickle.dumps(outcome)
        pickle.loads(packed)  # noqa: S301 our own
    except Exception as reason:
        said = outcome.error or f"{outcome.value!r} does not travel: {reason}"
        notes = "\n".join(getattr(said, "__notes__", ()))
        return pickle.dumps(Outcome(error=AssertionError(f"{said!r}\n{notes}")))
    return packed


@functools.cache
def _module(path: str) -> ModuleType:
    name = f"pool_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _test(module: ModuleType, name: str, places: Sequence[int]) -> Callable[[], object]:
    """Return a test with its arguments, by their index in each list of the parametrization."""
    function = getattr(module, name)
    given: dict[str, Any] = {}
    for at, (names, rows) in zip(places, parametrized(module, function), strict=True):
        given.update(zip(names, rows[at], strict=True))
    return functools.partial(function, **given)
