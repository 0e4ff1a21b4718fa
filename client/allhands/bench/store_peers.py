"""Clients of the stores beside this package's: torch's TCPStore, and etcd."""

import functools
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from allhands.bench.store_client import (
    VALUE,
    AsyncCall,
    Call,
    Place,
    check,
)

if TYPE_CHECKING:
    from torch import distributed

    from allhands_proto.etcd import rpc_pb2


_LIMIT = 30.0
"""Seconds for a lock or an event."""


class TcpStoreClient:
    """torch's TCPStore: `set` is not acknowledged, and calls are made one at a time.

    `txn` is its compare_set. An event is the end of a `wait` for a key; a barrier is a count of
    arrivals with a key that the last participant sets.
    """

    def __init__(self, name: str, port: int, token: str) -> None:
        self._name = name
        self._port = port
        self._store = self._connect()
        self._store.set(name, VALUE.decode())
        self._sum = 0
        self._events = 0
        self._awaited: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen: queue.SimpleQueue[str] = queue.SimpleQueue()

    def _connect(self) -> "distributed.TCPStore":
        from torch import distributed

        return distributed.TCPStore("127.0.0.1", self._port, None, False, wait_for_workers=False)

    def make_calls(self, place: Place) -> dict[str, Call]:
        """Return the supported calls, each finished on return."""
        numbers = itertools.count()

        def meet() -> None:
            name = f"{place.barrier}/{next(numbers)}"
            if self._store.add(name, 1) == place.clients:
                self._store.set(f"{name}/open", "")
            self._store.wait([f"{name}/open"])

        return {
            "get": self._get,
            "add": self._add,
            "txn": self._txn,
            "event": self._await_event,
            "barrier": meet,
        }

    def _get(self) -> None:
        check(self._store.get(self._name) == VALUE)

    def _add(self) -> None:
        self._sum += 1
        check(self._store.add(f"{self._name}/sum", 1) == self._sum)

    def _txn(self) -> None:
        value = VALUE.decode()
        check(self._store.compare_set(self._name, value, value) == VALUE)

    def _await_event(self) -> None:
        if self._events == 0:
            threading.Thread(target=self._wait, daemon=True).start()
            self._awaited.put(f"{self._name}/event/1")
        self._events += 1
        key = f"{self._name}/event/{self._events}"
        self._store.set(key, VALUE.decode())
        check(self._seen.get(timeout=_LIMIT) == key)
        self._awaited.put(f"{self._name}/event/{self._events + 1}")

    def _wait(self) -> None:
        store = self._connect()
        while True:
            key = self._awaited.get()
            store.wait([key])
            self._seen.put(key)

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        """Return no calls: it has none to await."""
        return {}

    async def aclose(self) -> None:
        """Nothing has been opened."""


class EtcdClient:
    """etcd's services through grpcio: keys, watches, and its own lock service.

    A barrier is a key for each participant, and one that the last puts, as in the recipes of
    etcd's own client.
    """

    def __init__(self, name: str, port: int, token: str) -> None:
        import grpc

        self._name = name.encode()
        self._target = f"127.0.0.1:{port}"
        self._calls = _EtcdCalls(grpc.insecure_channel(self._target))
        self._channel: Any = None
        self._lease = 0
        self._watch: _EtcdWatch | None = None
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._set()

    def make_calls(self, place: Place) -> dict[str, Call]:
        """Return the supported calls, each finished on return."""
        return {
            "set": self._set,
            "get": self._get,
            "txn": self._set_if_present,
            "event": self._await_event,
            "lock": functools.partial(self._lock, b"lock/" + self._name),
            "contend": functools.partial(self._lock, place.barrier.encode()),
            "barrier": functools.partial(self._meet, place, itertools.count()),
        }

    def _set(self) -> None:
        self._calls.put(self._calls.make_put(self._name))

    def _get(self) -> None:
        from allhands_proto.etcd import rpc_pb2

        found = self._calls.range(rpc_pb2.RangeRequest(key=self._name))
        check(found.kvs[0].value == VALUE)

    def _set_if_present(self) -> None:
        check(self._calls.txn(self._calls.make_txn(self._name)).succeeded)

    def _await_event(self) -> None:
        key = self._name + b"/event"
        if self._watch is None:
            self._watch = _EtcdWatch(self._calls)
            self._watch.watch(key, 0)
            threading.Thread(target=self._read_events, daemon=True).start()
        self._calls.put(self._calls.make_put(key))
        check(self._events.get(timeout=_LIMIT) == VALUE)

    def _read_events(self) -> None:
        assert self._watch is not None
        for event in self._watch.iterate():
            self._events.put(event.kv.value)

    def _lock(self, name: bytes) -> None:
        if not self._lease:
            self._lease = self._calls.grant(self._calls.messages["LeaseGrantRequest"](TTL=600)).ID
        request = self._calls.messages["LockRequest"](name=name, lease=self._lease)
        key = self._calls.lock(request, timeout=_LIMIT).key
        self._calls.unlock(self._calls.messages["UnlockRequest"](key=key))

    def _meet(self, place: Place, numbers: Iterator[int]) -> None:
        from allhands_proto.etcd import rpc_pb2

        name = f"{place.barrier}/{next(numbers)}/".encode()
        ready = name[:-1] + b"-open"
        self._calls.put(self._calls.make_put(name + self._name))
        found = self._calls.range(rpc_pb2.RangeRequest(key=name, range_end=name[:-1] + b"0"))
        if len(found.kvs) == place.clients:
            self._calls.put(self._calls.make_put(ready))
            return
        watch = _EtcdWatch(self._calls)
        watch.watch(ready, found.header.revision + 1)
        check(next(watch.iterate()).kv.key == ready)
        watch.close()

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        """Return the supported calls for many concurrent tasks."""
        import grpc.aio

        from allhands_proto.etcd import rpc_pb2

        self._channel = grpc.aio.insecure_channel(self._target)
        calls = _EtcdCalls(self._channel)

        async def set_() -> None:
            await calls.put(calls.make_put(self._name))

        async def get() -> None:
            found = await calls.range(rpc_pb2.RangeRequest(key=self._name))
            check(found.kvs[0].value == VALUE)

        async def txn() -> None:
            check((await calls.txn(calls.make_txn(self._name))).succeeded)

        return {"set": set_, "get": get, "txn": txn}

    async def aclose(self) -> None:
        """Close the channel of `open_async_calls`."""
        await self._channel.close()


