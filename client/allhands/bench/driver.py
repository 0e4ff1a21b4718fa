"""Gives contenders their turns, cell by cell, and keeps what they took."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allhands.bench import machine, turns
from allhands.bench.cell import Cell
from allhands.bench.crew import Crew, CrewFailed
from allhands.bench.launches import HERE, Host, Launcher
from allhands.bench.turns import Summary, Turn


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
    others_cpu: float = 0.0
    """Part of all cores' time that went meanwhile to programs that have no part in this."""
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


class _Meter:
    """Finds out whether the machine was left to the contenders."""

    def __init__(self, cpu: Mapping[str, float]) -> None:
        self._begun, self._busy = time.monotonic(), machine.busy_seconds()
        self._cpu = dict(cpu)
        self._own = time.process_time()

    def others(self, cpu: Mapping[str, float]) -> float:
        """Return which part of all cores' time other programs took, given the crews' seconds."""
        elapsed = time.monotonic() - self._begun
        ours = sum(cpu.values()) - sum(self._cpu.values()) + time.process_time() - self._own
        foreign = machine.busy_seconds() - self._busy - ours
        return max(foreign, 0.0) / elapsed / (os.cpu_count() or 1)


class Bench:
    """The crews of all contenders for one number of ranks."""

    def __init__(
        self, order: Sequence[str], crews: Mapping[str, Crew], failed: Mapping[str, str]
    ) -> None:
        self._crews = dict(crews)
        self._failed = dict(failed)
        self._told: set[str] = set()
        """Whose failure stands in a result."""
        self._order = tuple(order)
        self._seeds = 0
        self._cpu: dict[str, float] = dict.fromkeys(crews, 0.0)
        """CPU seconds of each crew's ranks, as of its latest answer."""

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
        meter = _Meter(self._cpu)
        series = self._rounds(cell, playing, budget)
        others = meter.others(self._cpu)
        for name, result in results.items():
            result.failed = self._excuse(name)
            result.others_cpu = others
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
        turn = Turn.of(cell, series.usual, budget)
        order = {"do": "turn", **asdict(turn)}
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
        series.calls += turn.batches * turn.calls
        series.variant = answers[0]["variant"]

    def _ask(self, crew: Crew, order: dict[str, Any]) -> list[dict[str, Any]] | None:
        try:
            answers = crew.ask(order)
        except CrewFailed as failure:
            self._drop(crew.name, str(failure))
            return None
        self._cpu[crew.name] = sum(answer["cpu"] for answer in answers)
        return answers

    def _excuse(self, name: str) -> str | None:
        """Say why a contender has no times, at length only once."""
        if name not in self._failed:
            return None
        if name in self._told:
            return "it failed in an earlier cell"
        self._told.add(name)
        return self._failed[name]

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
