"""Assertions about one rank that pass or fail on all ranks together."""

import numpy as np

from allhands.api import calls, collectives, default_world
from allhands.group.non_member import NonMember


def assert_equal_on_rank(
    x: object, y: object, rank: int = 0, *, group: default_world.AnyGroup = None
) -> None:
    """Raise AssertionError on every rank unless `x` equals `y` on `rank`, whatever others hold.

    Arrays must have the same shape, dtype and elements, where NaN equals itself; lists, tuples and
    dicts of them the same in each place. Every rank of the group must call it; `rank` is one of
    the world.
    """
    _assert_on_rank(_describe_difference(x, y), rank, group)


def assert_not_equal_on_rank(
    x: object, y: object, rank: int = 0, *, group: default_world.AnyGroup = None
) -> None:
    """Raise AssertionError on every rank if `x` equals `y` on `rank`; else as the other."""
    _assert_on_rank("" if _describe_difference(x, y) else f"both are {x!r}", rank, group)


def _describe_difference(x: object, y: object) -> str:
    """Return the difference of `x` and `y`; empty if equal."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{x.dtype} array of shape {x.shape}, {y.dtype} array of shape {y.shape}"
    elif isinstance(x, list | tuple) and isinstance(y, list | tuple) and len(x) == len(y):
        pairs = enumerate(zip(x, y, strict=True))
        return next(
            (f"at {at}: {said}" for at, both in pairs if (said := _describe_difference(*both))), ""
        )
    try:
        np.testing.assert_equal(x, y)
    except AssertionError as error:
        return str(error).strip()
    return ""


def _assert_on_rank(difference: str, rank: int, group: default_world.AnyGroup) -> None:
    """Raise on all ranks if the check of one rank failed."""
    if isinstance(group, NonMember):
        return
    calls.refuse_while_coalescing(group, "comparing on one rank")
    opinion = np.frombuffer(difference.encode(), np.uint8)
    length = np.array([opinion.size])
    collectives.broadcast(length, src=rank, group=group)
    text = np.resize(opinion, length[0]) if opinion.size else np.zeros(length[0], np.uint8)
    collectives.broadcast(text, src=rank, group=group)
    if text.size:
        raise AssertionError(f"on rank {rank}: {text.tobytes().decode()}")
