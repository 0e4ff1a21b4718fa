"""The tests of the listings, run for one backend: a program.

    python -m support.seeds.runner --backend allhands [G.ReducerTest.test_single ...]

It runs the tests that it is given, or is told line by line on standard input, each in a process
forked for it, and writes a line for each: the outcome as JSON.
"""

import argparse
import contextlib
import importlib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from support.pytorch_suite.suite_runner import outcome

Told = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="allhands")
    parser.add_argument("--timeout", type=int, default=100, help="seconds that a test may take")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    os.environ |= {
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(given.timeout),
        "OMP_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking the driver would spoil it for forked ranks
    }
    run_test = _test_runner(given.backend, given.timeout)
    said = os.fdopen(os.dup(1), "w")
    for name in given.names or map(str.strip, sys.stdin):
        said.write(json.dumps(run_test(name)) + "\n")
        said.flush()


def _test_runner(backend: str, timeout: float) -> Callable[[str], Told]:
    import torch

    from support.seeds import listing, modules

    # Read once, and not by each of the forked ranks.
    for once in (
        "allhands.torch.worlds",
        "allhands.torch.round_robin_group",
        "allhands_server.embedded",
    ):
        importlib.import_module(once)
    modules.prepare(backend)
    found = {letter: modules.module(letter, backend) for letter in listing.LISTINGS}
    torch.set_num_threads(1)

    def run_test(name: str) -> Told:
        letter, owner, test = name.split(".")
        tests = getattr(found[letter], owner)

        def run() -> list[Told]:
            logging.disable(logging.INFO)
            return [outcome(tests, method) for method in modules.methods(tests, test)]

        return _combined(_apart(run, timeout)) | {"test": name}

    return run_test


def _combined(ended: list[Told]) -> Told:
    """Return the combined outcome of a test's parameters."""
    for worst in ("fail", "pass", "skip"):
        found = [one for one in ended if one["outcome"] == worst]
        if found:
            seconds = round(sum(one["seconds"] for one in ended), 2)
            return found[0] | {"seconds": seconds}
    return {"outcome": "fail", "seconds": 0.0, "why": "no method of its class is that test"}


def _apart(run: Callable[[], list[Told]], timeout: float) -> list[Told]:
    """Run tests in a child process; end the child's process group after the outcomes."""
    there, here = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(there)
        try:
            os.write(here, json.dumps(run()).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(here)
    data = b""
    while not data.endswith(b"\n") and (left := began + timeout + 10 - time.monotonic()) > 0:
        if not select.select([there], [], [], left)[0] or not (more := os.read(there, 1 << 16)):
            break
        data += more
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(there)
    if data.endswith(b"\n"):
        found: list[Told] = json.loads(data)
        return found
    seconds = round(time.monotonic() - began, 2)
    why = f"terminated or timed out after {seconds} seconds, without an outcome"
    return [{"outcome": "fail", "seconds": seconds, "why": why}]


if __name__ == "__main__":
    main()
