"""What a rank asked for, in a form that can be compared with what others asked for."""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Call:
    """The parts of a call on which all ranks must agree."""

    operation: str
    dtype: str = ""
    count: int | None = None
    """Elements of the array, or of each of the arrays; None where ranks may differ."""
    reduce: str = ""
    root: int | None = None
    """As a rank of the group."""
    crossing: tuple[int, int] | None = None
    """Where each of two ranks says how much it gives: what rank 0 gives to rank 1, and back."""
    detail: str = field(default="", compare=False, repr=False)
    """What ranks need not agree on, for people to read."""
    layout: str = ""
    """Where there are many arrays: the dtypes and counts of all."""

    def __str__(self) -> str:
        parts = [
            f"{self.dtype}[{'any' if self.count is None else self.count}]" if self.dtype else "",
            self.layout,
            self.reduce,
            f"root {self.root}" if self.root is not None else "",
            self.detail,
        ]
        return f"{self.operation}({', '.join(part for part in parts if part)})"

    @property
    def signature(self) -> int:
        """64 bits that travel with every message of the call."""
        return _signature(self)


@lru_cache(maxsize=1024)
def _signature(call: Call) -> int:
    # Not hash(): that differs from process to process.
    return int.from_bytes(hashlib.blake2b(repr(call).encode(), digest_size=8).digest())


def group_hash(name: str) -> int:
    """Return the 64 bits under which a group's messages travel."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
