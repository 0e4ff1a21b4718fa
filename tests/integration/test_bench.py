"""`allhands bench`: real ranks, small arrays."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from allhands.bench import netns, start_up, tcp
from allhands.bench.case import (
    ASYNCHRONOUS,
    COLLECTIVES,
    COMPOSITE,
    FORMS,
    OBJECTS,
    SCANS,
    BenchCase,
)
from allhands.bench.driver import Bench, start_bench
from allhands.bench.launchers import (
    BenchHost,
    Launcher,
    ProcessSpec,
    PythonPaths,
    SystemMissing,
    find_launcher,
)
from allhands.bench.rank_pool import RankPool, RankPoolFailed
from programs import bench_ranks
from support.ranks.launchers import as_script
from support.ranks.processes import Cluster

BENCH = [sys.executable, "-m", "allhands.cli.main", "bench"]


def run(cluster: Cluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*BENCH, *arguments],
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_each_operation_size_and_number_of_ranks_gets_a_row_of_checked_times(
    cluster: Cluster, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    what = ["--ops", "all", "--ranks", "2", "--sizes", "8B,64KiB", "--budget", "0"]
    done = run(cluster, *what, "-o", "json", "--save", str(saved))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said.pop("kind"), said.pop("version")) == ("BenchReport", 1)
    assert said.pop("time").endswith("Z")
    assert json.loads(saved.read_text()) == said
    cells = [(row["operation"], row["bytes"]) for row in said["rows"]]
    with_data = [name for name in COLLECTIVES if name != "barrier"]
    expected = [(name, size) for name in with_data for size in (8, 65536)] + [("barrier", 0)]
    assert cells == expected
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in said["rows"])
    assert all(row["samples"] >= 3 and row["calls"] >= 3 for row in said["rows"])
    for machine in said["machine"]:
        assert machine["memory_copy_gbs"] > 0
        assert machine["tcp_round_trip_us"] > 0
    again = run(cluster, "--load", str(saved))
    assert again.returncode == 0, again.stderr
    assert "65,536" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--vs", "nccl"], "no peer 'nccl'"),
        (["--ops", "all_reduce,shout"], "no operation 'shout'"),
        (["--tables", "all_reduce,chairs"], "no table 'chairs'"),
        (["--dtypes", "float8"], "no dtype 'float8'"),
        (["--variants", "fast"], "no variant 'fast'"),
        (["--sizes", "8Bits"], "'8Bits' is not a size"),
        (["--ranks", "two"], "'two' is not a number of ranks"),
        (["--ranks", "15", "--dtypes", "int8"], "exact for 14 ranks"),
        (["-o", "xml"], "table, json or yaml"),
        (["--netns", "--rate", "fast"], "'fast' is not a rate"),
        (["--vs", "gloo", "--gloo-python", "/no/python"], "/no/python, which is no program"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_measured(
    cluster: Cluster, arguments: list[str], complaint: str
) -> None:
    done = run(cluster, *arguments)
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())


def _peer(name: str) -> Any:
    python = os.environ.get(f"ALLHANDS_BENCH_{name.upper()}_PYTHON")
    try:
        return find_launcher(name, PythonPaths({name: python} if python else {}))
    except SystemMissing as missing:
        return pytest.skip(str(missing))


@pytest.mark.parametrize("peer", ["gloo", "openmpi", "mpich", "allhands-torch"])
def test_a_peer_takes_turns_with_allhands(peer: str) -> None:
    launchers = [find_launcher("allhands", PythonPaths()), _peer(peer)]
    with start_bench(launchers, 2) as running:
        results = running.measure(BenchCase("all_gather", 2, 64 << 10), 0.0)
        about = running.about
    assert [one.system for one in results] == ["allhands", peer]
    for one in results:
        assert one.failed is None
        assert one.summary is not None
        assert one.summary.samples >= 3
    assert set(about) == {"allhands", peer}


@pytest.mark.parametrize("operation", ASYNCHRONOUS)
def test_calls_that_are_begun_first_are_measured_of_all_who_have_them(operation: str) -> None:
    launchers = [find_launcher("allhands", PythonPaths()), _peer("allhands-torch"), _peer("gloo")]
    with start_bench(launchers, 3) as running:
        results = running.measure(BenchCase(operation, 3, 64), 0.0)
    for one in results:
        assert one.failed is None
        assert one.summary is not None


_MANY_STEPS = [*COMPOSITE, *FORMS, "in_flight_all_reduce"]
_NOT_IN_TORCH = {*SCANS, "gather_v", "scatter_v", "reduce_scatter_v"}
_OF_TORCH = [one for one in _MANY_STEPS if one not in _NOT_IN_TORCH]


@pytest.mark.parametrize(
    ("system", "operations"),
    [
        ("allhands", [*_MANY_STEPS, *ASYNCHRONOUS]),
        ("allhands-asyncio", ["all_reduce", "broadcast", "barrier", "scan", "all_gather_v"]),
        ("allhands-uvloop", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
        ("allhands-retryable", ["all_reduce"]),
        ("allhands-shrinking", ["all_reduce"]),
        ("allhands-verified", ["all_reduce", *OBJECTS]),
        ("allhands-torch", _OF_TORCH),
        ("tcp", ["sendrecv", "barrier", "all_reduce", "broadcast", "all_gather", "exchange"]),
        ("gloo", _OF_TORCH),
        ("openmpi", [*_MANY_STEPS, "async_all_reduce"]),
        ("mpich", [*_MANY_STEPS, "async_all_reduce"]),
    ],
)
def test_each_way_to_call_gives_checked_times(system: str, operations: list[str]) -> None:
    with start_bench([_peer(system)], 2) as running:
        for operation in operations:
            for nbytes in (8, 8 << 10):
                for one in running.measure(BenchCase(operation, 2, nbytes), 0.0):
                    assert one.failed is None, one.case
                    if one.refused is None:
                        assert one.summary is not None
                    else:
                        assert one.case.form == "coalescing", one.refused


def test_a_connection_of_two_refuses_a_third() -> None:
    with start_bench([find_launcher("tcp", PythonPaths())], 3) as running:
        (result,) = running.measure(BenchCase("all_reduce", 3, 8), 0.0)
    assert result.refused == "one connection joins two ranks"


def test_the_start_of_a_job_is_measured_to_its_end() -> None:
    (row,) = start_up.measure([find_launcher("allhands", PythonPaths())], 2, 0.0)
    assert row["failed"] is None
    assert row["jobs"] == 3
    assert 0 < row["low"] <= row["wall"] <= row["high"]
    # Two interpreters, the least that these ranks are.
    assert row["cpu"] > 0.1
    assert row["uss"] > 1 << 20
    assert row["threads"] >= 1


def test_a_job_whose_ranks_do_not_start_has_no_figures() -> None:
    launcher = Launcher("openmpi", "/bin/false", ("/bin/false",))
    (row,) = start_up.measure([launcher], 2, 0.0)
    assert "a process ended before it joined" in row["failed"]
    assert "wall" not in row


def test_named_tables_are_measured_and_saved_in_one_run(cluster: Cluster, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    what = ["--tables", "coalesced,safer,start_up,many_ranks", "--ranks", "2", "--vs", "openmpi"]
    done = run(cluster, *what, "--budget", "0", "--openmpi-python", "/none", "--save", str(saved))
    assert done.returncode == 0, done.stderr
    assert "left out: openmpi" in " ".join(done.stderr.split())
    assert "nothing to measure in table many_ranks" in " ".join(done.stderr.split())
    tables = json.loads(saved.read_text())["tables"]
    assert list(tables) == ["coalesced", "safer", "start_up"]
    ratios = {row["form"]: row.get("ratios") for row in tables["coalesced"]["rows"]}
    assert ratios["coalescing"] is None
    assert ratios["one_by_one"].keys() == ratios["packed"].keys() == {"allhands coalescing"}
    safer = [row["contender"] for row in tables["safer"]["rows"]][:4]
    assert safer == [f"allhands{kind}" for kind in ("", "-retryable", "-shrinking", "-verified")]
    assert tables["start_up"]["start_up"][0]["cpu"] > 0
    assert tables["safer"]["load"][0]["seconds"] > 0
    again = run(cluster, "--load", str(saved))
    assert again.returncode == 0, again.stderr
    assert "allhands one_by_one / allhands coalescing" in again.stdout
    assert "CPU s of the job" in again.stdout
    assert "of the time of all cores" in again.stdout


def test_sessions_at_a_coordinator_are_measured_too(cluster: Cluster) -> None:
    done = run(cluster, "--ops", "sessions", "--ranks", "4", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["sessions"]
    assert {row["size"] for row in rows} == {4}
    assert {"join", "named barrier", "failure of one"} <= {row["operation"] for row in rows}


def test_a_step_of_training_is_measured_with_both_backends_of_pytorch() -> None:
    launchers = [_peer("allhands-torch"), _peer("gloo"), find_launcher("allhands", PythonPaths())]
    with start_bench(launchers, 2) as running:
        ours, gloos, without = running.measure(BenchCase("ddp_step", 2, 64 << 10), 0.0)
    for one in (ours, gloos):
        assert one.failed is None
        assert one.summary is not None
    assert without.refused == "allhands is not measured on ddp_step"


# ---------------------------------------------------------------- contenders that go wrong


class Started:
    """Starts a rank of a system with the test's function as its call."""

    def __init__(self, system: str) -> None:
        self.system = system

    def list_processes(
        self,
        hosts: Sequence[BenchHost],
        ranks: int,
        arguments: Sequence[str],
        port: int,
        module: str,
    ) -> list[ProcessSpec]:
        script = as_script(bench_ranks.serve_alone, self.system, *arguments)
        return [ProcessSpec((sys.executable, *script), os.environ)]


