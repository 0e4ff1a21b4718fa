"""Reactions of a launch to events of ranks, as transcripts."""

import signal

import pytest

from allhands.launcher.supervision import (
    BlamedRank,
    FirstFailure,
    LaunchBroken,
    PeerLossReported,
    RankExited,
    RankExiting,
    RankFailure,
    SendSignal,
    SignalReceived,
    StartTimer,
    StopWaiting,
    Supervisor,
    TimerExpired,
    describe,
    describe_status,
)


def test_when_all_ranks_end_well_nobody_is_told_anything() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankExited(0, 0)) == ()
    assert supervisor.handle(RankExited(1, 0)) == ()
    assert supervisor.compute_exit_status() == 0


def test_after_a_failure_the_others_may_end_by_themselves_then_are_terminated_then_killed() -> None:
    supervisor = Supervisor(grace=7.0)
    assert supervisor.handle(RankExited(1, 3)) == (StartTimer(2.0),)
    assert supervisor.handle(RankExited(2, 1)) == ()
    assert not supervisor.has_signalled
    assert supervisor.handle(TimerExpired()) == (
        SendSignal(signal.SIGTERM, excluded=(1,)),
        StartTimer(7.0),
    )
    assert supervisor.has_signalled
    assert supervisor.handle(TimerExpired()) == (SendSignal(signal.SIGKILL),)
    assert supervisor.handle(TimerExpired()) == ()


def test_the_first_rank_that_fails_decides_the_exit_status() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankExited(0, 0))
    supervisor.handle(RankExited(2, 3))
    assert supervisor.handle(RankExited(1, 4)) == ()
    assert supervisor.compute_exit_status() == 3


def test_a_rank_killed_by_a_signal_counts_as_in_a_shell() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankExited(0, -signal.SIGKILL))
    assert supervisor.compute_exit_status() == 128 + 9


def test_a_victim_that_is_gone_before_the_rank_it_failed_of_is_not_blamed() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankExiting(0, is_failing=True)) == (StartTimer(2.0),)
    supervisor.handle(RankExiting(1, is_failing=True))
    supervisor.handle(RankExited(1, 1))
    supervisor.handle(RankExited(0, 3))
    assert supervisor.problem == RankFailure((0,))
    assert supervisor.compute_exit_status() == 3


def test_a_rank_that_leaves_and_ends_badly_is_blamed_before_those_that_miss_it() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankExiting(2, is_failing=False)) == ()
    supervisor.handle(RankExiting(1, is_failing=True))
    supervisor.handle(RankExited(1, 1))
    supervisor.handle(RankExited(2, 7))
    assert supervisor.compute_exit_status() == 7


def test_a_rank_that_leaves_and_ends_well_is_not_blamed() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankExiting(0, is_failing=False))
    supervisor.handle(RankExited(1, 5))
    supervisor.handle(RankExited(0, 0))
    assert supervisor.compute_exit_status() == 5


def test_a_rank_that_had_to_be_killed_while_it_left_is_not_blamed() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankExiting(0, is_failing=False))
    supervisor.handle(RankExited(1, 5))
    assert supervisor.handle(TimerExpired()) == (
        SendSignal(signal.SIGTERM, excluded=(0, 1)),
        StartTimer(10.0),
    )
    assert supervisor.handle(TimerExpired()) == (SendSignal(signal.SIGKILL),)
    supervisor.handle(RankExited(0, -signal.SIGKILL))
    assert supervisor.compute_exit_status() == 5


def test_a_failing_rank_that_does_not_come_to_its_end_still_fails_the_launch() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankExiting(0, is_failing=True))
    supervisor.handle(TimerExpired())
    supervisor.handle(TimerExpired())
    supervisor.handle(RankExited(0, -signal.SIGKILL))
    assert supervisor.problem == RankFailure((0,))
    assert supervisor.find_first_failure(RankFailure((0,))) == FirstFailure(0, True, None)
    assert supervisor.compute_exit_status() == 1


