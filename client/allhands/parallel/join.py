"""Join: ranks out of inputs shadow collectives until the last rank is done.

A rank that leaves the block goes on to make, with zeros, the collectives that the others still
make, so that nobody waits for it. The protocol is that of torch.distributed.algorithms.Join.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from allhands.api import calls, collectives, default_world, world_queries
from allhands.api.default_world import AnyGroup
from allhands.engine.work.work import Work
from allhands_proto.quick_dataclass import dataclass

_SKEW_THRESHOLD = 1000


class JoinHook:
    """Actions of a rank out of inputs, for one joinable; by default nothing."""

    def main_hook(self) -> None:
        """Shadow the collectives of one iteration of the joinable; called again and again."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Run once all ranks have joined; `is_last_joiner`: this rank joined last."""


@dataclass(frozen=True, slots=True)
class _JoinOptions:
    """Options of a `Join` for one of its joinables."""

    notifies: bool = False
    """Whether it tells the other ranks of each iteration: the first one does."""
    throws: bool = False


_NO_JOIN = _JoinOptions()


class Joinable(ABC):
    """Base of objects with collectives in each iteration, for `Join`.

    It calls `Join.notify_join_context(self)` in each iteration before its first collective.
    Arrays live in the memory of the host: there is no `join_device`, and one that a subclass has
    is not asked for.
    """

    _join_options = _NO_JOIN

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return the hook for one `Join`; `kwargs` are all its other keyword arguments."""

    @property
    @abstractmethod
    def join_process_group(self) -> AnyGroup:
        """The group of the collectives; None: the world."""


class Join:
    """Let ranks with uneven inputs leave a block at different times; a context manager.

    Args:
        joinables: what makes collectives within the block; all on the same group.
        enable: False where the inputs are known to be even: the block then costs nothing.
        throw_on_early_termination: when a rank has run out of inputs, raise on all ranks instead
            of shadowing.
        kwargs: for the `join_hook` of each joinable.

    An exception that leaves the block goes on its way; no hook runs then.

    Raises:
        ValueError: no joinables, or several groups; this rank is not in the group.
        RuntimeError: on leaving or in an iteration, with `throw_on_early_termination`.
    """

    def __init__(
        self,
        joinables: Sequence[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        for one in joinables:
            if not isinstance(one, Joinable):
                raise TypeError(f"joinables are instances of Joinable, not {type(one).__name__}")
        self._joinables = list(joinables)
        self._group = _find_common_group(self._joinables)
        self._enable = enable
        self._throws = throw_on_early_termination
        self._hooks = [one.join_hook(**kwargs) for one in self._joinables]

    def __enter__(self) -> "Join":
        if self._enable:
            for at, one in enumerate(self._joinables):
                one._join_options = _JoinOptions(at == 0, self._throws)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for one in self._joinables:
            one._join_options = _NO_JOIN
        if not self._enable or kind is not None:
            return
        shadowed = 0
        while _count_iterating(self._group, 0):
            if self._throws:
                raise RuntimeError(
                    f"Rank {world_queries.get_rank(self._group)} exhausted all inputs."
                )
            for hook in self._hooks:
                hook.main_hook()
            shadowed += 1
            if shadowed == _SKEW_THRESHOLD:
                self._warn()
        for hook in self._hooks:
            hook.post_hook(shadowed == 0)

    @staticmethod
    def notify_join_context(joinable: Joinable) -> Work | None:
        """Notify the joined ranks that this rank begins another iteration.

        A joinable calls this before the collectives of each iteration. Outside of an enabled
        `Join`, and for all joinables but the first, this does nothing.

        Returns:
            The work of an all_reduce under way; None if there is none to wait for.

        Raises:
            RuntimeError: a rank has exhausted its inputs, and the `Join` throws then.
        """
        terms = joinable._join_options
        if not terms.notifies:
            return None
        group = joinable.join_process_group
        if not terms.throws:
            return collectives.all_reduce(_make_count(1), group=group, async_op=True, label="join")
        if _count_iterating(group, 1) < world_queries.get_world_size(group):
            raise RuntimeError(
                "Detected at least one rank that exhausted inputs. Throwing across all ranks."
            )
        return None

    def _warn(self) -> None:
        rank = world_queries.get_rank(self._group)
        warnings.warn(
            f"Detected uneven input skew of greater than {_SKEW_THRESHOLD}: rank {rank} has at "
            "least "
            f"{_SKEW_THRESHOLD} fewer inputs than others and has shadowed their collectives since; "
            "consider giving the ranks shares of more equal length",
            stacklevel=3,
        )


def _find_common_group(joinables: Sequence[Joinable]) -> AnyGroup:
    """Return the group of all joinables."""
    first = joinables[0].join_process_group
    found = first or default_world.default_group()
    if any(
        (one.join_process_group or default_world.default_group()) is not found for one in joinables
    ):
        raise ValueError("Using join context manager with multiple process groups")
    if world_queries.get_rank(first) < 0:
        raise ValueError(f"this rank is not in group {first}: it has nothing to join")
    return first


def _make_count(count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.full(1, count, np.int64)


def _count_iterating(group: AnyGroup, own: int) -> int:
    """Return the count of iterating ranks; `own` is 1 if this rank is."""
    calls.refuse_while_coalescing(group, "Join")
    count = _make_count(own)
    collectives.all_reduce(count, group=group, label="join")
    return int(count[0])
