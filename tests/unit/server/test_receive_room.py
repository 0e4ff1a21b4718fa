"""Room for messages of gRPC calls: shares of parties, turns, and who makes room."""

from dataclasses import dataclass

from allhands_server.rpc.receive_room import GRACE_SECONDS, STREAM_GRACE_SECONDS, ReceiveRoom


@dataclass(frozen=True)
class Call:
    name: str
    party: str = "one"
    connection: str = "one:1"
    grace: float = GRACE_SECONDS


def fill(room: ReceiveRoom[Call], *calls: Call, now: float = 0.0) -> list[bool]:
    return [room.request(call, now) for call in calls]


def name_calls(count: int, party: str = "one", connection: str = "") -> list[Call]:
    return [Call(f"{party}-{number}", party, connection or party) for number in range(count)]


def test_a_party_takes_half_of_the_room_and_leaves_room_to_others() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(8, 100)
    assert fill(room, *name_calls(200)) == [True] * 4 + [False] * 196
    assert fill(room, *name_calls(3, "two")) == [True, True, False]
    assert fill(room, *name_calls(2, "three")) == [True, False]
    assert fill(room, Call("a", "four")) == [True]
    assert fill(room, Call("a", "five")) == [False]
    assert len(room) == room.most


def test_a_call_behind_others_of_its_party_waits_though_there_is_room() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(2, 100)
    first, second, third = name_calls(3)
    assert fill(room, first, second) == [True, False]
    room.discard(first)
    assert fill(room, third) == [False]
    assert room.admit(0.0) == second


def test_parties_take_turns_and_in_each_its_connections() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(2, 100)
    begun = Call("begun")
    fill(room, begun)
    flood = name_calls(3, connection="one:1")
    other = Call("other", connection="one:2")
    of_two = name_calls(3, "two")
    assert fill(room, *flood, other, *of_two) == [False, False, False, False, True, False, False]
    admitted: list[Call] = []
    over = [begun, of_two[0]]
    while over:
        room.discard(over.pop(0))
        while (call := room.admit(0.0)) is not None:
            admitted.append(call)
            over.append(call)
    assert [call for call in admitted if call.party == "one"] == [flood[0], other, *flood[1:]]
    assert [call.party for call in admitted[:4]] == ["one", "two", "one", "two"]
    assert (room.waiting_count, len(room)) == (0, 0)


def test_nobody_makes_room_unless_a_call_waits() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(4, 100)
    calls = name_calls(3)
    fill(room, *calls[:2])
    assert room.list_slow(100.0) == []
    fill(room, calls[2], now=GRACE_SECONDS)
    assert room.list_slow(GRACE_SECONDS - 0.01) == []
    assert room.list_slow(GRACE_SECONDS) == [calls[0]]


def test_a_stream_has_longer_to_send_its_message() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(4, 100)
    stream, call, other = Call("stream", grace=STREAM_GRACE_SECONDS), Call("call"), Call("other")
    fill(room, stream, call, other)
    assert room.list_slow(GRACE_SECONDS) == [call]
    assert room.list_slow(STREAM_GRACE_SECONDS) == [stream]


def test_the_time_by_which_the_daemon_was_late_does_not_count() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(2, 100)
    slow, other = name_calls(2)
    fill(room, slow, other)
    room.extend(2.0)
    assert room.list_slow(1.0 + GRACE_SECONDS) == []
    assert room.list_slow(2.0 + GRACE_SECONDS) == [slow]


def test_the_slowest_of_who_has_most_room_makes_room() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(4, 100)
    patient = Call("patient", "two")
    flood = name_calls(5)
    fill(room, patient)
    assert fill(room, *flood, now=1.0) == [True, True, False, False, False]
    assert room.list_slow(1.0 + GRACE_SECONDS / 2) == []  # the slow one is not of who has most
    assert room.list_slow(1.0 + GRACE_SECONDS) == [flood[0], patient, flood[1]]


def test_calls_are_forgotten_wherever_they_are() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(2, 100)
    first, second, third = name_calls(3)
    fill(room, first, second, third)
    for call in (second, second, first, first):
        room.discard(call)
    assert (room.waiting_count, len(room)) == (1, 0)
    assert room.admit(0.0) == third
    assert room.admit(0.0) is None
    assert room.has_room(third)


def test_of_too_many_calls_that_wait_one_of_the_largest_party_goes() -> None:
    room: ReceiveRoom[Call] = ReceiveRoom(2, 3)
    fill(room, *name_calls(4))
    assert room.remove_surplus() is None
    fill(room, *name_calls(2, "two"))
    surplus = room.remove_surplus()
    assert surplus is not None
    assert surplus.party == "one"
    assert room.waiting_count == 3