def test_an_interrupt_is_passed_on_before_anything_harder() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(SignalReceived(signal.SIGINT)) == (
        SendSignal(signal.SIGINT),
        StartTimer(2.0),
    )
    assert supervisor.handle(TimerExpired()) == (SendSignal(signal.SIGTERM), StartTimer(10.0))
    assert supervisor.handle(TimerExpired()) == (SendSignal(signal.SIGKILL), StartTimer(1.0))
    assert supervisor.handle(TimerExpired()) == (StopWaiting(),)
    assert supervisor.compute_exit_status() == 130


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_terminate(signum: signal.Signals) -> None:
    supervisor = Supervisor(grace=3.0)
    assert supervisor.handle(SignalReceived(signum)) == (
        SendSignal(signal.SIGTERM),
        StartTimer(3.0),
    )
    assert supervisor.handle(TimerExpired()) == (SendSignal(signal.SIGKILL), StartTimer(1.0))
    assert supervisor.compute_exit_status() == 128 + signum


def test_a_second_signal_kills_at_once() -> None:
    supervisor = Supervisor()
    supervisor.handle(SignalReceived(signal.SIGINT))
    assert supervisor.handle(SignalReceived(signal.SIGINT)) == (
        SendSignal(signal.SIGKILL),
        StartTimer(1.0),
    )
    assert supervisor.handle(TimerExpired()) == (StopWaiting(),)


def test_ranks_that_end_badly_on_our_signal_do_not_change_the_outcome() -> None:
    supervisor = Supervisor()
    supervisor.handle(SignalReceived(signal.SIGTERM))
    assert supervisor.handle(RankExited(0, -signal.SIGTERM)) == ()
    assert supervisor.compute_exit_status() == 128 + 15


def test_a_launch_that_cannot_go_on_ends_its_ranks() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(LaunchBroken("no space")) == (
        SendSignal(signal.SIGTERM),
        StartTimer(10.0),
    )
    assert supervisor.compute_exit_status() == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "exit status 3"), (-9, "killed by SIGKILL"), (-60, "killed by signal 60")],
)
def test_a_status_is_told_in_words(status: int, words: str) -> None:
    assert describe_status(status) == words


def test_ranks_may_fail_as_long_as_the_least_number_is_left() -> None:
    supervisor = Supervisor(4, min_size=2)
    assert supervisor.handle(RankExiting(3, is_failing=True)) == ()
    assert supervisor.handle(RankExited(3, 1)) == ()
    assert supervisor.handle(RankExited(0, 0)) == ()
    assert supervisor.handle(RankExited(2, -9)) == ()
    assert supervisor.problem is None
    assert supervisor.compute_exit_status() == 0


def test_when_fewer_than_the_least_number_are_left_the_first_that_failed_is_to_blame() -> None:
    supervisor = Supervisor(3, min_size=2)
    assert supervisor.handle(RankExited(2, 4)) == ()
    assert supervisor.handle(RankExited(0, 5)) == (StartTimer(2.0),)
    assert supervisor.handle(TimerExpired()) == (
        SendSignal(signal.SIGTERM, excluded=(2, 0)),
        StartTimer(10.0),
    )
    assert supervisor.compute_exit_status() == 4


# ---------------------------------------------------------------- who failed first


def left(rank: int) -> BlamedRank:
    return BlamedRank(rank, True, "left", f"rank {rank} left the job")


def culprit(supervisor: Supervisor) -> FirstFailure:
    assert isinstance(supervisor.problem, RankFailure)
    return supervisor.find_first_failure(supervisor.problem)


def test_a_rank_that_left_early_and_ended_well_is_blamed_by_those_that_failed_of_it() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankExiting(2, is_failing=False))
    supervisor.handle(RankExited(2, 0))
    supervisor.handle(PeerLossReported(0, left(2)))
    supervisor.handle(PeerLossReported(1, left(2)))
    supervisor.handle(RankExiting(1, is_failing=True))
    supervisor.handle(RankExited(1, 1))
    supervisor.handle(RankExited(0, 1))
    found = culprit(supervisor)
    assert found == FirstFailure(2, True, 0, left(2), victim=(1, 1))
    assert describe(found, "host a, pid 3") == (
        "it left the job before the others were done, with exit status 0 (host a, pid 3)"
    )
    assert supervisor.compute_exit_status() == 1


