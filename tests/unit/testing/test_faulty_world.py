"""Worlds under plans of faults, in virtual time: each fault's effect and news."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import allhands as ah
from allhands.collectives.request import CollectiveRequest
from allhands.engine.result_check import ResultCheck
from allhands.group.group import Group
from allhands.testing import COORDINATOR, FaultEvent, FaultyWorld, Plan, faults, faulty_world
from allhands.testing.inproc_world import wait_outcomes
from allhands.testing.virtual_time import run
from allhands.transport.frame import MessageKey

RANKS = 3
SUM = 6.0
TIMEOUT = 10.0
WINDOW = 2.0
"""Of heartbeats."""
LINK = (0, 1)


def story(
    plan: Plan,
    *,
    size: int = RANKS,
    calls: int = 6,
    length: int = 100,
    pause: float = 0.5,
    verify: bool = False,
) -> "Story":
    """Let all ranks repeat all_reduce under a plan; return the outcomes."""

    async def main() -> Story:
        unexpected: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unexpected.append(what))
        told: list[list[object]] = []
        took: list[float] = []
        async with faulty_world(size, plan, timeout=TIMEOUT, verify=verify) as world:
            for _ in range(calls):
                xs = [np.full(length, rank + 1.0) for rank in range(size)]
                begun = world.now()
                works = [group.all_reduce(xs[group.rank]) for group in world.groups]
                ended = await wait_outcomes(works)
                took.append(world.now() - begun)
                told.append([seen(one, x) for one, x in zip(ended, xs, strict=True)])
                await asyncio.sleep(pause)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left
        assert not unexpected
        return Story(told, took, plan.log)

    return run(main())


def seen(outcome: object, x: np.ndarray) -> object:  # type: ignore[type-arg]
    """Return a rank's outcome of a call: the error, or the number in the result."""
    if isinstance(outcome, BaseException):
        return outcome
    return x[0] if (x == x[0]).all() else "different numbers"


class Story:
    def __init__(self, told: list[list[object]], took: list[float], log: list[FaultEvent]) -> None:
        self.told = told
        """What each rank has of each call."""
        self.took = took
        self.log = log

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Story) and vars(self.plain()) == vars(other.plain())

    __hash__ = None  # type: ignore[assignment]

    def plain(self) -> "Story":
        return Story([[str(one) for one in call] for call in self.told], self.took, self.log)

    @property
    def is_exact(self) -> bool:
        return all(call == [SUM] * len(call) for call in self.told)

    def first_failure(self) -> tuple[int, Sequence[object]]:
        return next(
            (at, call)
            for at, call in enumerate(self.told)
            if any(isinstance(one, BaseException) for one in call)
        )

    def errors(self) -> Sequence[BaseException]:
        """Return the ranks' errors in the first failed call."""
        call = self.first_failure()[1]
        assert all(isinstance(one, ah.AllhandsError) or one == SUM for one in call)
        return [one for one in call if isinstance(one, BaseException)]


EVERYTHING: Sequence[Callable[[Plan], Plan]] = [
    lambda plan: plan.delay(0.2, probability=0.3),
    lambda plan: plan.slow(20_000, link=LINK),
    lambda plan: plan.drop(link=LINK, nth=4),
    lambda plan: plan.cut(link=LINK, nth=4),
    lambda plan: plan.duplicate(probability=0.5),
    lambda plan: plan.reorder(probability=0.5),
    lambda plan: plan.flip(probability=0.1),
    lambda plan: plan.partition({0}, {1}, after=1, seconds=2),
    lambda plan: plan.stall(1, after=1, seconds=1),
    lambda plan: plan.kill(1, at=1),
    lambda plan: plan.cut(link=(1, COORDINATOR), nth=4),
    lambda plan: plan.kill(COORDINATOR, at=1),
]


@pytest.mark.parametrize("make", EVERYTHING)
def test_the_same_seed_gives_the_same_log_and_the_same_story(make: Callable[[Plan], Plan]) -> None:
    plan = make(faults(7))
    assert story(plan) == story(make(faults(7))) == story(plan)


