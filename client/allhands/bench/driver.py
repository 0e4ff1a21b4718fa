"""Gives contenders their turns, cell by cell, and keeps what they took."""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allhands.bench import turns
from allhands.bench.cell import Cell
from allhands.bench.crew import Crew, CrewFailed
from allhands.bench.launches import HERE, Host, Launcher
from allhands.bench.turns import Summary

_WARM_UP_TO = 4 << 20
"""Bytes up to which a turn begins with a call that is not timed: the others ran meanwhile."""


@dataclass(slots=True)
class Result:
    """How one contender did in one cell."""

    cell: Cell
    contender: str
    summary: Summary | None = None
    calls: int = 0
    """How many calls it made; every sample is the mean of some, or one."""
    variant: str | None = None
    """How it says that it did it."""
    refused: str | None = None
    failed: str | None = None


@dataclass(slots=True)
class _Series:
    usual: float = float("inf")
    """Seconds of a call, by the median of all so far."""
    known: list[float] = field(default_factory=list)
    """All times so far, also those that do not count."""
    times: list[float] = field(default_factory=list)
    calls: int = 0
    variant: str | None = None


class Bench:
    """The crews of all contenders for one number of ranks."""

    def __init__(
        self, order: Sequence[str], crews: Mapping[str, Crew], failed: Mapping[str, str]
    ) -> None:
        self._crews = dict(crews)
        self._failed = dict(failed)
        self._order = tuple(order)
        self._seeds = 0

    @property
    def about(self) -> dict[str, dict[str, str]]:
        return {name: crew.about for name, crew in self._crews.items()}

    def measure(self, cell: Cell, budget: float) -> list[Result]:
        """Measure one cell in `budget` seconds, or what five rounds take.

        A contender that fails, or whose result is wrong, is out for the cells that follow.
        """
        results = {name: Result(cell, name) for name in self._order}
        self._seeds += 1
        for name, crew in list(self._crews.items()):
            order = {"do": "prepare", "cell": asdict(cell), "seed": self._seeds}
            answers = self._ask(crew, order) or []
            results[name].refused = next(
                (one["refused"] for one in answers if one["refused"]), None
            )
        playing = [name for name in self._crews if results[name].refused is None]
        series = self._rounds(cell, playing, budget)
        for name, result in results.items():
            result.failed = self._failed.get(name)
            if name in series and result.failed is None:
                one = series[name]
                result.summary = Summary.of(one.times)
                result.calls, result.variant = one.calls, one.variant
        return list(results.values())

    def leave(self) -> None:
        """Let all ranks leave; they are not needed any more."""
        for name, crew in list(self._crews.items()):
            try:
                crew.leave()
            except CrewFailed as failure:
                self._drop(name, str(failure))

    @property
    def failed(self) -> dict[str, str]:
        """Who is out, and why."""
        return dict(self._failed)

    def _rounds(self, cell: Cell, playing: Sequence[str], budget: float) -> dict[str, _Series]:
        series = {name: _Series() for name in playing}
        share = budget / max(len(playing), 1)
        for name in playing:
            self._calibrate(cell, series[name], name, share)
        begun = time.monotonic()
        for rounds, order in enumerate(turns.rotations(playing), 1):
            for name in order:
                if name in self._crews:
                    self._turn(cell, series[name], name, share)
            if turns.enough(rounds, time.monotonic() - begun, budget):
                break
        return series

    def _calibrate(self, cell: Cell, series: _Series, name: str, budget: float) -> None:
        """Find out how many calls its turns are to have; these times do not count."""
        for _ in range(3):
            if name in self._crews:
                self._turn(cell, series, name, budget)
        series.times, series.calls = [], 0

    def _turn(self, cell: Cell, series: _Series, name: str, budget: float) -> None:
        calls = turns.calls_in_turn(series.usual, budget, cell.rewritten)
        warm = 1 if cell.nbytes <= _WARM_UP_TO else 0
        order = {"do": "turn", "calls": calls, "warm": warm}
        answers = self._ask(self._crews[name], order)
        if answers is None:
            return
        for rank, answer in enumerate(answers):
            if answer["wrong"]:
                self._drop(name, f"WRONG RESULT on rank {rank} of {cell}: {answer['wrong']}")
                return
        times = turns.slowest([answer["times"] for answer in answers])
        series.times += times
        series.known += times
        series.usual = statistics.median(series.known)
        series.calls += calls
        series.variant = answers[0]["variant"]

    def _ask(self, crew: Crew, order: dict[str, Any]) -> list[dict[str, Any]] | None:
        try:
            return crew.ask(order)
        except CrewFailed as failure:
            self._drop(crew.name, str(failure))
            return None

    def _drop(self, name: str, why: str) -> None:
        self._failed[name] = why
        self._crews.pop(name).close()


@contextmanager
def bench(
    launchers: Sequence[Launcher], ranks: int, hosts: Sequence[Host] = (HERE,)
) -> Iterator[Bench]:
    """Start all crews; they are gone afterwards."""
    with ExitStack() as stack:
        crews: dict[str, Crew] = {}
        failed: dict[str, str] = {}
        for launcher in launchers:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="allhands-bench-"))
            try:
                crew = Crew(launcher, ranks, Path(folder), hosts)
            except CrewFailed as failure:
                failed[launcher.contender] = str(failure)
                continue
            stack.callback(crew.close)
            crews[launcher.contender] = crew
        running = Bench([one.contender for one in launchers], crews, failed)
        yield running
        running.leave()
