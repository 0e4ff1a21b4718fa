"""The MPI of allhands on worlds of real ranks; mpi4py's own tests run in `make test-mpi`."""

import subprocess
import sys
from pathlib import Path

import pytest

from programs import mpi_ranks as program
from support.ranks.processes import Job, Process

_RUN = [sys.executable, "-m", "allhands.cli.main", "run", "--mpi"]


def _end_well(ranks: list[Process]) -> None:
    for rank in ranks:
        rank.expect("done")
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("size", [1, 3])
def test_messages_match_as_mpi_has_it(job: Job, size: int, backend: str) -> None:
    ranks = job(size, program.exchange_messages)
    seen = ranks[0].expect("received")["seen"]
    assert seen == {str(one): [float(one)] * 3 for one in range(1, size)}
    for rank in ranks:
        told = rank.expect("truncated")
        assert told["code"], told
        assert "room for 16 bytes, and the message has 64" in told["text"]
    _end_well(ranks)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_arrays_arrive_whatever_their_size_and_way(job: Job, backend: str) -> None:
    _end_well(job(2, program.stream_arrays))


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("size", [1, 4])
def test_collectives_give_what_mpi_gives(job: Job, size: int, backend: str) -> None:
    _end_well(job(size, program.call_collectives))


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_of_a_collective_may_go_different_ways(job: Job, size: int, backend: str) -> None:
    _end_well(job(size, program.mix_ways))


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_posted_receives_end_by_the_message_that_they_wait_for(job: Job, backend: str) -> None:
    _end_well(job(3, program.await_posted))


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_windows_and_files_are_shared(job: Job, tmp_path: Path, backend: str) -> None:
    ranks = job(3, program.share_windows, str(tmp_path))
    numbers = [number for rank in ranks[1:] for number in rank.expect("taken")["numbers"]]
    assert sorted(numbers) == list(range(10)), "each number was taken once"
    for rank in ranks:
        rank.say()
    told = ranks[2].expect("refused")
    assert told["code"], told
    assert "a buffer of 8 bytes" in told["text"]
    _end_well(ranks)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("hosts", [1, 2])
def test_windows_are_the_same_on_one_host_and_on_several(
    job: Job, hosts: int, is_new: bool
) -> None:
    _end_well(job(3, program.open_windows, hosts, is_new))


def test_who_waits_for_the_lock_of_a_dead_rank_is_told(job: Job) -> None:
    ranks = job(3, program.die_with_a_lock)
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("lost")
        assert told["code"], told
        assert "rank 1" in told["text"]
        rank.expect("lost, too")
        rank.say()
        assert rank.ended() == 0


def test_a_lost_rank_is_an_error_and_the_others_go_on(job: Job) -> None:
    ranks = job(3, program.lose_one)
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("lost")
        assert told["code"], told
        assert "rank 1" in told["text"]
        assert rank.expect("went on") == {"what": "went on", "sum": 2, "size": 2}
        assert rank.ended() == 0, "".join(rank.errors)


def test_ranks_that_make_different_calls_are_named(job: Job) -> None:
    ranks = job(2, program.differ)
    for rank in ranks:
        text = rank.expect("mismatch")["text"]
        assert "broadcast" in text
        assert "all_reduce" in text
    for rank in ranks:
        rank.say()


def test_a_receive_without_a_sender_ends_in_time(job: Job) -> None:
    ranks = job(2, program.wait_for_nobody, ALLHANDS_MPI_TIMEOUT="1")
    text = ranks[0].expect("late")["text"]
    assert "a receive from rank 1 with tag 42" in text
    assert "within 1 s" in text
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0
    warning = "a receive from rank 1 with tag 42 has been blocked for"
    assert warning in "".join(ranks[0].errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_thread_receives_from_its_own_rank_and_others(job: Job, size: int, backend: str) -> None:
    _end_well(job(size, program.serve_on_a_thread))


def test_threads_receive_their_own_messages(job: Job) -> None:
    _end_well(job(2, program.receive_on_threads))


def _run(*arguments: str, text: str = "", folder: Path) -> "subprocess.CompletedProcess[str]":
    script = folder / "program.py"
    script.write_text(text)
    return subprocess.run(
        [*arguments, str(script)], capture_output=True, text=True, timeout=60, cwd=folder
    )


_PROGRAM = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(f"sum {comm.allreduce(comm.rank + 1)} of {comm.size}")
"""


def test_a_program_of_mpi4py_runs_as_it_is(tmp_path: Path) -> None:
    ended = _run(*_RUN, "-n", "3", text=_PROGRAM, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("sum 6 of 3") == 3


def test_a_program_alone_is_a_world_of_one(tmp_path: Path) -> None:
    ended = _run(sys.executable, "-m", "allhands.mpi", text=_PROGRAM, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "sum 1 of 1\n"


def test_an_error_on_one_rank_ends_all(tmp_path: Path) -> None:
    text = _PROGRAM + "if comm.rank == 1: raise ValueError('odd')\ncomm.Barrier()\n"
    ended = _run(*_RUN, "-n", "3", text=text, folder=tmp_path)
    assert ended.returncode != 0
    assert "ValueError: odd" in ended.stderr


def test_an_exit_status_on_one_rank_ends_all(tmp_path: Path) -> None:
    text = _PROGRAM + "import sys\nif comm.rank == 1: sys.exit(3)\ncomm.Barrier()\n"
    ended = _run(*_RUN, "-n", "3", text=text, folder=tmp_path)
    assert ended.returncode == 3, ended.stderr


def test_an_error_of_mpi_in_a_thread_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    text = (
        _PROGRAM + "import threading\n"
        "threading.Thread(target=MPI.COMM_SELF.Spawn, args=['worker']).start()\n"
        "threading.Event().wait()\n"
    )
    ended = _run(sys.executable, "-m", "allhands.mpi", text=text, folder=tmp_path)
    assert ended.returncode == 1
    assert "sum 1 of 1" in ended.stdout
    assert "NotImplementedError: " in ended.stderr


def test_what_needs_mpi4py_says_so(tmp_path: Path) -> None:
    text = "from mpi4py import rc\nrc.initialize = False\nimport mpi4py.util.pkl5\n"
    blocked = (
        "import importlib.machinery as m; found = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = classmethod(lambda cls, name, *more: "
        "None if name == 'mpi4py' else found(name, *more))\n"
        "from allhands.mpi import import_hook; import_hook.install()\n"
    )
    ended = _run(sys.executable, text=blocked + text, folder=tmp_path)
    assert "pip install mpi4py==4.1.2" in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-python", "ls"], "give one of --mpi and --no-python"),
        (["absent.py"], "there is no 'absent.py'"),
        (["python3", "x.py"], "name the script of mpi4py alone"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments: list[str], said: str) -> None:
    ended = subprocess.run([*_RUN, *arguments], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert said in " ".join(ended.stderr.replace("│", " ").split())