def measured(nbytes: int, *systems: str) -> tuple[dict[str, Any], Bench]:
    launchers = [Started(system) for system in systems]
    with start_bench(launchers, 1) as running:  # type: ignore[arg-type]
        results = running.measure(BenchCase("all_reduce", 1, nbytes), 0.0)
        return {one.system: one for one in results}, running


@pytest.mark.parametrize("nbytes", [8, 64 << 10])
def test_a_wrong_result_gives_no_figure_and_names_who_lied(nbytes: int) -> None:
    results, _ = measured(nbytes, "honest", "liar")
    assert results["honest"].summary is not None
    assert results["liar"].summary is None
    assert "WRONG RESULT on rank 0" in results["liar"].failed
    assert f"element {nbytes // 4 - 1} of {nbytes // 4}" in results["liar"].failed


def test_a_contender_that_gives_the_result_of_the_call_before_is_caught() -> None:
    results, _ = measured(64 << 10, "lazy")
    assert "WRONG RESULT" in results["lazy"].failed


def test_a_contender_that_does_not_take_the_arguments_refuses_the_cell_and_stays() -> None:
    with start_bench([Started("choosy")], 1) as running:  # type: ignore[list-item]
        (first,) = running.measure(BenchCase("all_reduce", 1, 8), 0.0)
        (second,) = running.measure(BenchCase("all_reduce", 1, 16), 0.0)
    assert (first.refused, first.failed, first.summary) == ("cannot reduce this", None, None)
    assert second.summary is not None