def test_without_faults_nothing_takes_time_and_nothing_is_logged() -> None:
    calm = story(faults(7))
    assert calm.is_exact
    assert calm.took == [0.0] * 6
    assert calm.log == []


# ---------------------------------------------------------------- what only takes time


def test_delayed_messages_make_calls_slower_by_so_much() -> None:
    slower = story(faults(7).delay(0.2, link=LINK))
    assert slower.is_exact
    assert slower.took == pytest.approx([0.2] * 6)
    assert {event.kind for event in slower.log} == {"delay"}


def test_a_slow_link_takes_as_long_as_its_bytes() -> None:
    slower = story(faults(7).slow(10_000, link=LINK), length=1000)
    assert slower.is_exact
    assert all(0.8 < took < 0.9 for took in slower.took)


def test_a_partition_that_ends_in_time_is_only_a_wait() -> None:
    parted = story(faults(7).partition({0}, {1}, after=1.0, seconds=3.0))
    assert parted.is_exact
    assert max(parted.took) == pytest.approx(3.0)
    assert [(event.at, event.kind) for event in parted.log] == [
        (1.0, "partition"),
        (4.0, "end of partition"),
    ]


def test_a_stall_shorter_than_the_heartbeat_window_is_only_a_wait() -> None:
    stalled = story(faults(7).stall(1, after=0.9, seconds=1.5))
    assert stalled.is_exact
    assert sum(stalled.took) == pytest.approx(1.4)


# ---------------------------------------------------------------- what ends calls


def test_a_lost_message_ends_its_call_at_the_deadline_and_no_other() -> None:
    lossy = story(faults(7).drop(link=LINK, nth=4))
    at, call = lossy.first_failure()
    assert any(isinstance(one, ah.CollectiveTimeout) for one in call)
    assert TIMEOUT <= lossy.took[at] <= TIMEOUT + 1
    assert lossy.told[at + 1 :] == [[SUM] * RANKS] * (len(lossy.told) - at - 1)


def test_a_partition_that_lasts_for_the_window_ends_calls_with_who_cannot_be_reached() -> None:
    parted = story(faults(7).partition({0}, {1}, after=1.0), calls=4)
    at, _ = parted.first_failure()
    errors = parted.errors()
    assert WINDOW <= parted.took[at] <= WINDOW + 3 < TIMEOUT
    for error in errors:
        assert isinstance(error, ah.PeerFailed)
        assert error.verdict is not None
        # Of two that cannot reach one another the higher rank is named, to all alike.
        assert [(one.rank, one.state) for one in error.verdict.absent] == [(1, "unreachable")]


def test_a_cut_link_is_named_by_both_its_ends() -> None:
    cut = story(faults(7).cut(link=LINK, nth=4))
    first, second, _ = cut.told[-1]
    assert isinstance(first, ah.PeerFailed)
    assert first.failed_ranks == (1,)
    assert isinstance(second, ah.PeerFailed)
    assert second.verdict == first.verdict
    assert "the connection was cut" in str(second)
    assert max(cut.took) <= TIMEOUT + 1


def test_a_stall_longer_than_the_window_costs_the_rank_its_membership() -> None:
    stalled = story(faults(7).stall(1, after=0.9, seconds=5.0))
    at, call = stalled.first_failure()
    # What the others had sent before they gave up is all that it needs; then it hears of its loss.
    assert call[1] == SUM or isinstance(call[1], ah.MembershipChanged)
    assert isinstance(stalled.told[at + 1][1], ah.MembershipChanged)
    for one in (call[0], call[2]):
        assert isinstance(one, ah.PeerFailed)
        assert one.verdict is not None
        assert [(at.rank, at.state) for at in one.verdict.absent] == [(1, "unreachable")]


