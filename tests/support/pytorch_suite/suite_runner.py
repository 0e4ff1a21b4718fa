"""PyTorch's own tests of its collectives, run for one backend: a program.

    python -m support.pytorch_suite.suite_runner --backend allhands --world-size 3 [NAME ...]

It runs the tests that it is given, or is told line by line on standard input, each in as many
forked processes as the world has ranks, and writes a line for each: the outcome as JSON.
"""

import argparse
import importlib
import json
import logging
import os
import sys
import tempfile
import time
import unittest
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="allhands")
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("--gates", default="stock")
    parser.add_argument("--timeout", type=int, default=90, help="seconds that a test may take")
    parser.add_argument("--list", action="store_true", help="print the names of all tests")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    os.environ |= {
        "BACKEND": given.backend,
        "WORLD_SIZE": str(given.world_size),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(given.timeout),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "INIT_METHOD": f"file://{tempfile.mkdtemp()}/again",
    }
    tests = _subject(given.backend, given.world_size, given.gates, given.timeout)
    if given.list:
        print(*unittest.TestLoader().getTestCaseNames(tests), sep="\n")
        return
    said = os.fdopen(os.dup(1), "w")
    for name in given.names or map(str.strip, sys.stdin):
        said.write(json.dumps(outcome(tests, name)) + "\n")
        said.flush()


def _subject(backend: str, world_size: int, gates: str, timeout: int) -> Any:
    """Return PyTorch's class of tests, for a backend and with forked ranks."""
    import torch
    from torch.testing._internal import common_distributed

    from support.pytorch_suite.gpu_on_cpu import pretend
    from support.pytorch_suite.skip_gates import WIDENED, open_tests

    # Read once, and not by each of the forked ranks.
    for once in ("allhands.torch.worlds", "allhands_server.embedded"):
        importlib.import_module(once)

    module: Any = open_tests(backend, gates)
    for one in common_distributed.TIMEOUT_OVERRIDE:
        common_distributed.TIMEOUT_OVERRIDE[one] = timeout
    torch.set_num_threads(1)

    class Judged(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _barrier(self, *args: Any, **named: Any) -> None:
            super()._barrier(
                *args, **{"timeout": timeout, **named}
            )  # its 10 s want a quiet machine

        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **more: Any) -> None:
            logging.disable(logging.INFO)
            if gates == WIDENED:
                pretend(world_size)
            if test_name != "test_barrier_timeout_global":
                # Where ranks meet in a file DDP's tests also load a model half way, and then
                # compare numbers which on a processor come out otherwise, also over Gloo.
                module.INIT_METHOD = "env://"
            super()._run(rank, test_name, file_name, pipe, **more)

    return Judged


def outcome(tests: Any, name: str) -> dict[str, Any]:
    """Run one test; return outcome, reason, and seconds."""
    result = unittest.TestResult()
    began = time.monotonic()
    with tempfile.TemporaryFile() as printed:
        kept = [os.dup(1), os.dup(2)]
        try:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            tests(name).run(result)
        finally:
            sys.stdout.flush()
            for own, place in zip(kept, (1, 2), strict=True):
                os.dup2(own, place)
                os.close(own)
        printed.seek(0)
        noise = printed.read().decode(errors="replace")
    if result.skipped:
        outcome, why = "skip", result.skipped[0][1]
    elif failed := result.failures + result.errors:
        outcome, why = "fail", failed[0][1] + "\n" + noise
    else:
        outcome, why = "pass", ""
    seconds = round(time.monotonic() - began, 2)
    return {"test": name, "outcome": outcome, "seconds": seconds, "why": why}


if __name__ == "__main__":
    main()
