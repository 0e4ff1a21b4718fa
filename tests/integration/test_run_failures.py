"""`allhands run` with a failing rank: the blamed rank, the order of output, the end."""

import os
from pathlib import Path

import psutil
import pytest

from allhands.testing.poll import poll_until
from programs import launched, launched_ranks
from support.ranks.launchers import (
    Start,
    as_script,
    ends,
    pids_of_hanging,
)


def test_the_first_failing_rank_is_named_and_its_traceback_comes_first(
    run: Start, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = as_script(launched.fail_beside_one_that_complains, tmp_path / "fifo")
    running = run("-n", "2", *program)
    assert running.status() == 1
    assert running.errors[0] == "[1] Traceback (most recent call last):"
    assert running.errors.index("[1] ValueError: the reason") < running.errors.index(
        "[0] the other complains"
    )
    assert running.errors[-1].startswith("allhands: rank 1 failed first: exit status 1 (host ")


def test_a_rank_that_is_killed_is_named_with_its_signal(run: Start) -> None:
    program = as_script(launched.kill_rank_two)
    running = run("-n", "3", *program)
    assert running.status() == 128 + 9
    assert "rank 2 failed first: killed by SIGKILL" in running.errors[-1]


def test_ranks_that_do_not_want_to_end_are_gone_soon_after_a_failure(
    run: Start, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = as_script(launched.fail_beside_one_that_hangs, tmp_path / "fifo")
    running = run("-n", "2", "--grace", "0.2", *program)
    pids = pids_of_hanging(running, 1)
    (tmp_path / "fifo").open("w").close()
    assert running.status() == 5
    assert all(ends(pid) for pid in pids)


def test_a_rank_may_end_well_before_the_others(run: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = as_script(launched.end_one_after_the_other, tmp_path / "fifo")
    running = run("-n", "2", *program)
    first = running.line()
    assert first.startswith("[0] done")
    assert ends(int(first.split()[2]))
    (tmp_path / "fifo").open("w").close()
    assert running.line().startswith("[1] done")
    assert running.status() == 0


def test_the_rank_that_announced_its_failure_is_blamed_though_its_victim_is_gone_first(
    run: Start, tmp_path: Path
) -> None:
    ready, failing = tmp_path / "ready", tmp_path / "failing"
    os.mkfifo(ready)
    os.mkfifo(failing)
    program = as_script(launched.fail_and_let_the_victim_end_first, ready, failing)
    running = run("-n", "2", *program)
    assert running.status() == 3
    assert running.errors[:3] == ["[0] the reason", "[0] more of the reason", "[1] a victim"]
    assert "rank 0 failed first: exit status 3" in running.errors[-1]


def test_the_rank_that_failed_first_is_blamed_by_a_launcher_that_hears_of_all_at_once(
    run: Start, tmp_path: Path
) -> None:
    names = "ready", "failing", "go"
    for name in names:
        os.mkfifo(tmp_path / name)
    ready, failing, go = (str(tmp_path / name) for name in names)
    program = as_script(launched.fail_and_let_the_victim_end_first, ready, failing, "1", go)
    running = run("-n", "2", *program)
    launcher = psutil.Process(running.process.pid)
    with open(go, "w"):  # both run, for rank 1 reads it
        launcher.suspend()
        os.waitid(os.P_PID, launcher.pid, os.WSTOPPED | os.WNOWAIT)
    # The third is the guardian.
    poll_until(lambda: sum(one.status() == "zombie" for one in launcher.children()) == 2)
    launcher.resume()
    assert running.status() == 3
    assert "rank 1 failed first: exit status 3" in running.errors[-1]


@pytest.mark.parametrize(("end", "status"), [("raise", 1), ("exit", 3), ("leave and raise", 1)])
def test_of_ranks_in_a_collective_the_one_that_left_is_blamed_and_heard_first(
    run: Start, end: str, status: int
) -> None:
    program = as_script(launched_ranks.lose_rank_one_in_a_collective, end)
    running = run("-n", "4", *program)
    assert running.status() == status
    assert f"rank 1 failed first: exit status {status}" in running.errors[-1]
    reason = next(line for line in running.errors if "the reason" in line)
    victims = [line for line in running.errors if line.startswith(("[0]", "[2]", "[3]"))]
    assert all(running.errors.index(reason) < running.errors.index(line) for line in victims)


@pytest.mark.parametrize("end", ["killed", "exit well"])
@pytest.mark.parametrize("length", [2, 1 << 20])
def test_survivors_say_who_failed_first_and_so_does_the_last_line(
    run: Start, end: str, length: int
) -> None:
    program = as_script(launched_ranks.lose_rank_two_between_calls, end, length)
    running = run("-n", "4", *program)
    assert running.status() == (1 if end == "exit well" else 137)
    named = "] allhands.errors.PeerFailed: all_reduce #2 of group 'world' cannot end: rank 2 (host "
    said = [line for line in running.errors if named in line]
    assert sorted(line[:3] for line in said) == ["[0]", "[1]", "[3]"], running.errors
    how = "killed by SIGKILL (host "
    if end == "exit well":
        how = "it left the job before the others were done, with exit status 0 (host "
    assert running.errors[-1].startswith(f"allhands: rank 2 failed first: {how}")


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_rank_that_is_blocked_elsewhere_is_told_by_an_exception_unless_it_handles_the_signal(
    run: Start, backend: str
) -> None:
    program = as_script(launched_ranks.block_elsewhere, backend)
    running = run("-n", "3", *program)
    assert running.status() == 3
    assert running.output() == ["[0] SIGTERM", "[0] blocked 143"]
    assert "[1] its own handler" in running.errors
    assert "rank 2 failed first: exit status 3" in running.errors[-1]


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("killed", 137, "killed by SIGKILL"),
        ("exit 3 at once", 3, "it ended with exit status 3"),
        ("exit 0 at once", 0, "it ended with exit status 0, without having left the job"),
    ],
)
def test_survivors_are_told_how_a_rank_ended(run: Start, end: str, status: int, words: str) -> None:
    program = as_script(launched_ranks.show_how_rank_one_ended, end)
    running = run("-n", "3", *program)
    code = "None 9" if status == 137 else f"{status} None"
    lines = sorted(running.line() for _ in range(2))
    assert [line[1 : line.index("(host")] for line in lines] == [
        f"0] 1 dead {code} rank 1 ",
        f"2] 1 dead {code} rank 1 ",
    ]
    assert all(line.endswith(f"is dead: {words}") for line in lines)
    assert running.status() == status


def test_the_rank_that_others_waited_for_is_named(run: Start) -> None:
    running = run("-n", "3", *as_script(launched_ranks.wait_in_vain))
    assert running.status() == 1
    assert "rank 1 was waited for in vain: rank 1 (host " in running.errors[-1]
    assert " is busy: " in running.errors[-1]
    assert "; then rank " in running.errors[-1]
    assert any("in stay_outside" in line for line in running.errors)
