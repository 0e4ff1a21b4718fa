"""Parts that a group works through: submitter, executor on the loop, recovery, coalescer."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.signature import Result
from allhands.collectives.staging import Staging
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import Numbering
from allhands.engine.work.work import Work
from allhands.runtime.callbacks import Callbacks

GroupT_co = TypeVar("GroupT_co", covariant=True)


class LoopExecutor(Protocol):
    """The way to the loop on which an engine lives, from any thread."""

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Call a function there, soon; calls keep their order."""

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        """Call a short function here as if on the loop; return whether that was possible.

        It says whether the loop has something to do because of it.
        """

    @property
    def callbacks(self) -> Callbacks | None:
        """Executor of completion callbacks; None: the thread that completes the call."""


class Submitter(Protocol):
    """Strategy by which the checked calls of a group become works; safe from any thread.

    Arguments were checked before, but for timeouts: None is the group's, and one that is not
    positive is a ValueError, before the call takes a number.
    """

    @property
    def engine(self) -> GroupEngine:
        """Engine of the group's ranks as they are now."""

    @property
    def executor(self) -> LoopExecutor: ...

    @property
    def order(self) -> Numbering:
        """Numbers and default timeout of the calls that are submitted here."""

    def start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        """Start a call of a primitive."""

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        """Start a call made of several collectives."""

    def start_monitored_barrier(
        self, timeout: CallTimeout, wait_all_ranks: bool, label: str | None
    ) -> Work:
        """Start a barrier at the coordinator."""

    def start_p2p(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: CallTimeout,
        label: str | None,
        staging: Staging | None = None,
    ) -> Work:
        """Start a `send` to or `recv` from a world rank; None: from any."""

    def skip(self, reason: str) -> None:
        """Use up a call's number, and notify the peers in that call of `reason`."""


class Recovery(Protocol):
    """Recovery of a group that has lost ranks; callable from any thread.

    Groups are given by name. What changes the ranks returns the engine of the new group, whose
    calls take `default` seconds.
    """

    def agree(self, group: str, flag: bool, timeout: float) -> bool: ...

    def shrink(self, group: str, timeout: float, default: float) -> GroupEngine: ...

    def grow(self, group: str, count: int, timeout: float, default: float) -> GroupEngine: ...


class Coalescer(Protocol[GroupT_co]):
    """Collector of a group's calls for later submission."""

    def redirect(self) -> GroupT_co | None:
        """Return the calling thread's coalescing group; None: not coalescing."""