def test_a_failure_is_told_once_and_the_contender_is_out() -> None:
    with start_bench([Started("mortal")], 1) as running:  # type: ignore[list-item]
        (first,) = running.measure(BenchCase("all_reduce", 1, 8), 0.0)
        (second,) = running.measure(BenchCase("all_reduce", 1, 16), 0.0)
    assert "gone" in first.failed
    assert second.failed == "it failed in an earlier cell"


def test_a_contender_that_dies_is_out_with_its_last_words() -> None:
    results, _ = measured(8, "honest", "out of memory")
    assert results["honest"].summary is not None
    mortal = results["out of memory"]
    assert mortal.summary is None
    assert "a rank ended in prepare" in mortal.failed
    assert "no more memory" in mortal.failed


def test_a_barrier_that_lets_ranks_through_early_is_caught(tmp_path: Path) -> None:
    from allhands.bench.start_gate import StartGate

    path = tmp_path / "gate"
    path.write_bytes(bytes(StartGate.count_bytes(2)))
    first, second = (StartGate(path, rank, 2) for rank in range(2))
    number = first.announce()
    assert first.find_missing(number) == [1]
    second.announce()
    assert first.find_missing(number) == []


def test_a_launcher_whose_ranks_do_not_know_each_other_is_told(tmp_path: Path) -> None:
    class Twice(Started):
        def list_processes(self, *arguments: Any) -> list[ProcessSpec]:
            return super().list_processes(*arguments) * 2

    with pytest.raises(RankPoolFailed, match="see a world of 1, not 2"):
        RankPool(Twice("honest"), 2, tmp_path)  # type: ignore[arg-type]


