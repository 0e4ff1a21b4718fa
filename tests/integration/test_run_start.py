"""`allhands run --start`: ranks that are forked are as those that start an interpreter each."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from allhands.launcher import forking
from programs import launched, launched_ranks
from support.ranks.launchers import Launcher, Start, as_script, ends

_OF_A_LAUNCH = {"ALLHANDS_JOB", "ALLHANDS_LAUNCH", "ALLHANDS_TOKEN", "ALLHANDS_URL", "MASTER_PORT"}
_PROCESS = str(Path(launched.__file__).with_name("launched_process.py"))
_WAIT = "import os, signal; open({fifo!r}, 'w').write(str(os.getpid())); signal.pause()"
"""Code of a module that says where it is imported, and waits."""


def _show(run: Start, *options: str, **variables: str) -> list[dict[str, Any]]:
    """Return what each of two ranks sees, without the names of its launch."""
    running = run("-n", "2", *options, **variables)
    assert running.status() == 0, running.errors
    by_rank = dict(line.split(" ", 1) for line in running.output())
    seen = [json.loads(by_rank[f"[{rank}]"]) for rank in range(2)]
    for one in seen:
        assert one.pop("parent") == running.process.pid
        for name in _OF_A_LAUNCH:
            assert one["environment"].pop(name)
    draws = [one.pop("draw") for one in seen]
    assert draws[0] != draws[1]
    return seen


def _end_well(running: Launcher) -> list[str]:
    assert running.status() == 0, running.errors
    return running.output()


@pytest.mark.parametrize(
    "command",
    [
        (_PROCESS,),
        (_PROCESS, "--lr", "0.1", "-m"),
        ("python", _PROCESS),
        ("-m", "programs.launched_process", "some", ""),
    ],
)
@pytest.mark.parametrize("path", [None, "", "/nowhere:"])
def test_a_forked_rank_sees_what_one_sees_that_starts_an_interpreter(
    run: Start, command: tuple[str, ...], path: str | None
) -> None:
    tests = str(Path(__file__).parent.parent)
    variables = {} if path is None else {"PYTHONPATH": path}
    if "-m" in command[:1]:
        variables["PYTHONPATH"] = f"{tests}:{path or ''}"
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    forked = _show(run, "--start", "fork", *command, **variables)
    started = _show(run, "--start", "exec", *command, **variables)
    assert forked == started


def test_the_end_of_a_forked_rank_frees_all_but_what_was_imported_before(run: Start) -> None:
    program = as_script(launched.show_the_end)
    always = [
        "handler True",
        *(f"freed in {one}" for one in ("module of Python", "module of the program", "program")),
    ]
    imported = [f"freed in {one}" for one in ("module of a package", "module of the library")]
    for way, freed in (("exec", [*always, *imported]), ("fork", always)):
        shown = _end_well(run("-n", "2", "--start", way, *program))
        assert sorted(shown) == sorted(f"[{rank}] {one}" for rank in range(2) for one in freed)


def test_two_ranks_are_forked_and_one_is_not(run: Start) -> None:
    program = as_script(launched.show_modules, "numpy,allhands,numpy.random")
    for count, seen in ((1, "False False False"), (2, "True True False")):
        running = run("-n", str(count), *program)
        assert running.status() == 0
        assert sorted(running.output()) == [f"[{rank}] {seen}" for rank in range(count)]


def test_ranks_are_forked_or_not_as_the_environment_says(run: Start) -> None:
    program = as_script(launched.show_modules, "numpy")
    for way, is_loaded in (("exec", "False"), ("fork", "True")):
        running = run("-n", "2", *program, ALLHANDS_RUN_START=way)
        assert sorted(_end_well(running)) == [f"[{rank}] {is_loaded}" for rank in range(2)]


@pytest.mark.parametrize(
    ("options", "variables", "reason"),
    [
        (("python", "-X", "dev"), {}, "Python is given the option -X"),
        (
            (),
            {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": ""},
            "OMP_NUM_THREADS has NumPy start threads",
        ),
        ((), {"COVERAGE_PROCESS_START": "x"}, "COVERAGE_PROCESS_START"),
    ],
)
def test_what_must_not_be_forked_starts_interpreters_or_says_why(
    run: Start, options: tuple[str, ...], variables: dict[str, str], reason: str
) -> None:
    variables = {**variables, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    program = *options, *as_script(launched.show_modules, "numpy")
    running = run("-n", "2", *program, **variables)
    assert sorted(_end_well(running)) == ["[0] False", "[1] False"]
    running = run("-n", "2", "--start", "fork", *program, **variables)
    assert running.status() == 1
    assert reason in running.errors[-1]
    assert running.output() == []


def test_threads_of_imports_forbid_a_fork(run: Start, tmp_path: Path) -> None:
    path = _shadow(
        tmp_path,
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    )
    running = run("-n", "2", "--start", "fork", *as_script(launched.show_a_word), PYTHONPATH=path)
    assert running.status() == 1
    assert "imports have started threads" in running.errors[-1]


def test_every_rank_runs_the_environments_own_customization(run: Start, tmp_path: Path) -> None:
    path = _shadow(tmp_path, "import os; print('customized', os.environ['RANK'])", "sitecustomize")
    running = run("-n", "2", "--start", "fork", *as_script(launched.show_a_word), PYTHONPATH=path)
    assert running.status() == 0
    assert sorted(running.output()) == [
        *("[0] customized 0", "[0] ran"),
        *("[1] customized 1", "[1] ran"),
    ]


def test_forked_ranks_make_a_world(run: Start) -> None:
    running = run("-n", "3", "--start", "fork", *as_script(launched_ranks.show_sum))
    assert running.status() == 0, running.errors
    assert sorted(running.output()) == [f"[{rank}] sum 3.0" for rank in range(3)]


# ---------------------------------------------------------------- before the ranks are there


def _start_and_wait(run: Start, tmp_path: Path, *options: str) -> tuple[Launcher, int]:
    """Start a launcher whose interpreter to fork waits in its imports; return that one's pid."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    path = _shadow(tmp_path, _WAIT.format(fifo=str(fifo)))
    running = run("-n", "2", *options, *as_script(launched.show_a_word), PYTHONPATH=path)
    return running, int(fifo.read_text())


