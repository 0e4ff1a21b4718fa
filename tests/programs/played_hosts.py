"""Hosts that are played on this machine, by ranks that take it for several."""

import os
from collections.abc import Sequence

from allhands.shm import arena
from allhands.shm.areas import GroupAreas
from allhands.shm.arena import Arena

_open = Arena.open


def play_host(letters: str) -> None:
    """Take this machine for the host of this rank's letter, of which there is one a rank.

    On a host with a capital letter the ranks that have one put up no board.
    """
    key, letter = arena.compute_host_key(), letters[int(os.environ["RANK"])]
    arena.compute_host_key = lambda: key + letter.lower()
    if letter.isupper():
        Arena.open = _open_no_board  # type: ignore[method-assign]


def _open_no_board(
    self: Arena, group: int, ranks: Sequence[int], capacity: int | None = None
) -> GroupAreas | None:
    if capacity is None:
        return _open(self, group, ranks)
    self._own_segment.publish(group, 0, 0)
    return None
