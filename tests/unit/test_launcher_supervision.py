"""What a launch does about what happens to its ranks, as transcripts."""

import signal

import pytest

from allhands.launcher.supervision import (
    Abandon,
    Broken,
    Failure,
    PatienceOver,
    RankEnded,
    RankEnding,
    SignalReceived,
    Supervisor,
    Tell,
    Wait,
    describe_status,
)


def test_when_all_ranks_end_well_nobody_is_told_anything() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankEnded(0, 0)) == ()
    assert supervisor.handle(RankEnded(1, 0)) == ()
    assert supervisor.exit_status() == 0


def test_after_a_failure_the_others_are_terminated_then_killed() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(RankEnded(1, 3)) == (Tell(signal.SIGTERM, spare=(1,)), Wait(1.5))
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
    assert supervisor.handle(RankEnding(0, failing=True)) == (
        Tell(signal.SIGTERM, spare=(0,)),
        Wait(1.5),
    )
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
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGKILL),)
    supervisor.handle(RankEnded(0, -signal.SIGKILL))
    assert supervisor.exit_status() == 5


def test_a_failing_rank_that_does_not_come_to_its_end_still_fails_the_launch() -> None:
    supervisor = Supervisor()
    supervisor.handle(RankEnding(0, failing=True))
    supervisor.handle(PatienceOver())
    supervisor.handle(RankEnded(0, -signal.SIGKILL))
    assert supervisor.trouble == Failure((0,))
    assert supervisor.culprit(Failure((0,))) == (0, None)
    assert supervisor.exit_status() == 1


def test_an_interrupt_is_passed_on_before_anything_harder() -> None:
    supervisor = Supervisor()
    assert supervisor.handle(SignalReceived(signal.SIGINT)) == (Tell(signal.SIGINT), Wait(2.0))
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGTERM), Wait(1.5))
    assert supervisor.handle(PatienceOver()) == (Tell(signal.SIGKILL), Wait(1.0))
    assert supervisor.handle(PatienceOver()) == (Abandon(),)
    assert supervisor.exit_status() == 130


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_terminate(signum: signal.Signals) -> None:
    supervisor = Supervisor()
    assert supervisor.handle(SignalReceived(signum)) == (Tell(signal.SIGTERM), Wait(1.5))
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
    assert supervisor.handle(Broken("no space")) == (Tell(signal.SIGTERM), Wait(1.5))
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
    assert supervisor.handle(RankEnded(0, 5)) == (Tell(signal.SIGTERM, spare=(2, 0)), Wait(1.5))
    assert supervisor.exit_status() == 4
