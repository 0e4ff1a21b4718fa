"""What a launch does about what happens to its ranks, as transcripts."""

import signal

import pytest

from allhands.launcher.supervision import (
    Abandon,
    Blamed,
    Broken,
    Culprit,
    Failure,
    PatienceOver,
    RankEnded,
    RankEnding,
    RankFails,
    SignalReceived,
    Supervisor,
    Tell,
    Wait,
    describe,
    describe_status,
)


def test_when_all_ranks_end_well_nobody_is_told_anything() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankEnded(0, 0)) == ()
    assert supervisor.handle(RankEnded(1, 0)) == ()
    assert supervisor.exit_status() == 0


def test_after_a_failure_the_others_may_end_by_themselves_then_are_terminated_then_killed() -> None:
    supervisor = Supervisor(grace=7.0)
    assert supervisor.handle(RankEnded(1, 3)) == (Wait(2.0),)
    assert supervisor.handle(RankEnded(2, 1)) == ()
    assert not supervisor.tells
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGTERM, spare=(1,)), Wait(7.0))
    assert supervisor.tells
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGKILL),)
    assert supervisor.handle(PatienceOver()) == ()


def test_the_first_rank_that_fails_decides_the_exit_status() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnded(0, 0))
    supervisor.handle(RankEnded(2, 3))
    assert supervisor.handle(RankEnded(1, 4)) == ()
    assert supervisor.exit_status() == 3


def test_a_rank_killed_by_a_signal_counts_as_in_a_shell() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnded(0, -signal.SIGKILL))
    assert supervisor.exit_status() == 128 + 9


def test_a_victim_that_is_gone_before_the_rank_it_failed_of_is_not_blamed() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankEnding(0, failing=True)) == (Wait(2.0),)
    supervisor.handle(RankEnding(1, failing=True))
    supervisor.handle(RankEnded(1, 1))
    supervisor.handle(RankEnded(0, 3))
    assert supervisor.trouble == Failure((0,))
    assert supervisor.exit_status() == 3


def test_a_rank_that_leaves_and_ends_badly_is_blamed_before_those_that_miss_it() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankEnding(2, failing=False)) == ()
    supervisor.handle(RankEnding(1, failing=True))
    supervisor.handle(RankEnded(1, 1))
    supervisor.handle(RankEnded(2, 7))
    assert supervisor.exit_status() == 7


def test_a_rank_that_leaves_and_ends_well_is_not_blamed() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnding(0, failing=False))
    supervisor.handle(RankEnded(1, 5))
    supervisor.handle(RankEnded(0, 0))
    assert supervisor.exit_status() == 5


def test_a_rank_that_had_to_be_killed_while_it_left_is_not_blamed() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnding(0, failing=False))
    supervisor.handle(RankEnded(1, 5))
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGTERM, spare=(0, 1)), Wait(10.0))
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGKILL),)
    supervisor.handle(RankEnded(0, -signal.SIGKILL))
    assert supervisor.exit_status() == 5


def test_a_failing_rank_that_does_not_come_to_its_end_still_fails_the_launch() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnding(0, failing=True))
    supervisor.handle(PatienceOver())
    supervisor.handle(PatienceOver())
    supervisor.handle(RankEnded(0, -signal.SIGKILL))
    assert supervisor.trouble == Failure((0,))
    assert supervisor.culprit(Failure((0,))) == Culprit(0, True, None)
    assert supervisor.exit_status() == 1


def test_an_interrupt_is_passed_on_before_anything_harder() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(SignalReceived(signal.SIGINT)) == (Tell(signal.SIGINT), Wait(2.0))
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGTERM), Wait(10.0))
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGKILL), Wait(1.0))
    assert supervisor.handle(PatienceOver()) == (Abandon(),)
    assert supervisor.exit_status() == 130


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_terminate(signum: signal.Signals) -> None:
    supervisor = Supervisor(grace=3.0)
    assert supervisor.handle(SignalReceived(signum)) == (Tell(signal.SIGTERM), Wait(3.0))
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGKILL), Wait(1.0))
    assert supervisor.exit_status() == 128 + signum


def test_a_second_signal_kills_at_once() -> None:
    supervisor = Supervisor()
    supervisor.handle(SignalReceived(signal.SIGINT))
    assert supervisor.handle(SignalReceived(signal.SIGINT)) == (Tell(signal.SIGKILL), Wait(1.0))
    assert supervisor.handle(PatienceOver()) == (Abandon(),)


def test_ranks_that_end_badly_on_our_signal_do_not_change_the_outcome() -> None:
    supervisor = Supervisor()
    supervisor.handle(SignalReceived(signal.SIGTERM))
    assert supervisor.handle(RankEnded(0, -signal.SIGTERM)) == ()
    assert supervisor.exit_status() == 128 + 15


def test_a_launch_that_cannot_go_on_ends_its_ranks() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(Broken("no space")) == (Tell(signal.SIGTERM), Wait(10.0))
    assert supervisor.exit_status() == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "exit status 3"), (-9, "killed by SIGKILL"), (-60, "killed by signal 60")],
)
def test_a_status_is_told_in_words(status: int, words: str) -> None:
    assert describe_status(status) == words


