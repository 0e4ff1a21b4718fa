"""Steps of recipes: what a generator asks of the client that carries it out."""

import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from allhands.coordinator.kv.requests import AnyKvRequest
from allhands.coordinator.recipes.session import Session
from allhands.errors import CoordinatorUnavailable
from allhands_proto.quick_dataclass import dataclass

T = TypeVar("T")


class SessionUser(Protocol):
    """Part of a recipe that depends on a session's lease."""

    def note_lost(self) -> None:
        """Hear that the lease was lost; from any thread."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Make a request; the result is its value."""

    asked: AnyKvRequest[Any]
    timeout: float
    """Seconds."""
    is_detached: bool = False
    """Whether to make it also where the caller's time is over, or the caller is cancelled."""


@dataclass(frozen=True, slots=True)
class Await:
    """Make a request that may wait for long; with the loss of the session it raises LockLost."""

    asked: AnyKvRequest[Any]
    timeout: float
    """Seconds."""
    session: Session


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Return the client's session of a time to live, opened if absent, with one more user."""

    ttl: float
    """Seconds."""
    user: SessionUser
    timeout: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds; raises ClientClosed with the end of the client."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Background:
    """Let steps be carried out beside the caller, until their end or the client's."""

    steps: "Steps[None]"


Step: TypeAlias = Ask | Await | OpenSession | Pause | Background
Steps: TypeAlias = Generator[Step, Any, T]


class ClientClosed(CoordinatorUnavailable):
    """The client of a recipe was closed."""

    def __init__(self) -> None:
        super().__init__("this client has been closed")


def run_steps(steps: "Steps[T]", perform: Callable[[Step], Any]) -> T:
    """Carry out steps one after the other; return the generator's result.

    Whatever a step raises is raised within the generator, and so is what strikes between two steps,
    such as KeyboardInterrupt: so a recipe leaves nothing behind.
    """
    go_on: Callable[[], Step] = partial(next, steps)
    while True:
        try:
            go_on = partial(steps.send, perform(go_on()))
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException as error:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                raise
            go_on = partial(steps.throw, error)
