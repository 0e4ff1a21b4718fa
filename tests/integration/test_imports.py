"""Modules that are loaded only where they are used: every rank of every job pays for an import."""

import json
import subprocess
import sys

import pytest

PROGRAM = (
    "import json, sys, allhands\n"
    "for name in {names!r}: getattr(allhands, name)\n"
    "json.dump([*sys.modules], sys.stdout)"
)


def load_modules(*names: str) -> set[str]:
    """Return the modules of a process that has used these names of the package."""
    program = PROGRAM.format(names=names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module",
    [
        "allhands.api.fake",
        "allhands.coordinator.client",
        "allhands.coordinator.status",
        "allhands.membership.store_rendezvous",
        "allhands.shm.failures",
        "allhands.stores.coordinator",
        "allhands_server",
        "importlib.metadata",
        "rich",
        "sqlite3",
        "typer",
    ],
)
def test_a_rank_does_not_load_what_only_some_ranks_use(
    module: str, modules_of_a_rank: set[str]
) -> None:
    assert module not in modules_of_a_rank


@pytest.fixture(scope="module")
def modules_of_a_rank() -> set[str]:
    """The modules of a rank that is about to join."""
    loaded = load_modules("init_process_group", "all_reduce", "get_rank")
    assert "allhands.api.collectives" in loaded
    return loaded


def test_the_package_alone_loads_no_arrays() -> None:
    loaded = load_modules()
    assert not loaded & {"numpy", "grpc", "asyncio"}
