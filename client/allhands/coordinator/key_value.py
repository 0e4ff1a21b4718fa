"""Keys, queues, transactions, watches and leases of a job, for the synchronous client."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

from allhands.coordinator.kv import requests, value_requests
from allhands.coordinator.kv.cancelling import CallCanceller
from allhands.coordinator.kv.records import KeyRange, KeyRecord, LeaseStatus, TxnResult, WatchPlace
from allhands.coordinator.kv.requests import AnyKvRequest, T, WatchedKeys
from allhands.coordinator.kv.transactions import Condition, Delete, Get, Operation, Put, SortBy
from allhands.coordinator.kv.values import encode
from allhands.coordinator.lease import Lease
from allhands.coordinator.watch import Watch
from allhands.deadlines import Timeout
from allhands.errors import NotFound
from allhands.tracebacks import trims_tracebacks
from allhands_proto.kv_results import CompareSetResult
from allhands_proto.kv_verbs import P, Q
from allhands_proto.v1 import coordinator_pb2 as wire


@trims_tracebacks
class KeyValueClient(ABC):
    """The part of `Control` for keys and queues; see there."""

    def __init__(self) -> None:
        self._leases: set[Lease] = set()
        """Those kept alive."""

    @property
    @abstractmethod
    def job_name(self) -> str | None:
        """Job of this client's keys and barriers, if named."""

    @abstractmethod
    def _require_job(self) -> str: ...

    @abstractmethod
    def _call_kv(
        self,
        request: Q,
        reply_type: type[P],
        timeout: Timeout | None,
        canceller: CallCanceller | None = None,
    ) -> P: ...

    def request(
        self,
        asked: AnyKvRequest[T],
        timeout: Timeout | None = None,
        canceller: CallCanceller | None = None,
    ) -> T:
        """Make a request, and return the value of its reply; the other methods are made of it."""
        try:
            reply = self._call_kv(asked.message, asked.reply, timeout, canceller)
        except NotFound as error:
            raise asked.absent(str(error)) from error
        return asked.read(reply)

    # ------------------------------------------------------------ values and queues

    def put(
        self,
        key: str,
        value: bytes | str,
        *,
        lease: int | Lease = 0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> int:
        """Set the key to the value; return the new revision of the job's store.

        With the end of the lease, or with the loss or departure of the member, the key is deleted.

        Raises:
            LeaseNotFound: the lease has ended.
            NotFound, Refused: there is no such member, or it is not present any more.
        """
        if lease or member:
            put = Put(key, value, get_number(lease), member)
            return self.request(requests.make_put(self._require_job(), put), timeout).revision
        request = wire.SetRequest(job=self._require_job(), key=key, value=encode(value))
        return self._call_kv(request, wire.SetReply, timeout).revision

    def get(self, key: str, *, wait: bool = False, timeout: Timeout | None = None) -> bytes:
        """Return the key's value; with `wait`, as soon as the key exists.

        Raises:
            NotFound: the key is absent, without `wait`.
            StoreTimeout: the key was still absent at the deadline, with `wait`.
        """
        return self.request(value_requests.make_get_value(self._require_job(), key, wait), timeout)

    def wait(self, keys: Sequence[str], *, timeout: Timeout | None = None) -> None:
        """Wait until all keys exist at the same time.

        Raises:
            StoreTimeout: a key was absent at the deadline.
        """
        request = wire.WaitRequest(job=self._require_job(), keys=keys)
        self._call_kv(request, wire.WaitReply, timeout)

    def add(self, key: str, amount: int = 1, *, timeout: Timeout | None = None) -> int:
        """Add to the key's decimal number, 0 if absent, and return the sum.

        Raises:
            Refused: the value is no decimal number, or the sum leaves the range of 64 bits; the
                value is unchanged.
        """
        return self.request(value_requests.make_add(self._require_job(), key, amount), timeout)

    def cas(
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
        asked = value_requests.make_compare_set(self._require_job(), key, expected, desired)
        return self.request(asked, timeout)

    def append(self, key: str, value: bytes | str, *, timeout: Timeout | None = None) -> int:
        """Append to the key's value, empty if absent; return the new length in bytes."""
        request = wire.AppendRequest(job=self._require_job(), key=key, value=encode(value))
        return self._call_kv(request, wire.AppendReply, timeout).length

    def multi_put(self, pairs: Mapping[str, bytes | str], *, timeout: Timeout | None = None) -> int:
        """Set all keys in one step; return the new revision of the job's store."""
        return self.request(value_requests.make_multi_put(self._require_job(), pairs), timeout)

    def multi_get(
        self, keys: Sequence[str], *, wait: bool = False, timeout: Timeout | None = None
    ) -> tuple[bytes, ...]:
        """Return the keys' values in one snapshot, in order; with `wait`, once all exist.

        Raises:
            NotFound: a key is absent, without `wait`.
            StoreTimeout: a key was absent at the deadline, with `wait`.
        """
        return self.request(value_requests.make_multi_get(self._require_job(), keys, wait), timeout)

    def delete(self, key: str, *, timeout: Timeout | None = None) -> bool:
        """Delete the key; return whether the key existed."""
        request = wire.DeleteRequest(job=self._require_job(), key=key)
        return self._call_kv(request, wire.DeleteReply, timeout).deleted

    def list(self, prefix: str = "", *, timeout: Timeout | None = None) -> tuple[str, ...]:
        """Return the keys with a `prefix`, sorted."""
        request = wire.ListRequest(job=self._require_job(), prefix=prefix)
        return tuple(self._call_kv(request, wire.ListReply, timeout).keys)

    def count(self, prefix: str = "", *, timeout: Timeout | None = None) -> int:
        """Return the number of the job's keys, or of those with a prefix."""
        if prefix:
            get = Get(prefix, prefix=True, count_only=True)
            return self.request(requests.make_get(self._require_job(), get), timeout).count
        request = wire.CountRequest(job=self._require_job())
        return self._call_kv(request, wire.CountReply, timeout).count

    def queue_push(self, key: str, value: bytes | str, *, timeout: Timeout | None = None) -> int:
        """Append to the queue, and return its length; 0: handed to a waiting caller."""
        return self.request(
            value_requests.make_queue_push(self._require_job(), key, value), timeout
        )

    def queue_pop(self, key: str, *, wait: bool = False, timeout: Timeout | None = None) -> bytes:
        """Remove and return the queue's first value; with `wait`, once the queue has a value.

        The value is lost if the caller is killed before it receives the reply.

        Raises:
            NotFound: the queue is empty, without `wait`.
            StoreTimeout: no value was pushed in time, with `wait`.
        """
        return self.request(value_requests.make_queue_pop(self._require_job(), key, wait), timeout)

    def queue_length(self, key: str, *, timeout: Timeout | None = None) -> int:
        """Return the number of values in the queue."""
        return self.request(value_requests.make_queue_length(self._require_job(), key), timeout)

    # ------------------------------------------------------------ ranges

    def get_record(
        self, key: str, *, revision: int = 0, timeout: Timeout | None = None
    ) -> KeyRecord | None:
        """Return the key with its last change, at `revision` or now; None: absent.

        Raises:
            Compacted: the revision is not known any more.
        """
        get = requests.make_get(self._require_job(), Get(key, revision=revision))
        found = self.request(get, timeout)
        return found.records[0] if found.records else None

    def get_range(
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
        return self.request(requests.make_get(self._require_job(), get), timeout)

    def get_prefix(
        self, prefix: str, *, keys_only: bool = False, timeout: Timeout | None = None
    ) -> KeyRange:
        """Return all keys with a prefix, as they are at one revision, in as many calls as it takes.

        Raises:
            Compacted: the keys changed faster than they could be read.
        """
        pages = list(self.pages(prefix, keys_only=keys_only, timeout=timeout))
        records = tuple(record for page in pages for record in page)
        return KeyRange(pages[0].revision, records, len(records), has_more=False)

    def pages(
        self,
        prefix: str = "",
        *,
        limit: int = 0,
        keys_only: bool = False,
        timeout: Timeout | None = None,
    ) -> Iterator[KeyRange]:
        """Yield the keys with a prefix as pages of `limit` records, all at the first's revision.

        Raises:
            Compacted: that revision is not known any more; begin again.
        """
        get: Get | None = Get(prefix, prefix=True, limit=limit, keys_only=keys_only)
        while get is not None:
            page = self.request(requests.make_get(self._require_job(), get), timeout)
            yield page
            get = requests.find_next_page(get, page)

    def delete_range(self, key: str, end: str = "", *, timeout: Timeout | None = None) -> int:
        """Delete the keys from `key` up to `end`, empty: all from there on; return how many."""
        delete = requests.make_delete(self._require_job(), Delete(key, end))
        return self.request(delete, timeout).deleted

    def delete_prefix(self, prefix: str, *, timeout: Timeout | None = None) -> int:
        """Delete the keys with a prefix, at one revision; return how many."""
        delete = requests.make_delete(self._require_job(), Delete(prefix, prefix=True))
        return self.request(delete, timeout).deleted

    # ------------------------------------------------------------ transactions

    def compare_and_set(
        self,
        key: str,
        value: bytes | str,
        *,
        revision: int,
        lease: int | Lease = 0,
        timeout: Timeout | None = None,
    ) -> int | None:
        """Set the key if its last change was at `revision`, 0: if absent.

        Returns the revision of the change; None: the key has changed since, and is left as it is.
        """
        job, number = self._require_job(), get_number(lease)
        asked = requests.make_compare_and_set(job, key, value, revision, number)
        return self.request(asked, timeout)

    def transaction(
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
        asked = requests.make_txn(self._require_job(), conditions, success, failure)
        return self.request(asked, timeout)

    def compact(self, revision: int, *, timeout: Timeout | None = None) -> None:
        """Forget the history of the job's keys up to a revision."""
        self.request(requests.make_compact(self._require_job(), revision), timeout)

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
    ) -> Watch:
        """Return the events of a key, of keys with a prefix, or from `key` up to `end`.

        From `revision` on, past or next; 0: from the beginning of the `with` block or of the
        iteration. See `Watch`.
        """
        keys = WatchedKeys(key, end, prefix, puts, deletions, previous)
        return Watch(self.request, self._require_job(), keys, WatchPlace(revision))

    def lease(self, ttl: float) -> Lease:
        """Return a lease for `with`: granted, kept alive in the block, and then revoked.

        `ttl` is in seconds: keys of the lease are deleted that long after this process was last
        heard of.
        """
        return Lease(self.request, self._require_job(), ttl, self._leases)

    def grant_lease(self, ttl: float, *, lease: int = 0, timeout: Timeout | None = None) -> int:
        """Grant a lease that nobody keeps alive yet; return its number, `lease` if not 0."""
        return self.request(requests.make_lease_grant(self._require_job(), ttl, lease), timeout)

    def keep_alive(self, lease: int, *, timeout: Timeout | None = None) -> float:
        """Begin a lease's time again; return its seconds.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        return self.request(requests.make_keep_alive(self._require_job(), lease), timeout)

    def revoke_lease(self, lease: int, *, timeout: Timeout | None = None) -> int:
        """End a lease, and delete its keys; return how many.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        return self.request(requests.make_lease_revoke(self._require_job(), lease), timeout)

    def lease_status(self, lease: int, *, timeout: Timeout | None = None) -> LeaseStatus:
        """Return the time left of a lease, with its keys.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        return self.request(requests.make_time_to_live(self._require_job(), lease), timeout)

    def leases(self, *, timeout: Timeout | None = None) -> tuple[int, ...]:
        """Return the numbers of the job's leases."""
        return self.request(requests.make_lease_list(self._require_job()), timeout)

    def _stop_leases(self) -> None:
        """Stop the keep-alives of this client."""
        for lease in list(self._leases):
            lease.stop()


def get_number(lease: int | Lease) -> int:
    """Return the number of a lease."""
    return lease if isinstance(lease, int) else lease.number