def _shadow(tmp_path: Path, code: str, module: str = "numpy") -> str:
    """Put code before a module that the interpreter to fork imports; return the path for that."""
    folder = tmp_path / "shadow"
    folder.mkdir(exist_ok=True)
    restore = "" if module == "sitecustomize" else _RESTORE
    (folder / f"{module}.py").write_text(f"{code}\n{restore}")
    return str(folder)


_RESTORE = """
import os, sys
sys.path.remove(os.path.dirname(__file__))
del sys.modules["numpy"]
import importlib
importlib.import_module("numpy")
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_launcher_that_ends_before_its_ranks_are_forked(
    run: Start, tmp_path: Path, signum: signal.Signals
) -> None:
    running, pid = _start_and_wait(run, tmp_path, "--grace", "0.2")
    running.process.send_signal(signum)
    assert running.status() in (-signum, 128 + signum)
    assert ends(pid)
    assert running.output() == []


def test_ranks_are_started_without_the_interpreter_that_was_killed(
    run: Start, tmp_path: Path
) -> None:
    running, pid = _start_and_wait(run, tmp_path)
    (tmp_path / "shadow" / "numpy.py").unlink()  # of no further process
    os.kill(pid, signal.SIGKILL)
    assert running.status() == 0
    assert sorted(running.output()) == ["[0] ran", "[1] ran"]


def test_a_launch_that_was_to_fork_says_that_its_interpreter_was_killed(
    run: Start, tmp_path: Path
) -> None:
    running, pid = _start_and_wait(run, tmp_path, "--start", "fork")
    os.kill(pid, signal.SIGKILL)
    assert running.status() == 1
    assert "the interpreter to fork has ended early" in running.errors[-1]


def test_no_process_is_between_launcher_and_forked_ranks(run: Start) -> None:
    running = run("-n", "2", "--start", "fork", *as_script(launched.wait_to_end))
    for _ in range(2):
        running.line()
    children = psutil.Process(running.process.pid).children()
    assert len(children) == 3  # the reaper is one
    running.process.terminate()
    assert running.status() == 143


def test_another_interpreter_is_not_forked(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert "is not the Python" in forking.find_obstacle((str(other), "-u", "x.py"), {})
    assert forking.find_obstacle((sys.executable, "-u", "x.py"), {}) == ""
