"""Processes as ranks of torch.distributed, for tests: forked where PyTorch has been imported.

    @on_ranks(2)                      # each of two processes calls it; backend "allhands"
    def test_sum(rank): ...

    run_ranks(3, body, backend="gloo")    # what body(rank) returns on each rank, by rank

What a rank prints comes with the failure of its test. A body may be any function: it is not
pickled; what it returns or raises is, or else told as text.
"""

import contextlib
import faulthandler
import functools
import io
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist

# Read once, and not by each of the forked ranks: half a second of every one of them.
import allhands.torch.worlds  # noqa: F401
import allhands_server.embedded  # noqa: F401
from allhands.testing.threads import make_test_of_ranks

BACKEND = "allhands"
DEADLINE = 60.0
"""Seconds that all ranks together may take."""
_LAST_SECONDS = 5.0
"""Seconds that the others have once one has failed."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one rank."""

    value: Any = None
    error: str = ""
    """With its traceback; empty: it returned `value`."""
    skipped: str | None = None


class RanksFailed(AssertionError):
    """Ranks raised, ended or got stuck; `outcomes` by rank, None for silent ranks."""

    def __init__(self, outcomes: list[Outcome | None], printed: list[str], note: str) -> None:
        told = [
            f"--- rank {rank}: "
            + ("no outcome: killed, or stuck" if one is None else one.error or "passed")
            + (f"\n{printed[rank]}" if printed[rank] else "")
            for rank, one in enumerate(outcomes)
        ]
        super().__init__("\n".join([note, *told]))
        self.outcomes = outcomes


def run_ranks(
    size: int,
    body: Callable[[int], Any],
    *,
    backend: str = BACKEND,
    init: bool = True,
    timeout: float = 30.0,
    deadline: float = DEADLINE,
    dies: tuple[int, ...] = (),
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Call `body(rank)` in `size` processes; return the results by rank.

    With `init` each has called `init_process_group(backend)` with that timeout before, and
    destroys the group afterwards. Of ranks that `dies` names no outcome is expected: they return
    None.

    Raises:
        RanksFailed: a rank raised something, ended without a word, or was stuck after `deadline`.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            _Rank.start(
                rank,
                functools.partial(
                    _call,
                    rank=rank,
                    body=body,
                    init=_joins(backend, Path(folder), size, timeout) if init else None,
                    environment=environment or {},
                ),
            )
            for rank in range(size)
        ]
        try:
            outcomes = _gathered(ranks, time.monotonic() + deadline, dies)
        finally:
            for one in ranks:
                one.end()
        printed = [one.printed() for one in ranks]
    skipped = next((one.skipped for one in outcomes if one and one.skipped is not None), None)
    failed = [
        rank for rank, one in enumerate(outcomes) if rank not in dies and (one is None or one.error)
    ]
    if failed:
        raise RanksFailed(outcomes, printed, f"ranks {failed} of {size} failed over {backend}")
    if skipped is not None:
        pytest.skip(skipped)
    return [None if one is None else one.value for one in outcomes]


def on_ranks(size: int, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Decorate a test to run on `size` processes; see `run_ranks`.

    The test's parameter `rank`, if any, is the rank; pytest gives the rest.
    """

    run = functools.partial(run_ranks, size, **options)
    return lambda test: make_test_of_ranks(test, run)


# ---------------------------------------------------------------- in the parent


@dataclass
class _Rank:
    pid: int
    told: int
    """Descriptor from which its outcome comes."""
    said: Any
    """File to which it prints."""

    @classmethod
    def start(cls, rank: int, act: Callable[[], Outcome]) -> "_Rank":
        there, here = os.pipe()
        said = tempfile.TemporaryFile()  # noqa: SIM115
        with warnings.catch_warnings():
            # The threads of the test runner hold nothing that a rank wants.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _be(act, here, said.fileno())
        os.close(here)
        return cls(pid, there, said)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.told)

    def printed(self) -> str:
        with self.said as said:
            said.seek(0)
            return str(said.read().decode(errors="replace"))


def _gathered(ranks: list[_Rank], until: float, dies: tuple[int, ...]) -> list[Outcome | None]:
    """Return the ranks' outcomes until a deadline, soon after the first failure.

    A rank that tells nothing has ended or hangs.
    """
    outcomes: list[Outcome | None] = [None] * len(ranks)
    parts: dict[int, bytes] = {one.told: b"" for one in ranks}
    while parts and (left := until - time.monotonic()) > 0:
        for told in select.select(list(parts), [], [], left)[0]:
            if more := os.read(told, 1 << 20):
                parts[told] += more
                continue
            rank = next(at for at, one in enumerate(ranks) if one.told == told)
            found = parts.pop(told)
            outcomes[rank] = pickle.loads(found) if found else None  # noqa: S301 our own child
            one = outcomes[rank]
            if rank not in dies and (one is None or one.error or one.skipped is not None):
                until = min(until, time.monotonic() + _LAST_SECONDS)
    for told in parts:
        rank = next(at for at, one in enumerate(ranks) if one.told == told)
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[rank].pid, signal.SIGUSR1)  # where it hangs
    if parts:
        select.select([], [], [], 0.3)  # nothing tells when a stack has been written
    return outcomes


# ---------------------------------------------------------------- in the child


def _be(act: Callable[[], Outcome], told: int, said: int) -> NoReturn:
    """Be a rank: never return to the code of the forked test runner."""
    status = 1
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"), line_buffering=True)
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb"), line_buffering=True)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
        outcome = act()
        try:
            data = pickle.dumps(outcome)
        except Exception as error:
            data = pickle.dumps(Outcome(error=f"{outcome!r} is no value to return: {error}"))
        with os.fdopen(told, "wb") as pipe:
            pipe.write(data)
        sys.stdout.flush()
        sys.stderr.flush()
        status = 0
    finally:
        os._exit(status)


def _call(
    rank: int,
    body: Callable[[int], Any],
    init: Callable[[int], None] | None,
    environment: dict[str, str],
) -> Outcome:
    os.environ.update(environment)
    torch.set_num_threads(1)
    threading.excepthook = threading.__excepthook__  # pytest's is for its own process
    try:
        if init is not None:
            init(rank)
        value = body(rank)
        if init is not None and dist.is_initialized():
            dist.destroy_process_group()
        return Outcome(value)
    except pytest.skip.Exception as skip:
        return Outcome(skipped=str(skip))
    except BaseException:
        return Outcome(error=traceback.format_exc())


def _joins(backend: str, folder: Path, size: int, timeout: float) -> Callable[[int], None]:
    def join(rank: int) -> None:
        dist.init_process_group(
            backend,
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )

    return join
