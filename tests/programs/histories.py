"""Random calls of ranks: some late, cancelled or mismatched."""

import collections
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import tell
from support.arrays.collective_cases import EVERY, Case, allowed, case


def shared(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return ah.empty(length, dtype)


ROOTED = ("broadcast", "gather", "scatter", "reduce")  # who waits for nobody may go on
LENGTHS = (0, 1, 7, 200, 3_000, 20_000, 70_000, 300_000)
DTYPES = (np.float32, np.float64, np.int16, np.uint8, np.complex64, np.float16)


@dataclass
class _Step:
    """A call of one rank in a history, with a fault."""

    number: int
    face: str
    """How it is made: sync, async or prepared."""
    trouble: str
    """"": none; late, cancelled or unlike the calls of the others."""
    is_mine: bool
    """The trouble is of this rank's making."""
    timeout: float
    case: Case
    end: Callable[[], object] = field(default=lambda: None)

    def __post_init__(self) -> None:
        written = self.case.written if self.trouble else []
        self._before = [array.tobytes() for array in written]

    @property
    def is_untouched(self) -> bool:
        return self._before == [array.tobytes() for array in self.case.written]

    def begin(self, group: Any) -> None:
        more = {"group": group, "timeout": self.timeout}
        if self.face == "sync":
            self.end = lambda: self.case.run(ah, **more)
        elif self.face == "async":
            work = self.case.run(ah, **more, async_op=True)
            if self.trouble == "cancelled" and self.is_mine:
                work.cancel()
            self.end = work.wait
        else:
            call = ah.all_reduce_init(*self.case.arguments, **more)
            call.start()
            self.end = call.wait


class _Player:
    """Player of a history known to all ranks; records the faults, and the calls' outcomes."""

    def __init__(self, seed: int, group: Any) -> None:
        self._n, self._me = ah.get_world_size(), ah.get_rank()
        self._plan = random.Random(seed)
        self._mine = random.Random(f"{seed} {self._me}")
        self._group = group
        self._running: list[_Step] = []
        self.wrong: list[Any] = []
        self.ended: collections.Counter[str] = collections.Counter()

    def play(self, number: int) -> None:
        step = self._choose(number)
        step.begin(self._group)
        if step.face == "sync":
            self._settle(step)
        else:
            self._running.append(step)
        if len(self._running) > 8 or step.trouble or self._plan.random() < 0.2:
            self.settle_all()

    def settle_all(self) -> None:
        for step in self._running:
            self._settle(step)
        self._running.clear()

    def _choose(self, number: int) -> _Step:
        plan, me = self._plan, self._me
        name = plan.choice(EVERY)
        dtype = plan.choice(DTYPES)
        length = plan.choices(LENGTHS, (1, 2, 3, 4, 4, 2, 2, 1))[0]
        root, op = plan.randrange(self._n), plan.choice(list(allowed(dtype)))
        if op is ah.ReduceOp.PRODUCT and dtype is np.float16:
            op = ah.ReduceOp.SUM  # products are not exact
        face = plan.choices(("sync", "async", "prepared"), (6, 3, 1))[0]
        trouble = plan.choices(("", "late", "cancelled", "unlike"), (40, 2, 1, 2))[0]
        who = plan.randrange(self._n)
        make = shared if plan.random() < 0.3 else np.empty
        if plan.random() < 0.1:  # not all ranks
            make = self._mine.choice((shared, np.empty))
        if face == "prepared":
            name = "all_reduce"
        if trouble == "cancelled":
            face = "async"
        patience, limit = plan.choice((0.02, 0.05)), 40.0
        if trouble:
            self.settle_all()  # they would time out with it
            # Over links nobody hears that others have given up, so all do at about one time.
            if trouble != "unlike" and os.environ["ALLHANDS_BACKEND"] == "socket":
                limit = patience
            if who != me and trouble == "late":
                limit = patience
            if who == me:
                time.sleep(self._mine.random() * 0.06)
        if trouble == "unlike" and who == me:
            name, length = "all_reduce" if name == "barrier" else name, length + 1
        one = case(name, me, self._n, length, dtype, op=op, root=root, seed=number, make=make)
        return _Step(number, face, trouble, who == me, limit, one)

    def _settle(self, step: _Step) -> None:
        kind, intact = self._end(step)
        self.ended[kind] += 1
        number, trouble, name = step.number, step.trouble, step.case.name
        if kind == "well":
            if step.case.wrong():
                self.wrong.append([number, step.case.wrong()])
            if trouble == "unlike" and name not in ROOTED:
                self.wrong.append([number, name, "nobody objected"])
            return
        if not trouble or (kind == "unlike") != (trouble == "unlike"):
            self.wrong.append([number, name, kind, trouble])
        if kind == "unlike" and not intact:
            self.wrong.append([number, name, "a mismatch after outputs were touched"])
        if intact and not step.is_untouched:
            self.wrong.append([number, name, kind, "outputs were touched"])

    def _end(self, step: _Step) -> tuple[str, bool | None]:
        """Return the outcome of the call, and whether the error claims intact outputs."""
        try:
            step.end()
        except ah.CollectiveTimeout as error:
            return "timeout", error.outputs_intact
        except ah.CollectiveMismatch as error:
            return "unlike", error.outputs_intact
        except ah.AllhandsError as error:
            is_cancelled = "cancelled" in str(error)
            kind = "cancelled" if is_cancelled else f"{type(error).__name__}: {error}"
            return kind, error.outputs_intact
        return "well", None


def play(seed: int, steps: int, group: Any) -> tuple[list[Any], dict[str, int]]:
    """Run a history known to all ranks; return the faults, and the calls' outcomes."""
    player = _Player(seed, group)
    for number in range(steps):
        player.play(number)
    player.settle_all()
    return player.wrong, dict(player.ended)


def play_in_the_world(seed: int, steps: int) -> None:
    ah.init_process_group(timeout=40)
    wrong, ended = play(seed, steps, None)
    tell("played", wrong=wrong[:5], ended=ended)
    ah.destroy_process_group()


def play_in_three_groups() -> None:
    ah.init_process_group(timeout=40)
    groups = [ah.new_group() for _ in range(3)]
    told: list[Any] = [None] * 3

    def use(at: int) -> None:
        told[at] = play(at, 100, groups[at])

    threads = [threading.Thread(target=use, args=[at]) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("played", wrong=[one[0][:5] for one in told])
    ah.destroy_process_group()
