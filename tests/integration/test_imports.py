"""Modules that are loaded only where they are used: every rank of every job pays for an import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from allhands.launcher import reaper
from programs import launched_ranks
from support.ranks.addresses import free_port
from support.ranks.launchers import PATIENCE, Start, as_script, environment

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


UNUSED = {
    *("allhands.aio", "allhands.api.fake", "allhands.coordinator.client", "allhands.torch"),
    *("allhands.coordinator.kv.calls", "allhands.coordinator.probing", "allhands.membership.state"),
    *("allhands.membership.resilient", "allhands.shm.failures", "allhands.stores.coordinator"),
    *("grpc", "importlib.metadata"),
    *("numpy.ma", "numpy.random", "pydantic", "rich", "sqlite3", "typer", "allhands.launcher"),
}
"""What no rank uses that reduces arrays, and that a launcher has started; beside the server."""


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_ranks_that_have_reduced_have_not_loaded_what_they_do_not_use(
    run: Start, start: str
) -> None:
    running = run("-n", "2", "--start", start, *as_script(launched_ranks.show_modules))
    assert running.status() == 0, running.errors
    by_rank = dict(line.split(" ", 1) for line in running.output())
    # The module that has forked a rank is there, and brings its package.
    unused = (UNUSED - {"allhands.launcher"} if start == "fork" else UNUSED) | {"allhands_server"}
    for rank in range(2):
        loaded = set(json.loads(by_rank[f"[{rank}]"]))
        assert "allhands.api.collectives" in loaded
        assert not loaded & unused


def test_a_rank_on_one_host_has_few_threads(run: Start) -> None:
    running = run("-n", "2", *as_script(launched_ranks.count_threads))
    assert running.status() == 0, running.errors
    counts = [int(line.split()[1]) for line in running.output()]
    assert len(counts) == 2
    assert max(counts) <= 4


def test_the_server_is_loaded_only_where_it_runs(tmp_path: Path) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "ALLHANDS_TOKEN": "t"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *as_script(launched_ranks.show_modules)],
            env={**environment(tmp_path), **where, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    hosting, other = (set(json.loads(one.communicate(timeout=PATIENCE)[0])) for one in ranks)
    assert "allhands_server" in hosting
    assert "allhands_server" not in other
    assert not hosting & {"sqlite3", "grpc_reflection.v1alpha", "numpy.ma", "typer"}


LAUNCH = (
    "import json, sys\n"
    "from allhands.cli.main import main\n"
    "sys.argv = ['allhands', 'run', '-n', '2', *sys.argv[1:]]\n"
    "try:\n"
    "    main()\n"
    "finally:\n"
    "    print(json.dumps([*sys.modules]))"
)


def test_a_launcher_loads_no_arrays_and_no_client_of_commands(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.touch()
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(script)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert {"allhands.launcher.rank_set", "allhands_server.embedded"} <= loaded
    assert not loaded & {"allhands.coordinator.client", "allhands.coordinator.lock", "numpy"}
    assert not loaded & {"allhands_server.audit", "grpc_reflection.v1alpha", "rich", "sqlite3"}


def test_the_reaper_loads_hardly_more_than_os() -> None:
    bare = [sys.executable, "-I", "-S", "-X", "importtime"]
    by_itself = subprocess.run([*bare, "-c", "import os"], capture_output=True, text=True)
    done = subprocess.run(
        [*bare, reaper.__file__, "NAME=/nowhere"], input="", capture_output=True, text=True
    )
    assert (done.returncode, by_itself.returncode) == (0, 0), done.stderr
    assert len(done.stderr.splitlines()) <= len(by_itself.stderr.splitlines()) + 1
