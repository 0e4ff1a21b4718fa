"""Daemons with one log, in virtual time: take-overs, deposed leaders, a store that is away."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from allhands.testing import virtual_time
from allhands_server.coordinator import Coordinator
from allhands_server.log import journal
from allhands_server.log.change_codec import decode_changes
from allhands_server.log.engine import Slot
from allhands_server.log.errors import LogDamaged
from allhands_server.log.frame import decode_frame
from allhands_server.log.memory import MemoryEngine
from allhands_server.machine.leadership import Term
from allhands_server.machine.member_messages import Join
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import R, Request
from allhands_server.machine.store.keys import Add, Count, Get, Set
from allhands_server.replica import Replica
from allhands_server.session_stream import SessionStream
from support.shared_log import NetworkedEngine

JOIN = Join(
    job="j",
    rank=0,
    world_size=2,
    host="h",
    pid=1,
    address="127.0.0.1:1",
    heartbeat_window=100.0,
    label="",
)


class Daemon:
    """A coordinator with its replica and engine."""

    def __init__(self, shared: MemoryEngine, name: str) -> None:
        self.name = name
        self.engine = NetworkedEngine(shared)
        clock = asyncio.get_running_loop().time
        self.coordinator = Coordinator(clock, has_log=True)
        self.replica = Replica(self.engine, self.coordinator, name, clock)

    @property
    def role(self) -> str:
        assert self.coordinator.leadership is not None
        return self.coordinator.leadership.role

    async def ask(self, request: Request[R], seconds: float = 10.0) -> R:
        return await self.coordinator.ask(request, seconds)

    async def close(self) -> None:
        self.coordinator.close()
        await self.replica.close()

    async def vanish(self) -> None:
        """End without a word to the others, as a killed process does."""
        self.engine.is_away = True
        await self.close()


class Daemons:
    """Three daemons."""

    def __init__(self) -> None:
        self.shared = MemoryEngine()
        self.all = [Daemon(self.shared, name) for name in ("a:1", "b:1", "c:1")]

    async def until_led(self) -> Daemon:
        """Return the daemon that leads, as soon as one does."""
        async with asyncio.timeout(60):
            while True:
                leaders = [one for one in self.all if one.role == "leader"]
                for one in leaders:
                    if not one.engine.is_away:
                        return one
                await asyncio.sleep(0.05)

    async def start_anew(self, name: str) -> Daemon:
        made = Daemon(self.shared, name)
        self.all.append(made)
        return made

    async def vanish(self, daemon: Daemon) -> None:
        self.all.remove(daemon)
        await daemon.vanish()

    async def close(self) -> None:
        for one in self.all:
            await one.close()


def run(scenario: Callable[[Daemons], Awaitable[None]]) -> None:
    """Run a scenario with three daemons in virtual time."""

    async def main() -> None:
        daemons = Daemons()
        try:
            await scenario(daemons)
        finally:
            await daemons.close()

    virtual_time.run(main())


async def refuse(daemon: Daemon, request: Request[R]) -> Refused:
    """Return the daemon's refusal of a request."""
    with pytest.raises(Refused) as raised:
        await daemon.ask(request)
    return raised.value


def test_one_leads_and_the_others_send_clients_there() -> None:
    async def scenario(daemons: Daemons) -> None:
        leader = await daemons.until_led()
        await asyncio.sleep(1)
        assert await leader.ask(Add("j", "n", 1)) == 1
        followers = [one for one in daemons.all if one is not leader]
        for one in followers:
            refusal = (await refuse(one, Add("j", "n", 1))).refusal
            assert (refusal.status, refusal.leader) == (Status.UNAVAILABLE, leader.name)
            assert f"the leader is {leader.name}" in refusal.text
            stream = one.coordinator.join(JOIN)
            assert await hear_end(stream) == refusal
        assert {one.role for one in followers} == {"follower"}

    run(scenario)


async def hear_end(stream: SessionStream) -> object:
    with pytest.raises(Refused) as raised:
        async for _ in stream.iterate_batches():
            pass
    return raised.value.refusal