# ---------------------------------------------------------------- nothing is left behind


@pytest.fixture
def endless(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """A very long benchmark in the middle of a measurement, and the benchmark's files."""
    files = tmp_path_factory.mktemp("t")
    what = ["--ranks", "2", "--sizes", "4KiB", "--budget", "1000"]
    with subprocess.Popen(
        [*BENCH, *what],
        env={**cluster.environment, "TMPDIR": str(files)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert "measuring" in running.stderr.readline()
        yield running, files
        running.kill()


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_benchmark(
    endless: tuple["subprocess.Popen[str]", Path], kind: signal.Signals
) -> None:
    running, files = endless
    started = psutil.Process(running.pid).children(recursive=True)
    assert len(started) >= 3, "a launcher and two ranks"
    running.send_signal(kind)
    assert running.wait(30) != 0
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
    if kind != signal.SIGKILL:
        assert list(files.iterdir()) == []


# ---------------------------------------------------------------- between hosts


@pytest.fixture
def hosts() -> Iterator[tuple[BenchHost, BenchHost]]:
    try:
        with netns.open_two_hosts("200mbit") as pair:
            yield pair
    except netns.NoNamespaces as refusal:
        pytest.skip(str(refusal))


def test_two_hosts_have_names_and_a_cable_that_carries_its_rate(
    hosts: tuple[BenchHost, BenchHost],
) -> None:
    first, second = hosts
    names = [
        subprocess.run(
            [*host.command_prefix, "cat", "/proc/sys/kernel/hostname"],
            capture_output=True,
            text=True,
        ).stdout.strip()
        for host in hosts
    ]
    assert names == [first.name, second.name]
    assert socket.gethostname() not in names
    carried = tcp.measure(first.address, here=second.command_prefix, there=first.command_prefix)
    assert carried.gbs < 0.2 / 8 * 1.1


def test_the_hosts_are_gone_afterwards() -> None:
    try:
        with netns.open_two_hosts(None) as (first, second):
            holders = [int(host.command_prefix[2]) for host in (first, second)]
            assert all(map(psutil.pid_exists, holders))
    except netns.NoNamespaces as refusal:
        pytest.skip(str(refusal))
    assert not any(map(psutil.pid_exists, holders))


def test_the_hosts_are_gone_also_when_their_maker_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, *as_script(bench_ranks.hold_hosts)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        assert maker.stdout is not None
        said = maker.stdout.readline()
        if said.startswith("refused"):
            maker.wait()
            pytest.skip(said)
        holders = [psutil.Process(int(pid)) for pid in said.split()]
        assert len(holders) == 2
        maker.kill()
    _, alive = psutil.wait_procs(holders, timeout=30)
    assert alive == []


def test_ranks_of_two_hosts_are_measured(hosts: tuple[BenchHost, BenchHost]) -> None:
    with start_bench([find_launcher("allhands", PythonPaths())], 2, hosts) as running:
        (result,) = running.measure(BenchCase("all_reduce", 2, 8), 0.0)
    assert result.failed is None
    assert result.summary is not None


def test_mpi_is_not_measured_between_namespaces(cluster: Cluster) -> None:
    python = _peer("openmpi").python
    done = run(cluster, "--netns", "--vs", "openmpi", "--openmpi-python", python)
    assert done.returncode == 2
    assert "only gloo" in done.stderr


def test_gloo_is_missing_where_torch_is_not_installed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    python.chmod(0o755)
    with pytest.raises(
        SystemMissing, match=r"python -m pip install torch==2.13.0 numpy.*--gloo-python"
    ):
        find_launcher("gloo", PythonPaths({"gloo": str(python)}))
