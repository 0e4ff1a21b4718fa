"""Conditions of silent ranks, as the coordinator tells them."""

from collections.abc import Callable
from typing import cast

from allhands.verdicts import AbsentRank
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdict_codec import decode_absent_rank
from allhands_proto.verdicts import State


@dataclass(frozen=True, slots=True)
class RankCondition:
    """A rank that is silent towards the coordinator though it lives, or is heard again."""

    rank: int
    found: AbsentRank | None
    """None: it is heard again."""
    seconds: float
    """For which it has been silent, or had been; 0: not known."""


def decode_condition(told: wire.Condition) -> RankCondition:
    found = decode_absent_rank(told.absent) if told.HasField("absent") else None
    return RankCondition(told.rank, found, told.seconds)


def list_conditions(
    told: wire.Conditions, describe_rank: Callable[[int], str]
) -> list[RankCondition]:
    """List the conditions of a message; those without a text get one."""
    found = [decode_condition(one) for one in told.told]
    for silent in told.silent:
        state = cast(State, silent.state)
        said = "unreachable from the coordinator" if state == "unreachable" else state
        for rank, seconds in zip(silent.ranks, silent.seconds, strict=False):
            text = f"{describe_rank(rank)} is {said}: its last heartbeat is {seconds:.1f} s ago"
            found.append(
                RankCondition(rank, AbsentRank(rank, state, text, elapsed=seconds), seconds)
            )
    found += [RankCondition(rank, None, 0.0) for rank in told.heard_again]
    return found