def test_ranks_may_fail_as_long_as_the_least_number_is_left() -> None:
    supervisor = Supervisor(4, least=2)
    assert supervisor.handle(RankEnding(3, failing=True)) == ()
    assert supervisor.handle(RankEnded(3, 1)) == ()
    assert supervisor.handle(RankEnded(0, 0)) == ()
    assert supervisor.handle(RankEnded(2, -9)) == ()
    assert supervisor.trouble is None
    assert supervisor.exit_status() == 0


def test_when_fewer_than_the_least_number_are_left_the_first_that_failed_is_to_blame() -> None:
    supervisor = Supervisor(3, least=2)
    assert supervisor.handle(RankEnded(2, 4)) == ()
    assert supervisor.handle(RankEnded(0, 5)) == (Wait(2.0),)
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGTERM, spare=(2, 0)), Wait(10.0))
    assert supervisor.exit_status() == 4


# ---------------------------------------------------------------- who failed first


def left(rank: int) -> Blamed:
    return Blamed(rank, True, "left", f"rank {rank} left the job")


def culprit(supervisor: Supervisor) -> Culprit:
    assert isinstance(supervisor.trouble, Failure)
    return supervisor.culprit(supervisor.trouble)


def test_a_rank_that_left_early_and_ended_well_is_blamed_by_those_that_failed_of_it() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnding(2, failing=False))
    supervisor.handle(RankEnded(2, 0))
    supervisor.handle(RankFails(0, left(2)))
    supervisor.handle(RankFails(1, left(2)))
    supervisor.handle(RankEnding(1, failing=True))
    supervisor.handle(RankEnded(1, 1))
    supervisor.handle(RankEnded(0, 1))
    found = culprit(supervisor)
    assert found == Culprit(2, True, 0, left(2), victim=(1, 1))
    assert describe(found, "host a, pid 3") == (
        "it left the job before the others were done, with exit status 0 (host a, pid 3)"
    )
    assert supervisor.exit_status() == 1


def test_a_rank_that_left_early_and_runs_on_is_blamed() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnding(2, failing=False))
    supervisor.handle(RankFails(0, left(2)))
    supervisor.handle(RankEnded(0, 5))
    supervisor.handle(PatienceOver())
    supervisor.handle(PatienceOver())
    supervisor.handle(RankEnded(2, -signal.SIGKILL))
    found = culprit(supervisor)
    assert (found.rank, found.status, found.victim) == (2, None, (0, 5))
    assert "and did not end by itself" in describe(found, "")
    assert supervisor.exit_status() == 5


def test_blame_is_followed_to_the_first_of_a_chain() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankFails(0, Blamed(1, True, "left", "")))
    supervisor.handle(RankFails(1, Blamed(2, True, "dead", "")))
    supervisor.handle(RankEnded(0, 4))
    supervisor.handle(RankEnded(1, 5))
    supervisor.handle(RankEnded(2, -9))
    assert culprit(supervisor).rank == 2
    assert supervisor.exit_status() == 137


def test_of_ranks_that_blame_each_other_the_first_that_failed_is_named() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankFails(0, Blamed(1, True, "unreachable", "")))
    supervisor.handle(RankFails(1, Blamed(0, True, "unreachable", "")))
    supervisor.handle(RankEnded(1, 5))
    supervisor.handle(RankEnded(0, 4))
    assert culprit(supervisor) == Culprit(1, True, 5)


def test_a_rank_of_another_launch_is_named_as_the_survivors_say() -> None:
    supervisor = Supervisor()
    of = Blamed(7, False, "dead", "rank 7 (host b, pid 9) is dead: killed by SIGKILL")
    supervisor.handle(RankFails(0, of))
    supervisor.handle(RankEnded(0, 1))
    found = culprit(supervisor)
    assert (found.rank, found.is_here, found.status) == (7, False, None)
    assert describe(found, "") == of.text
    assert supervisor.exit_status() == 1


def test_a_rank_that_was_lost_alive_and_then_ended_by_us_is_described_as_its_peers_saw_it() -> None:
    supervisor = Supervisor()
    of = Blamed(2, True, "paused", "rank 2 (host a, pid 9) is paused: its process is stopped")
    supervisor.handle(RankFails(0, of))
    supervisor.handle(RankEnded(0, 1))
    supervisor.handle(PatienceOver())
    supervisor.handle(RankEnded(2, -signal.SIGTERM))
    assert describe(culprit(supervisor), "") == of.text


def test_a_loss_that_a_rank_went_on_without_is_not_blamed_for_what_fails_later() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankFails(0, left(2)))
    supervisor.handle(RankFails(0, None))
    supervisor.handle(RankEnded(2, 0))
    supervisor.handle(RankEnded(0, 3))
    assert culprit(supervisor) == Culprit(0, True, 3)
