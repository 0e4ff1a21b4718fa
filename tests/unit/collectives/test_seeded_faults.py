"""Errors seeded into the text of an algorithm: the simulator alone finds each."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from allhands.collectives.algorithms import bruck, halving, pairwise, ring, tree
from allhands.collectives.schedule import Schedule
from allhands.testing import ScheduleError, simulate

SIZES = range(1, 18)
LENGTH = 29
DATA = np.random.default_rng(15).integers(-(2**40), 2**40, (17, LENGTH))
POISON = -(2**62)

Array = NDArray[Any]
Algorithm = Callable[..., Schedule]


@dataclass(frozen=True)
class Play:
    """A collective of a group: the schedules, inputs and expected outputs."""

    schedules: Sequence[Schedule]
    inputs: Sequence[Array] | None
    outputs: Sequence[Array]
    results: Sequence[Array]

    def betrays(self) -> str:
        """Return the simulator's complaint about the schedules; "" for none."""
        try:
            simulate(self.schedules, inputs=self.inputs, outputs=self.outputs)
        except ScheduleError as error:
            return str(error)
        return "" if all(map(np.array_equal, self.outputs, self.results)) else "wrong result"


def all_reduce(algorithm: Algorithm, size: int) -> Play:
    total = DATA[:size].sum(axis=0)
    schedules = [algorithm(rank, size, LENGTH) for rank in range(size)]
    return Play(schedules, None, list(DATA[:size].copy()), [total] * size)


def reduce(algorithm: Algorithm, size: int) -> Play:
    root = size // 2
    results = [np.full(LENGTH, POISON) for _ in range(size)]
    outputs = [result.copy() for result in results]
    results[root] = DATA[:size].sum(axis=0)
    schedules = [algorithm(rank, size, LENGTH, root) for rank in range(size)]
    return Play(schedules, list(DATA[:size]), outputs, results)


def all_gather(algorithm: Algorithm, size: int) -> Play:
    counts = [(5 * rank) % 7 for rank in range(size)]
    own = [DATA[rank, : counts[rank]] for rank in range(size)]
    outputs = [np.full(sum(counts), POISON) for _ in range(size)]
    schedules = [algorithm(rank, size, counts) for rank in range(size)]
    return Play(schedules, own, outputs, [np.concatenate(own)] * size)


def all_to_all(algorithm: Algorithm, size: int) -> Play:
    counts = [[1] * size] * size
    inputs = list(DATA[:size, :size])
    outputs = [np.full(size, POISON) for _ in range(size)]
    schedules = [
        algorithm(rank, size, counts[rank], counts[rank], in_one_round=True) for rank in range(size)
    ]
    return Play(schedules, inputs, outputs, list(DATA[:size, :size].T))


@dataclass(frozen=True)
class Fault:
    """A line of an algorithm, and a faulty replacement."""

    module: ModuleType
    algorithm: str
    play: Callable[[Algorithm, int], Play]
    line: str
    instead: str
    from_size: int
    """The least group that does anything else because of it."""

    def seeded(self) -> Algorithm:
        """Return the algorithm after the replacement."""
        text = inspect.getsource(self.module)
        assert text.count(self.line) == 1, f"{self.line!r} is not there, or not alone"
        namespace: dict[str, Any] = {"__name__": f"{self.module.__name__} with a fault"}
        exec(text.replace(self.line, self.instead), namespace)
        found: Algorithm = namespace[self.algorithm]
        return found

    def sound(self) -> Algorithm:
        found: Algorithm = getattr(self.module, self.algorithm)
        return found


FAULTS = {
    "wrong span": Fault(
        ring,
        "all_reduce",
        all_reduce,
        "recvs=(Recv(preceding, parts[(rank - 2 - step) % size], reduces=True),),",
        "recvs=(Recv(preceding, parts[(rank - 1 - step) % size], reduces=True),),",
        from_size=2,
    ),
    "wrong peer": Fault(
        bruck,
        "all_gather",
        all_gather,
        "to, source = (rank - held) % size, (rank + held) % size",
        "to, source = (rank + held) % size, (rank + held) % size",
        from_size=3,
    ),
    "reduce instead of overwrite": Fault(
        halving,
        "all_reduce",
        all_reduce,
        "recvs=(Recv(rank ^ distance, find_half(rank ^ distance, distance)),),",
        "recvs=(Recv(rank ^ distance, find_half(rank ^ distance, distance), reduces=True),),",
        from_size=2,
    ),
    "lost message": Fault(
        pairwise,
        "all_to_all",
        all_to_all,
        "sends = tuple(send for step in rounds for send in step.sends)",
        "sends = tuple(send for step in rounds[:-1] for send in step.sends)",
        from_size=2,
    ),
    "wrong order": Fault(
        tree,
        "reduce",
        reduce,
        "    for distance in list_distances(size):\n        copies",
        "    for distance in reversed(list_distances(size)):\n        copies",
        from_size=3,
    ),
}

each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


@each_fault
def test_seeded_fault_is_found_in_every_group_that_it_concerns(fault: Fault) -> None:
    algorithm = fault.seeded()
    missed = [
        size
        for size in SIZES
        if size >= fault.from_size and not fault.play(algorithm, size).betrays()
    ]
    assert not missed


@each_fault
def test_algorithm_without_the_fault_is_right(fault: Fault) -> None:
    found = {size: fault.play(fault.sound(), size).betrays() for size in SIZES}
    assert not any(found.values()), found


@each_fault
def test_smaller_groups_have_no_fault_to_find(fault: Fault) -> None:
    for size in range(1, fault.from_size):
        sound, seeded = (fault.play(one, size) for one in (fault.sound(), fault.seeded()))
        assert seeded.schedules == sound.schedules


def test_faults_are_of_five_kinds_in_five_algorithms() -> None:
    assert len({(fault.module, fault.algorithm) for fault in FAULTS.values()}) == len(FAULTS) == 5
