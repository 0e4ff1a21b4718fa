"""Clients of key-value servers, alike for the store's benchmark; each call checks its result.

Run as a module it is one client process: commands and results are lines of JSON.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import uvloop

from allhands import kv
from allhands.aio import AsyncControl
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.stores import CoordinatorStore

_VALUE = b"twenty bytes of text"
_JOB = "bench"
_GREATER = 1
"""Of etcd's relations."""

Call = Callable[[], None]
AsyncCall = Callable[[], Awaitable[None]]


class StoreClient(Protocol):
    """A client of a store; `name` separates its keys from other clients'."""

    def make_calls(self) -> dict[str, Call]:
        """Return the supported calls, each finished on return."""

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        """Return the supported calls for many concurrent tasks."""

    async def aclose(self) -> None:
        """Close the resources of `open_async_calls`."""


class AllhandsClient:
    """This package's store, on lines, or by gRPC only."""

    def __init__(self, name: str, port: int, token: str, *, use_lines: bool = True) -> None:
        self._name = name
        self._endpoint = Endpoint(Address("127.0.0.1", port), token)
        self._control = Control(self._endpoint, job=_JOB, use_lines=use_lines)
        self._store = CoordinatorStore(self._control)
        self._store.set(name, _VALUE)
        self._sum = 0
        self._use_lines = use_lines
        self._async_control: AsyncControl | None = None

    def make_calls(self) -> dict[str, Call]:
        return {"set": self._set, "get": self._get, "add": self._add, "txn": self._txn}

    def _set(self) -> None:
        self._store.set(self._name, _VALUE)

    def _txn(self) -> None:
        """Set the key if present."""
        conditions, success = self._make_txn()
        _check(self._control.transaction(conditions, success).succeeded)

    def _make_txn(self) -> tuple[list[kv.Condition], list[kv.Operation]]:
        return [kv.version(self._name) > 0], [kv.Put(self._name, _VALUE)]

    def _get(self) -> None:
        _check(self._store.get(self._name) == _VALUE)

    def _add(self) -> None:
        self._sum += 1
        _check(self._store.add(f"{self._name}/sum", 1) == self._sum)

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        if not self._use_lines:
            return {}
        self._async_control = control = AsyncControl(self._endpoint, job=_JOB)
        many = control.store
        await many.set(self._name, _VALUE)

        async def put() -> None:
            await many.set(self._name, _VALUE)

        async def get() -> None:
            _check(await many.get(self._name) == _VALUE)

        async def add() -> None:
            self._sum += 1  # calls are carried out in the order of their beginning
            expected = self._sum
            _check(await many.add(f"{self._name}/sum", 1) == expected)

        async def txn() -> None:
            _check((await control.transaction(*self._make_txn())).succeeded)

        return {"set": put, "get": get, "add": add, "txn": txn}

    async def aclose(self) -> None:
        if self._async_control is not None:
            await self._async_control.aclose()


class TcpStoreClient:
    """torch's TCPStore: `set` is not acknowledged, and calls are made one at a time."""

    def __init__(self, name: str, port: int, token: str) -> None:
        from torch import distributed

        self._name = name
        self._store = distributed.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
        self._store.set(name, _VALUE.decode())
        self._sum = 0

    def make_calls(self) -> dict[str, Call]:
        return {"get": self._get, "add": self._add}

    def _get(self) -> None:
        _check(self._store.get(self._name) == _VALUE)

    def _add(self) -> None:
        self._sum += 1
        _check(self._store.add(f"{self._name}/sum", 1) == self._sum)

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        return {}

    async def aclose(self) -> None:
        """Nothing has been opened."""


class EtcdClient:
    """etcd's key-value service through grpcio."""

    def __init__(self, name: str, port: int, token: str) -> None:
        import grpc

        self._name = name.encode()
        self._target = f"127.0.0.1:{port}"
        self._put, self._range, self._txn = _make_etcd_calls(grpc.insecure_channel(self._target))
        self._channel: Any = None
        self._requests = _make_etcd_messages()
        self._set()

    def make_calls(self) -> dict[str, Call]:
        return {"set": self._set, "get": self._get, "txn": self._set_if_present}

    def _set_if_present(self) -> None:
        _check(self._txn(self._make_txn()).succeeded)

    def _make_txn(self) -> Any:
        put = self._requests["PutRequest"](key=self._name, value=_VALUE)
        is_present = self._requests["Compare"](result=_GREATER, key=self._name, version=0)
        operation = self._requests["RequestOp"](request_put=put)
        return self._requests["TxnRequest"](compare=[is_present], success=[operation])

    def _set(self) -> None:
        self._put(self._requests["PutRequest"](key=self._name, value=_VALUE))

    def _get(self) -> None:
        found = self._range(self._requests["RangeRequest"](key=self._name))
        _check(found.kvs[0].value == _VALUE)

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        import grpc.aio

        self._channel = grpc.aio.insecure_channel(self._target)
        put, look, carry_out = _make_etcd_calls(self._channel)

        async def set_() -> None:
            await put(self._requests["PutRequest"](key=self._name, value=_VALUE))

        async def get() -> None:
            found = await look(self._requests["RangeRequest"](key=self._name))
            _check(found.kvs[0].value == _VALUE)

        async def txn() -> None:
            _check((await carry_out(self._make_txn())).succeeded)

        return {"set": set_, "get": get, "txn": txn}

    async def aclose(self) -> None:
        await self._channel.close()


