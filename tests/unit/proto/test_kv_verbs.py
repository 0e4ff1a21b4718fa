"""The table of key-value verbs, and the code derived from the table on both sides."""

import pytest

from allhands.coordinator.kv.calls import KvCallError, decode_reply, describe_call, encode_call
from allhands_proto.kv_verbs import KV_VERBS, KvVerb, find_verb
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.kv.calls import KV_CALLS
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.store.keys import CompareSet, Count, MultiSet, Wait

VERBS = KV_VERBS.values()


def test_every_call_of_the_port_is_a_verb() -> None:
    fields = wire.Call.DESCRIPTOR.oneofs_by_name["call"].fields
    assert {*KV_VERBS} == {field.name for field in fields} - {"cancel"}


@pytest.mark.parametrize("verb", VERBS, ids=KV_VERBS)
def test_a_verb_has_one_reply_in_both_ports(verb: KvVerb) -> None:
    method = wire.DESCRIPTOR.services_by_name["Coordinator"].methods_by_name[verb.method]
    framed = wire.Reply.DESCRIPTOR.fields_by_name[verb.name].message_type
    assert method.input_type == verb.request.DESCRIPTOR
    assert method.output_type == framed == verb.reply.DESCRIPTOR


@pytest.mark.parametrize("verb", VERBS, ids=KV_VERBS)
def test_a_verb_is_found_by_its_request_and_reply(verb: KvVerb) -> None:
    assert find_verb(verb.request(), verb.reply) is verb
    with pytest.raises(AssertionError, match="is not answered with Reply"):
        find_verb(verb.request(), wire.Reply)


@pytest.mark.parametrize(
    ("name", "request_", "text"),
    [
        ("set", wire.SetRequest(key="a"), "set key 'a'"),
        ("get", wire.GetRequest(key="a"), "get key 'a'"),
        ("wait", wire.WaitRequest(keys=["a", "b"]), "wait for keys 'a', 'b'"),
        ("add", wire.AddRequest(key="a"), "add to key 'a'"),
        ("compare_set", wire.CompareSetRequest(key="a"), "compare and set 'a'"),
        ("append", wire.AppendRequest(key="a"), "append to key 'a'"),
        ("multi_set", wire.MultiSetRequest(pairs=[wire.KeyValue(key="a")]), "set key 'a'"),
        ("multi_get", wire.MultiGetRequest(keys=["a"]), "get key 'a'"),
        ("delete", wire.DeleteRequest(key="a"), "delete key 'a'"),
        ("list", wire.ListRequest(prefix="a"), "list keys 'a'*"),
        ("count", wire.CountRequest(), "count keys"),
        ("queue_push", wire.QueuePushRequest(key="q"), "push to queue 'q'"),
        ("queue_pop", wire.QueuePopRequest(key="q"), "pop from queue 'q'"),
        ("queue_length", wire.QueueLengthRequest(key="q"), "measure queue 'q'"),
        ("put", wire.PutRequest(key="a"), "put key 'a'"),
        ("range", wire.RangeRequest(key="a"), "get key 'a'"),
        ("range", wire.RangeRequest(key="a", prefix=True), "get key 'a'*"),
        ("txn", wire.TxnRequest(), "carry out a transaction on keys"),
        ("compact", wire.CompactRequest(revision=4), "compact the history"),
        ("watch", wire.WatchRequest(key="a", range_end="\0"), "watch key 'a' and all behind"),
        ("lease_grant", wire.LeaseGrantRequest(), "grant a lease"),
        ("lease_revoke", wire.LeaseRevokeRequest(lease=7), "revoke lease 7"),
        ("lease_keep_alive", wire.LeaseKeepAliveRequest(lease=7), "keep alive lease 7"),
        ("lease_time_to_live", wire.LeaseTimeToLiveRequest(lease=7), "ask for the time of lease 7"),
        ("lease_list", wire.LeaseListRequest(), "list leases"),
        ("delete_range", wire.DeleteRangeRequest(key="a", range_end="b"), "delete key 'a' to 'b'"),
    ],
)
def test_errors_say_what_was_wanted(name: str, request_: object, text: str) -> None:
    assert describe_call(KV_VERBS[name], request_) == text


@pytest.mark.parametrize("verb", VERBS, ids=KV_VERBS)
def test_a_call_is_in_the_field_of_its_verb(verb: KvVerb) -> None:
    request = verb.request(job="j")
    (call,) = wire.Calls.FromString(encode_call(verb, 7, request, 2.5)).calls
    assert (call.id, call.timeout, call.WhichOneof("call")) == (7, 2.5, verb.name)
    assert getattr(call, verb.name) == request


def test_a_refusal_is_raised_in_place_of_a_reply() -> None:
    reply = wire.Reply(refused=wire.Refused(code=5, text="no such key"))
    with pytest.raises(KvCallError, match="no such key"):
        decode_reply(KV_VERBS["get"], reply)


@pytest.mark.parametrize(
    ("name", "message", "request_"),
    [
        ("wait", wire.WaitRequest(job="j", keys=["a", "b"]), Wait("j", ("a", "b"))),
        (
            "multi_set",
            wire.MultiSetRequest(job="j", pairs=[wire.KeyValue(key="a", value=b"1")]),
            MultiSet("j", (("a", b"1"),)),
        ),
        (
            "compare_set",
            wire.CompareSetRequest(job="j", key="a", expected=b"1", desired=b"2"),
            CompareSet("j", "a", b"1", b"2"),
        ),
        ("count", wire.CountRequest(job="j"), Count("j")),
    ],
)
def test_a_message_is_the_request_with_its_fields(
    name: str, message: object, request_: object
) -> None:
    assert KV_CALLS[name].parse(message) == request_


@pytest.mark.parametrize(
    ("name", "answer", "reply", "nbytes"),
    [
        ("set", 5, wire.SetReply(revision=5), 16),
        ("get", KeyPut("j", "a", b"abc", 5, 4, 2), wire.GetReply(value=b"abc", revision=5), 19),
        ("wait", None, wire.WaitReply(), 16),
        ("multi_get", (b"a", b"bc"), wire.MultiGetReply(values=[b"a", b"bc"]), 35),
        ("delete", True, wire.DeleteReply(deleted=True), 16),
        ("list", ("a",), wire.ListReply(keys=["a"]), 17),
        ("queue_pop", b"abc", wire.QueuePopReply(value=b"abc"), 19),
    ],
)
def test_an_answer_fills_the_reply(name: str, answer: object, reply: object, nbytes: int) -> None:
    filled = KV_VERBS[name].reply()
    assert KV_CALLS[name].fill(filled, answer) == nbytes
    assert filled == reply
