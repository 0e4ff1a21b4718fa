"""Point-to-point messages of a group: matched by MPI's rules, at every size."""

from collections.abc import AsyncIterator
from itertools import pairwise

import numpy as np
import pytest

from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CollectiveMismatch, CollectiveTimeout, PeerFailed
from allhands.testing.inproc_world import InprocWorld, inproc_world, wait_outcomes, wait_results

SMALL, LARGE = 2, 150
"""Elements of a message that goes unasked, and of one in many frames, in a miniature world."""

pytestmark = pytest.mark.usefixtures("miniature")


@pytest.fixture
async def three() -> AsyncIterator[InprocWorld]:
    async with inproc_world(3) as world:
        yield world


def message(number: int, length: int = SMALL) -> np.ndarray:
    return np.arange(length) + 1000 * number


def room(length: int = SMALL) -> np.ndarray:
    return np.full(length, -1)


async def test_a_message_arrives_whole_whoever_is_first(three: InprocWorld) -> None:
    sender, receiver, _ = three.groups
    for length in (0, 1, SMALL, 5, 8, LARGE):
        x, first, second = message(1, length), room(length), room(length)
        early = receiver.recv(first, 0)
        await wait_results([sender.send(x, 1), early])
        late = sender.send(x, 1)
        await three.run_until_idle()
        got = receiver.recv(second, 0)
        assert await wait_results([late, got]) == [x, second]
        np.testing.assert_array_equal(first, x)
        np.testing.assert_array_equal(second, x)
        assert early.source_rank() == got.source_rank() == 0


async def test_any_shape_and_dtype_travels(three: InprocWorld) -> None:
    x = np.array([["a", "bcd"], ["ef", ""]])
    y = np.zeros((2, 2), x.dtype)
    await wait_results([three.groups[0].send(x[::-1], 1), three.groups[1].recv(y, 0)])
    np.testing.assert_array_equal(y, x[::-1])


async def test_a_small_send_ends_without_a_receive_and_a_large_one_does_not(
    three: InprocWorld,
) -> None:
    sender, receiver, _ = three.groups
    small, large = sender.send(message(1), 1, tag=1), sender.send(message(2, LARGE), 1, tag=2)
    await three.run_until_idle()
    assert small.is_success()
    assert not large.is_completed()
    await wait_results(
        [large, receiver.recv(room(LARGE), 0, tag=2), receiver.recv(room(), 0, tag=1)]
    )


@pytest.mark.parametrize("receives_first", [False, True])
async def test_messages_of_one_tag_keep_their_order_large_and_small(
    three: InprocWorld, receives_first: bool
) -> None:
    sender, receiver, _ = three.groups
    lengths = [LARGE, SMALL, SMALL, LARGE, 0, LARGE, SMALL]
    rooms = [room(length) for length in lengths]

    def receive() -> list[Work]:
        return [receiver.recv(one, 0) for one in rooms]

    receives = receive() if receives_first else []
    sends = [sender.send(message(number, length), 1) for number, length in enumerate(lengths)]
    await three.run_until_idle()
    await wait_results([*(receives or receive()), *sends])
    for number, (one, length) in enumerate(zip(rooms, lengths, strict=True)):
        np.testing.assert_array_equal(one, message(number, length))


async def test_more_small_messages_than_may_go_unasked_arrive_in_order(three: InprocWorld) -> None:
    sender, receiver, _ = three.groups
    sends = [sender.send(message(number), 1) for number in range(100)]
    await three.run_until_idle()
    assert not all(work.is_completed() for work in sends)
    rooms = [room() for _ in range(100)]
    await wait_results([*sends, *(receiver.recv(one, 0) for one in rooms)])
    assert [one[0] for one in rooms] == [1000 * number for number in range(100)]


async def test_tags_are_told_apart(three: InprocWorld) -> None:
    sender, receiver, _ = three.groups
    for length in (SMALL, LARGE):
        rooms = [room(length) for _ in range(3)]
        works = [sender.send(message(tag, length), 1, tag=tag) for tag in (0, 1, 2**31 - 1)]
        for tag, one in zip((2**31 - 1, 0, 1), rooms, strict=True):
            works.append(receiver.recv(one, 0, tag=tag))
        await wait_results(works)
        for tag, one in zip((2**31 - 1, 0, 1), rooms, strict=True):
            np.testing.assert_array_equal(one, message(tag, length))


async def test_groups_are_told_apart(three: InprocWorld) -> None:
    pair = three.open_group("pair", [1, 0])
    ours, theirs = room(), room()
    await wait_results(
        [
            three.groups[0].send(message(1), 1),
            pair[1].send(message(2), 0),
            pair[0].recv(theirs, 1),
            three.groups[1].recv(ours, 0),
        ]
    )
    assert (ours[0], theirs[0]) == (1000, 2000)


