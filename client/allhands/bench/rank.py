"""One rank of one contender: sleeps until the driver gives it a turn, and tells what it took."""

import argparse
import gc
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from allhands.bench.cell import Cell
from allhands.bench.contenders import Call, Contender, Refused, contender
from allhands.bench.data import Array, Data, scale_of
from allhands.bench.gate import Gate
from allhands.bench.training import Gradients
from allhands.bench.wire import Line, Message

_CHECKED_ALWAYS_UP_TO = 4 << 20
_REFUSALS = ("Invalid scalar type", "MPI_ERR_TYPE", "MPI_ERR_OP")
"""What Gloo and MPI say to a type that they do not know."""


class Seat:
    """What a rank has ready for the cell that is measured now."""

    def __init__(self, one: Contender, gate: Gate, cell: Cell, seed: int) -> None:
        self.cell = cell
        self._one, self._gate = one, gate
        self._takes_part = one.rank in cell.participants
        kind = Gradients if cell.operation == "ddp_step" else Data
        self._data = kind(cell, one.rank, seed)
        self._x = one.empty(cell.elements, cell.dtype)
        self._out = one.empty(cell.output_elements, cell.dtype)
        self._fresh = np.empty(0 if cell.rewritten else cell.elements, self._x.dtype)
        # Pages that were never written would be made by the kernel while the clock runs.
        self._x.fill(0)
        self._out.fill(0)
        self._calls = 0
        self._call = self._ready(seed)

    def turn(self, warm: int, batches: int, calls: int) -> tuple[list[float], str | None]:
        """Make `warm` calls, then the timed ones; return their seconds, and what was wrong.

        On rewritten arrays every call is timed by itself; else batches are, and their means are
        returned.
        """
        if not self._takes_part:
            return [], None
        if self.cell.rewritten:
            return self._one_by_one(warm, batches * calls)
        batch = self._barriers if self.cell.operation == "barrier" else self._in_a_row
        _, wrong = batch(warm)
        times = []
        for _ in range(batches):
            took, said = batch(calls)
            times.append(took)
            wrong = wrong or said
        return times, wrong

    def _ready(self, seed: int) -> Call:
        """Make one call, to see whether the contender takes arguments like these.

        Raises:
            Refused: it does not, on any rank.
        """
        try:
            call = self._one.bind(self.cell, self._x, self._out, seed)
            if self._takes_part:
                call()
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        except RuntimeError as error:
            if not any(sign in str(error) for sign in _REFUSALS):
                raise
            raise Refused(f"its library takes no {self.cell.dtype}: {error}") from error
        return call

    def _one_by_one(self, warm: int, calls: int) -> tuple[list[float], str | None]:
        always = self._x.nbytes + self._out.nbytes <= _CHECKED_ALWAYS_UP_TO
        times = []
        wrong = None
        for number in range(warm + calls):
            scale = self._next_scale()
            self._data.fill(self._x, scale)
            took = self._timed(self._call)
            if number >= warm:
                times.append(took)
            if always or number == warm + calls - 1:
                wrong = wrong or self._data.wrong(self._result(), scale)
        return times, wrong

    def _in_a_row(self, calls: int) -> tuple[float, str | None]:
        # Sums in place of anything but zeros would outgrow every type; the last call, within the
        # time that is measured, is on random numbers.
        scale = self._next_scale()
        self._data.fill(self._fresh, scale)
        self._x.fill(0)
        call, x, fresh = self._call, self._x, self._fresh

        def many() -> None:
            for _ in range(calls - 1):
                call()
            x[:] = fresh
            call()

        took = self._timed(many)
        return took / calls, self._data.wrong(self._result(), scale)

    def _barriers(self, calls: int) -> tuple[float, str | None]:
        call = self._call

        def many() -> None:
            for _ in range(calls):
                call()

        took = self._timed(many)
        number = self._gate.announce()
        call()
        early = self._gate.missing(number)
        return took / calls, f"ended before ranks {early} came" if early else None

    def _timed(self, act: Call) -> float:
        self._gate.wait(self.cell.participants)
        begun = time.perf_counter()
        act()
        took = time.perf_counter() - begun
        return took / 2 if self.cell.operation == "sendrecv" else took

    def _result(self) -> Array:
        return self._out if self._out.size else self._x

    def _next_scale(self) -> int:
        self._calls += 1
        return scale_of(self._calls)


class Rank:
    """Obeys the driver."""

    def __init__(self, one: Contender, gate: Gate) -> None:
        self._one, self._gate = one, gate
        self._seat: Seat | None = None

    def obey(self, order: Message) -> Message:
        """Do what the driver orders; return what to answer."""
        match order:
            case {"do": "prepare", "cell": cell, "seed": seed}:
                return self._prepare(Cell(**cell), seed)
            case {"do": "turn", "warm": warm, "batches": batches, "calls": calls}:
                return self._turn(warm, batches, calls)
        raise ValueError(f"no rank knows how to obey {order}")

    def _prepare(self, cell: Cell, seed: int) -> Message:
        self._seat = None  # its memory first
        gc.collect()  # a model refers to itself
        try:
            self._seat = Seat(self._one, self._gate, cell, seed)
        except Refused as refusal:
            return {"refused": str(refusal), "cpu": time.process_time()}
        return {"refused": None, "cpu": time.process_time()}

    def _turn(self, warm: int, batches: int, calls: int) -> Message:
        assert self._seat is not None
        times, wrong = self._seat.turn(warm, batches, calls)
        cpu = time.process_time()
        return {"times": times, "wrong": wrong, "variant": self._one.variant(), "cpu": cpu}


def serve(line: Line, one: Contender, gate: Gate) -> None:
    """Obey until the driver lets go."""
    rank = Rank(one, gate)
    line.say({"rank": one.rank, "size": one.size, "about": one.about})
    while (order := line.hear()) is not None:
        if order["do"] == "leave":
            one.close()
            line.say({"left": True})
            return
        line.say(rank.obey(order))
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
    one = contender(options.contender, options.meeting)
    gc.disable()
    serve(Line(connection), one, Gate(options.gate, one.rank, one.size))


if __name__ == "__main__":
    main()
