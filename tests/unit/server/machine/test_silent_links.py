"""Silent links between living ends: named, survived, or ruled on."""

import pytest

from allhands_server.machine.effects import (
    BrokenLinks,
    MemberLost,
    Notification,
    Probe,
    SilentLinks,
)
from allhands_server.machine.member_messages import Heartbeat, Leave, LinkBroken, LinkSilent
from allhands_server.testing import Transcript


class World:
    """Members of which those named answer every probe at once."""

    def __init__(self, size: int, window: float = 5.0) -> None:
        self.t = Transcript()
        self.sessions = self.t.form_world(size, window=window)
        self.answering = set(range(size))
        self.heard: dict[int, list[tuple[float, Notification]]] = {rank: [] for rank in range(size)}

    def until(self, now: float) -> None:
        """Let time pass in small steps; members beat and answer meanwhile."""
        while self.t.now < now:
            self.listen()
            self.t.advance_to(min(now, self.t.now + 0.05))
        self.listen()

    def listen(self) -> None:
        for rank, session in enumerate(self.sessions):
            if session in self.t.ends:
                continue
            for told in self.t.read_pushed(session):
                self.heard[rank].append((self.t.now, told))
                if isinstance(told, Probe) and rank in self.answering:
                    self.t.send(session, Heartbeat(told.probe))
            if rank in self.answering:
                self.t.send(session, Heartbeat())

    def silent(self, reporter: int, rank: int, seconds: float = 1.0) -> None:
        self.t.send(self.sessions[reporter], LinkSilent(rank, seconds))

    def answers(self, reporter: int, rank: int) -> None:
        self.t.send(self.sessions[reporter], LinkSilent(rank, is_over=True))

    def told(self, rank: int) -> list[SilentLinks | BrokenLinks]:
        return [one for _, one in self.heard[rank] if isinstance(one, SilentLinks | BrokenLinks)]


def test_a_silent_link_is_named_to_all_members_once_both_ends_have_answered() -> None:
    world = World(3)
    world.silent(1, 2)
    world.until(1.0)
    for rank in range(3):
        [told] = world.told(rank)
        assert isinstance(told, SilentLinks)
        assert told == world.told(0)[0]
        assert told.pairs == ((1, 2),)
        [absent] = told.verdict.absent
        assert (absent.rank, absent.state) == (2, "unreachable")
        assert told.verdict.text == (
            "rank 1 (host host2, pid 1002) and rank 2 (host host3, pid 1003) do not reach each "
            "other: nothing has come through between 127.0.0.1:5002 and 127.0.0.1:5003 for 1.3 s, "
            "though the coordinator hears both; calls over this link wait, and fail if that lasts "
            "for 5 s"
        )
    assert f"job j: {told.verdict.text}" in world.t.log
    assert next(at for at, one in world.heard[0] if isinstance(one, SilentLinks)) <= 0.4


def test_links_that_fall_silent_together_are_named_together() -> None:
    world = World(4)
    world.silent(0, 2)
    world.silent(2, 0)
    world.until(0.1)
    world.silent(1, 3)
    world.until(1.0)
    [told] = world.told(0)
    assert told.pairs == ((0, 2), (1, 3))


def test_what_lasts_for_the_window_is_ruled_on_for_all() -> None:
    world = World(3)
    world.silent(1, 2)
    world.until(4.0)
    assert len(world.told(0)) == 1
    world.until(8.0)
    for rank in range(3):
        _, ruling = world.told(rank)
        assert isinstance(ruling, BrokenLinks)
        assert ruling.pairs == ((1, 2),)
        assert "unreachable for rank 1 (host host2, pid 1002): nothing has come through for" in (
            ruling.verdict.text
        )
    [at] = [at for at, one in world.heard[0] if isinstance(one, BrokenLinks)]
    assert 4.0 < at < 5.0  # it had lasted for 1.0 s before


