"""The skip conditions of PyTorch's tests, and the conditions lifted in a run.

The name of the backend decides which tests they let through, while the module of the tests is
imported; so a run has one way for all, and a process of its own.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from torch.testing._internal import common_distributed, common_utils

STOCK = "stock"
"""As the wheel has them for Gloo: another backend passes for it."""
WIDENED = "widened"
"""Also those for other backends and more ranks, those for GPUs, which are the processor then, and
those that are shut because tests do not always pass on the machines of PyTorch."""


class Name(str):
    """A backend's name, equal to further names in skip conditions."""

    __slots__ = ("passes_for",)
    passes_for: frozenset[str]

    def __new__(cls, own: str, *passes_for: str) -> "Name":
        name = super().__new__(cls, own)
        name.passes_for = frozenset((own, *passes_for))
        return name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str(other) in self.passes_for

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = hash("gloo").__index__
    """Sets of backends are looked up for one that has Gloo."""


def open_tests(backend: str, gates: str) -> ModuleType:
    """Import the module of PyTorch's tests for a backend, with the skip conditions of `gates`."""
    common_distributed.DistTestCases.backend_feature["plugin"].add(backend)
    name = Name(backend, "gloo") if gates == STOCK else Name(backend, "gloo", "mpi")
    with mock.patch.object(os, "environ", _Environment(os.environ, name)):
        if gates == STOCK:
            module = importlib.import_module(_TESTS)
        else:
            with _no_gpu_wanted(), _shut_for_nccl_alone_no_more(), _upstream_issues_ignored():
                module = importlib.import_module(_TESTS)
            _open_for_nccl(module.DistributedTest._DistTestBase)
    # Profilers are asked for the events of these alone.
    module.PROFILING_SUPPORTED_BACKENDS.append(backend)
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)
    return module


_TESTS = "torch.testing._internal.distributed.distributed_test"


class _Environment(dict[str, str]):
    """The environment, with a name of a backend richer than a string."""

    def __init__(self, own: Mapping[str, str], backend: Name) -> None:
        super().__init__(own)
        self["BACKEND"] = backend


@contextmanager
def _no_gpu_wanted() -> Iterator[None]:
    def opened(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda test: test

    with (
        mock.patch.object(common_distributed, "skip_if_no_gpu", lambda test: test),
        mock.patch.object(common_distributed, "skip_if_small_worldsize", lambda test: test),
        mock.patch.object(common_distributed, "skip_if_lt_x_gpu", opened),
        mock.patch.object(common_distributed, "nccl_skip_if_lt_x_gpu", opened),
    ):
        yield


@contextmanager
def _shut_for_nccl_alone_no_more() -> Iterator[None]:
    shut_if = common_utils.skip_but_pass_in_sandcastle_if

    def opened(condition: bool, reason: str) -> Any:
        is_for_another = "nccl" in reason.lower() and "only" in reason.lower()
        is_for_another |= reason.startswith("MPI doesn't")  # for which this one passes
        return shut_if(condition and not is_for_another, reason)

    def any_version(*_: Any) -> Callable[[Any], Any]:
        return lambda test: test

    with (
        mock.patch.object(common_utils, "skip_but_pass_in_sandcastle_if", opened),
        mock.patch.object(common_distributed, "requires_nccl_version", any_version),
    ):
        yield


def _open_for_nccl(tests: Any) -> None:
    """Enable tests with a condition on a set of backends, to which a double name is no answer."""
    for test in vars(tests).values():
        if getattr(test, "__unittest_skip_why__", "").endswith("{'nccl'}"):
            test.__unittest_skip__ = False


@contextmanager
def _upstream_issues_ignored() -> Iterator[None]:
    """Enable tests disabled by PyTorch on this system for not always passing."""
    with mock.patch.object(common_utils, "IS_LINUX", False):
        yield