async def test_an_open_receive_takes_from_whoever_sends_and_tells_who(three: InprocWorld) -> None:
    receiver = three.groups[0]
    for length in (SMALL, LARGE):
        rooms = [room(length) for _ in range(2)]
        receives = [receiver.recv(one) for one in rooms]
        await wait_results([three.groups[2].send(message(2, length), 0), receives[0]])
        await wait_results([three.groups[1].send(message(1, length), 0), receives[1]])
        assert [work.source_rank() for work in receives] == [2, 1]
        for number, one in zip((2, 1), rooms, strict=True):
            np.testing.assert_array_equal(one, message(number, length))


async def test_a_message_goes_to_the_first_receive_that_fits(three: InprocWorld) -> None:
    receiver = three.groups[0]
    from_two, open_one, from_one = room(), room(), room()
    receives = [receiver.recv(from_two, 2), receiver.recv(open_one), receiver.recv(from_one, 1)]
    await wait_results(
        [
            *(three.groups[1].send(message(number), 0) for number in (1, 2)),
            three.groups[2].send(message(3), 0),
            *receives,
        ]
    )
    assert [one[0] for one in (from_two, open_one, from_one)] == [3000, 1000, 2000]


async def test_both_may_send_first(three: InprocWorld) -> None:
    for length in (SMALL, LARGE):
        rooms = [room(length) for _ in range(2)]
        sends = [three.groups[rank].send(message(rank, length), 1 - rank) for rank in range(2)]
        await three.run_until_idle()
        receives = [three.groups[rank].recv(rooms[rank], 1 - rank) for rank in range(2)]
        await wait_results([*sends, *receives])
        np.testing.assert_array_equal(rooms[0], message(1, length))
        np.testing.assert_array_equal(rooms[1], message(0, length))


async def test_messages_and_collectives_do_not_wait_for_each_other(three: InprocWorld) -> None:
    receive = three.groups[1].recv(room(), 0)
    await three.call_on_all(lambda group: group.barrier())
    barrier = three.groups[0].barrier()
    await wait_results([three.groups[0].send(message(1), 1), receive])
    assert not barrier.is_completed()
    await wait_results([barrier, *(group.barrier() for group in three.groups[1:])])


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(("length", "larger"), [(SMALL, SMALL + 1), (LARGE, LARGE + 1), (1, LARGE)])
async def test_a_message_of_another_size_is_a_mismatch_and_the_next_one_fits(
    three: InprocWorld, length: int, larger: int
) -> None:
    sender, receiver, _ = three.groups
    for sent, wanted in ((length, larger), (larger, length)):
        into = room(wanted)
        send = sender.send(message(1, sent), 1, tag=5)
        receive = receiver.recv(into, 0, tag=5)
        told, error = await wait_outcomes([send, receive])
        assert isinstance(error, CollectiveMismatch)
        assert error.table == {0: f"message(int64[{sent}])", 1: f"message(int64[{wanted}])"}
        np.testing.assert_array_equal(into, room(wanted))
        if sent > 4:  # it waited to be asked for, so its sender learns it as well
            assert isinstance(told, CollectiveMismatch)
            assert told.table == error.table
        await wait_results([sender.send(message(2), 1, tag=5), receiver.recv(room(), 0, tag=5)])


async def test_a_message_of_another_dtype_is_a_mismatch(three: InprocWorld) -> None:
    for length in (SMALL, LARGE):
        into = np.zeros(length)
        *_, error = await wait_outcomes(
            [three.groups[0].send(message(1, length), 1), three.groups[1].recv(into, 0)]
        )
        assert isinstance(error, CollectiveMismatch)
        assert error.table == {0: f"message(int64[{length}])", 1: f"message(float64[{length}])"}
        assert not into.any()


async def test_a_receive_that_nobody_serves_times_out_by_name(three: InprocWorld) -> None:
    receiver = three.groups[0]
    named, anybody = await wait_outcomes(
        [receiver.recv(room(), 2, timeout=0.02), receiver.recv(room(), tag=3, timeout=0.02)]
    )
    assert isinstance(named, CollectiveTimeout)
    assert named.missing_ranks == (2,)
    assert "recv from rank 2 (tag 0) timed out after 0.02 s, waiting for rank 2" in str(named)
    assert isinstance(anybody, CollectiveTimeout)
    assert "recv from any rank (tag 3)" in str(anybody)


async def test_a_message_that_comes_after_its_receive_timed_out_is_for_the_next(
    three: InprocWorld,
) -> None:
    sender, receiver, _ = three.groups
    for length in (SMALL, LARGE):
        gone, into = room(length), room(length)
        await wait_outcomes([receiver.recv(gone, 0, timeout=0.01)])
        await wait_results([sender.send(message(1, length), 1), receiver.recv(into, 0)])
        np.testing.assert_array_equal(into, message(1, length))
        np.testing.assert_array_equal(gone, room(length))


async def test_a_large_send_that_nobody_takes_times_out_and_is_never_received(
    three: InprocWorld,
) -> None:
    sender, receiver, _ = three.groups
    (error,) = await wait_outcomes([sender.send(message(1, LARGE), 1, timeout=0.02)])
    assert isinstance(error, CollectiveTimeout)
    assert "send to rank 1 (tag 0) timed out after 0.02 s" in str(error)
    into = room(LARGE)
    await wait_results([receiver.recv(into, 0), sender.send(message(2, LARGE), 1)])
    np.testing.assert_array_equal(into, message(2, LARGE))