def test_a_killed_rank_is_known_at_once() -> None:
    killed = story(faults(7).kill(1, at=1.2), pause=0.25)
    at, call = killed.first_failure()
    assert killed.took[at] < 1
    for one in (call[0], call[2]):
        assert isinstance(one, ah.PeerFailed)
        assert one.failed_ranks == (1,)
    assert killed.log == [FaultEvent(1.2, "kill", (1,))]


def test_a_session_that_breaks_is_resumed() -> None:
    broken = story(faults(7).cut(link=(1, COORDINATOR), nth=3))
    assert broken.is_exact
    assert [event.kind for event in broken.log] == ["cut"]


def test_a_killed_coordinator_ends_no_call() -> None:
    assert story(faults(7).kill(COORDINATOR, at=1)).is_exact


def test_who_is_parted_from_the_coordinator_alone_is_lost_for_the_others() -> None:
    parted = story(faults(7).partition({1}, {COORDINATOR}, after=1.0), calls=10)
    _, call = parted.first_failure()
    assert isinstance(call[0], ah.PeerFailed)
    assert call[0].failed_ranks == (1,)


# ---------------------------------------------------------------- what links must not do


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("kind", ["duplicate", "reorder"])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("miniature")
def test_messages_that_come_twice_or_out_of_order_give_no_wrong_number(
    kind: str, seed: int, verify: bool
) -> None:
    plan: Plan = getattr(faults(seed), kind)(probability=0.05)
    told = story(plan, verify=verify, length=150)
    assert plan.log
    for call in told.told:
        assert all(isinstance(one, ah.AllhandsError) or one == SUM for one in call)
    if verify:
        errors = told.errors()
        assert any("the link broke (protocol error: frame" in str(one) for one in errors)


@pytest.mark.parametrize("kind", ["drop", "duplicate", "reorder"])
def test_messages_to_a_point_never_take_the_place_of_others(kind: str) -> None:
    plan: Plan = getattr(faults(), kind)(link=LINK, nth=2)

    async def main() -> list[object]:
        async with faulty_world(2, plan, timeout=TIMEOUT) as world:
            sender, receiver = world.groups
            boxes = [np.zeros(1) for _ in range(4)]
            works = [sender.send(np.full(1, at + 1.0), 1) for at in range(4)]
            await wait_outcomes(works)
            ended = await wait_outcomes([receiver.recv(box, 0) for box in boxes])
            return [seen(one, box) for one, box in zip(ended, boxes, strict=True)]

    received = run(main())
    wanted = [1.0, 2.0, 3.0, 4.0]
    assert received[0] == 1.0
    assert any(isinstance(one, ah.PeerFailed) and "to a point" in str(one) for one in received)
    assert all(
        isinstance(one, ah.AllhandsError) or one == want
        for one, want in zip(received, wanted, strict=True)
    )


# ---------------------------------------------------------------- bits that change


PAYLOAD_BIT = 64 * 8 + 52


def test_without_verify_a_flip_in_the_payload_goes_unseen() -> None:
    wrong = story(faults().flip(link=LINK, nth=3, bit=PAYLOAD_BIT))
    assert "different numbers" in [one for call in wrong.told for one in call]


def test_with_verify_a_flip_names_the_link_on_every_rank_and_the_group_goes_on() -> None:
    found = story(faults().flip(link=LINK, nth=3, bit=PAYLOAD_BIT), verify=True)
    at, call = found.first_failure()
    for one in call:
        assert isinstance(one, ah.DataCorrupted)
        assert (one.link, one.op, one.seq) == (LINK, "all_reduce", at + 1)
        assert one.code == "DATA_LOSS"
    assert found.took == [0.0] * 6
    assert found.told[at + 1 :] == [[SUM] * RANKS] * (len(found.told) - at - 1)


