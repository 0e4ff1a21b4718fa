"""The modules of the listings, made for a backend."""

import sys
import types
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import allhands.torch
from allhands.torch import names
from support.seeds import listing, missing_helpers


def prepare(backend: str) -> None:
    """Let PyTorch's harnesses fork ranks, and give threads the backend, as listings do."""
    sys.modules["test_c10d_common"] = missing_helpers
    case: Any = common_distributed.MultiProcessTestCase
    case._spawn_processes = _fork_processes
    if backend != "gloo":
        harness: Any = common_distributed
        harness.c10d = _Named(dist, backend)
        harness.ProcessLocalGroup = _Released


def module(letter: str, backend: str) -> types.ModuleType:
    """Return a listing's module for a backend, with the names absent from the listing."""
    made = types.ModuleType(f"seed_{letter}_{listing.LISTINGS[letter]}")
    sys.modules[made.__name__] = made
    vars(made).update(_GIVEN, BACKEND=backend)
    code = compile(listing.source(letter, backend), listing.LISTINGS[letter], "exec")
    exec(code, vars(made))
    return made


def methods(owner: type[unittest.TestCase], test: str) -> list[str]:
    """Return the methods of a test in the test's class: one, or one for each parameter."""
    if hasattr(owner, test):
        return [test]
    return [
        name
        for name in unittest.TestLoader().getTestCaseNames(owner)
        if name.startswith((f"{test}_device_", f"{test}_compile_"))
    ]


def _fork_processes(case: Any) -> None:
    case._start_processes(torch.multiprocessing.get_context("fork").Process)


class _Named(types.SimpleNamespace):
    """`torch.distributed`, in which the threaded backend has another name."""

    def __init__(self, module: types.ModuleType, backend: str) -> None:
        super().__init__(module=module, backend=backend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def init_process_group(self, backend: str, **named: Any) -> None:
        self.module.init_process_group(self.backend if backend == "threaded" else backend, **named)


class _Released:
    """Releaser of threads in wait for a failed thread."""

    @staticmethod
    def exception_handle(error: BaseException) -> None:
        dist.group.WORLD.abort(f"a rank raised {type(error).__name__}: {error}")

    @staticmethod
    def reset() -> None:
        """Do nothing: each world has separate groups."""


class _ProcessGroupByOptions:
    """Stand-in for `ProcessGroupGloo`: a default group with the timeout of the options."""

    class _Options(types.SimpleNamespace):
        """As Gloo's; devices and threads are Gloo's own."""

    def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
        limit = timedelta(seconds=options._timeout)
        dist.init_process_group(names.NAME, store=store, rank=rank, world_size=size, timeout=limit)
        return dist.group.WORLD


def _requires_gpus() -> Callable[[Any], Any]:
    return unittest.skipIf(torch.cuda.device_count() < 2, "needs 2 GPUs")


def _round_robin(groups: Any) -> Any:
    return allhands.torch.round_robin(groups)


_GIVEN = {
    "FakeStore": FakeStore,
    "ProcessGroupByOptions": _ProcessGroupByOptions,
    "WORLD_SIZE": 2,
    "exit_if_lt_x_gpu": missing_helpers.exit_if_lt_x_gpu,
    "requires_gpus": _requires_gpus,
    "round_robin": _round_robin,
    "timedelta": timedelta,
    "with_comms": missing_helpers.with_comms,
}
