"""A dataclass that is frozen for the type checker only, and quick to use and to define."""

from typing import TypeVar, dataclass_transform

from allhands_proto.quick_dataclass import dataclass

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def fast_dataclass(cls: type[T]) -> type[T]:
    """Make a dataclass with slots whose fields the type checker treats as frozen.

    `frozen=True` would also guard them while the program runs, but makes each field cost 0.03 us
    more: a key-value call takes five of these.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
