"""Conversion of conditions to messages of a bounded size."""

from collections.abc import Iterable, Iterator

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdict_codec import encode_absent_rank
from allhands_server.machine.effects import Condition, Conditions

_IN_FULL = 8
"""Conditions of one message with their texts."""
_STACKS = 4_096
"""Characters of stacks in one message."""


def encode_conditions(conditions: Conditions) -> wire.Conditions:
    """Encode conditions: the first in full, of the others rank, state and time."""
    told = wire.Conditions(more=conditions.more)
    told.told.extend(encode_in_full(conditions.changes[:_IN_FULL]))
    by_state: dict[str, wire.SilentRanks] = {}
    for one in conditions.changes[_IN_FULL:]:
        if one.absent is None:
            told.heard_again.append(one.rank)
            continue
        state = one.absent.state
        if state not in by_state:
            by_state[state] = told.silent.add(state=state)
        by_state[state].ranks.append(one.rank)
        by_state[state].seconds.append(one.seconds)
    return told


def encode_in_full(changes: Iterable[Condition]) -> Iterator[wire.Condition]:
    """Encode conditions with their texts, and with stacks as far as one message may have them."""
    room = _STACKS
    for one in changes:
        told = wire.Condition(rank=one.rank, seconds=one.seconds)
        if one.absent is not None:
            told.absent.CopyFrom(encode_absent_rank(one.absent))
            room -= len(one.absent.stack)
            if room < 0:
                told.absent.ClearField("stack")
        yield told
