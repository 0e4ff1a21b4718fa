"""Processes that run tests which were written for threads as ranks.

A pool is asked for a test by its place; `rank_pool_member` says what its processes make of it. So
a row of the parity table holds on threads, over shared memory and over links by the same lines.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.ranks import rank_pool_member
from support.ranks.processes import Cluster, Process

SIZE = 4
"""Processes of a pool: ranks of the largest world that a test can have there."""


class RankPool:
    """Processes that run the same tests in step."""

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
        """End the processes; the next test starts new ones."""
        for member in self._members:
            member.close()
        self._members.clear()

    def _carried_out(self, request: str) -> tuple[list[str], str]:
        """Return the text of each failed process, and the reason of a skipped test."""
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
                place = (rank, self._url, self._backend)
                self._members.append(self._cluster.start(rank_pool_member.serve, *place))
        return self._members

    def _say(self, text: str) -> None:
        for member in self._members:
            member.say(text)
