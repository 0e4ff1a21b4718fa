"""Key-value calls: conversion from and to messages, for the gRPC and key-value ports.

Both doors use this, so that they cannot differ: the gRPC port and the lines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.values import CompareSetResult
from allhands_server.machine import requests, values
from allhands_server.machine.requests import Request

Q = TypeVar("Q")
A = TypeVar("A")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class KvCall(Generic[Q, A, P]):
    """A kind of call: request message Q, answer A of the machine, reply message P."""

    reply: type[P]
    parse: Callable[[Q], Request[A]]
    fill: Callable[[P, A], int]
    """Write the answer into the empty reply; return about how many bytes it takes."""


_SMALL = 16


def _parse_set(message: wire.SetRequest) -> requests.Set:
    return requests.Set(message.job, message.key, message.value)


def _fill_set(reply: wire.SetReply, revision: int) -> int:
    reply.revision = revision
    return _SMALL


def _parse_get(message: wire.GetRequest) -> requests.Get:
    return requests.Get(message.job, message.key, message.wait)


def _fill_get(reply: wire.GetReply, found: values.Entry) -> int:
    reply.value = found.value
    reply.revision = found.revision
    return _SMALL + len(found.value)


def _parse_wait(message: wire.WaitRequest) -> requests.Wait:
    return requests.Wait(message.job, tuple(message.keys))


def _fill_wait(reply: wire.WaitReply, _: None) -> int:
    return _SMALL


def _parse_add(message: wire.AddRequest) -> requests.Add:
    return requests.Add(message.job, message.key, message.amount)


def _fill_add(reply: wire.AddReply, total: int) -> int:
    reply.value = total
    return _SMALL


def _parse_compare_set(message: wire.CompareSetRequest) -> requests.CompareSet:
    return requests.CompareSet(message.job, message.key, message.expected, message.desired)


def _fill_compare_set(reply: wire.CompareSetReply, found: CompareSetResult) -> int:
    reply.swapped = found.swapped
    if found.value is None:
        return _SMALL
    reply.exists = True
    reply.value = found.value
    return _SMALL + len(found.value)


def _parse_append(message: wire.AppendRequest) -> requests.Append:
    return requests.Append(message.job, message.key, message.value)


def _fill_append(reply: wire.AppendReply, length: int) -> int:
    reply.length = length
    return _SMALL


def _parse_multi_set(message: wire.MultiSetRequest) -> requests.MultiSet:
    return requests.MultiSet(message.job, tuple((pair.key, pair.value) for pair in message.pairs))


def _fill_multi_set(reply: wire.MultiSetReply, revision: int) -> int:
    reply.revision = revision
    return _SMALL


def _parse_multi_get(message: wire.MultiGetRequest) -> requests.MultiGet:
    return requests.MultiGet(message.job, tuple(message.keys), message.wait)


def _fill_multi_get(reply: wire.MultiGetReply, found: tuple[bytes, ...]) -> int:
    reply.values.extend(found)
    return sum(_SMALL + len(value) for value in found)


def _parse_delete(message: wire.DeleteRequest) -> requests.Delete:
    return requests.Delete(message.job, message.key)


def _fill_delete(reply: wire.DeleteReply, deleted: bool) -> int:
    reply.deleted = deleted
    return _SMALL


def _parse_list(message: wire.ListRequest) -> requests.ListKeys:
    return requests.ListKeys(message.job, message.prefix)


def _fill_list(reply: wire.ListReply, keys: tuple[str, ...]) -> int:
    reply.keys.extend(keys)
    return sum(_SMALL + len(key) for key in keys)


def _parse_count(message: wire.CountRequest) -> requests.Count:
    return requests.Count(message.job)


def _fill_count(reply: wire.CountReply, count: int) -> int:
    reply.count = count
    return _SMALL


def _parse_queue_push(message: wire.QueuePushRequest) -> requests.QueuePush:
    return requests.QueuePush(message.job, message.key, message.value)


def _fill_queue_push(reply: wire.QueuePushReply, length: int) -> int:
    reply.length = length
    return _SMALL


def _parse_queue_pop(message: wire.QueuePopRequest) -> requests.QueuePop:
    return requests.QueuePop(message.job, message.key, message.wait)


def _fill_queue_pop(reply: wire.QueuePopReply, value: bytes) -> int:
    reply.value = value
    return _SMALL + len(value)


def _parse_queue_length(message: wire.QueueLengthRequest) -> requests.QueueLength:
    return requests.QueueLength(message.job, message.key)


def _fill_queue_length(reply: wire.QueueLengthReply, length: int) -> int:
    reply.length = length
    return _SMALL


SET = KvCall(wire.SetReply, _parse_set, _fill_set)
GET = KvCall(wire.GetReply, _parse_get, _fill_get)
WAIT = KvCall(wire.WaitReply, _parse_wait, _fill_wait)
ADD = KvCall(wire.AddReply, _parse_add, _fill_add)
COMPARE_SET = KvCall(wire.CompareSetReply, _parse_compare_set, _fill_compare_set)
APPEND = KvCall(wire.AppendReply, _parse_append, _fill_append)
MULTI_SET = KvCall(wire.MultiSetReply, _parse_multi_set, _fill_multi_set)
MULTI_GET = KvCall(wire.MultiGetReply, _parse_multi_get, _fill_multi_get)
DELETE = KvCall(wire.DeleteReply, _parse_delete, _fill_delete)
LIST = KvCall(wire.ListReply, _parse_list, _fill_list)
COUNT = KvCall(wire.CountReply, _parse_count, _fill_count)
QUEUE_PUSH = KvCall(wire.QueuePushReply, _parse_queue_push, _fill_queue_push)
QUEUE_POP = KvCall(wire.QueuePopReply, _parse_queue_pop, _fill_queue_pop)
QUEUE_LENGTH = KvCall(wire.QueueLengthReply, _parse_queue_length, _fill_queue_length)

KEY_CALLS: dict[str, KvCall[Any, Any, Any]] = {
    "set": SET,
    "get": GET,
    "wait": WAIT,
    "add": ADD,
    "compare_set": COMPARE_SET,
    "append": APPEND,
    "multi_set": MULTI_SET,
    "multi_get": MULTI_GET,
    "delete": DELETE,
    "list": LIST,
    "count": COUNT,
    "queue_push": QUEUE_PUSH,
    "queue_pop": QUEUE_POP,
    "queue_length": QUEUE_LENGTH,
}
"""By the name that kv.proto has for the call in a Call, and for its reply in a Reply."""
