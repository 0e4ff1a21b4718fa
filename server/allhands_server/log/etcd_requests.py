"""The requests to etcd: one key created, replaced or deleted by its revision, and ranges.

These shapes are all that kine takes, which serves the API from SQL databases.
"""

from allhands_proto.etcd import rpc_pb2 as wire


def make_create(key: bytes, value: bytes) -> wire.TxnRequest:
    """Make a transaction that creates a key if it is absent."""
    put = wire.RequestOp(request_put=wire.PutRequest(key=key, value=value))
    return wire.TxnRequest(compare=[_compare(key, 0)], success=[put])


def make_replace(key: bytes, value: bytes, revision: int) -> wire.TxnRequest:
    """Make a transaction that replaces a key's value if its revision is as given."""
    put = wire.RequestOp(request_put=wire.PutRequest(key=key, value=value))
    return wire.TxnRequest(
        compare=[_compare(key, revision)], success=[put], failure=[_look_up(key)]
    )


def make_delete(key: bytes, revision: int) -> wire.TxnRequest:
    """Make a transaction that deletes a key if its revision is as given."""
    delete = wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=key))
    return wire.TxnRequest(
        compare=[_compare(key, revision)], success=[delete], failure=[_look_up(key)]
    )


def make_lookup(key: bytes) -> wire.RangeRequest:
    """Make a request for one key."""
    return wire.RangeRequest(key=key)


def make_range(prefix: bytes, limit: int, after: bytes = b"") -> wire.RangeRequest:
    """Make a request for the keys with a prefix, which ends with a slash, in order.

    `after`: only those beyond this key; a service may return the key itself too.
    """
    start = after + b"\0" if after else prefix
    return wire.RangeRequest(key=start, range_end=get_end(prefix), limit=limit)


def make_watch(prefix: bytes, revision: int) -> wire.WatchRequest:
    """Make a request for the events of all keys with a prefix, from a revision on."""
    return wire.WatchRequest(
        create_request=wire.WatchCreateRequest(
            key=prefix, range_end=get_end(prefix), start_revision=revision
        )
    )


def get_end(prefix: bytes) -> bytes:
    """Return the first key beyond those with a prefix that ends with a slash."""
    assert prefix.endswith(b"/")
    return prefix[:-1] + b"0"


def _compare(key: bytes, revision: int) -> wire.Compare:
    return wire.Compare(
        result=wire.Compare.EQUAL, target=wire.Compare.MOD, key=key, mod_revision=revision
    )


def _look_up(key: bytes) -> wire.RequestOp:
    return wire.RequestOp(request_range=wire.RangeRequest(key=key))
