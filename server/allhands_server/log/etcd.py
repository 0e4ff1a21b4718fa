"""Engine in an etcd cluster, for several daemons with one log.

Keys, below the path of the address:

    log/INDEX           a slot: its bytes, or where they are if they are too large for one key
    parts/NAME/PLACE    bytes of a large slot
    snapshots/NAME/PLACE  bytes of a snapshot
    snapshot            the snapshot that counts, and the first slot that counts

A slot below the first one that counts does not exist, whatever stands there: a daemon that was
stopped for long may create a slot that was dropped meanwhile, and notices it by that.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Sequence,
)

from allhands_proto.etcd import rpc_pb2 as wire
from allhands_proto.quick_dataclass import dataclass
from allhands_server.etcd_address import EtcdAddress
from allhands_server.log import etcd_requests as requests
from allhands_server.log.engine import Appended, AppendResult, Slot, SlotTrimmed, Snapshot, Taken
from allhands_server.log.errors import LogDamaged, LogTooNew, LogUnavailable
from allhands_server.log.etcd_client import EtcdClient
from allhands_server.log.slots import check_next, check_snapshot, check_trim

_VERSION = 1
_LARGEST_VALUE = 1 << 20
"""Bytes of a value; etcd takes requests of up to 1.5 MiB."""
_READ_AT_ONCE = 32
"""Keys of a range."""
_DELETED_AT_ONCE = 16
_ATTEMPTS = 10
"""Of a change of the head, or a reading of a snapshot, beside which others change the same."""
_QUIET_SECONDS = 0.75
"""Of a watch without events, after which the log is read: its endpoint may have stopped."""
_WHOLE, _IN_PARTS, _GOES_ON = b"W", b"P", b"+"


@dataclass(frozen=True, slots=True)
class _Head:
    """Value of the key of the snapshot."""

    first: int = 1
    """The first slot that counts."""
    index: int = 0
    """The last slot that the snapshot contains; 0: there is no snapshot."""
    name: str = ""
    pieces: int = 0
    revision: int = 0
    """Of the key; 0: it is absent."""


@dataclass(frozen=True, slots=True)
class _Page:
    slots: tuple[Slot, ...]
    last_key: bytes
    """Of all keys that were read; empty: there were none."""
    revision: int
    """Of the store when it was read."""


class EtcdEngine:
    """A log in an etcd cluster."""

    def __init__(self, address: EtcdAddress) -> None:
        """Take the address; `open` reads what is there.

        Raises:
            OSError: a file of the TLS settings cannot be read.
        """
        self._address = address
        self._client = EtcdClient(address)
        self._root = address.path.encode() + b"/"
        self._log = self._root + b"log/"
        self._head_key = self._root + b"snapshot"
        self._head = _Head()
        self._head_revision = 0
        """Of the store, when the head was as it is kept here."""
        self._last = 0
        """The last slot that is known."""
        self._appending = asyncio.Lock()

    @classmethod
    async def open(cls, address: EtcdAddress) -> "EtcdEngine":
        """Connect to a cluster, and find the log's bounds.

        Raises:
            LogUnavailable: the cluster cannot be reached, or refuses.
            LogTooNew: a later version of allhands has written the log.
            OSError: a file of the TLS settings cannot be read.
        """
        engine = cls(address)
        try:
            await engine.get_bounds()
        except BaseException:
            await engine.close()
            raise
        return engine

    async def append(self, index: int, data: bytes) -> AppendResult:
        """See `LogEngine.append`.

        A slot that holds these very bytes is this writer's, of an append whose outcome it did
        not hear of: frames name their leader.
        """
        async with self._appending:  # else of two of one process the later one could be first
            if index > self._last + 1:
                _, last = await self.get_bounds()
                if index > last + 1:
                    check_next(index, last)
            if index <= self._last:
                return await self._read_taken(index, data)
            return await self._create_slot(index, data)

    async def _create_slot(self, index: int, data: bytes) -> AppendResult:
        key = self._get_slot_key(index)
        value = await self._store_value(index, data)
        response = await self._client.txn(requests.make_create(key, value))
        if not response.succeeded:
            return await self._read_taken(index, data)
        self._last = index
        if response.header.revision == self._head_revision + 1:
            self._head_revision += 1  # nobody has written anything since
        else:
            await self._read_head()
        if index >= self._head.first:
            return Appended()
        # The slot was there before, and was dropped.
        await self._client.txn(requests.make_delete(key, response.header.revision))
        return Taken(b"")

    async def _read_taken(self, index: int, data: bytes) -> AppendResult:
        """Return the result for a slot that is there already, or was."""
        there = await self._read_slot(index)
        head = await self._read_head()
        if index < head.first:
            if there == data:
                return Taken(b"")
            raise SlotTrimmed(index)
        if there is None:
            raise LogDamaged(index, f"{self._address} has lost it")
        self._last = max(self._last, index)
        return Appended() if there == data else Taken(there)

    async def read(self, first: int, limit: int = 256) -> Sequence[Slot]:
        """See `LogEngine.read`."""
        return (await self._read_page(first, limit)).slots

    async def get_bounds(self) -> tuple[int, int]:
        """See `LogEngine.get_bounds`."""
        for _ in range(_ATTEMPTS):
            head = await self._read_head()
            last = await self._find_last(max(self._last, head.first - 1))
            if (await self._read_head()).first == head.first:
                self._last = last
                return head.first, last
        raise LogUnavailable(f"{self._address}: the log is dropped faster than it can be read")

    async def tail(self, first: int) -> AsyncIterator[Slot]:
        """See `LogEngine.tail`."""
        following = first
        while True:
            page = await self._read_page(following, _READ_AT_ONCE)
            for slot in page.slots:
                following = slot.index + 1
                yield slot
            if page.slots:
                continue
            async with contextlib.aclosing(self._watch(following, page.revision + 1)) as coming:
                async for slot in coming:
                    following = slot.index + 1
                    yield slot

    async def _watch(self, following: int, revision: int) -> AsyncGenerator[Slot, None]:
        """Iterate over the slots that are created from a revision on, up to a gap or a silence."""
        request = requests.make_watch(self._log, revision)
        watching = self._client.watch(request, _QUIET_SECONDS)
        async with contextlib.aclosing(watching) as responses:
            async for response in responses:
                for event in response.events:
                    if event.type != wire.Event.PUT:
                        continue
                    index = self._parse_slot_key(event.kv.key)
                    if index < following:
                        continue
                    if index > following:
                        return
                    slot = Slot(index, await self._load_value(index, event.kv.value))
                    self._last = max(self._last, index)
                    following += 1
                    yield slot

    async def save_snapshot(self, index: int, chunks: AsyncIterable[bytes]) -> None:
        """See `LogEngine.save_snapshot`."""
        check_snapshot(index, *await self.get_bounds())
        name = f"{index:020d}-{secrets.token_hex(8)}"
        pieces = 0
        async for chunk in chunks:
            for piece in _cut_chunk(chunk):
                await self._create(self._get_piece_key("snapshots", name, pieces), piece)
                pieces += 1
        for _ in range(_ATTEMPTS):
            head = await self._read_head()
            if head.index >= index:
                break  # another daemon has saved it, or a later one
            is_behind = index > await self._find_last(max(self._last, head.first - 1))
            first = index + 1 if is_behind else head.first
            if await self._replace_head(head, _Head(first, index, name, pieces)):
                self._last = max(self._last, index)
                break
        else:
            raise LogUnavailable(f"{self._address}: others keep on changing the snapshot")
        await self._delete_old_snapshots()

    async def load_snapshot(self) -> Snapshot | None:
        """See `LogEngine.load_snapshot`."""
        for _ in range(_ATTEMPTS):
            head = await self._read_head()
            if not head.index:
                return None
            keys = [self._get_piece_key("snapshots", head.name, n) for n in range(head.pieces)]
            pieces = [await self._look_up(key) for key in keys]
            if None not in pieces:
                return Snapshot(head.index, tuple(_join_chunks(one for one in pieces if one)))
            if (await self._read_head()).name == head.name:
                raise LogDamaged(head.index, f"{self._address} has lost parts of its snapshot")
        raise LogUnavailable(f"{self._address}: snapshots are replaced faster than they are read")

    async def trim(self, below: int) -> None:
        """See `LogEngine.trim`."""
        for _ in range(_ATTEMPTS):
            head = await self._read_head()
            check_trim(below, head.index)
            first = max(head.first, below)
            kept = _Head(first, head.index, head.name, head.pieces)
            if head.first == first or await self._replace_head(head, kept):
                break
        else:
            raise LogUnavailable(f"{self._address}: others keep on changing the snapshot")
        await self._delete_below(self._log, self._get_slot_key(first))
        await self._delete_below(self._root + b"parts/", self._root + b"parts/%020d" % first)

    async def close(self) -> None:
        """See `LogEngine.close`."""
        await self._client.close()

    # ------------------------------------------------------------ keys

    def _get_slot_key(self, index: int) -> bytes:
        return self._log + b"%020d" % index

    def _parse_slot_key(self, key: bytes) -> int:
        try:
            return int(key[len(self._log) :])
        except ValueError:
            text = f"{self._address} holds the key {key!r}, which is no slot"
            raise LogDamaged(0, text) from None

    def _get_piece_key(self, kind: str, name: str, place: int) -> bytes:
        return self._root + f"{kind}/{name}/{place:08d}".encode()

    async def _look_up(self, key: bytes) -> bytes | None:
        found = await self._client.range(requests.make_lookup(key))
        return found.kvs[0].value if found.kvs else None

    async def _create(self, key: bytes, value: bytes) -> None:
        """Create a key that nobody else writes."""
        await self._client.txn(requests.make_create(key, value))

    async def _delete_below(self, prefix: bytes, end: bytes) -> None:
        """Delete the keys with a prefix that come before `end`."""
        while True:
            found = await self._client.range(requests.make_range(prefix, _DELETED_AT_ONCE))
            old = [one for one in found.kvs if one.key < end]
            async with asyncio.TaskGroup() as deleting:
                for one in old:
                    request = requests.make_delete(one.key, one.mod_revision)
                    deleting.create_task(self._client.txn(request))
            if len(old) < len(found.kvs) or not found.more:
                return

    # ------------------------------------------------------------ slots

    async def _read_slot(self, index: int) -> bytes | None:
        value = await self._look_up(self._get_slot_key(index))
        return None if value is None else await self._load_value(index, value)

    async def _read_page(self, first: int, limit: int) -> _Page:
        slots: list[Slot] = []
        first = max(first, (await self._read_head()).first)
        after = self._get_slot_key(first - 1) if first > 1 else b""
        while True:
            asked = min(_READ_AT_ONCE, limit - len(slots) + 1)
            found = await self._client.range(requests.make_range(self._log, asked, after))
            for one in found.kvs:
                index = self._parse_slot_key(one.key)
                if index >= first and len(slots) < limit:
                    slots.append(Slot(index, await self._load_value(index, one.value)))
            if slots:
                self._last = max(self._last, slots[-1].index)
            last_key = found.kvs[-1].key if found.kvs else b""
            if not found.more or len(slots) == limit:
                return _Page(tuple(slots), last_key, found.header.revision)
            if last_key <= after:
                raise LogUnavailable(f"{self._address} does not list keys as etcd does")
            after = last_key

    async def _find_last(self, known: int) -> int:
        """Return the last slot, from one on that is known to be there, or to be the end."""
        step = 1
        while await self._has_slot(known + step):
            known += step
            step *= 2
        while step > 1:
            step //= 2
            if await self._has_slot(known + step):
                known += step
        return known

    async def _has_slot(self, index: int) -> bool:
        return await self._look_up(self._get_slot_key(index)) is not None

    async def _store_value(self, index: int, data: bytes) -> bytes:
        """Return a slot's value; large data is stored beside it."""
        if len(data) <= _LARGEST_VALUE:
            return _WHOLE + data
        name = f"{index:020d}-{secrets.token_hex(8)}"
        starts = range(0, len(data), _LARGEST_VALUE)
        for place, start in enumerate(starts):
            key = self._get_piece_key("parts", name, place)
            await self._create(key, data[start : start + _LARGEST_VALUE])
        return _IN_PARTS + f"{name}/{len(starts)}".encode()

    async def _load_value(self, index: int, value: bytes) -> bytes:
        """Return the data of a slot's value."""
        if value[:1] == _WHOLE:
            return value[1:]
        name, _, count = value[1:].decode(errors="replace").partition("/")
        if value[:1] != _IN_PARTS or not count.isdecimal():
            raise LogDamaged(index, f"{self._address} holds no slot there")
        parts = [
            await self._look_up(self._get_piece_key("parts", name, place))
            for place in range(int(count))
        ]
        if None in parts and index >= (await self._read_head()).first:
            raise LogDamaged(index, f"{self._address} has lost parts of it")
        return b"".join(part for part in parts if part is not None)

    # ------------------------------------------------------------ the head

    async def _read_head(self) -> _Head:
        found = await self._client.range(requests.make_lookup(self._head_key))
        self._head_revision = found.header.revision
        if not found.kvs:
            self._head = _Head()
        elif found.kvs[0].mod_revision != self._head.revision:
            self._head = self._decode_head(found.kvs[0])
        return self._head

    def _decode_head(self, found: wire.KeyValue) -> _Head:
        try:
            read = json.loads(found.value)
            version = int(read["version"])
            if version > _VERSION:
                text = f"format {version}, and this version reads up to {_VERSION}"
                raise LogTooNew(0, text)
            fields = (int(read["first"]), int(read["index"]), str(read["name"]))
            return _Head(*fields, int(read["pieces"]), found.mod_revision)
        except (ValueError, KeyError, TypeError) as error:
            text = f"{self._address}: the key {found.key!r} is none of allhands"
            raise LogDamaged(0, text) from error

    async def _replace_head(self, old: _Head, new: _Head) -> bool:
        """Replace the head; return whether it was still as it had been read."""
        text = json.dumps(
            {
                "version": _VERSION,
                "first": new.first,
                "index": new.index,
                "name": new.name,
                "pieces": new.pieces,
            }
        ).encode()
        if old.revision:
            request = requests.make_replace(self._head_key, text, old.revision)
        else:
            request = requests.make_create(self._head_key, text)
        if (await self._client.txn(request)).succeeded:
            return True
        return await self._look_up(self._head_key) == text  # of an attempt without an answer

    async def _delete_old_snapshots(self) -> None:
        """Delete the bytes of snapshots before the one that counts."""
        name = (await self._read_head()).name
        prefix = self._root + b"snapshots/"
        await self._delete_below(prefix, prefix + name.encode())


def _cut_chunk(chunk: bytes) -> Iterator[bytes]:
    """Cut a chunk of a snapshot into values."""
    for start in range(0, max(len(chunk), 1), _LARGEST_VALUE):
        is_last = start + _LARGEST_VALUE >= len(chunk)
        yield (_WHOLE if is_last else _GOES_ON) + chunk[start : start + _LARGEST_VALUE]


def _join_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join the values of `_cut_chunk` to chunks."""
    parts: list[bytes] = []
    for piece in pieces:
        parts.append(piece[1:])
        if piece[:1] == _WHOLE:
            yield b"".join(parts)
            parts.clear()