class _EtcdCalls:
    """Calls of etcd's services over one channel, plain or awaited."""

    def __init__(self, channel: Any) -> None:
        from allhands_proto.etcd import rpc_pb2

        self.messages = _make_messages()

        def make(path: str, answer: Any) -> Any:
            return channel.unary_unary(
                path,
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=answer.FromString,
            )

        self.put = make("/etcdserverpb.KV/Put", rpc_pb2.PutResponse)
        self.range = make("/etcdserverpb.KV/Range", rpc_pb2.RangeResponse)
        self.txn = make("/etcdserverpb.KV/Txn", rpc_pb2.TxnResponse)
        self.grant = make("/etcdserverpb.Lease/LeaseGrant", self.messages["LeaseGrantResponse"])
        self.lock = make("/v3lockpb.Lock/Lock", self.messages["LockResponse"])
        self.unlock = make("/v3lockpb.Lock/Unlock", self.messages["UnlockResponse"])
        self.watch = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=rpc_pb2.WatchResponse.FromString,
        )

    def make_put(self, key: bytes) -> "rpc_pb2.PutRequest":
        from allhands_proto.etcd import rpc_pb2

        return rpc_pb2.PutRequest(key=key, value=VALUE)

    def make_txn(self, key: bytes) -> "rpc_pb2.TxnRequest":
        """Make a request that puts a key if present."""
        from allhands_proto.etcd import rpc_pb2

        compare = rpc_pb2.Compare
        is_present = compare(result=compare.GREATER, target=compare.MOD, key=key, mod_revision=0)
        put = rpc_pb2.RequestOp(request_put=self.make_put(key))
        return rpc_pb2.TxnRequest(compare=[is_present], success=[put])


class _EtcdWatch:
    """A stream of the events of one key."""

    def __init__(self, calls: _EtcdCalls) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stream = calls.watch(iter(self._requests.get, None))

    def watch(self, key: bytes, revision: int) -> None:
        """Begin to watch a key from a revision on (0: the next); return when etcd does."""
        from allhands_proto.etcd import rpc_pb2

        create = rpc_pb2.WatchCreateRequest(key=key, start_revision=revision)
        self._requests.put(rpc_pb2.WatchRequest(create_request=create))
        check(next(self._stream).created)

    def iterate(self) -> Iterator["rpc_pb2.Event"]:
        for response in self._stream:
            yield from response.events

    def close(self) -> None:
        self._requests.put(None)
        self._stream.cancel()


def _make_messages() -> dict[str, Any]:
    """Build the messages of etcd's leases and locks, with the used fields only."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="etcd_locks.proto", package="etcd_locks", syntax="proto3"
    )
    forms = {
        "LeaseGrantRequest": {"TTL": (1, field.TYPE_INT64)},
        "LeaseGrantResponse": {"ID": (2, field.TYPE_INT64)},
        "LockRequest": {"name": (1, field.TYPE_BYTES), "lease": (2, field.TYPE_INT64)},
        "LockResponse": {"key": (2, field.TYPE_BYTES)},
        "UnlockRequest": {"key": (1, field.TYPE_BYTES)},
        "UnlockResponse": {},
    }
    for name, parts in forms.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in parts.items():
            message.field.add(name=key, number=number, label=field.LABEL_OPTIONAL, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"etcd_locks.{name}"))
        for name in forms
    }