async def test_a_cancelled_receive_takes_nothing(three: InprocWorld) -> None:
    sender, receiver, _ = three.groups
    cancelled, into = room(), room()
    work = receiver.recv(cancelled)
    work.cancel()
    (error,) = await wait_outcomes([work])
    assert isinstance(error, AllhandsError)
    assert "recv from any rank (tag 0) was cancelled by this rank" in str(error)
    await wait_results([sender.send(message(1), 1), receiver.recv(into)])
    assert (cancelled[0], into[0]) == (-1, 1000)


async def test_a_cancelled_send_is_not_received(three: InprocWorld) -> None:
    sender, receiver, _ = three.groups
    for first in ("send", "receive"):
        into = room(LARGE)
        receives = [receiver.recv(into, 0)] if first == "receive" else []
        work = sender.send(message(1, LARGE), 1)
        work.cancel()
        (error,) = await wait_outcomes([work])
        assert "send to rank 1 (tag 0) was cancelled" in str(error)
        receives = receives or [receiver.recv(into, 0)]
        await wait_results([sender.send(message(2, LARGE), 1), *receives])
        np.testing.assert_array_equal(into, message(2, LARGE))


async def test_a_send_cancelled_half_way_leaves_its_receive_to_the_next_message(
    three: InprocWorld,
) -> None:
    sender, receiver, other = three.groups
    into = room(20_000)
    receive = receiver.recv(into)
    work = sender.send(message(1, 20_000), 1)
    await three.run_until_idle()
    assert into[0] == 1000
    assert not work.is_completed()
    work.cancel()
    await wait_outcomes([work])
    await wait_results([other.send(message(3, 20_000), 1), receive])
    assert receive.source_rank() == 2
    np.testing.assert_array_equal(into, message(3, 20_000))


async def test_messages_to_oneself_or_to_strangers_are_refused(three: InprocWorld) -> None:
    group = three.groups[1]
    for call in (group.send, group.recv):
        with pytest.raises(ValueError, match="this rank itself"):
            call(room(), 1)
        with pytest.raises(ValueError, match="ranks go from 0 to 2"):
            call(room(), 3)
    for tag in (-1, 1 << 31):
        with pytest.raises(ValueError, match="tag must be from 0"):
            group.send(room(), 0, tag)
    with pytest.raises(ValueError, match="timeout"):
        group.recv(room(), 0, timeout=0)


async def test_what_a_peer_sent_before_it_left_can_be_received_and_nothing_after(
    three: InprocWorld,
) -> None:
    leaver, stays, other = three.groups
    await wait_results([leaver.send(message(1), 1), leaver.send(message(2), 1)])
    await three.leave(0)
    rooms = [room(), room(), room()]
    works = [stays.recv(rooms[0], 0), stays.recv(rooms[1]), stays.recv(rooms[2], 0)]
    *_, error = await wait_outcomes(works)
    assert [one[0] for one in rooms] == [1000, 2000, -1]
    assert isinstance(error, PeerFailed)
    assert error.failed_ranks == (0,)
    (error,) = await wait_outcomes([stays.send(message(3), 0)])
    assert isinstance(error, PeerFailed)
    await wait_results([other.send(message(4), 1), stays.recv(rooms[2])])
    assert rooms[2][0] == 4000


async def test_blocked_receives_from_a_peer_that_leaves_end_at_once(three: InprocWorld) -> None:
    named, anybody = three.groups[1].recv(room(), 0), three.groups[1].recv(room(), tag=1)
    await three.run_until_idle()
    await three.leave(0)
    (error,) = await wait_outcomes([named])
    assert isinstance(error, PeerFailed)
    assert not anybody.is_completed()  # rank 2 may still send
    await three.leave(2)
    (error,) = await wait_outcomes([anybody])
    assert isinstance(error, PeerFailed)


async def test_a_failed_peer_ends_messages_with_anybody(three: InprocWorld) -> None:
    works = [three.groups[0].recv(room(), 1), three.groups[0].send(message(1, LARGE), 2)]
    await three.run_until_idle()
    await three.fail(2)
    for error in await wait_outcomes([*works, three.groups[0].recv(room(), 1)]):
        assert isinstance(error, PeerFailed)
        assert error.failed_ranks == (2,)


async def test_hundreds_of_messages_around_a_ring_all_arrive() -> None:
    async with inproc_world(4) as world:
        lengths = [number * 7 % 90 for number in range(60)]
        ring = [*range(4), 0]
        rooms = {rank: [room(length) for length in lengths] for rank in range(4)}
        works: list[Work] = []
        for number, length in enumerate(lengths):
            for here, there in pairwise(ring):
                works.append(world.groups[here].send(message(number + here, length), there))
                works.append(world.groups[there].recv(rooms[there][number], here))
        await wait_results(works)
        for here, there in pairwise(ring):
            for number, length in enumerate(lengths):
                np.testing.assert_array_equal(rooms[there][number], message(number + here, length))