@pytest.mark.parametrize("bit", range(0, 64 * 8, 7))
@pytest.mark.parametrize("verify", [False, True])
def test_a_flip_in_a_header_is_a_named_error_or_none(bit: int, verify: bool) -> None:
    plan = faults().flip(link=LINK, nth=3, bit=bit)
    told = story(plan, verify=verify, calls=4)
    for call in told.told:
        assert all(isinstance(one, ah.AllhandsError) or one == SUM for one in call)
    assert max(told.took) <= TIMEOUT + 1
    if verify:
        # 32 bits further on there may be another frame of the same call.
        assert told.errors()


def test_results_that_differ_name_who_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whose: dict[int, int] = {}
    honest = ResultCheck.compute_digest

    def digest(self: ResultCheck, native: CollectiveRequest) -> int:
        return honest(self, native) + (whose.get(id(native.targets[0].base), 0) == 1)

    monkeypatch.setattr(ResultCheck, "compute_digest", digest)

    async def main() -> list[object]:
        async with faulty_world(RANKS, faults(), verify=True) as world:
            xs = [np.zeros((2, 5)) for _ in range(RANKS)]
            whose.update((id(x), rank) for rank, x in enumerate(xs))
            return await wait_outcomes([group.all_reduce(xs[group.rank]) for group in world.groups])

    for one in run(main()):
        assert isinstance(one, ah.DataCorrupted)
        assert (one.link, one.ranks, one.op, one.seq) == (None, (1,), "all_reduce", 1)


def test_every_collective_passes_on_a_group_that_verifies() -> None:
    async def call(group: Group) -> object:
        rank, size = group.rank, group.size
        x = np.full(4, rank + 1.0)
        out = np.zeros(4 * size)
        wide = np.full(4 * size, rank + 1.0)
        for work in (
            group.broadcast(x, 0),
            group.all_gather_into_tensor(out, x),
            group.reduce_scatter_tensor(x, wide),
            group.all_to_all_single(out, wide),
            group.reduce(x, 1),
            group.gather(x, [np.zeros(4) for _ in range(size)] if rank == 0 else None, 0),
            group.scatter(x, [np.ones(4) for _ in range(size)] if rank == 2 else None, 2),
            group.barrier(),
        ):
            await asyncio.wrap_future(work.get_future())
        return x.tolist()

    async def main() -> list[object]:
        async with faulty_world(RANKS, faults(), verify=True) as world:
            assert all(group.verify for group in world.groups)
            return await asyncio.gather(*map(call, world.groups))

    assert run(main()) == [[1.0] * 4] * RANKS


def test_a_world_of_one_verifies_too() -> None:
    alone = story(faults(), size=1, calls=2, verify=True)
    assert alone.told == [[1.0], [1.0]]


def test_a_group_that_has_been_closed_is_told_nothing_of_late_frames() -> None:
    async def main() -> object:
        async with faulty_world(2, faults(), verify=True) as world:
            first, second = await world.open_group([0, 1])
            works = [group.broadcast(np.zeros(3), 0) for group in (first, second)]
            await wait_outcomes(works)
            worker = world.ranks[1].worker
            await worker.close_group(first.name)
            other = first.submitter.engine.hash
            world.ranks[0].worker._mesh.report_corruption(1, MessageKey(other, 1), LINK)
            await asyncio.sleep(1)
            xs = [np.ones(2), np.ones(2)]
            await wait_outcomes(
                [group.all_reduce(x) for group, x in zip(world.groups, xs, strict=True)]
            )
            return xs[1].tolist()

    assert run(main()) == [2.0, 2.0]


def test_a_message_to_a_point_that_was_changed_breaks_the_link_by_name() -> None:
    async def main(world: FaultyWorld) -> list[object]:
        sender, receiver = world.groups
        box = np.zeros(1)
        return await wait_outcomes([sender.send(np.ones(1), 1), receiver.recv(box, 0)])

    async def under(plan: Plan) -> list[object]:
        async with faulty_world(2, plan, verify=True) as world:
            return await main(world)

    _, received = run(under(faults().flip(link=LINK, bit=PAYLOAD_BIT)))
    assert isinstance(received, ah.PeerFailed)
    assert "changed on its way (digest)" in str(received)
