"""Errors that report failures of ranks to a test."""

import sys
import unittest
from collections.abc import Mapping

from allhands.errors import GroupAborted, PeerFailed

RELEASE_SECONDS = 5.0
"""What the other ranks get to end in, once one has failed and their calls have been released."""


class RankError(RuntimeError):
    """A rank raised an exception: the cause, the first of all ranks."""

    def __init__(self, text: str, rank: int, errors: dict[int, BaseException]) -> None:
        super().__init__(text)
        self.rank = rank
        """The one that was first."""
        self.errors = errors
        """What each rank raised that did, be it only because it could not go on without another."""


class RanksStuck(RankError, TimeoutError):
    """Ranks had not ended at the deadline; the text has their stacks."""


def raise_first(errors: Mapping[int, BaseException], size: int) -> None:
    """Raise the first error that is no consequence; `errors` in order of occurrence.

    Raises:
        RankError: a rank failed.
        BaseException: one of `errors`, which says that there is nothing to test, or is Ctrl-C.
    """
    own = {rank: error for rank, error in errors.items() if not _is_consequence(error)} or errors
    failures = {rank: error for rank, error in own.items() if not _is_skip(error)}
    if not failures:
        raise next(iter(own.values()))
    rank, error = next(iter(failures.items()))
    if isinstance(error, KeyboardInterrupt):
        raise error
    raise RankError(f"rank {rank} of {size} {describe_error(error)}", rank, dict(errors)) from error


def make_stuck_error(
    stuck: Mapping[int, str], errors: Mapping[int, BaseException], size: int, deadline: float
) -> RanksStuck:
    """Make the error for ranks still running at the deadline; `stuck` maps rank to stack."""
    first, cause, said = min(stuck), None, f"within {deadline:g} s"
    for rank, error in errors.items():
        if rank not in stuck:
            first, cause, said = rank, error, f"after rank {rank} {describe_error(error)}"
            break
    of = "rank" if len(stuck) == 1 else "ranks"
    named = ", ".join(map(str, stuck))
    where = "\n".join(f"rank {rank} was at:\n{stack}" for rank, stack in stuck.items())
    found = RanksStuck(f"{of} {named} of {size} did not end {said}\n{where}", first, dict(errors))
    found.__cause__ = cause
    return found


def describe_error(error: BaseException) -> str:
    """Describe the exception of a rank."""
    return f"raised {type(error).__name__}: {error}"


def _is_consequence(error: BaseException) -> bool:
    """Return whether a rank failed only because a peer did."""
    return isinstance(error, GroupAborted | PeerFailed)


def _is_skip(error: BaseException) -> bool:
    """Return whether an exception skips the test."""
    if isinstance(error, unittest.SkipTest):
        return True
    outcomes = sys.modules.get("_pytest.outcomes")  # pytest's own, where it runs
    return outcomes is not None and isinstance(error, outcomes.Skipped | outcomes.XFailed)
