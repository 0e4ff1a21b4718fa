"""A dataclass, frozen for the type checker only, and quick to define."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def fast_dataclass(cls: type[T]) -> type[T]:
    """Make a dataclass with slots whose fields the type checker treats as frozen.

    `frozen=True` would also guard them while the program runs, but makes each field cost 0.1 us
    more: with the five of these that a key-value call takes, a fifth of the coordinator's time.

    Comparison, hash and text are closures: to compile them for each class, as `dataclass` does,
    was an eighth of what the start of a launcher costs, with its 150 of these.
    """
    # Else `dataclass` makes a text of the signature, which takes as long as all the rest.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclass(slots=True, eq=False, repr=False)(cls)
    for method in _make_methods(tuple(one.name for one in fields(made))):  # type: ignore[arg-type]
        if method.__name__ not in vars(cls):
            setattr(made, method.__name__, method)
    return made


def _make_methods(names: tuple[str, ...]) -> tuple[Callable[..., Any], ...]:
    # A tuple always: one that is not a number equals itself in it, and only there.
    read: Callable[[object], tuple[object, ...]]
    if len(names) > 1:
        read = attrgetter(*names)
    else:

        def read(value: object) -> tuple[object, ...]:
            return tuple(getattr(value, name) for name in names)

    def __eq__(self: object, other: object) -> bool:
        if other.__class__ is self.__class__:
            return read(self) == read(other)
        return NotImplemented

    def __hash__(self: object) -> int:
        return hash(read(self))

    def __repr__(self: object) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({shown})"

    return __eq__, __hash__, __repr__
