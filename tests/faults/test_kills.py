"""kill -9 in the middle of acknowledged writes, again and again.

Variables for longer runs: ALLHANDS_KILLS and ALLHANDS_KILL_WRITES; `make test-histories` sets them.
"""

import contextlib
import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from allhands.errors import CoordinatorUnavailable
from support.linearizability.altered_daemon import make_command, save_snapshots_often
from support.served_daemon import ServedDaemon

KILLS = int(os.environ.get("ALLHANDS_KILLS", "2"))
WRITES = int(os.environ.get("ALLHANDS_KILL_WRITES", "10000" if KILLS > 2 else "1000"))
"""Acknowledged between a start and the next one; the kill comes after half of these."""
WRITERS = 8
_PATIENCE = 60.0


@dataclass
class Ledger:
    """What a daemon has acknowledged."""

    pairs: dict[str, bytes] = field(default_factory=dict)
    counts: list[int] = field(default_factory=lambda: [0] * WRITERS)
    """Of the additions to the number of each writer."""
    lost_additions: list[int] = field(default_factory=lambda: [0] * WRITERS)
    """Additions of unknown outcome since the number was read last."""
    pushed: list[list[int]] = field(default_factory=lambda: [[] for _ in range(WRITERS)])
    """Numbers in the queue of each writer, in order, by their answers."""
    lost_pushes: list[set[int]] = field(default_factory=lambda: [set() for _ in range(WRITERS)])
    acknowledged: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()

    def note(self) -> None:
        """Count an acknowledged write."""
        with self._changed:
            self.acknowledged += 1
            self._changed.notify_all()

    def wait(self, acknowledged: int) -> None:
        """Wait until so many writes have been acknowledged."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.acknowledged >= acknowledged, _PATIENCE)


def write(
    control: Control, ledger: Ledger, writer: int, until: int, is_served: threading.Event
) -> None:
    """Write until `until` writes of all writers are acknowledged."""
    while ledger.acknowledged < until:
        number = next(ledger.numbers)
        key, value = f"{writer}/{number}", os.urandom(8)
        try:
            control.put(key, value)
            ledger.pairs[key] = value
            ledger.note()
            ledger.lost_additions[writer] += 1
            control.add(f"count/{writer}")
            ledger.lost_additions[writer] -= 1
            ledger.counts[writer] += 1
            ledger.note()
            ledger.lost_pushes[writer].add(number)
            control.queue_push(f"queue/{writer}", str(number))
            ledger.lost_pushes[writer].discard(number)
            ledger.pushed[writer].append(number)
            ledger.note()
        except CoordinatorUnavailable:
            assert is_served.wait(_PATIENCE)


def check(control: Control, ledger: Ledger) -> None:
    """Check that everything acknowledged is there, once; what is unknown is known then."""
    keys = sorted(ledger.pairs)
    for start in range(0, len(keys), 500):
        some = keys[start : start + 500]
        assert control.multi_get(some) == tuple(ledger.pairs[key] for key in some)
    for writer in range(WRITERS):
        found = control.add(f"count/{writer}", 0)
        most = ledger.counts[writer] + ledger.lost_additions[writer]
        assert ledger.counts[writer] <= found <= most, "an addition was lost, or made twice"
        ledger.counts[writer], ledger.lost_additions[writer] = found, 0
        queued = control.queue_length(f"queue/{writer}")
        popped = [int(control.queue_pop(f"queue/{writer}")) for _ in range(queued)]
        acknowledged = [one for one in popped if one not in ledger.lost_pushes[writer]]
        assert acknowledged == ledger.pushed[writer], "a value was lost, or is there twice"
        assert len(set(popped)) == len(popped), "a value is there twice"
        ledger.pushed[writer], ledger.lost_pushes[writer] = [], set()


def run_life(daemon: ServedDaemon, ledger: Ledger) -> float:
    """Kill the daemon amid writes, start it, and check; return the seconds until served again."""
    begin, is_served = ledger.acknowledged, threading.Event()
    with contextlib.ExitStack() as stack:
        *controls, control = (
            stack.enter_context(Control(daemon.endpoint, job="kills", timeout=_PATIENCE))
            for _ in range(WRITERS + 1)
        )
        threads = stack.enter_context(ThreadPoolExecutor(WRITERS))
        writing = [
            threads.submit(write, one, ledger, writer, begin + WRITES, is_served)
            for writer, one in enumerate(controls)
        ]
        ledger.wait(begin + WRITES // 2)
        daemon.kill()
        killed = time.monotonic()
        daemon.start()
        control.put("served", b"again")
        seconds = time.monotonic() - killed
        is_served.set()
        for one in writing:
            one.result()
        check(control, ledger)
    return seconds


@pytest.mark.timeout(300 + KILLS * 60)
def test_a_daemon_killed_amid_writes_has_each_acknowledged_write_once(tmp_path: Path) -> None:
    daemon, ledger, seconds = (
        ServedDaemon(tmp_path, make_command(save_snapshots_often)),
        Ledger(),
        [],
    )
    try:
        daemon.start()
        for _ in range(KILLS):
            seconds.append(run_life(daemon, ledger))
    finally:
        daemon.close()
    print(
        f"{KILLS} kills, {ledger.acknowledged:,} acknowledged writes, served again after "
        f"{statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s (worst)"
    )
    assert ledger.acknowledged >= KILLS * WRITES
