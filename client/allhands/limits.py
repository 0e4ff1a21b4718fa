"""Where one way of carrying out a call over shared memory ends and the next begins."""

import hashlib
from dataclasses import dataclass

Settled = tuple[int, int, int]
"""slot_max, chunk and attach_min."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes; None: what was measured for the size of the group.

    Equal on all ranks of a group, or the group does without shared memory.
    """

    slot_max: int | None = None
    """Of a rank's contribution: up to here it travels in a slot, in one round."""
    chunk: int | None = None
    """Of what a rank has in the staging buffers at a time."""
    attach_min: int | None = None
    """From here on data that is only moved is read out of its owner's memory; -1: never."""

    def __post_init__(self) -> None:
        slot_max, chunk, attach_min = self.settled((0, 1 << 12, -1))
        if slot_max < 0 or chunk < 1 << 12 or attach_min < -1:
            raise ValueError(
                f"no sensible limits of shared memory: {self}; slots take 0 bytes or more, chunks "
                f"{1 << 12} or more, and -1 stands for no cross-memory attach"
            )

    def settled(self, measured: Settled) -> Settled:
        """Return the limits of a group, given what was measured for its size."""
        own = (self.slot_max, self.chunk, self.attach_min)
        slot_max, chunk, attach_min = (
            theirs if mine is None else mine for mine, theirs in zip(own, measured, strict=True)
        )
        return slot_max, chunk, attach_min


def terms(limits: Settled) -> int:
    """Return 64 bits that are equal where the limits are."""
    text = "/".join(map(str, limits))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
