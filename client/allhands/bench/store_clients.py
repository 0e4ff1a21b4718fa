"""Client processes of the store's benchmark; each call checks its result.

Run as a module it is one process with some clients, each on a thread with its own connection:
commands and results are lines of JSON.
"""

import argparse
import asyncio
import functools
import itertools
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

from allhands import kv
from allhands.aio import AsyncControl
from allhands.bench.store_client import VALUE, AsyncCall, Call, Place, StoreClient, check
from allhands.bench.store_peers import EtcdClient, TcpStoreClient
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.stores import CoordinatorStore

_JOB = "bench"
_EVENT_SECONDS = 30.0
_LEASE_SECONDS = 600.0
_BARRIER_CALLS = 100
"""Barriers of a load: as many for each client, however long they take."""


class AllhandsClient:
    """This package's store, on lines, or by gRPC only."""

    def __init__(self, name: str, port: int, token: str, *, use_lines: bool = True) -> None:
        self._name = name
        self._endpoint = Endpoint(Address("127.0.0.1", port), token)
        self._control = Control(self._endpoint, job=_JOB, use_lines=use_lines)
        self._store = CoordinatorStore(self._control)
        self._store.set(name, VALUE)
        self._sum = 0
        self._use_lines = use_lines
        self._async_control: AsyncControl | None = None
        self._events: queue.SimpleQueue[bytes] | None = None

    def make_calls(self, place: Place) -> dict[str, Call]:
        """Return the supported calls, each finished on return."""
        participants = [str(index) for index in range(place.clients)]
        numbers = itertools.count()

        def meet() -> None:
            name = f"{place.barrier}/{next(numbers)}"
            self._control.barrier(name, str(place.index), participants)

        return {
            "set": self._set,
            "get": self._get,
            "add": self._add,
            "txn": self._txn,
            "event": self._await_event,
            "lock": functools.partial(self._lock, self._name),
            "contend": functools.partial(self._lock, place.barrier),
            "barrier": meet,
        }

    def _set(self) -> None:
        self._store.set(self._name, VALUE)

    def _txn(self) -> None:
        """Set the key if present."""
        conditions, success = self._make_txn()
        check(self._control.transaction(conditions, success).succeeded)

    def _make_txn(self) -> tuple[list[kv.Condition], list[kv.Operation]]:
        return [kv.version(self._name) > 0], [kv.Put(self._name, VALUE)]

    def _get(self) -> None:
        check(self._store.get(self._name) == VALUE)

    def _add(self) -> None:
        self._sum += 1
        check(self._store.add(f"{self._name}/sum", 1) == self._sum)

    def _lock(self, name: str) -> None:
        with self._control.lock(name, ttl=_LEASE_SECONDS):
            pass

    def _await_event(self) -> None:
        """Set a key, and wait for the event on another thread of a client of its own."""
        key = f"{self._name}/event"
        if self._events is None:
            self._events = queue.SimpleQueue()
            is_ready = threading.Event()
            threading.Thread(
                target=self._read_events, args=(key, self._events, is_ready), daemon=True
            ).start()
            check(is_ready.wait(_EVENT_SECONDS))
        self._store.set(key, VALUE)
        check(self._events.get(timeout=_EVENT_SECONDS) == VALUE)

    def _read_events(
        self, key: str, events: "queue.SimpleQueue[bytes]", is_ready: threading.Event
    ) -> None:
        control = Control(self._endpoint, job=_JOB, use_lines=self._use_lines)
        with control.watch(key) as watch:
            is_ready.set()
            for event in watch:
                events.put(event.value)

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        """Return the supported calls for many concurrent tasks."""
        if not self._use_lines:
            return {}
        self._async_control = control = AsyncControl(self._endpoint, job=_JOB)
        many = control.store
        await many.set(self._name, VALUE)

        async def put() -> None:
            await many.set(self._name, VALUE)

        async def get() -> None:
            check(await many.get(self._name) == VALUE)

        async def add() -> None:
            self._sum += 1  # calls are carried out in the order of their beginning
            expected = self._sum
            check(await many.add(f"{self._name}/sum", 1) == expected)

        async def txn() -> None:
            check((await control.transaction(*self._make_txn())).succeeded)

        return {"set": put, "get": get, "add": add, "txn": txn}

    async def aclose(self) -> None:
        if self._async_control is not None:
            await self._async_control.aclose()


def run_sequential(call: Call, seconds: float, calls: int = 0) -> dict[str, Any]:
    """Call again and again for so long, at least twice, or `calls` times; time each call."""
    call()
    times: list[float] = []
    begun = now = time.perf_counter()
    while len(times) < calls if calls else now < begun + seconds or len(times) < 2:
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


class ClientProcess:
    """The clients of this process, made when a load first needs them."""

    def __init__(self, make: Callable[[str], StoreClient], name: str) -> None:
        self._make = make
        self._name = name
        self._clients: list[StoreClient] = [make(f"{name}/0")]

    def measure(self, load: dict[str, Any]) -> list[dict[str, Any]]:
        """Carry out a load; return the figures of each client."""
        if load["outstanding"] > 1:
            one = self._clients[0]
            done = run_concurrent(one, load["operation"], load["outstanding"], load["seconds"])
            return [uvloop.run(done)]
        threads = load["threads"]
        while len(self._clients) < threads:
            self._clients.append(self._make(f"{self._name}/{len(self._clients)}"))
        calls = _BARRIER_CALLS if load["operation"] == "barrier" else 0

        def run(number: int) -> dict[str, Any]:
            place = Place(load["first"] + number, load["clients"], load["barrier"])
            call = self._clients[number].make_calls(place)[load["operation"]]
            return run_sequential(call, load["seconds"], calls)

        if threads == 1:
            return [run(0)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(run, range(threads)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--contender", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    token = sys.stdin.readline().strip()  # not an argument: those everybody can read

    def make(name: str) -> StoreClient:
        match arguments.contender:
            case "allhands" | "allhands, durable":
                return AllhandsClient(name, arguments.port, token)
            case "allhands by gRPC":
                return AllhandsClient(name, arguments.port, token, use_lines=False)
            case "tcpstore":
                return TcpStoreClient(name, arguments.port, token)
            case _:
                return EtcdClient(name, arguments.port, token)

    process = ClientProcess(make, arguments.name)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(process.measure(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
