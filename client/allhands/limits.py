"""Where one way of carrying out a call over shared memory ends and the next begins."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes; equal on all ranks of a group, or the group does without shared memory."""

    slot_max: int = 8 << 10
    """Of a rank's contribution: up to here it travels in a slot, in one round."""
    chunk: int = 1 << 20
    """Of what a rank has in the staging buffers at a time."""
    attach_min: int = 64 << 10
    """From here on data that is only moved is read out of its owner's memory; -1: never."""

    def __post_init__(self) -> None:
        if self.slot_max < 0 or self.chunk < 1 << 12 or self.attach_min < -1:
            raise ValueError(f"no sensible limits of shared memory: {self}")

    @property
    def terms(self) -> int:
        """64 bits that ranks compare."""
        text = f"{self.slot_max}/{self.chunk}/{self.attach_min}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())

    def as_tuple(self) -> tuple[int, int, int]:
        return self.slot_max, self.chunk, self.attach_min
