"""`allhands run` of programs that are no Python, variables and CPUs of ranks."""

import os
import subprocess
from pathlib import Path

import pytest

from allhands.launcher.cpu_binding import deal_cpus, read_usable_cpus
from programs import launched
from support.ranks.launchers import COMMAND, Start, as_script, environment

_BOUND = len(os.sched_getaffinity(0)) >= 2


def test_ranks_are_any_program_with_the_environment_of_ranks(run: Start, tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_text('#!/bin/sh\necho $RANK $WORLD_SIZE $LOCAL_RANK "$@"; exit $RANK\n')
    program.chmod(0o755)
    running = run("-n", "2", "--no-python", "./prog", "-n", "a b")
    assert running.status() == 1
    assert sorted(running.output()) == ["[0] 0 2 0 -n a b", "[1] 1 2 1 -n a b"]
    assert any("rank 1 failed first: exit status 1" in line for line in running.errors)


def test_a_script_for_another_program_names_the_option(run: Start, tmp_path: Path) -> None:
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    running = run("-n", "2", "prog")
    assert running.status() == 2
    assert "--no-python" in " ".join(running.errors)


def test_a_program_that_cannot_be_executed_is_named(run: Start, tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_text("echo there is no first line\n")
    program.chmod(0o755)
    running = run("-n", "1", "--no-python", "./prog")
    assert running.status() == 126
    assert any(f"{program} cannot be run" in line for line in running.errors)


def test_variables_go_to_all_ranks(run: Start) -> None:
    program = as_script(launched.show_environment, "A,B")
    running = run("-n", "2", "--env", "A=1=2", "--env=B", *program, B="from here")
    assert running.status() == 0
    assert sorted(running.output()) == [f"[{rank}] 1=2 from here" for rank in range(2)]


@pytest.mark.parametrize(("count", "notices"), [(2, 1), (1, 0)])
def test_one_thread_a_rank_is_said_once_where_it_was_not_set(
    tmp_path: Path, count: int, notices: int
) -> None:
    unset = environment(tmp_path)
    del unset["OMP_NUM_THREADS"]
    program = as_script(launched.show_environment, "OMP_NUM_THREADS")
    ended = subprocess.run(
        [*COMMAND, "-n", str(count), *program], env=unset, capture_output=True, check=True
    )
    assert sorted(ended.stdout.decode().splitlines()) == [f"[{rank}] 1" for rank in range(count)]
    assert ended.stderr.count(b"OMP_NUM_THREADS is not set") == notices


def test_nothing_is_said_of_threads_whose_number_is_set(run: Start) -> None:
    program = as_script(launched.show_environment, "OMP_NUM_THREADS")
    running = run("-n", "2", "--env", "OMP_NUM_THREADS=2", *program)
    assert running.status() == 0
    assert sorted(running.output()) == ["[0] 2", "[1] 2"]
    assert running.errors == []


@pytest.mark.parametrize("options", [(), ("--mpi",)])
def test_a_program_of_mpi4py_is_told_how_it_runs_over_allhands(
    run: Start, tmp_path: Path, options: tuple[str, ...]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("try:\n    from mpi4py import MPI\nexcept ImportError:\n    pass\n")
    running = run("-n", "1", *options, str(program))
    assert running.status() == 0
    hints = [line for line in running.errors if "--mpi runs it over allhands" in line]
    assert len(hints) == (not options)


@pytest.mark.skipif(not _BOUND, reason="a rank each of two CPUs")
@pytest.mark.parametrize("start", ["fork", "exec"])
def test_ranks_are_bound_to_their_share_of_the_cpus(run: Start, start: str) -> None:
    program = as_script(launched.show_cpus)
    running = run("-n", "2", "--bind-cpus", "auto", "--start", start, *program)
    assert running.status() == 0, running.errors
    dealt = deal_cpus(read_usable_cpus(), range(2))
    assert sorted(running.output()) == [f"[{rank}] {sorted(dealt[rank])}" for rank in range(2)]


def test_ranks_for_which_there_are_too_few_cpus_are_not_bound(run: Start) -> None:
    program = as_script(launched.show_cpus)
    count = len(os.sched_getaffinity(0)) + 1
    running = run("-n", str(count), "--bind-cpus", "auto", *program)
    assert running.status() == 0, running.errors
    all_cpus = sorted(os.sched_getaffinity(0))
    assert sorted(running.output()) == [f"[{rank}] {all_cpus}" for rank in range(count)]
    assert any("not bound" in line for line in running.errors)
