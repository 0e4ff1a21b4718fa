"""Processes that carry out tests which were written for threads as ranks.

A pool is asked for a test by its place; `rank_pool_member` says what its processes make of it. So
a row of the parity table holds on threads, over shared memory and over links by the same lines.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.ranks.processes import Cluster, Process

SIZE = 4
"""Processes of a pool: ranks of the largest world that a test can have there."""

_SCRIPT = """
from support.ranks import rank_pool_member
rank_pool_member.serve({rank}, {url!r}, {backend!r})
"""


class RankPool:
    """Processes that go through tests in step."""

    def __init__(self, cluster: Cluster, url: str, backend: str) -> None:
        self._cluster = cluster
        self._url = url
        self._backend = backend
        self._numbers = itertools.count()
        self._members: list[Process] = []

    def run(self, path: Path, name: str, places: Sequence[int]) -> None:
        """Have a test carried out, with the arguments at these of its `places`.

        Raises:
            AssertionError: it failed, or the processes did not stay in step.
            pytest.skip.Exception: it was skipped.
        """
        number = next(self._numbers)
        request = {"number": number, "path": str(path), "name": name, "places": [*places]}
        try:
            errors, skipped = self._carried_out(json.dumps(request))
        except BaseException:
            self.close()
            raise
        assert not errors, "\n".join(errors)
        if skipped:
            pytest.skip(skipped)

    def close(self) -> None:
        """End the processes; the next test gets others."""
        for member in self._members:
            member.close()
        self._members.clear()

    def _carried_out(self, request: str) -> tuple[list[str], str]:
        """Return how each process that failed says that it did, and why the test was skipped."""
        members = self._started()
        self._say(request)
        while True:
            told = [member.expect("outcome", "ended") for member in members]
            kinds = {one["what"] for one in told}
            if kinds == {"ended"}:
                errors = [f"process {at}: {x['error']}" for at, x in enumerate(told) if x["error"]]
                return errors, next((one["skipped"] for one in told if one["skipped"]), "")
            ended = [one.get("error") for one in told if one["what"] == "ended"]
            assert kinds == {"outcome"}, f"processes are out of step: {ended}"
            self._say(json.dumps([one["data"] for one in told]))

    def _started(self) -> list[Process]:
        if not self._members:
            for rank in range(SIZE):
                script = _SCRIPT.format(rank=rank, url=self._url, backend=self._backend)
                self._members.append(self._cluster.start(script))
        return self._members

    def _say(self, text: str) -> None:
        for member in self._members:
            member.say(text)


def places(module: ModuleType, test: Callable[..., Any], given: Mapping[str, Any]) -> list[int]:
    """Return where the arguments of a test are in each list that it is parametrized by."""
    return [
        next(
            at
            for at, row in enumerate(rows)
            if all(one is given[name] for name, one in zip(names, row, strict=True))
        )
        for names, rows in parametrized(module, test)
    ]


def parametrized(
    module: ModuleType, test: Callable[..., Any]
) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
    """Yield what a test is parametrized by, and its module: names, and rows of values."""
    of_module = getattr(module, "pytestmark", [])
    marks = [*(of_module if isinstance(of_module, list) else [of_module])]
    for mark in [*marks, *getattr(test, "pytestmark", [])]:
        mark = getattr(mark, "mark", mark)
        if mark.name == "parametrize":
            said, values = mark.args[:2]
            names = [one.strip() for one in said.split(",")] if isinstance(said, str) else [*said]
            yield names, [_row(one, len(names)) for one in values]


def _row(value: Any, count: int) -> tuple[Any, ...]:
    if hasattr(value, "values") and hasattr(value, "marks"):  # pytest.param
        return tuple(value.values)
    return tuple(value) if count > 1 else (value,)
