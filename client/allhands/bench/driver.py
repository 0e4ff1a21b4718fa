"""Driver of a benchmark: interleaves the systems, case by case, and keeps the times."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from allhands.bench import interleaving, machine
from allhands.bench.case import BenchCase
from allhands.bench.interleaving import Summary, Trial
from allhands.bench.launchers import THIS_HOST, BenchHost, Launcher
from allhands.bench.rank_pool import RankPool, RankPoolFailed


@dataclass(slots=True)
class CaseResult:
    """Times and errors of one system in one case."""

    case: BenchCase
    system: str
    summary: Summary | None = None
    calls: int = 0
    """How many calls it made; every sample is the mean of some, or one."""
    variant: str | None = None
    """How it says that it did it."""
    others_cpu: float = 0.0
    """Part of all cores' time that went meanwhile to programs that have no part in this."""
    refused: str | None = None
    failed: str | None = None


_Contender: TypeAlias = tuple[str, BenchCase]
"""A system, and the form of the case that it runs."""


@dataclass(slots=True)
class _Series:
    typical: float = float("inf")
    """Seconds of a call, by the median of all so far."""
    all_times: list[float] = field(default_factory=list)
    """All times so far, also those that do not count."""
    times: list[float] = field(default_factory=list)
    calls: int = 0
    variant: str | None = None


class _CpuMeter:
    """Finds out whether the machine was left to the contenders."""

    def __init__(self, cpu: Mapping[str, float]) -> None:
        self._start, self._busy = time.monotonic(), machine.read_busy_seconds()
        self._cpu = dict(cpu)
        self._own = time.process_time()

    def compute_foreign_share(self, cpu: Mapping[str, float]) -> float:
        """Return which part of all cores' time other programs took, given the pools' seconds."""
        elapsed = time.monotonic() - self._start
        ours = sum(cpu.values()) - sum(self._cpu.values()) + time.process_time() - self._own
        foreign = machine.read_busy_seconds() - self._busy - ours
        return max(foreign, 0.0) / elapsed / (os.cpu_count() or 1)


class Bench:
    """The rank pools of all systems for one number of ranks."""

    def __init__(
        self, order: Sequence[str], pools: Mapping[str, RankPool], failed: Mapping[str, str]
    ) -> None:
        self._pools = dict(pools)
        self._failed = dict(failed)
        self._reported: set[str] = set()
        """Whose failure stands in a result."""
        self._order = tuple(order)
        self._seeds = 0
        self._cpu: dict[str, float] = dict.fromkeys(pools, 0.0)
        """CPU seconds of each pool's ranks, as of the latest answer."""

    @property
    def about(self) -> dict[str, dict[str, str]]:
        return {name: pool.about for name, pool in self._pools.items()}

    def measure(self, case: BenchCase, budget: float) -> list[CaseResult]:
        """Measure one case in `budget` seconds, at least five rounds.

        A system that fails or returns a wrong result is skipped in later cases.
        """
        contenders = [(name, form) for name in self._order for form in case.forms]
        results = {(name, form.form): CaseResult(form, name) for name, form in contenders}
        self._seeds += 1
        for name, pool in list(self._pools.items()):
            cells = [asdict(form) for form in case.forms]
            order = {"do": "prepare", "cells": cells, "seed": self._seeds}
            for answer in self._request(pool, order) or []:
                for form, reason in answer["refused"].items():
                    results[name, form].refused = results[name, form].refused or reason
        playing = [
            (name, form)
            for name, form in contenders
            if name in self._pools and results[name, form.form].refused is None
        ]
        meter = _CpuMeter(self._cpu)
        series = self._run_rounds(playing, budget)
        others = meter.compute_foreign_share(self._cpu)
        for (name, form), result in zip(contenders, results.values(), strict=True):
            result.failed = self._explain_failure(name)
            result.others_cpu = others
            one = series.get((name, form))
            if one is not None and result.failed is None:
                result.summary = Summary.from_times(one.times)
                result.calls, result.variant = one.calls, one.variant
        return list(results.values())

    def leave(self) -> None:
        """Let all ranks leave their worlds."""
        for name, pool in list(self._pools.items()):
            try:
                pool.leave()
            except RankPoolFailed as failure:
                self._drop(name, str(failure))

    @property
    def failed(self) -> dict[str, str]:
        """Failed systems, each with the reason."""
        return dict(self._failed)

    def _run_rounds(
        self, contenders: Sequence[_Contender], budget: float
    ) -> dict[_Contender, _Series]:
        series = {one: _Series() for one in contenders}
        share = budget / max(len(contenders), 1)
        for one in contenders:
            self._calibrate(one, series[one], share)
        begun = time.monotonic()
        for rounds, order in enumerate(interleaving.rotate(contenders), 1):
            for one in order:
                self._run_trial(one, series[one], share)
            if interleaving.is_enough(rounds, time.monotonic() - begun, budget):
                break
        return series

    def _calibrate(self, contender: _Contender, series: _Series, budget: float) -> None:
        """Find the number of calls of a trial, in untimed trials."""
        for _ in range(3):
            self._run_trial(contender, series, budget)
        series.times, series.calls = [], 0

    def _run_trial(self, contender: _Contender, series: _Series, budget: float) -> None:
        name, case = contender
        if name not in self._pools:
            return
        turn = Trial.plan(case, series.typical, budget)
        order = {"do": "turn", "form": case.form, **asdict(turn)}
        answers = self._request(self._pools[name], order)
        if answers is None:
            return
        for rank, answer in enumerate(answers):
            if answer["wrong"]:
                self._drop(name, f"WRONG RESULT on rank {rank} of {case}: {answer['wrong']}")
                return
        times = interleaving.take_slowest([answer["times"] for answer in answers])
        series.times += times
        series.all_times += times
        series.typical = statistics.median(series.all_times)
        series.calls += turn.batches * turn.calls
        series.variant = answers[0]["variant"]

    def _request(self, pool: RankPool, command: dict[str, Any]) -> list[dict[str, Any]] | None:
        try:
            answers = pool.request(command)
        except RankPoolFailed as failure:
            self._drop(pool.name, str(failure))
            return None
        self._cpu[pool.name] = sum(answer["cpu"] for answer in answers)
        return answers

    def _explain_failure(self, name: str) -> str | None:
        """Say why a contender has no times, at length only once."""
        if name not in self._failed:
            return None
        if name in self._reported:
            return "it failed in an earlier cell"
        self._reported.add(name)
        return self._failed[name]

    def _drop(self, name: str, why: str) -> None:
        self._failed[name] = why
        self._pools.pop(name).close()


@contextmanager
def start_bench(
    launchers: Sequence[Launcher], ranks: int, hosts: Sequence[BenchHost] = (THIS_HOST,)
) -> Iterator[Bench]:
    """Start all rank pools; end them on exit."""
    with ExitStack() as stack:
        pools: dict[str, RankPool] = {}
        failed: dict[str, str] = {}
        for launcher in launchers:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="allhands-bench-"))
            try:
                pool = RankPool(launcher, ranks, Path(folder), hosts)
            except RankPoolFailed as failure:
                failed[launcher.system] = str(failure)
                continue
            stack.callback(pool.close)
            pools[launcher.system] = pool
        running = Bench([one.system for one in launchers], pools, failed)
        yield running
        running.leave()
