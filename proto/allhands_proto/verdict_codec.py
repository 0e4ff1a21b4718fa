"""Conversion of verdicts to and from protobuf messages."""

from typing import cast

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdicts import AbsentRank, CallCancellation, State, Verdict


def encode_absent_rank(absent: AbsentRank) -> wire.AbsentRank:
    return wire.AbsentRank(
        rank=absent.rank,
        host=absent.host,
        pid=absent.pid,
        state=absent.state,
        text=absent.text,
        sequence=absent.sequence,
        operation=absent.operation,
        elapsed=absent.elapsed,
        group=absent.group,
        exit_status=absent.exit_status,
        signal=absent.signal,
        stack=absent.stack,
        section=absent.section,
    )


def decode_absent_rank(message: wire.AbsentRank) -> AbsentRank:
    return AbsentRank(
        rank=message.rank,
        state=cast(State, message.state),
        text=message.text,
        host=message.host,
        pid=message.pid,
        elapsed=message.elapsed,
        operation=message.operation,
        sequence=message.sequence,
        group=message.group,
        exit_status=message.exit_status if message.HasField("exit_status") else None,
        signal=message.signal if message.HasField("signal") else None,
        stack=message.stack,
        section=message.section,
    )


def encode_verdict(verdict: Verdict) -> wire.Verdict:
    return wire.Verdict(
        group=verdict.group,
        sequence=verdict.sequence,
        operation=verdict.operation,
        absent=map(encode_absent_rank, verdict.absent),
        text=verdict.text,
    )


def decode_verdict(message: wire.Verdict) -> Verdict:
    return Verdict(
        group=message.group,
        sequence=message.sequence,
        operation=message.operation,
        absent=tuple(map(decode_absent_rank, message.absent)),
        text=message.text,
    )


def encode_cancellation(
    group: str, sequence: int, cancellation: CallCancellation
) -> wire.CallCancelled:
    return wire.CallCancelled(
        group=group,
        sequence=sequence,
        rank=cancellation.rank,
        by=cancellation.by,
        reason=cancellation.reason,
    )


def decode_cancellation(message: wire.CallCancelled) -> CallCancellation:
    return CallCancellation(message.rank, message.by, message.reason)
