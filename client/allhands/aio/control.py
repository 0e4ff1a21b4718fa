"""A client of the coordinator for asyncio: keys with revisions, transactions, watches, leases."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from allhands.aio.lease import AsyncLease
from allhands.aio.recipes import AsyncDriver
from allhands.aio.synchronizing import AsyncSynchronizingClient
from allhands.aio.watch import AsyncWatch
from allhands.coordinator.endpoint import Endpoint, find_coordinator
from allhands.coordinator.kv import requests, value_requests
from allhands.coordinator.kv.records import KeyRange, KeyRecord, LeaseStatus, TxnResult, WatchPlace
from allhands.coordinator.kv.requests import AnyKvRequest, T, WatchedKeys
from allhands.coordinator.kv.transactions import Condition, Delete, Get, Operation, Put, SortBy
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import NotFound
from allhands.stores.asynchronous import AsyncCoordinatorStore
from allhands.tracebacks import trims_tracebacks
from allhands_proto.kv_results import CompareSetResult


def connect_control(
    url: str | None = None,
    *,
    job: str | None = None,
    token: str | None = None,
    timeout: float = 30.0,
    insecure: bool = False,
) -> "AsyncControl":
    """Return a client of the coordinator at `ah://host:port/job`, connected on first use.

    For `async with`. Arguments and errors are those of `allhands.connect`; a job has to be named.
    """
    # An entry point like a command: this is where the process's environment becomes values.
    endpoint = find_coordinator(url, os.environ, token=token, insecure=insecure)
    if not (name := job or endpoint.address.job):
        raise ValueError("no job named: write ah://HOST:PORT/JOB, or pass job=")
    return AsyncControl(endpoint, job=name, timeout=timeout)


@trims_tracebacks
class AsyncControl(AsyncSynchronizingClient):
    """The keys of a job, awaited; for `async with`. All methods belong to one event loop.

    Every call has a deadline in seconds: its `timeout`, else this client's. Values are bytes; a str
    is encoded as UTF-8. Errors are those of `allhands.Control`.
    """

    def __init__(self, endpoint: Endpoint, *, job: str, timeout: Timeout = 30.0) -> None:
        self._store = AsyncCoordinatorStore(endpoint, job=job, timeout=timeout)
        self._job = job
        self._leases: set[AsyncLease] = set()
        self._timeout = to_seconds(timeout)
        self._driver = AsyncDriver(self, self._leases)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; waiting calls raise CoordinatorUnavailable. Idempotent.

        Leases are not kept alive any more, and end in their time; what is held of locks, semaphores
        and elections is free again.
        """
        await self._driver.aclose()
        for lease in list(self._leases):
            await lease.stop()
        await self._store.aclose()

    @property
    def job_name(self) -> str:
        """Job of this client's keys."""
        return self._job

    @property
    def store(self) -> AsyncCoordinatorStore:
        """The same keys with the methods of c10d's stores; closed with this client."""
        return self._store

    async def request(self, asked: AnyKvRequest[T], timeout: Timeout | None = None) -> T:
        """Make a request, and return the value of its reply; the other methods are made of it."""
        limit = None if timeout is None else to_seconds(timeout)
        try:
            reply = await self._store.call_kv(asked.message, asked.reply, limit)
        except NotFound as error:
            raise asked.absent(str(error)) from error
        return asked.read(reply)

    # ------------------------------------------------------------ keys

    async def put(
        self,
        key: str,
        value: bytes | str,
        *,
        lease: "int | AsyncLease" = 0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> int:
        """Set the key to the value; return the revision of the change.

        With the end of the lease, or with the loss or departure of the member, the key is deleted.

        Raises:
            LeaseNotFound: the lease has ended.
            NotFound, Refused: there is no such member, or it is not present any more.
        """
        put = Put(key, value, _get_number(lease), member)
        return (await self.request(requests.make_put(self._job, put), timeout)).revision

    async def get(self, key: str, *, wait: bool = False, timeout: Timeout | None = None) -> bytes:
        """Return the key's value; with `wait`, as soon as the key exists.

        Raises:
            NotFound: the key is absent, without `wait`.
            StoreTimeout: the key was still absent at the deadline, with `wait`.
        """
        return await self.request(value_requests.make_get_value(self._job, key, wait), timeout)

    async def get_record(
        self, key: str, *, revision: int = 0, timeout: Timeout | None = None
    ) -> KeyRecord | None:
        """Return the key with its last change, at `revision` or now; None: absent.

        Raises:
            Compacted: the revision is not known any more.
        """
        get = requests.make_get(self._job, Get(key, revision=revision))
        found = await self.request(get, timeout)
        return found.records[0] if found.records else None

    async def get_range(
        self,
        key: str,
        end: str = "",
        *,
        prefix: bool = False,
        limit: int = 0,
        revision: int = 0,
        keys_only: bool = False,
        sort_by: SortBy = "key",
        descending: bool = False,
        timeout: Timeout | None = None,
    ) -> KeyRange:
        """Return the keys from `key` up to `end`, or with a prefix, in one reply.

        An empty `end`: all from `key` on. A reply has room for 10,000 records and 7 MiB; `has_more`
        tells of the rest, see `pages`.

        Raises:
            Compacted: the revision is not known any more.
        """
        get = Get(
            key,
            None if prefix else end,
            prefix,
            limit=limit,
            revision=revision,
            keys_only=keys_only,
            sort_by=sort_by,
            descending=descending,
        )
        return await self.request(requests.make_get(self._job, get), timeout)

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False, timeout: Timeout | None = None
    ) -> KeyRange:
        """Return all keys with a prefix, as they are at one revision, in as many calls as it takes.

        Raises:
            Compacted: the keys changed faster than they could be read.
        """
        pages = [page async for page in self.pages(prefix, keys_only=keys_only, timeout=timeout)]
        records = tuple(record for page in pages for record in page)
        return KeyRange(pages[0].revision, records, len(records), has_more=False)

    async def pages(
        self,
        prefix: str = "",
        *,
        limit: int = 0,
        keys_only: bool = False,
        timeout: Timeout | None = None,
    ) -> AsyncIterator[KeyRange]:
        """Yield the keys with a prefix as pages of `limit` records, all at the first's revision.

        Raises:
            Compacted: that revision is not known any more; begin again.
        """
        get: Get | None = Get(prefix, prefix=True, limit=limit, keys_only=keys_only)
        while get is not None:
            page = await self.request(requests.make_get(self._job, get), timeout)
            yield page
            get = requests.find_next_page(get, page)

    async def count(self, prefix: str = "", *, timeout: Timeout | None = None) -> int:
        """Return the number of keys with a prefix."""
        get = Get(prefix, prefix=True, count_only=True)
        return (await self.request(requests.make_get(self._job, get), timeout)).count

    async def delete(self, key: str, *, timeout: Timeout | None = None) -> bool:
        """Delete the key; return whether the key existed."""
        delete = requests.make_delete(self._job, Delete(key))
        return (await self.request(delete, timeout)).deleted > 0

    async def delete_range(self, key: str, end: str = "", *, timeout: Timeout | None = None) -> int:
        """Delete the keys from `key` up to `end`, empty: all from there on; return how many."""
        delete = requests.make_delete(self._job, Delete(key, end))
        return (await self.request(delete, timeout)).deleted

    async def delete_prefix(self, prefix: str, *, timeout: Timeout | None = None) -> int:
        """Delete the keys with a prefix, at one revision; return how many."""
        delete = requests.make_delete(self._job, Delete(prefix, prefix=True))
        return (await self.request(delete, timeout)).deleted

    async def compare_and_set(
        self,
        key: str,
        value: bytes | str,
        *,
        revision: int,
        lease: "int | AsyncLease" = 0,
        timeout: Timeout | None = None,
    ) -> int | None:
        """Set the key if its last change was at `revision`, 0: if absent.

        Returns the revision of the change; None: the key has changed since, and is left as it is.
        """
        number = _get_number(lease)
        asked = requests.make_compare_and_set(self._job, key, value, revision, number)
        return await self.request(asked, timeout)

    async def cas(
        self,
        key: str,
        expected: bytes | str,
        desired: bytes | str,
        *,
        timeout: Timeout | None = None,
    ) -> CompareSetResult:
        """Set the key if equal to `expected`, or absent with `expected` empty.

        Returns whether it was set, with the key's value afterwards.
        """
        asked = value_requests.make_compare_set(self._job, key, expected, desired)
        return await self.request(asked, timeout)

    async def add(self, key: str, amount: int = 1, *, timeout: Timeout | None = None) -> int:
        """Add to the key's decimal number, 0 if absent, and return the sum.

        Raises:
            Refused: the value is no decimal number, or the sum leaves the range of 64 bits.
        """
        return await self.request(value_requests.make_add(self._job, key, amount), timeout)

    async def multi_put(
        self, pairs: Mapping[str, bytes | str], *, timeout: Timeout | None = None
    ) -> int:
        """Set all keys in one step; return the revision of the change."""
        return await self.request(value_requests.make_multi_put(self._job, pairs), timeout)

    async def multi_get(
        self, keys: Sequence[str], *, wait: bool = False, timeout: Timeout | None = None
    ) -> tuple[bytes, ...]:
        """Return the keys' values in one snapshot, in order; with `wait`, once all exist.

        Raises:
            NotFound: a key is absent, without `wait`.
            StoreTimeout: a key was absent at the deadline, with `wait`.
        """
        return await self.request(value_requests.make_multi_get(self._job, keys, wait), timeout)

    async def transaction(
        self,
        conditions: Iterable[Condition] = (),
        success: Iterable[Operation] = (),
        failure: Iterable[Operation] = (),
        *,
        timeout: Timeout | None = None,
    ) -> TxnResult:
        """Carry out `success` if all conditions hold, else `failure`; all or none, at one revision.

        Conditions and operations are those of `allhands.kv`.

        Raises:
            NotFound: a lease has ended, or a key whose value is to be kept is absent.
            Refused: an operation cannot be carried out; nothing was changed.
        """
        asked = requests.make_txn(self._job, conditions, success, failure)
        return await self.request(asked, timeout)

    async def compact(self, revision: int, *, timeout: Timeout | None = None) -> None:
        """Forget the history of the job's keys up to a revision."""
        await self.request(requests.make_compact(self._job, revision), timeout)

    # ------------------------------------------------------------ watches and leases

    def watch(
        self,
        key: str,
        *,
        end: str | None = None,
        prefix: bool = False,
        revision: int = 0,
        puts: bool = True,
        deletions: bool = True,
        previous: bool = False,
    ) -> AsyncWatch:
        """Return the events of a key, of keys with a prefix, or from `key` up to `end`.

        From `revision` on, past or next; 0: from the beginning of the `async with` block or of the
        iteration. See `AsyncWatch`.
        """
        keys = WatchedKeys(key, end, prefix, puts, deletions, previous)
        return AsyncWatch(self, keys, WatchPlace(revision))

    def lease(self, ttl: float) -> AsyncLease:
        """Return a lease for `async with`: granted, kept alive in the block, and then revoked.

        `ttl` is in seconds: keys of the lease are deleted that long after this process was last
        heard of.
        """
        return AsyncLease(self, ttl, self._leases)

    async def grant_lease(
        self, ttl: float, *, lease: int = 0, timeout: Timeout | None = None
    ) -> int:
        """Grant a lease that nobody keeps alive yet; return its number, `lease` if not 0."""
        return await self.request(requests.make_lease_grant(self._job, ttl, lease), timeout)

    async def keep_alive(self, lease: int, *, timeout: Timeout | None = None) -> float:
        """Begin a lease's time again; return its seconds.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        return await self.request(requests.make_keep_alive(self._job, lease), timeout)

    async def revoke_lease(self, lease: int, *, timeout: Timeout | None = None) -> int:
        """End a lease, and delete its keys; return how many.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        return await self.request(requests.make_lease_revoke(self._job, lease), timeout)

    async def lease_status(self, lease: int, *, timeout: Timeout | None = None) -> LeaseStatus:
        """Return the time left of a lease, with its keys.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        return await self.request(requests.make_time_to_live(self._job, lease), timeout)

    async def leases(self, *, timeout: Timeout | None = None) -> tuple[int, ...]:
        """Return the numbers of the job's leases."""
        return await self.request(requests.make_lease_list(self._job), timeout)

    # ------------------------------------------------------------ queues

    async def queue_push(
        self, key: str, value: bytes | str, *, timeout: Timeout | None = None
    ) -> int:
        """Append to the queue, and return its length; 0: handed to a waiting caller."""
        return await self.request(value_requests.make_queue_push(self._job, key, value), timeout)

    async def queue_pop(
        self, key: str, *, wait: bool = False, timeout: Timeout | None = None
    ) -> bytes:
        """Remove and return the queue's first value; with `wait`, once the queue has a value.

        Raises:
            NotFound: the queue is empty, without `wait`.
            StoreTimeout: no value was pushed in time, with `wait`.
        """
        return await self.request(value_requests.make_queue_pop(self._job, key, wait), timeout)

    async def queue_length(self, key: str, *, timeout: Timeout | None = None) -> int:
        """Return the number of values in the queue."""
        return await self.request(value_requests.make_queue_length(self._job, key), timeout)


def _get_number(lease: int | AsyncLease) -> int:
    return lease if isinstance(lease, int) else lease.number
