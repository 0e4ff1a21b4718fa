"""The interface of a store's client in the benchmark of stores."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

VALUE = b"twenty bytes of text"

Call = Callable[[], None]
AsyncCall = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a client among those of a load."""

    index: int
    clients: int
    barrier: str
    """Name of their barrier, unique to the load."""


class StoreClient(Protocol):
    """A client of a store; each call checks its result."""

    def make_calls(self, place: Place) -> dict[str, Call]:
        """Return the supported calls, each finished on return."""

    async def open_async_calls(self) -> dict[str, AsyncCall]:
        """Return the supported calls for many concurrent tasks."""

    async def aclose(self) -> None:
        """Close the resources of `open_async_calls`."""


def check(is_right: bool) -> None:
    """Raise unless a store returned the right answer.

    Raises:
        ArithmeticError: it did not.
    """
    if not is_right:
        raise ArithmeticError("a store returned something else than was put into it")