def _make_etcd_messages() -> dict[str, Any]:
    """Build the messages of etcd's API used here, with the used fields only."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="etcd_subset.proto", package="etcdserverpb", syntax="proto3"
    )
    forms: dict[str, dict[str, tuple[int, str]]] = {
        "PutRequest": {"key": (1, ""), "value": (2, "")},
        "PutResponse": {},
        "RangeRequest": {"key": (1, "")},
        "KeyValue": {"key": (1, ""), "value": (5, "")},
        "RangeResponse": {"kvs": (2, "KeyValue")},
        "Compare": {"result": (1, "number"), "key": (3, ""), "version": (4, "number")},
        "RequestOp": {"request_put": (2, "PutRequest")},
        "TxnRequest": {"compare": (1, "Compare"), "success": (2, "RequestOp")},
        "TxnResponse": {"succeeded": (2, "number")},
    }
    for name, parts in forms.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in parts.items():
            one = message.field.add(name=key, number=number, label=field.LABEL_OPTIONAL)
            if kind in forms:
                one.type, one.type_name = field.TYPE_MESSAGE, f".etcdserverpb.{kind}"
                if key != "request_put":
                    one.label = field.LABEL_REPEATED
            else:
                one.type = field.TYPE_INT64 if kind else field.TYPE_BYTES
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"etcdserverpb.{name}"))
        for name in forms
    }


def _make_etcd_calls(channel: Any) -> tuple[Any, ...]:
    messages = _make_etcd_messages()
    return tuple(
        channel.unary_unary(
            f"/etcdserverpb.KV/{name}",
            request_serializer=messages[f"{name}Request"].SerializeToString,
            response_deserializer=messages[f"{name}Response"].FromString,
        )
        for name in ("Put", "Range", "Txn")
    )


def _check(is_right: bool) -> None:
    if not is_right:
        raise ArithmeticError("a store returned something else than was put into it")


def run_sequential(call: Call, seconds: float) -> dict[str, Any]:
    """Call again and again for so long, at least twice, and time each call."""
    call()
    times: list[float] = []
    begun = now = time.perf_counter()
    while now < begun + seconds or len(times) < 2:
        call()
        before, now = now, time.perf_counter()
        times.append(now - before)
    tenths = statistics.quantiles(times, n=10)
    return {
        "calls": len(times),
        "seconds": now - begun,
        "median": statistics.median(times),
        "low": tenths[0],
        "high": tenths[-1],
    }


async def run_concurrent(
    client: StoreClient, operation: str, outstanding: int, seconds: float
) -> Any:
    """Count the calls completed with `outstanding` calls always under way."""
    act = (await client.open_async_calls())[operation]
    calls = 0

    async def repeat(until: float) -> None:
        nonlocal calls
        while time.perf_counter() < until:
            await act()
            calls += 1

    begun = time.perf_counter()
    await asyncio.gather(*(repeat(begun + seconds) for _ in range(outstanding)))
    found = {"calls": calls, "seconds": time.perf_counter() - begun}
    await client.aclose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--contender", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    token = sys.stdin.readline().strip()  # not an argument: those everybody can read
    made: StoreClient
    match arguments.contender:
        case "allhands":
            made = AllhandsClient(arguments.name, arguments.port, token)
        case "allhands by gRPC":
            made = AllhandsClient(arguments.name, arguments.port, token, use_lines=False)
        case "tcpstore":
            made = TcpStoreClient(arguments.name, arguments.port, token)
        case _:
            made = EtcdClient(arguments.name, arguments.port, token)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        said = json.loads(line)
        if said["outstanding"] == 1:
            found = run_sequential(made.make_calls()[said["operation"]], said["seconds"])
        else:
            found = uvloop.run(
                run_concurrent(made, said["operation"], said["outstanding"], said["seconds"])
            )
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
