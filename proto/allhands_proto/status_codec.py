"""Conversion of statuses to and from protobuf messages."""

from allhands_proto.statuses import (
    FailureStatus,
    GroupStatus,
    GroupWaits,
    LatenessStatus,
    OperationStatus,
    RankWaits,
    WaitPeriod,
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


def encode_waits(waits: GroupWaits) -> wire.GroupWaits:
    return wire.GroupWaits(
        group=waits.group,
        calls=waits.calls,
        ranks=map(_encode_rank_waits, waits.ranks),
        periods=[
            wire.WaitPeriod(
                ago=one.ago,
                length=one.length,
                calls=one.calls,
                skew=one.skew,
                worst=one.worst,
                late=map(_encode_rank_waits, one.late),
            )
            for one in waits.periods
        ],
    )


def decode_waits(message: wire.GroupWaits) -> GroupWaits:
    return GroupWaits(
        message.group,
        message.calls,
        tuple(map(_decode_rank_waits, message.ranks)),
        tuple(
            WaitPeriod(
                one.ago,
                one.length,
                one.calls,
                one.skew,
                one.worst,
                tuple(map(_decode_rank_waits, one.late)),
            )
            for one in message.periods
        ),
    )


def _encode_rank_waits(waits: RankWaits) -> wire.RankWaits:
    return wire.RankWaits(
        rank=waits.rank, last=waits.last, caused=waits.caused, waited=waits.waited
    )


def _decode_rank_waits(message: wire.RankWaits) -> RankWaits:
    return RankWaits(message.rank, message.last, message.caused, message.waited)


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
