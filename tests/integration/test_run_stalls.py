"""`allhands run --on-stall` and `--max-restarts`: real ranks that stay away, and that die."""

import signal

import pytest

from programs import launched, launched_ranks
from support.ranks.launchers import Launcher, Start, as_script

_STALL = "--stall-after", "0.5"


def _find(running: Launcher, text: str) -> list[str]:
    return [line for line in running.errors if text in line]


def test_an_abort_names_the_rank_that_stays_away_and_its_line(run: Start) -> None:
    program = as_script(launched_ranks.stall_at_first, 1)
    running = run("-n", "2", "--on-stall", "abort", *_STALL, "--grace", "1", *program)
    assert running.status() == 124
    [told] = _find(running, "the job is stalled")
    assert "all_reduce #1 of group world (launched_ranks.py:" in told
    assert "on rank 0 for rank 1" in told
    assert "in stay_outside" in told
    assert _find(running, "WAITS FOR")  # the whole diagnosis
    assert any("GroupAborted" in line for line in _find(running, "[0] "))
    assert _find(running, "allhands: stalled: all_reduce")


def test_a_report_is_made_once_and_the_job_goes_on(run: Start) -> None:
    program = as_script(launched_ranks.come_late, 3)
    running = run("-n", "2", "--on-stall", "report", *_STALL, *program)
    assert running.status() == 0, running.errors
    assert len(_find(running, "the job is stalled")) == 1


def test_nothing_is_said_of_a_job_that_does_not_stall(run: Start) -> None:
    program = as_script(launched_ranks.come_late, 0)
    running = run("-n", "2", "--on-stall", "abort", "--stall-after", "20", *program)
    assert running.status() == 0
    assert running.errors == []


def test_a_stall_restarts_all_ranks(run: Start) -> None:
    program = as_script(launched_ranks.stall_at_first, 1)
    options = "--on-stall", "restart", *_STALL, "--max-restarts", "2", "--grace", "1"
    running = run("-n", "2", *options, *program)
    assert running.status() == 0, running.errors
    lines = running.output()
    assert sorted(lines[-2:]) == [f"[{rank}] attempt 1 True" for rank in range(2)]
    assert _find(running, "restart 1 of 2")


def test_restarts_have_an_end_and_then_the_status_of_a_stall(run: Start) -> None:
    program = as_script(launched_ranks.stall_at_first, 9)
    options = "--on-stall", "restart", *_STALL, "--max-restarts", "1", "--grace", "1"
    running = run("-n", "2", *options, *program)
    assert running.status() == 124
    assert len(_find(running, "the job is stalled")) == 2


@pytest.mark.parametrize("how", ["kill", "abort"])
def test_ranks_that_fail_together_are_started_anew_as_another_world(run: Start, how: str) -> None:
    program = as_script(launched_ranks.die_at_first, how)
    running = run("-n", "2", "--max-restarts", "1", *program)
    assert running.status() == 0, running.errors
    assert sorted(running.output()) == [f"[{rank}] done False" for rank in range(2)]
    assert _find(running, "failed first")
    assert _find(running, "restart 1 of 1")


def test_the_last_failure_gives_the_status(run: Start) -> None:
    running = run("-n", "2", "--max-restarts", "2", *as_script(launched.end_with, 0, 7))
    assert running.status() == 7
    assert len(_find(running, "rank 1 failed first: exit status 7")) == 3
    assert _find(running, "restart 2 of 2")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_is_told_to_end_restarts_nothing(run: Start, signum: int) -> None:
    running = run("-n", "1", "--max-restarts", "3", *as_script(launched.wait_to_end))
    running.line()
    running.process.send_signal(signum)
    assert running.status() == 128 + signum
    assert not _find(running, "restart 1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--on-stall", "abort"), "--stall-after"),
        (("--stall-after", "3"), "--on-stall"),
        (("--on-stall", "restart", "--stall-after", "3"), "--max-restarts"),
    ],
)
def test_options_that_lack_another_are_refused(
    run: Start, options: tuple[str, ...], said: str
) -> None:
    running = run("-n", "2", *options, *as_script(launched.show_a_word))
    assert running.status() == 2
    assert said in " ".join(running.errors)
