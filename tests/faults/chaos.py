"""Chaos: a job with random kills, stops, cuts and new ranks, and its invariants.

    PYTHONPATH=tests python tests/faults/chaos.py --cycles 100 --seed 7 [--backend socket]

Each rank goes through steps of mixed collectives, in which every rank brings a number of its own:
so a result says who took part in it. What must hold: results are exact; all ranks that have a
result of one call have the same; nothing takes longer than its deadline and what it takes to notice
a loss; who was cut off or stopped for too long learns that it is no member any more; who is left in
the end has no more threads, files and shared memory than ranks of a job that nothing happened to.
"""

import argparse
import collections
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from programs.chaos import work
from support.ranks.forking import ForkServer
from support.ranks.processes import Cluster, Process

SIZE = 4
MOST = 6
WINDOW = 2.0
DEADLINE = 8.0
"""Of each call; a rank that is stopped just before it is lost a second later."""

THREADS = 7
"""The program's, the loop's, one beside it for calls, one for callbacks, one that looks after calls
nobody waits for, two that copy."""


class Doors:
    """A proxy before the coordinator, with a door for each rank, open or shut."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._shut: dict[int, float] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def open(self) -> int:
        """Open a door; return the port, also the door's name."""
        listening = socket.create_server(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        self._go(self._listen, port, listening)
        return port

    def shut(self, port: int, seconds: float) -> None:
        self._shut[port] = time.monotonic() + seconds

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _go(self, work: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _listen(self, port: int, listening: socket.socket) -> None:
        listening.settimeout(0.2)
        with listening:
            while not self._stop.is_set():
                try:
                    inner, _ = listening.accept()
                except TimeoutError:
                    continue
                inner.setblocking(True)
                self._go(self._carry, port, inner, socket.create_connection(self._target))

    def _carry(self, port: int, inner: socket.socket, outer: socket.socket) -> None:
        other = {inner: outer, outer: inner}
        with inner, outer:
            while not self._stop.is_set():
                if time.monotonic() < self._shut.get(port, 0):
                    time.sleep(0.01)  # a door that is shut lets nothing through, both ways
                    continue
                ready, _, _ = select.select([inner, outer], [], [], 0.2)
                for one in ready:
                    try:
                        data = one.recv(1 << 16)
                        if not data:
                            return
                        other[one].sendall(data)
                    except OSError:
                        return


class Chaos:
    """The ranks, the faults inflicted, and the ranks' reports."""

    def __init__(self, cluster: Cluster, seed: int, backend: str) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.backend = backend
        self.url = cluster.daemon()
        notice = next(Path(cluster.runtime, "allhands").glob("coordinator-*.json"))
        self.token = json.loads(notice.read_text())["token"]
        self.doors = Doors(int(self.url.rpartition(":")[2]))
        self.stop = Path(mkdtemp()) / "stop"
        self.alive: dict[Process, int] = {}
        """The ranks that run as they should, and their doors."""
        self.ghosts: list[Process] = []
        """Who has been stopped or cut off for too long."""
        self.bits = iter(range(10**6))
        self.started = 0
        self.ends: dict[Process, str] = {}
        """Whether ranks that ended by themselves were out, or done."""
        self.steps: dict[tuple[int, int], dict[str, set[str]]] = collections.defaultdict(dict)
        self.told: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        self.latest = 0
        self.acts: collections.Counter[str] = collections.Counter()
        self.log: list[str] = []

    def start(self, **environment: str) -> Process:
        port = self.doors.open()
        options = {"timeout": DEADLINE, "max_size": MOST, "heartbeat_window": WINDOW}
        rank = self.cluster.start(
            work,
            str(self.stop),
            3 * DEADLINE,
            options,
            ALLHANDS_URL=f"ah://127.0.0.1:{port}/chaos",
            ALLHANDS_TOKEN=self.token,
            ALLHANDS_BACKEND=self.backend,
            BIT=str(next(self.bits) % 60),
            **environment,
        )
        self.alive[rank] = port
        self.started += 1
        return rank

    def listen(self, rank: Process, seconds: float = 0.0) -> bool:
        """Read a rank's reports; return whether there were any."""
        import queue

        heard = False
        while True:
            try:
                told = rank.lines.get(timeout=seconds) if seconds else rank.lines.get_nowait()
            except queue.Empty:
                return heard
            heard, seconds = True, 0.0
            if told is None:
                rank.lines.put(None)
                return heard
            if told["what"] == "step":
                key = (told["generation"], told["step"])
                self.steps[key].setdefault(json.dumps(told["found"]), set()).add(str(id(rank)))
                self.latest = max(self.latest, told["step"])
            else:
                self.told[told["what"]].append(told)
                if told["what"] in ("out", "done"):
                    self.ends[rank] = told["what"]

    def go_on(self, steps: int) -> None:
        """Let the job make steps; a job slower than any deadline is stuck."""
        wanted = self.latest + steps
        until = time.monotonic() + 3 * DEADLINE + 10
        while self.latest < wanted:
            self.bury()
            for rank in list(self.alive):
                self.listen(rank, 0.02)
            if time.monotonic() > until:
                self.fail(f"stuck at step {self.latest}")

    def fail(self, why: str) -> None:
        for rank in (*self.alive, *self.ghosts):
            rank.child.send_signal(signal.SIGUSR1)  # it says where it is
        time.sleep(1)
        errors = "\n".join("".join(rank.errors[-40:]) for rank in (*self.alive, *self.ghosts))
        raise AssertionError(f"{why}\n{self.log[-5:]}\n{dict(self.told)}\n{errors}")

    def bury(self) -> None:
        """Forget ranks counted as lost after a long starvation."""
        for rank in [one for one in self.alive if one.child.poll() is not None]:
            rank.ended()
            self.listen(rank)
            del self.alive[rank]
            self.ghosts.append(rank)
            if len(self.told["out"]) < len(self.ghosts):
                self.fail(f"pid {rank.child.pid} ended: {''.join(rank.errors[-30:])}")

    def cycle(self) -> None:
        self.bury()
        rank = self.random.choice(list(self.alive))
        if len(self.alive) <= 2:
            act = "join"
        elif len(self.alive) >= MOST:
            act = self.random.choice(["kill", "stop", "cut off"])
        else:
            act = self.random.choice(["kill", "stop", "cut off", "blink", "join", "join"])
        self.acts[act] += 1
        self.log.append(f"{len(self.log)}: {act} at step {self.latest}, {len(self.alive)} ranks")
        match act:
            case "kill":
                os.kill(rank.child.pid, signal.SIGKILL)
                del self.alive[rank]
            case "stop":
                os.kill(rank.child.pid, signal.SIGSTOP)
                del self.alive[rank]
                time.sleep(2 * WINDOW)  # longer than anybody may be silent
                self.go_on(3)
                os.kill(rank.child.pid, signal.SIGCONT)
                self.ghosts.append(rank)
            case "cut off":
                self.doors.shut(self.alive.pop(rank), 3 * WINDOW)
                self.ghosts.append(rank)
            case "blink":
                os.kill(rank.child.pid, signal.SIGSTOP)
                time.sleep(WINDOW / 5)
                os.kill(rank.child.pid, signal.SIGCONT)
            case "join":
                self.start()
        self.go_on(self.random.randrange(2, 5))
        # Without this the job may have ended before anybody missed or noticed them.
        until = time.monotonic() + 4 * DEADLINE
        while len(self.told["out"]) < len(self.ghosts) or len(self.told["joined"]) < self.started:
            self.go_on(1)
            for ghost in self.ghosts[-1:]:
                self.listen(ghost, 0.01)
            if time.monotonic() > until:
                self.fail("a rank has not learnt that it is out, or has not been taken in")

    def finish(self) -> None:
        self.stop.touch()
        until = time.monotonic() + 60
        for rank in [*self.alive, *self.ghosts]:
            while rank.child.poll() is None:
                self.listen(rank, 0.05)
                if time.monotonic() > until:
                    self.fail(f"pid {rank.child.pid} does not end")
            rank.ended()
            self.listen(rank)


def run(cluster: Cluster, seed: int, cycles: int, backend: str) -> dict[str, Any]:
    """Run `cycles` cycles; return the tally, or raise AssertionError."""
    chaos = Chaos(cluster, seed, backend)
    try:
        for rank in range(SIZE):
            chaos.start(RANK=str(rank), WORLD_SIZE=str(SIZE))
        chaos.go_on(3)
        for _ in range(cycles):
            chaos.cycle()
        chaos.finish()
    finally:
        chaos.doors.close()
    told = chaos.told
    torn = {str(key): found for key, found in chaos.steps.items() if len(found) > 1}
    assert not torn, f"ranks have different results of one call: {torn}"
    assert not told["wrong"], told["wrong"]
    assert not told["slow"], told["slow"]
    # Who is cut off may be given up by the others before it can hear why.
    known = ("MembershipChanged", "CollectiveTimeout")
    strange = [one for one in told["out"] if one["error"] not in known]
    assert not strange, strange
    assert [chaos.ends.get(rank) for rank in chaos.ghosts] == ["out"] * len(chaos.ghosts), told
    # One that was starved at the very end is out as well.
    assert all(chaos.ends.get(rank) in ("out", "done") for rank in chaos.alive), told
    assert told["done"], told
    for one in told["done"]:
        assert one["segments"] in (0, one["size"]), one
        assert one["threads"] <= THREADS, one
        assert one["files"] <= max(rank["files"] for rank in told["joined"]), one
        assert one["sockets"] <= 4 + 2 * MOST, one
    return {
        "cycles": dict(chaos.acts),
        "steps": chaos.latest,
        "expelled": len(told["out"]),
        "joined": told["joined"],
        "done": told["done"],
        "left": told["left"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--backend", default="auto")
    given = parser.parse_args()
    fork_server = ForkServer()
    runtime = Path(mkdtemp())
    cluster = Cluster(runtime, fork_server)
    begun = time.monotonic()
    try:
        found = run(cluster, given.seed, given.cycles, given.backend)
    finally:
        cluster.close()
        fork_server.close()
    json.dump({**found, "seconds": time.monotonic() - begun}, sys.stdout, indent=1)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