def test_a_leader_that_vanishes_is_replaced_within_three_seconds_and_nothing_is_lost() -> None:
    async def scenario(daemons: Daemons) -> None:
        for number in range(1, 4):
            leader = await daemons.until_led()
            assert await leader.ask(Add("j", "n", 1)) == number
            assert await leader.ask(Set("j", f"k{number}", b"x")) > 0
            vanished = asyncio.get_running_loop().time()
            await daemons.vanish(leader)
            after = await daemons.until_led()
            assert asyncio.get_running_loop().time() - vanished < 3
            assert await after.ask(Count("j")) == number + 1
            await daemons.start_anew(f"d{number}:1")

    run(scenario)


def test_a_leader_that_goes_in_order_is_replaced_at_once() -> None:
    async def scenario(daemons: Daemons) -> None:
        leader = await daemons.until_led()
        await leader.ask(Set("j", "k", b"x"))
        daemons.all.remove(leader)
        left = asyncio.get_running_loop().time()
        await leader.close()
        after = await daemons.until_led()
        assert asyncio.get_running_loop().time() - left < 0.5
        assert (await after.ask(Get("j", "k"))).value == b"x"

    run(scenario)


def test_a_deposed_leader_acknowledges_nothing_and_sends_sessions_to_the_new_one() -> None:
    async def scenario(daemons: Daemons) -> None:
        old = await daemons.until_led()
        stream = old.coordinator.join(JOIN)
        assert await old.ask(Add("j", "n", 1)) == 1
        old.engine.is_away = True
        writing = asyncio.create_task(old.ask(Add("j", "n", 10), 100))
        waiting = asyncio.create_task(old.ask(Get("j", "later", wait=True), 100))
        new = await daemons.until_led()
        assert new is not old
        assert await new.ask(Add("j", "n", 100)) == 101
        reading = asyncio.create_task(old.ask(Get("j", "n"), 100))
        old.engine.is_away = False
        for task in (writing, waiting, reading):
            with pytest.raises(Refused) as raised:
                await task
            assert raised.value.refusal.status is Status.UNAVAILABLE
        assert await hear_end(stream) == replace((await refuse(old, Count("j"))).refusal)
        await asyncio.sleep(1)
        assert (old.role, (await refuse(old, Count("j"))).refusal.leader) == ("follower", new.name)
        assert (await new.ask(Get("j", "n"))).value == b"101"
        await daemons.vanish(new)
        assert (await (await daemons.until_led()).ask(Get("j", "n"))).value == b"101"

    run(scenario)


def test_a_leader_answers_no_reads_when_its_lease_is_over() -> None:
    async def scenario(daemons: Daemons) -> None:
        leader = await daemons.until_led()
        assert await leader.ask(Add("j", "n", 1)) == 1
        await asyncio.sleep(1)
        leader.engine.is_away = True
        assert (await leader.ask(Get("j", "n"))).value == b"1"
        await asyncio.sleep(1.1)
        reading = asyncio.create_task(leader.ask(Get("j", "n")))
        await asyncio.sleep(0.1)
        assert not reading.done()
        with pytest.raises(Refused, match="the coordinator's log is away"):
            await reading

    run(scenario)


def test_a_late_answer_to_an_append_lets_no_old_reads_out() -> None:
    async def scenario(daemons: Daemons) -> None:
        old = await daemons.until_led()
        assert await old.ask(Add("j", "n", 1)) == 1
        old.engine.answer_delay = 2.8
        writing = asyncio.create_task(old.ask(Add("j", "n", 1)))
        await asyncio.sleep(2.5)
        (new,) = [one for one in daemons.all if one.role == "leader" and one is not old]
        assert await new.ask(Add("j", "n", 1)) == 3
        reading = asyncio.create_task(old.ask(Get("j", "n")))
        for task in (writing, reading):
            with pytest.raises(Refused):
                await task

    run(scenario)


