"""Rank of a benchmarked system: runs the driver's trials and returns the times."""

import argparse
import gc
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from allhands.bench.case import BenchCase
from allhands.bench.data import Array, CaseData, choose_scale
from allhands.bench.ipc import JsonConnection, Message
from allhands.bench.start_gate import StartGate
from allhands.bench.systems import Call, System, Unsupported, join_system
from allhands.bench.training import StepData

_MAX_ALWAYS_CHECKED = 4 << 20
_REFUSALS = ("Invalid scalar type", "MPI_ERR_TYPE", "MPI_ERR_OP")
"""What Gloo and MPI say to a type that they do not know."""


class PreparedCase:
    """Arrays and bound call of a rank for the current case."""

    def __init__(self, system: System, gate: StartGate, case: BenchCase, seed: int) -> None:
        self.case = case
        self._system, self._gate = system, gate
        self._takes_part = system.rank in case.participants
        kind = StepData if case.operation == "ddp_step" else CaseData
        self._data = kind(case, system.rank, seed)
        self._x = system.allocate(case.elements, case.dtype)
        self._out = system.allocate(case.output_elements, case.dtype)
        self._fresh = np.empty(0 if case.is_rewritten else case.elements, self._x.dtype)
        # Pages that were never written would be made by the kernel while the clock runs.
        self._x.fill(0)
        self._out.fill(0)
        self._calls = 0
        self._call = self._bind(seed)

    def run_trial(self, warm: int, batches: int, calls: int) -> tuple[list[float], str | None]:
        """Make `warm` calls, then the timed calls; return seconds and errors.

        On rewritten arrays every call is timed by itself; else batches are, and their means are
        returned.
        """
        if not self._takes_part:
            return [], None
        if self.case.is_rewritten:
            return self._time_single_calls(warm, batches * calls)
        batch = self._time_barriers if self.case.operation == "barrier" else self._time_batch
        _, wrong = batch(warm)
        times = []
        for _ in range(batches):
            took, said = batch(calls)
            times.append(took)
            wrong = wrong or said
        return times, wrong

    def _bind(self, seed: int) -> Call:
        """Make one call, to test whether the system accepts the case's arguments.

        Raises:
            Refused: a rank does not accept the arguments.
        """
        try:
            call = self._system.bind(self.case, self._x, self._out, seed)
            if self._takes_part:
                call()
        except (TypeError, ValueError) as error:
            raise Unsupported(str(error)) from error
        except RuntimeError as error:
            if not any(sign in str(error) for sign in _REFUSALS):
                raise
            raise Unsupported(f"its library takes no {self.case.dtype}: {error}") from error
        return call

    def _time_single_calls(self, warm: int, calls: int) -> tuple[list[float], str | None]:
        always = self._x.nbytes + self._out.nbytes <= _MAX_ALWAYS_CHECKED
        times = []
        wrong = None
        for number in range(warm + calls):
            scale = self._advance_scale()
            self._data.fill(self._x, scale)
            took = self._time(self._call)
            if number >= warm:
                times.append(took)
            if always or number == warm + calls - 1:
                wrong = wrong or self._data.find_error(self._get_result(), scale)
        return times, wrong

    def _time_batch(self, calls: int) -> tuple[float, str | None]:
        # Sums in place of anything but zeros would outgrow every type; the last call, within the
        # time that is measured, is on random numbers.
        scale = self._advance_scale()
        self._data.fill(self._fresh, scale)
        self._x.fill(0)
        call, x, fresh = self._call, self._x, self._fresh

        def run_calls() -> None:
            for _ in range(calls - 1):
                call()
            x[:] = fresh
            call()

        took = self._time(run_calls)
        return took / calls, self._data.find_error(self._get_result(), scale)

    def _time_barriers(self, calls: int) -> tuple[float, str | None]:
        call = self._call

        def run_calls() -> None:
            for _ in range(calls):
                call()

        took = self._time(run_calls)
        number = self._gate.announce()
        call()
        early = self._gate.find_missing(number)
        return took / calls, f"ended before ranks {early} came" if early else None

    def _time(self, act: Call) -> float:
        self._gate.wait(self.case.participants)
        begun = time.perf_counter()
        act()
        took = time.perf_counter() - begun
        return took / 2 if self.case.operation == "sendrecv" else took

    def _get_result(self) -> Array:
        return self._out if self._out.size else self._x

    def _advance_scale(self) -> int:
        self._calls += 1
        return choose_scale(self._calls)


class CommandServer:
    """Obeys the driver."""

    def __init__(self, system: System, gate: StartGate) -> None:
        self._system, self._gate = system, gate
        self._case: PreparedCase | None = None

    def execute(self, command: Message) -> Message:
        """Carry out a command of the driver; return the answer."""
        match command:
            case {"do": "prepare", "cell": cell, "seed": seed}:
                return self._prepare(BenchCase(**cell), seed)
            case {"do": "turn", "warm": warm, "batches": batches, "calls": calls}:
                return self._run_trial(warm, batches, calls)
        raise ValueError(f"no rank knows how to obey {command}")

    def _prepare(self, case: BenchCase, seed: int) -> Message:
        self._case = None  # its memory first
        gc.collect()  # a model refers to itself
        try:
            self._case = PreparedCase(self._system, self._gate, case, seed)
        except Unsupported as refusal:
            return {"refused": str(refusal), "cpu": time.process_time()}
        return {"refused": None, "cpu": time.process_time()}

    def _run_trial(self, warm: int, batches: int, calls: int) -> Message:
        assert self._case is not None
        times, wrong = self._case.run_trial(warm, batches, calls)
        cpu = time.process_time()
        return {"times": times, "wrong": wrong, "variant": self._system.get_variant(), "cpu": cpu}


def serve(connection: JsonConnection, system: System, gate: StartGate) -> None:
    """Obey until the driver lets go."""
    rank = CommandServer(system, gate)
    connection.send({"rank": system.rank, "size": system.size, "about": system.about})
    while (order := connection.receive()) is not None:
        if order["do"] == "leave":
            system.close()
            connection.send({"left": True})
            return
        connection.send(rank.execute(order))
    # The driver is gone, and maybe other ranks: leaving in good order could wait for them.
    sys.stderr.write("the driver of this benchmark is gone\n")
    sys.stderr.flush()
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--contender", required=True)
    parser.add_argument("--driver", required=True, help="path of the driver's socket")
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--meeting", type=Path, required=True, help="file that Gloo's store is in")
    options = parser.parse_args(arguments)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(options.driver)
    one = join_system(options.contender, options.meeting)
    gc.disable()
    serve(JsonConnection(connection), one, StartGate(options.gate, one.rank, one.size))


if __name__ == "__main__":
    main()
