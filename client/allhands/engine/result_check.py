"""What a group with `verify=True` does more: it knows of changed data, and compares results."""

from collections import Counter
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np

from allhands.collectives import plan
from allhands.collectives.buffer import octets
from allhands.collectives.part import Part
from allhands.collectives.request import Native
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Failure
from allhands.engine.links.executor import Execution
from allhands.transport.frame import FrameError, Key
from allhands.transport.mesh import Mesh

HERE_BYTES = 1 << 20
"""Up to which a digest is made where the loop runs; zlib takes 0.25 ms for so many."""
_FIRST_PART = 1 << 31
"""Of the exchange of digests; those of the call itself, and of its phases, are below."""
_ALIKE = frozenset(("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"))
"""Operations whose result is the same on every rank."""
_AHEAD = 64
"""How far ahead of this rank's calls a frame is believed to be."""


class Verification:
    """Lives on the loop."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        group: int,
        ended: Callable[[], int],
        wake: Callable[[int, Failure], None],
    ) -> None:
        """`wake` ends a call, if it is under way; those up to `ended()` are over."""
        self._mesh = mesh
        self._ranks = tuple(ranks)
        self._rank = rank
        self._group = group
        self._ended = ended
        self._wake = wake
        self._spoiled: dict[int, tuple[int, int]] = {}
        mesh.verify(group, self)

    def reason(self, sequence: int) -> Failure | None:
        """Return why a call cannot end well, if data of it is known to have been changed."""
        link = self._spoiled.get(sequence)
        return None if link is None else call_errors.changed(link, sequence)

    def conclude(self, sequence: int) -> None:
        """Forget what concerned calls up to a number."""
        if self._spoiled:
            self._spoiled = {at: link for at, link in self._spoiled.items() if at > sequence}

    def close(self) -> None:
        """Let go of the group; what still comes of it is looked at, and is nobody's."""
        self._mesh.verify(self._group, _Over())

    # ------------------------------------------------------------ mesh Checker

    def corrupted(self, peer: int, key: Key) -> None:
        sequence, ended = key.sequence, self._ended()
        if sequence > ended + _AHEAD or peer not in self._ranks:
            raise FrameError(
                "a frame was changed on its way (digest), and where it belongs is unknown"
            )
        link = (peer, self._ranks[self._rank])
        # Also if it is over here: others may wait for the answer that it would have had.
        for other in self._ranks:
            if other != self._ranks[self._rank]:
                self._mesh.tell_corrupt(other, Key(self._group, sequence), link)
        self._spoil(sequence, link)

    def told(self, peer: int, key: Key, link: tuple[int, int]) -> None:
        self._spoil(key.sequence, link)

    # ------------------------------------------------------------ digests

    def execution(self, sequence: int, signature: int) -> Execution:
        """Return what compares the results of a call that has ended well so far."""
        return Execution(
            self._mesh,
            peers=self._ranks,
            rank=self._rank,
            group=self._group,
            sequence=sequence,
            signature=signature,
            first=_FIRST_PART,
        )

    def parts(
        self, digest: int, found: "np.ndarray[tuple[int], np.dtype[np.uint64]]"
    ) -> list[Part]:
        """Return the exchange that fills `found` with the digests of all ranks."""
        mine = np.array([digest], np.uint64)
        return plan.all_gather(self._rank, len(self._ranks), mine, [found])

    def difference(self, found: Sequence[int], sequence: int) -> Failure | None:
        """Return the failure of a call whose results differ."""
        if len(set(found)) == 1:
            return None
        usual, count = Counter(found).most_common(1)[0]
        others = [rank for rank, one in zip(self._ranks, found, strict=True) if one != usual]
        # Without a majority nobody can tell who is wrong.
        culprits = others if 2 * count > len(found) else self._ranks
        return call_errors.differing(tuple(culprits), sequence)

    # ------------------------------------------------------------ inside

    def _spoil(self, sequence: int, link: tuple[int, int]) -> None:
        if sequence > self._ended() and sequence not in self._spoiled:
            self._spoiled[sequence] = link
            self._wake(sequence, call_errors.changed(link, sequence))


class _Over:
    """The checker of a group that is no more."""

    def corrupted(self, peer: int, key: Key) -> None:
        """Nothing: its calls have ended."""

    def told(self, peer: int, key: Key, link: tuple[int, int]) -> None:
        """Nothing: its calls have ended."""


def digest(native: Native) -> int:
    """Return what ranks compare of a call's result; 0 where results are not alike."""
    crc = 0
    if native.kind in _ALIKE:
        for array in native.targets:
            crc = crc32(octets(array), crc)
    return crc


def result_bytes(native: Native) -> int:
    """Return over how many bytes a digest goes."""
    return sum(array.nbytes for array in native.targets) if native.kind in _ALIKE else 0
