"""LocalCluster: results, failures, and the end of every process."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

import allhands as ah
from allhands.testing import LocalCluster, RankError, RanksStuck
from programs import coordinated
from support.ranks.launchers import as_script


def total(start: int, *, step: int) -> tuple[int, int, int, float]:
    x = np.array([start + step * ah.get_rank()], float)
    ah.all_reduce(x)
    child = subprocess.Popen(["sleep", "600"])
    return ah.get_rank(), os.getpid(), child.pid, float(x[0])


def fails_on(rank: int, error: BaseException) -> None:
    ah.barrier()
    if ah.get_rank() == rank:
        raise error
    ah.barrier()


def raises_what_is_known_here_alone() -> None:
    class Special(Exception):
        pass

    ah.barrier()
    raise Special(f"on rank {ah.get_rank()}")


def sleeps_on_1() -> str:
    if ah.get_rank() == 1:
        ah.store().set("asleep", b"")
        time.sleep(600)
    try:
        ah.barrier()
    except ah.PeerFailed as error:
        return f"lost {error.failed_ranks}"
    return "all there"


def joins_by_itself() -> bool:
    before = ah.is_initialized()
    ah.init_process_group()
    ah.barrier()
    if ah.get_rank() == 1:
        os._exit(3)
    return before


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2) as made:
        yield made


def gone(*pids: int) -> bool:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(10)
    return not any(map(psutil.pid_exists, pids))


def test_results_come_by_rank_from_processes_of_which_nothing_is_left(cluster: LocalCluster):
    results = cluster.run(total, 10, step=5)
    ranks, pids, children, sums = zip(*results, strict=True)
    assert ranks == (0, 1)
    assert sums == (25.0, 25.0)
    assert len({os.getpid(), *pids}) == 3
    assert gone(*pids, *children)


def test_error_names_the_rank_and_has_its_traceback(cluster: LocalCluster):
    with pytest.raises(RankError, match="rank 1 of 2 raised LookupError: no data") as it:
        cluster.run(fails_on, 1, LookupError("no data"))
    cause = it.value.__cause__
    assert isinstance(cause, LookupError)
    assert "in fails_on" in "".join(cause.__notes__)
    other = it.value.errors[0]
    assert isinstance(other, ah.GroupAborted)
    assert other.reason == "LookupError: no data"


def test_exception_that_cannot_be_put_together_here_surfaces_in_words(cluster: LocalCluster):
    with pytest.raises(RankError, match=r"Special: on rank \d") as it:
        cluster.run(raises_what_is_known_here_alone)
    cause = it.value.__cause__
    assert cause is not None
    assert "in raises_what_is_known_here_alone" in "".join(cause.__notes__)


def test_killed_rank_is_named_and_the_others_go_on(cluster: LocalCluster):
    run = cluster.start(sleeps_on_1)
    with run.connect() as keys:
        keys.get("asleep", wait=True)
    run.kill(1)
    first, second = run.outcomes()
    assert first == "lost (1,)"
    assert "rank 1 of 2 was ended by SIGKILL without a result" in str(second)


def test_rank_may_join_by_itself_and_end_without_a_word(cluster: LocalCluster):
    run = cluster.start_bare(joins_by_itself)
    first, second = run.outcomes()
    assert first is False
    assert "rank 1 of 2 ended with exit status 3 without a result" in str(second)
    with pytest.raises(RankError, match="exit status 3"):
        run.results()


def test_deadline_names_who_is_late_and_where(cluster: LocalCluster):
    run = cluster.start(sleeps_on_1)
    with run.connect() as keys:
        keys.get("asleep", wait=True)
    with pytest.raises(RanksStuck, match=r"ranks 0, 1 of 2 did not end within 0.2 s") as it:
        run.results(deadline=0.2)
    assert "time.sleep(600)" in str(it.value)
    assert "ah.barrier()" in str(it.value)
    assert gone(*run.pids)


WITHOUT_A_FILE = """
import numpy as np
import allhands as ah
from allhands.testing import LocalCluster

class Total:
    def __init__(self, value):
        self.value = value

class Refused(Exception):
    pass

def total(start):
    if start < 0:
        raise Refused(f"no {start}")
    x = np.array([start + ah.get_rank()], float)
    ah.all_reduce(x)
    return Total(float(x[0]))

with LocalCluster(2) as cluster:
    results = cluster.run(total, 10)
    print([one.value for one in results], all(type(one) is Total for one in results))
    try:
        cluster.run(total, -1)
    except RuntimeError as error:
        print(type(error.__cause__) is Refused, error.__cause__)
"""


def run_without_a_file(program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program as a notebook has it: its functions are in no file."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_functions_and_classes_of_a_notebook_travel_whole_there_and_back():
    done = run_without_a_file(WITHOUT_A_FILE)
    assert done.stdout.splitlines() == ["[21.0, 21.0] True", "True no -1"], done.stderr


def test_without_cloudpickle_a_notebook_is_told_what_to_do():
    hidden = (
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'cloudpickle' else find(name, *more)"
    )
    done = run_without_a_file(hidden + WITHOUT_A_FILE)
    assert "TypeError: <function total" in done.stderr
    assert "put it into a module" in done.stderr
    assert "pip install 'allhands[notebook]'" in done.stderr


def test_leaving_the_block_ends_what_still_runs():
    with LocalCluster(2) as cluster:
        run = cluster.start(sleeps_on_1)
    assert gone(*run.pids)
    with pytest.raises(RuntimeError, match=r"within its block: with LocalCluster\(2\)"):
        cluster.run(sleeps_on_1)


def test_ranks_end_with_the_process_that_has_started_them():
    script = as_script(coordinated.start_ranks_that_sleep)
    starter = subprocess.Popen([sys.executable, *script], stdout=subprocess.PIPE, text=True)
    with starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert len(pids) == 2
        starter.kill()
    assert gone(*pids)


def test_function_that_others_cannot_find_is_refused(cluster: LocalCluster):
    with pytest.raises(TypeError, match="a function of a module"):
        cluster.run(lambda: None)
    with pytest.raises(ValueError, match="at least one rank"):
        LocalCluster(0)
