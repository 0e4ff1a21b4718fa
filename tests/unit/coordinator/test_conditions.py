"""Conditions of silent ranks, as a worker reads them."""

from allhands.coordinator.conditions import list_conditions
from allhands_proto.v1 import coordinator_pb2 as wire


def test_ranks_without_details_get_a_text_with_their_process_and_time() -> None:
    full = wire.AbsentRank(rank=1, state="paused", text="rank 1 is paused: so it is", pid=5)
    told = wire.Conditions(
        told=[wire.Condition(rank=1, absent=full, seconds=2.5), wire.Condition(rank=2)],
        silent=[
            wire.SilentRanks(state="stalled", ranks=[3, 4], seconds=[3.0, 4.5]),
            wire.SilentRanks(state="unreachable", ranks=[5], seconds=[2.0]),
        ],
        heard_again=[6],
    )
    found = list_conditions(told, lambda rank: f"rank {rank} (host h, pid {rank})")
    assert [(one.rank, one.found and one.found.state, one.seconds) for one in found] == [
        (1, "paused", 2.5),
        (2, None, 0.0),
        (3, "stalled", 3.0),
        (4, "stalled", 4.5),
        (5, "unreachable", 2.0),
        (6, None, 0.0),
    ]
    texts = [one.found.text for one in found if one.found]
    assert texts == [
        "rank 1 is paused: so it is",
        "rank 3 (host h, pid 3) is stalled: its last heartbeat is 3.0 s ago",
        "rank 4 (host h, pid 4) is stalled: its last heartbeat is 4.5 s ago",
        "rank 5 (host h, pid 5) is unreachable from the coordinator: "
        "its last heartbeat is 2.0 s ago",
    ]
