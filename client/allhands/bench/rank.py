"""Rank of a benchmarked system: runs the driver's trials and returns the times."""

import argparse
import gc
import os
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from allhands.bench.case import BenchCase
from allhands.bench.data import Array, CaseData, choose_scale
from allhands.bench.ipc import JsonConnection, Message
from allhands.bench.start_gate import StartGate
from allhands.bench.systems.join import join_system
from allhands.bench.systems.system import BoundCall, Call, System, Unsupported
from allhands.bench.training import StepData

_MAX_ALWAYS_CHECKED = 4 << 20
_REFUSALS = ("Invalid scalar type", "MPI_ERR_TYPE", "MPI_ERR_OP")
"""What Gloo and MPI say to a type that they do not know."""


def _do_nothing() -> None:
    """Have nothing to do."""


class PreparedCase:
    """Arrays and bound call of a rank for the current case."""

    def __init__(self, system: System, gate: StartGate, case: BenchCase, seed: int) -> None:
        self.case = case
        self._system, self._gate = system, gate
        self._takes_part = system.rank in case.participants
        kind = StepData if case.operation == "ddp_step" else CaseData
        self._data = kind(case, system.rank, seed)
        self._x = system.allocate(case.count_input(system.rank), case.dtype)
        self._out = system.allocate(case.output_elements, case.dtype)
        self._fresh = np.empty(0 if case.is_rewritten else self._x.size, self._x.dtype)
        # Pages that were never written would be made by the kernel while the clock runs.
        self._x.fill(0)
        self._out.fill(0)
        self._calls = 0
        self._bound = self._bind(seed)
        self._refresh = self._bound.refresh or _do_nothing

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

    def _bind(self, seed: int) -> BoundCall:
        """Make one call, to test whether the system accepts the case's arguments.

        Raises:
            Unsupported: a rank does not accept the arguments.
        """
        try:
            bound = self._system.bind(self.case, self._x, self._out, seed)
            if not isinstance(bound, BoundCall):
                bound = BoundCall(bound)
            if bound.refresh is not None:
                bound.refresh()
            if self._takes_part:
                bound.repeat(bound.call, 1, _do_nothing)
        except (TypeError, ValueError) as error:
            raise Unsupported(str(error)) from error
        except RuntimeError as error:
            if not any(sign in str(error) for sign in _REFUSALS):
                raise
            raise Unsupported(f"its library takes no {self.case.dtype}: {error}") from error
        return bound

    def _time_single_calls(self, warm: int, calls: int) -> tuple[list[float], str | None]:
        always = self._x.nbytes + self._out.nbytes <= _MAX_ALWAYS_CHECKED
        times = []
        wrong = None
        for number in range(warm + calls):
            scale = self._advance_scale()
            self._data.fill(self._x, scale)
            self._refresh()
            took, returned = self._time(1)
            if number >= warm:
                times.append(took)
            if always or number == warm + calls - 1:
                wrong = wrong or self._data.find_error(self._read(returned), scale)
        return times, wrong

    def _time_batch(self, calls: int) -> tuple[float, str | None]:
        # Sums in place of anything but zeros would outgrow every type; the last call, within the
        # time that is measured, is on random numbers.
        scale = self._advance_scale()
        self._data.fill(self._fresh, scale)
        self._x.fill(0)
        self._refresh()
        x, fresh, refresh = self._x, self._fresh, self._bound.refresh

        def renew() -> None:
            x[:] = fresh
            if refresh is not None:
                refresh()

        took, returned = self._time(calls, renew)
        return took / calls, self._data.find_error(self._read(returned), scale)

    def _time_barriers(self, calls: int) -> tuple[float, str | None]:
        took, _ = self._time(calls)
        announced = []
        self._bound.repeat(self._bound.call, 1, lambda: announced.append(self._gate.announce()))
        early = self._gate.find_missing(announced[0])
        return took / calls, f"ended before ranks {early} came" if early else None

    def _time(self, calls: int, before_last: Call | None = None) -> tuple[float, Any]:
        """Return the seconds of `calls` calls in a row, and what the last one returned."""
        start = partial(self._gate.wait, self.case.participants)
        took, returned = self._bound.repeat(self._bound.call, calls, start, before_last)
        # Where ranks share cores, what one does next would take time of those yet in their calls.
        self._gate.wait(self.case.participants, leaves_core=True)
        return (took / 2 if self.case.operation == "sendrecv" else took), returned

    def _read(self, returned: Any) -> Array:
        if self._bound.read is not None:
            return self._bound.read(returned).view(self._x.dtype)
        return self._out if self._out.size else self._x

    def _advance_scale(self) -> int:
        self._calls += 1
        return choose_scale(self._calls)


class CommandServer:
    """Obeys the driver."""

    def __init__(self, system: System, gate: StartGate) -> None:
        self._system, self._gate = system, gate
        self._cases: dict[str, PreparedCase] = {}
        """By form."""

    def execute(self, command: Message) -> Message:
        """Carry out a command of the driver; return the answer."""
        match command:
            case {"do": "prepare", "cells": cells, "seed": seed}:
                return self._prepare([BenchCase(**cell) for cell in cells], seed)
            case {"do": "turn", "form": form, "warm": warm, "batches": batches, "calls": calls}:
                return self._run_trial(form, warm, batches, calls)
        raise ValueError(f"no rank knows how to obey {command}")

    def _prepare(self, cases: Sequence[BenchCase], seed: int) -> Message:
        self._cases.clear()  # their memory first
        gc.collect()  # a model refers to itself
        refused = {}
        for case in cases:
            try:
                self._cases[case.form] = PreparedCase(self._system, self._gate, case, seed)
            except Unsupported as refusal:
                refused[case.form] = str(refusal)
        return {"refused": refused, "cpu": time.process_time()}

    def _run_trial(self, form: str, warm: int, batches: int, calls: int) -> Message:
        times, wrong = self._cases[form].run_trial(warm, batches, calls)
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
