"""Copies of the next round, made piece by piece while the round before receives.

A large copy at the end of a call keeps the network idle; meanwhile it is made in the time that the
network takes.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.schedule import Area, Copy
from allhands.data.blocks import copy_into

PIECE_BYTES = 256 << 10
"""Copied at once, at least: half the send buffer of a near link, which must not run dry."""


def _pair_pieces(areas: Mapping[Area, Buffer], copy: Copy) -> Iterator[tuple[Array, Array]]:
    """Yield the bytes of a copy's source and of its target, in runs contiguous at both ends."""
    sources, targets = (
        deque(piece.view(np.uint8) for piece in areas[at.area].view_pieces(at.start, at.stop))
        for at in (copy.source, copy.target)
    )
    while sources:
        source, target = sources.popleft(), targets.popleft()
        count = min(len(source), len(target))
        yield source[:count], target[:count]
        if count < len(source):
            sources.appendleft(source[count:])
        if count < len(target):
            targets.appendleft(target[count:])


class CopiesAhead:
    """Copies of one round, in progress: some of them perhaps in the round before."""

    def __init__(
        self,
        areas: Mapping[Area, Buffer],
        copies: Sequence[Copy],
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._pairs = deque(pair for copy in copies for pair in _pair_pieces(areas, copy))
        self._piece_bytes = piece_bytes
        self._copied = 0

    def advance(self, nbytes: int) -> None:
        """Copy up to that many bytes in all, once that is a piece more."""
        if nbytes - self._copied >= self._piece_bytes:
            self._copy(nbytes - self._copied)

    def finish(self) -> None:
        """Copy the rest."""
        self._copy(sum(len(source) for source, _ in self._pairs))

    def _copy(self, nbytes: int) -> None:
        self._copied += nbytes
        while nbytes and self._pairs:
            source, target = self._pairs.popleft()
            count = min(nbytes, len(source))
            copy_into(target[:count], source[:count])
            if count < len(source):
                self._pairs.appendleft((source[count:], target[count:]))
            nbytes -= count