def test_a_link_that_goes_on_in_time_fails_nothing_and_is_said_to_go_on_once() -> None:
    world = World(3)
    world.silent(1, 2)
    world.silent(2, 1)
    world.until(3.0)
    world.answers(1, 2)
    world.until(3.1)
    world.answers(2, 1)
    world.until(12.0)
    for rank in range(3):
        begun, over = world.told(rank)
        assert isinstance(begun, SilentLinks)
        assert not begun.is_over
        assert isinstance(over, SilentLinks)
        assert over.is_over
        assert over.pairs == ((1, 2),)
        assert over.verdict.absent == ()


def test_a_link_that_goes_on_in_one_direction_first_is_not_named_anew() -> None:
    world = World(3)
    world.silent(1, 2)
    world.until(3.0)
    world.answers(1, 2)
    world.until(3.6)
    world.silent(1, 2, 0.5)
    world.until(5.0)
    assert len(world.told(0)) == 1  # neither over, nor named anew, nor ruled on as one silence
    world.answers(1, 2)
    world.until(12.0)
    assert [getattr(one, "is_over", None) for one in world.told(0)] == [False, True]


def test_a_link_that_answers_while_it_is_being_ruled_on_is_spared() -> None:
    world = World(2)
    world.silent(0, 1)
    world.until(4.4)  # due at 4.0, looked at 0.3 s later, ruled on 0.3 s after that
    world.answers(0, 1)
    world.until(12.0)
    assert not any(isinstance(one, BrokenLinks) for one in world.told(0))


def test_who_does_not_answer_the_coordinator_either_is_in_no_silent_link() -> None:
    world = World(3)
    world.answering.discard(2)
    world.silent(1, 2)
    world.until(8.0)
    assert world.told(0) == []
    lost = [one for _, one in world.heard[0] if isinstance(one, MemberLost)]
    assert [one.rank for one in lost] == [2]


@pytest.mark.parametrize(
    ("back", "heard"),
    [pytest.param(2.95, 3.2, id="long after"), pytest.param(0.25, 0.45, id="just before the look")],
)
def test_who_was_held_up_and_comes_back_is_given_time_to_answer_its_peers(
    back: float, heard: float
) -> None:
    world = World(3)
    world.answering.discard(2)
    world.silent(1, 2)
    world.until(back)
    world.answering.add(2)
    world.until(heard)
    world.answers(1, 2)
    world.until(8.0)
    assert world.told(0) == []


def test_a_rank_held_up_for_longer_than_the_window_of_a_link_is_not_ruled_unreachable() -> None:
    world = World(3, window=5.0)
    world.answering.discard(2)
    world.silent(1, 2, 4.0)  # due before the member itself is judged
    world.until(2.0)
    world.answering.add(2)
    world.until(2.25)
    world.answers(1, 2)
    world.until(9.0)
    assert world.told(0) == []


def test_a_member_that_goes_explains_its_silent_links() -> None:
    world = World(3)
    world.silent(1, 2)
    world.t.send(world.sessions[2], Leave())
    world.until(8.0)
    assert world.told(0) == []


def test_links_that_are_ruled_on_already_are_not_named_again() -> None:
    world = World(3)
    world.t.send(world.sessions[1], LinkBroken(2, "reset"))
    world.silent(1, 2)
    world.until(1.0)
    world.silent(1, 2)
    world.until(8.0)
    assert [type(one) for one in world.told(0)].count(BrokenLinks) == 1


@pytest.mark.parametrize("rank", [-1, 1, 7])
@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_silence_of_oneself_or_of_nobody_means_nothing(rank: int, seconds: float) -> None:
    world = World(3)
    world.silent(1, rank, seconds)
    world.answers(1, rank)
    world.until(8.0)
    assert world.told(0) == []


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_any_number_of_seconds_is_taken(seconds: float) -> None:
    world = World(3)
    world.silent(1, 2, seconds)
    world.until(8.0)
    assert [type(one) for one in world.told(0)][-1] is BrokenLinks