def test_frames_have_the_term_of_their_leader() -> None:
    async def scenario(daemons: Daemons) -> None:
        for _ in range(2):
            leader = await daemons.until_led()
            await leader.ask(Add("j", "n", 1))
            await daemons.vanish(leader)
        await daemons.until_led()
        term, terms = 0, []
        for slot in await daemons.shared.read(1):
            frame = decode_frame(slot.data, slot.index)
            for entry in decode_changes(frame.payload, slot.index):
                if isinstance(entry, Term):
                    term = entry.number
                    terms.append(term)
            assert frame.term == term
        assert terms == [1, 2, 3]

    run(scenario)


def test_without_the_store_requests_are_refused_by_name_and_sessions_stay() -> None:
    async def scenario(daemons: Daemons) -> None:
        leader = await daemons.until_led()
        stream = leader.coordinator.join(JOIN)
        batches = stream.iterate_batches()
        await anext(batches)
        assert await leader.ask(Add("j", "n", 1)) == 1
        for one in daemons.all:
            one.engine.is_away = True
        away = asyncio.get_running_loop().time()
        assert (await leader.ask(Get("j", "n"))).value == b"1"  # within its lease
        refusals = [await refuse(leader, Add("j", "n", 1)), await refuse(leader, Count("j"))]
        assert asyncio.get_running_loop().time() - away < 5
        for one in refusals:
            assert "the coordinator's log is away" in one.refusal.text
        assert "the store does not answer" in refusals[1].refusal.text
        assert await hear_end(leader.coordinator.join(JOIN)) == refusals[1].refusal
        await asyncio.sleep(20)
        for one in daemons.all:
            one.engine.is_away = False
        await asyncio.sleep(5)
        assert await daemons.until_led() is leader
        assert await leader.ask(Add("j", "n", 1)) == 3  # that of unknown outcome was written
        assert await anext(batches)  # probes, and no end

    run(scenario)


def test_a_leader_whose_appends_are_not_answered_goes_on_with_the_same_frame() -> None:
    async def scenario(daemons: Daemons) -> None:
        leader = await daemons.until_led()
        leader.engine.loses_answers = True
        writing = asyncio.create_task(leader.ask(Add("j", "n", 1), 100))
        await asyncio.sleep(0.5)
        leader.engine.loses_answers = False
        assert await writing == 1
        assert (await (await daemons.until_led()).ask(Get("j", "n"))).value == b"1"

    run(scenario)


def test_a_follower_that_was_away_for_long_reads_the_state_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "_LEAST_LOG_NBYTES", 1)
    monkeypatch.setattr("allhands_server.log.leader_journal.LeaderJournal._kept_slots", 3)

    async def scenario(daemons: Daemons) -> None:
        leader = await daemons.until_led()
        behind, other = (one for one in daemons.all if one is not leader)
        behind.engine.is_away = True
        for number in range(40):
            await leader.ask(Set("j", f"k{number}", b"x"))
        await asyncio.sleep(5)
        assert (await daemons.shared.get_bounds())[0] > 20
        behind.engine.is_away = False
        await asyncio.sleep(5)
        assert (await refuse(behind, Count("j"))).refusal.leader == leader.name
        made = await daemons.start_anew("d:1")  # for which the term is in the snapshot alone
        await asyncio.sleep(1)
        assert (await refuse(made, Count("j"))).refusal.leader == leader.name
        await daemons.vanish(made)
        for one in (leader, other):
            await daemons.vanish(one)
        assert await daemons.until_led() is behind
        assert await behind.ask(Count("j")) == 40

    run(scenario)


def test_a_damaged_log_ends_the_daemon() -> None:
    async def scenario(daemons: Daemons) -> None:
        leader = await daemons.until_led()
        last = (await daemons.shared.get_bounds())[1]
        daemons.shared._slots[last] = b"?"
        made = await daemons.start_anew("d:1")
        assert isinstance(await made.coordinator.failure, LogDamaged)
        assert leader.role == "leader"

    run(scenario)


def test_the_log_of_an_idle_leader_has_a_frame_each_half_second() -> None:
    async def scenario(daemons: Daemons) -> None:
        await daemons.until_led()
        begun = (await daemons.shared.get_bounds())[1]
        await asyncio.sleep(10)
        slots: list[Slot] = list(await daemons.shared.read(begun + 1))
        assert 15 <= len(slots) <= 20

    run(scenario)
