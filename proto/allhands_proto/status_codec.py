"""Conversion of statuses to and from protobuf messages."""

from allhands_proto.statuses import (
    FailureStatus,
    GroupStatus,
    LatenessStatus,
    OperationStatus,
)
from allhands_proto.v1 import coordinator_pb2 as wire


def decode_operation(message: wire.Progress) -> OperationStatus:
    return OperationStatus(
        message.group, message.operation, message.sequence, message.completed, message.elapsed
    )


def encode_lateness(lateness: LatenessStatus) -> wire.Lateness:
    return wire.Lateness(
        group=lateness.group,
        calls=lateness.calls,
        median=lateness.median,
        worst=lateness.worst,
        last=lateness.last,
    )


def decode_lateness(message: wire.Lateness) -> LatenessStatus:
    return LatenessStatus(message.group, message.calls, message.median, message.worst, message.last)


def encode_group(group: GroupStatus) -> wire.Group:
    return wire.Group(group=group.group, ranks=group.ranks)


def decode_group(message: wire.Group) -> GroupStatus:
    return GroupStatus(message.group, tuple(message.ranks))


def encode_failure(failure: FailureStatus) -> wire.Failure:
    return wire.Failure(
        rank=failure.rank,
        state=failure.state,
        text=failure.text,
        seconds=failure.seconds,
        traceback=failure.traceback,
    )


def decode_failure(message: wire.Failure) -> FailureStatus:
    return FailureStatus(
        message.rank, message.state, message.text, message.seconds, message.traceback
    )
