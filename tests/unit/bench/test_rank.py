"""Trials of a benchmark's rank: what is timed, and what others do meanwhile."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from allhands.bench.case import BenchCase
from allhands.bench.data import Array
from allhands.bench.rank import PreparedCase
from allhands.bench.start_gate import StartGate
from allhands.bench.systems.system import BoundCall


def test_no_rank_reads_its_result_while_another_is_in_the_timed_call(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.write_bytes(bytes(StartGate.count_bytes(2)))
    has_read, were_early = threading.Event(), []

    def run(rank: int) -> None:
        def call() -> None:
            if rank == 1:
                were_early.append(has_read.wait(0.2))

        def read(_: object) -> Array:
            if rank == 0:
                has_read.set()
            return cast(Array, np.empty(0, np.float32))

        system: Any = SimpleNamespace(
            rank=rank,
            allocate=lambda elements, dtype: np.empty(elements, dtype),
            bind=lambda case, x, out, seed: BoundCall(call, read),
        )
        prepared = PreparedCase(
            system, StartGate(gate, rank, 2), BenchCase("all_reduce", 2, 8), seed=1
        )
        were_early.clear()  # of the call that tests whether the system takes the case
        prepared.run_trial(warm=1, batches=1, calls=1)

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert were_early == [False, True]  # it has been read after the first of both
