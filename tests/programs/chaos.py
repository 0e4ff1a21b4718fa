"""A rank of a job killed, stopped, cut off and grown at random."""

import collections
import faulthandler
import gc
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import tell

_BIG = 1 << 18


class _Counted(ah.State):
    """A state with a count of its transfers to newcomers."""

    step: int
    total: npt.NDArray[np.float64]
    generation: int

    def sync(self) -> None:
        super().sync()
        self.generation += 1


@dataclass(frozen=True)
class _Worker:
    """Goes through steps of mixed collectives until a file is there, and checks each result."""

    state: _Counted
    stop: str
    patience: float

    def train(self, state: ah.State) -> None:
        state = self.state
        while True:
            begun = time.monotonic()
            found = self._step()
            state.step += 1
            state.total += 1.0
            self._check("state", (state.total == state.step).all())
            tell("step", step=state.step, generation=state.generation, found=found)
            stop = np.array([os.path.exists(self.stop)], np.int32)
            ah.all_reduce(stop, ah.ReduceOp.MAX)
            if stop[0]:
                return
            state.commit()
            if (took := time.monotonic() - begun) > self.patience:
                tell("slow", step=state.step, seconds=took)

    def _step(self) -> list[int]:
        step = self.state.step
        mine = 1 << int(os.environ["BIT"])
        found = []
        for length in (8, _BIG):
            x = np.full(length, step, np.int64)
            x[0], x[1] = 1, mine
            ah.all_reduce(x)
            found.append(self._find_members(x))
        root = step % ah.get_world_size()
        y = np.full(_BIG, step if ah.get_rank() == root else -1, np.int64)
        ah.broadcast(y, src=root)
        self._check("broadcast", (y == step).all())
        ah.barrier()
        outputs = [np.zeros(3, np.int64) for _ in range(ah.get_world_size())]
        ah.all_gather(outputs, np.full(3, mine))
        gathered = 0
        for one in outputs:
            gathered |= int(one[0])
        self._check("gather", len({int(one[0]) for one in outputs}) == len(outputs))
        found.append(gathered)
        return found

    def _find_members(self, x: npt.NDArray[np.int64]) -> int:
        """Check a sum in which x[0] counts, x[1] has a bit for each; return the bits."""
        bits = int(x[1])
        self._check("count", bits.bit_count() == int(x[0]))
        self._check("rest", (x[2:] == x[0] * self.state.step).all())
        return bits

    def _check(self, what: str, claim: object) -> None:
        if not claim:
            rank, size = ah.get_rank(), ah.get_world_size()
            tell("wrong", step=self.state.step, call=what, rank=rank, size=size)


def _count_held() -> dict[str, Any]:
    """Count threads, files, sockets and segments of shared memory of this process."""
    gc.collect()
    files = collections.Counter(
        os.readlink(f"/proc/self/fd/{one}").split(":")[0]
        for one in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{one}")
    )
    with open("/proc/self/maps") as maps:
        segments = {line.split()[4] for line in maps if "memfd:" in line}
    return {
        "threads": threading.active_count(),
        "names": sorted(thread.name for thread in threading.enumerate()),
        "segments": len(segments),
        "sockets": files["socket"],
        "files": sum(files.values()) - files["socket"],
    }


def work(stop: str, patience: float, options: dict[str, Any]) -> None:
    """Work until the file `stop` exists, in a world made with these options."""
    faulthandler.register(signal.SIGUSR1)
    ah.init_process_group(on_failure="shrink", **options)
    state = _Counted(total=np.zeros(1000), step=0, generation=0)
    tell("joined", pid=os.getpid(), **_count_held())
    try:
        state.run(_Worker(state, stop, patience).train)
        tell("done", rank=ah.get_rank(), size=ah.get_world_size(), **_count_held())
        ah.destroy_process_group()
        tell("left", **_count_held())
    except ah.AllhandsError as error:
        tell("out", error=type(error).__name__, text=str(error)[:300])
