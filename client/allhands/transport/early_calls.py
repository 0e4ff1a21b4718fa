"""Messages of collectives that came before their calls began, by group and call. Pure."""

from collections.abc import Collection, Iterator

from allhands.transport.frame import Header, MessageKey
from allhands_proto.quick_dataclass import dataclass

_FEW = 64
"""Calls of a group that are looked through rather than counted up to."""


@dataclass(slots=True, eq=False)
class EarlyMessage:
    """A message without a posted receive; no payload when only announced."""

    peer: int
    header: Header
    """Of its first frame."""
    payload: bytes | bytearray | None
    """What has come of it; of those to a point more may follow."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held here."""
        return len(self.payload or b"")

    @property
    def is_whole(self) -> bool:
        """Whether all of its payload has come."""
        return self.payload is not None and len(self.payload) == self.header.total


class EarlyCalls:
    """Early messages of all groups; peers may be thousands of calls ahead of this rank."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[int, dict[tuple[int, MessageKey], EarlyMessage]]] = {}
        """By group, call, and message."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[tuple[int, MessageKey]]:
        """Return the peer and the key of each message."""
        for calls in self._groups.values():
            for messages in calls.values():
                yield from messages

    def add(self, arrived: EarlyMessage) -> None:
        key = arrived.header.key
        calls = self._groups.setdefault(key.group, {})
        calls.setdefault(key.sequence, {})[arrived.peer, key] = arrived

    def pop(self, peer: int, key: MessageKey) -> EarlyMessage | None:
        """Take a message; None: it is not here."""
        calls = self._groups.get(key.group)
        messages = None if calls is None else calls.get(key.sequence)
        if calls is None or messages is None:
            return None
        arrived = messages.pop((peer, key), None)
        if not messages:
            del calls[key.sequence]
        return arrived

    def take_until(self, group: int, sequence: int, last: int) -> Iterator[EarlyMessage]:
        """Take all messages of a group's calls up to `sequence`, none being left up to `last`."""
        calls = self._groups.get(group)
        if not calls:
            return
        past: Collection[int] = range(last + 1, sequence + 1)
        if len(calls) <= max(_FEW, len(past)):
            past = [at for at in calls if at <= sequence]
        for at in past:
            yield from calls.pop(at, {}).values()

    def has_any(self, group: int) -> bool:
        """Say whether there are messages of a group."""
        return any(self._groups.get(group, {}).values())

    def list_group(self, group: int) -> list[EarlyMessage]:
        """Return the messages of a group."""
        calls = self._groups.get(group, {})
        return [arrived for messages in calls.values() for arrived in messages.values()]

    def limit(self, group: int, sequences: range, nbytes: int) -> range:
        """Return the first of some calls, up to one of which a message was only announced.

        They hold at most so many bytes, but for the first.
        """
        calls, held = self._groups.get(group, {}), 0
        for at in _list_among(calls, sequences):
            messages = calls[at].values()
            if any(one.payload is None for one in messages):
                return range(sequences.start, at)
            held += sum(one.nbytes for one in messages)
            if held > nbytes and at > sequences.start:
                return range(sequences.start, at)
        return sequences

    def take(
        self, group: int, sequences: range, peers: Collection[int]
    ) -> list[EarlyMessage] | None:
        """Take the messages of some calls, in the order of the calls.

        None: of some only the announcement has come, or it is not of one of `peers`; nothing was
        taken then.
        """
        if not (calls := self._groups.get(group)):
            return []
        some = _list_among(calls, sequences)
        found = [one for at in some for one in calls[at].values()]
        if any(one.payload is None or one.peer not in peers for one in found):
            return None
        for at in some:
            del calls[at]
        return found


def _list_among(calls: Collection[int], sequences: range) -> list[int]:
    """Return the numbers of `calls` that are among `sequences`, in order: of many mostly one is."""
    if len(calls) < len(sequences):
        return sorted(at for at in calls if at in sequences)
    return [at for at in sequences if at in calls]
