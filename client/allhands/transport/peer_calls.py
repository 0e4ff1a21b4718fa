"""Current call of each peer, from frames, compared with this rank's. Pure.

Messages of unlike calls need not meet: each end may wait for, or send, what the other's schedule
does not know. Their signatures give them away nevertheless.
"""

from collections import defaultdict
from collections.abc import Iterable

_REMEMBERED = 64
"""Calls of a group whose signature is known after their end, for peers that come late."""


class PeerCallTracker:
    """The calls of all groups, by sequence number."""

    def __init__(self) -> None:
        self._own_signatures: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._early_signatures: defaultdict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        self._early_peers: dict[int, tuple[int, set[int]]] = {}
        """By group, the latest call of this rank and who was heard in it before it began here."""

    def begin_call(self, group: int, sequence: int, signature: int) -> bool:
        """Start a call of this rank; say whether all peers heard of so far are in the same one."""
        mine = self._own_signatures[group]
        mine[sequence] = signature
        mine.pop(sequence - _REMEMBERED, None)
        heard = self._early_signatures.pop(group, {})
        here = {peer: said for (number, peer), said in heard.items() if number == sequence}
        self._early_peers[group] = sequence, set(here)
        later = {place: said for place, said in heard.items() if place[0] > sequence}
        if later:
            self._early_signatures[group] = later
        return {*here.values()} <= {signature}

    def get_early_peers(self, group: int, sequence: int) -> set[int]:
        """Return peers with frames for this rank's latest call before the call began."""
        number, peers = self._early_peers.get(group, (0, set()))
        return peers if number == sequence else set()

    def get_own_signature(self, group: int, sequence: int) -> int | None:
        """Return the signature of this rank's call, if that has begun not long ago."""
        return self._own_signatures.get(group, {}).get(sequence)

    def get_own_signatures(self, group: int) -> dict[int, int]:
        """Return the signatures of this rank's latest calls of a group, by their numbers."""
        return self._own_signatures[group]

    def forget_early(self, group: int, told: Iterable[tuple[int, int]]) -> None:
        """Forget peers heard in calls to come: the messages that told it will be read again."""
        if (heard := self._early_signatures.get(group)) is not None:
            for place in told:
                heard.pop(place, None)

    def has_early(self, group: int, sequences: range | None = None) -> bool:
        """Say whether peers were heard in calls that have not begun here; None: in any."""
        heard = self._early_signatures.get(group, ())
        return any(sequences is None or place[0] in sequences for place in heard)

    def is_past(self, group: int, sequence: int) -> bool:
        """Say whether this rank is in a later call."""
        return sequence < max(self._own_signatures.get(group, {}), default=0)

    def note_call(self, peer: int, group: int, sequence: int, signature: int) -> bool:
        """Learn from a frame which call a peer is in; say whether it is known to be another."""
        mine = self._own_signatures.get(group, {})
        if sequence in mine:
            return mine[sequence] == signature
        if sequence > max(mine, default=0):
            self._early_signatures[group][sequence, peer] = signature
        return True
