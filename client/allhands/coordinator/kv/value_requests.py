"""Requests about values without their records, and about queues; see `requests`."""

from collections.abc import Mapping, Sequence

from allhands.coordinator.kv.requests import AnyKvRequest, KvRequest
from allhands.coordinator.kv.values import encode
from allhands_proto.kv_results import CompareSetResult
from allhands_proto.v1 import coordinator_pb2 as wire


def make_get_value(job: str, key: str, wait: bool) -> AnyKvRequest[bytes]:
    message = wire.GetRequest(job=job, key=key, wait=wait)
    return KvRequest(message, wire.GetReply, lambda reply: reply.value)


def make_multi_get(job: str, keys: Sequence[str], wait: bool) -> AnyKvRequest[tuple[bytes, ...]]:
    message = wire.MultiGetRequest(job=job, keys=keys, wait=wait)
    return KvRequest(message, wire.MultiGetReply, lambda reply: tuple(reply.values))


def make_multi_put(job: str, pairs: Mapping[str, bytes | str]) -> AnyKvRequest[int]:
    put = [wire.KeyValue(key=key, value=encode(value)) for key, value in pairs.items()]
    message = wire.MultiSetRequest(job=job, pairs=put)
    return KvRequest(message, wire.MultiSetReply, lambda reply: reply.revision)


def make_compare_set(
    job: str, key: str, expected: bytes | str, desired: bytes | str
) -> AnyKvRequest[CompareSetResult]:
    message = wire.CompareSetRequest(
        job=job, key=key, expected=encode(expected), desired=encode(desired)
    )
    return KvRequest(message, wire.CompareSetReply, _read_compare_set)


def make_add(job: str, key: str, amount: int) -> AnyKvRequest[int]:
    message = wire.AddRequest(job=job, key=key, amount=amount)
    return KvRequest(message, wire.AddReply, lambda reply: reply.value)


def make_queue_push(job: str, key: str, value: bytes | str) -> AnyKvRequest[int]:
    message = wire.QueuePushRequest(job=job, key=key, value=encode(value))
    return KvRequest(message, wire.QueuePushReply, lambda reply: reply.length)


def make_queue_pop(job: str, key: str, wait: bool) -> AnyKvRequest[bytes]:
    message = wire.QueuePopRequest(job=job, key=key, wait=wait)
    return KvRequest(message, wire.QueuePopReply, lambda reply: reply.value)


def make_queue_length(job: str, key: str) -> AnyKvRequest[int]:
    message = wire.QueueLengthRequest(job=job, key=key)
    return KvRequest(message, wire.QueueLengthReply, lambda reply: reply.length)


def _read_compare_set(reply: wire.CompareSetReply) -> CompareSetResult:
    return CompareSetResult(reply.swapped, reply.value if reply.exists else None)