def test_a_rank_that_left_early_and_runs_on_is_blamed() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankExiting(2, is_failing=False))
    supervisor.handle(PeerLossReported(0, left(2)))
    supervisor.handle(RankExited(0, 5))
    supervisor.handle(TimerExpired())
    supervisor.handle(TimerExpired())
    supervisor.handle(RankExited(2, -signal.SIGKILL))
    found = culprit(supervisor)
    assert (found.rank, found.status, found.victim) == (2, None, (0, 5))
    assert "and did not end by itself" in describe(found, "")
    assert supervisor.compute_exit_status() == 5


def test_a_rank_that_others_waited_for_in_vain_is_named_and_not_how_it_was_ended() -> None:
    supervisor = Supervisor()
    late = BlamedRank(2, True, "busy", "rank 2 (host a, pid 3) is busy")
    supervisor.handle(PeerLossReported(1, late))
    supervisor.handle(RankExiting(1, is_failing=True))
    supervisor.handle(RankExited(1, 1))
    supervisor.handle(RankExited(2, 1))  # of the abort that came of that
    found = culprit(supervisor)
    assert found == FirstFailure(2, True, 1, late, victim=(1, 1))
    assert found.is_late
    assert describe(found, "host a, pid 3") == late.text


def test_blame_is_followed_to_the_first_of_a_chain() -> None:
    supervisor = Supervisor()
    supervisor.handle(PeerLossReported(0, BlamedRank(1, True, "left", "")))
    supervisor.handle(PeerLossReported(1, BlamedRank(2, True, "dead", "")))
    supervisor.handle(RankExited(0, 4))
    supervisor.handle(RankExited(1, 5))
    supervisor.handle(RankExited(2, -9))
    assert culprit(supervisor).rank == 2
    assert supervisor.compute_exit_status() == 137


def test_of_ranks_that_blame_each_other_the_first_that_failed_is_named() -> None:
    supervisor = Supervisor()
    supervisor.handle(PeerLossReported(0, BlamedRank(1, True, "unreachable", "")))
    supervisor.handle(PeerLossReported(1, BlamedRank(0, True, "unreachable", "")))
    supervisor.handle(RankExited(1, 5))
    supervisor.handle(RankExited(0, 4))
    assert culprit(supervisor) == FirstFailure(1, True, 5)


def test_a_rank_of_another_launch_is_named_as_the_survivors_say() -> None:
    supervisor = Supervisor()
    of = BlamedRank(7, False, "dead", "rank 7 (host b, pid 9) is dead: killed by SIGKILL")
    supervisor.handle(PeerLossReported(0, of))
    supervisor.handle(RankExited(0, 1))
    found = culprit(supervisor)
    assert (found.rank, found.is_here, found.status) == (7, False, None)
    assert describe(found, "") == of.text
    assert supervisor.compute_exit_status() == 1


def test_a_rank_that_was_lost_alive_and_then_ended_by_us_is_described_as_its_peers_saw_it() -> None:
    supervisor = Supervisor()
    of = BlamedRank(2, True, "paused", "rank 2 (host a, pid 9) is paused: its process is stopped")
    supervisor.handle(PeerLossReported(0, of))
    supervisor.handle(RankExited(0, 1))
    supervisor.handle(TimerExpired())
    supervisor.handle(RankExited(2, -signal.SIGTERM))
    assert describe(culprit(supervisor), "") == of.text


def test_a_loss_that_a_rank_went_on_without_is_not_blamed_for_what_fails_later() -> None:
    supervisor = Supervisor()
    supervisor.handle(PeerLossReported(0, left(2)))
    supervisor.handle(PeerLossReported(0, None))
    supervisor.handle(RankExited(2, 0))
    supervisor.handle(RankExited(0, 3))
    assert culprit(supervisor) == FirstFailure(0, True, 3)
