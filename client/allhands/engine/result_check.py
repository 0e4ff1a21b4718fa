"""Verification of a group with `verify=True`: detects corrupt data and compares results."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from allhands.collectives import plan
from allhands.collectives.buffer import view_as_bytes
from allhands.collectives.part import Part
from allhands.collectives.request import CollectiveRequest
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.links.executor import Execution
from allhands.engine.links.native_calls import Remainder
from allhands.transport.frame import FrameError, MessageKey
from allhands.transport.mesh import Mesh

INLINE_DIGEST_BYTES = 1 << 20
"""Up to which a digest is made where the loop runs; zlib takes 0.25 ms for so many."""
COMPARISON_PART = 1 << 31
"""Of the exchange of digests; those of the call itself, and of its phases, are below."""
_MAX_AHEAD = 64
"""How far ahead of this rank's calls a frame is believed to be."""


class ResultCheck:
    """Lives on the loop."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        group: int,
        get_last_ended: Callable[[], int],
        interrupt_call: Callable[[int, ErrorFactory], None],
    ) -> None:
        """`wake` ends a call, if it is under way; those up to `ended()` are over."""
        self._mesh = mesh
        self._ranks = tuple(ranks)
        self._rank = rank
        self._group = group
        self._get_last_ended = get_last_ended
        self._interrupt_call = interrupt_call
        self._corrupted_links: dict[int, tuple[int, int]] = {}
        mesh.enable_digests(group, self)

    def find_failure(self, sequence: int) -> ErrorFactory | None:
        """Return why a call cannot end well, if data of it is known to have been changed."""
        link = self._corrupted_links.get(sequence)
        return None if link is None else call_errors.make_link_corrupted_factory(link, sequence)

    def conclude(self, sequence: int) -> None:
        """Forget corruption reports about calls up to a number."""
        if self._corrupted_links:
            self._corrupted_links = {
                at: link for at, link in self._corrupted_links.items() if at > sequence
            }

    def close(self) -> None:
        """Detach from the group; its late frames are still checked, and dropped."""
        self._mesh.enable_digests(self._group, _ClosedChecker())

    # ------------------------------------------------------------ mesh Checker

    def on_corrupt_frame(self, peer: int, key: MessageKey) -> None:
        sequence, ended = key.sequence, self._get_last_ended()
        if sequence > ended + _MAX_AHEAD or peer not in self._ranks:
            raise FrameError(
                "a frame was changed on its way (digest), and where it belongs is unknown"
            )
        link = (peer, self._ranks[self._rank])
        # Also if it is over here: others may wait for the answer that it would have had.
        for other in self._ranks:
            if other != self._ranks[self._rank]:
                self._mesh.report_corruption(other, MessageKey(self._group, sequence), link)
        self._record_corruption(sequence, link)

    def on_corruption_report(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None:
        self._record_corruption(key.sequence, link)

    # ------------------------------------------------------------ digests

    @property
    def is_quiet(self) -> bool:
        """Whether no call that goes on, or is to come, is known to have changed data."""
        return not self._corrupted_links

    def begin_comparison(self, sequence: int, signature: int, digest: int) -> "Comparison":
        """Begin to compare the result of a call successful so far, by its digest."""
        mine, digests = np.array([digest], np.uint64), np.zeros(len(self._ranks), np.uint64)
        part = self.plan_comparison(mine, digests)
        return Comparison(self._make_execution(sequence, signature), part, digests, None)

    def go_on_comparing(
        self,
        sequence: int,
        signature: int,
        mine: NDArray[np.uint64],
        digests: NDArray[np.uint64],
        remainder: Remainder | None,
    ) -> "Comparison":
        """Go on with the `remainder` of a comparison; None: all `digests` are there."""
        part = self.plan_comparison(mine, digests)
        if remainder is None:
            remainder = Remainder(len(part.schedule.rounds), False, digests[:0], True)
        return Comparison(self._make_execution(sequence, signature), part, digests, remainder)

    def _make_execution(self, sequence: int, signature: int) -> Execution:
        return Execution(
            self._mesh,
            peers=self._ranks,
            rank=self._rank,
            group=self._group,
            sequence=sequence,
            signature=signature,
            first_part=COMPARISON_PART,
        )

    def plan_comparison(self, mine: NDArray[np.uint64], digests: NDArray[np.uint64]) -> Part:
        """Plan the exchange of the ranks' digests."""
        [part] = plan.all_gather(self._rank, len(self._ranks), mine, [digests])
        return part

    def _record_corruption(self, sequence: int, link: tuple[int, int]) -> None:
        if sequence > self._get_last_ended() and sequence not in self._corrupted_links:
            self._corrupted_links[sequence] = link
            self._interrupt_call(sequence, call_errors.make_link_corrupted_factory(link, sequence))


class Comparison:
    """The comparison of a call's result with those of the other ranks, under way."""

    def __init__(
        self,
        execution: Execution,
        part: Part,
        digests: NDArray[np.uint64],
        remainder: Remainder | None,
    ) -> None:
        """Begin the exchange of `digests`, or go on with what is left of it."""
        self._execution = execution
        self._digests = digests
        self.completion: asyncio.Future[None] = execution.begin([part], remainder=remainder)

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""
        self._execution.stop()

    def list_awaited(self) -> list[int]:
        """Return the group's ranks whose digests are missing."""
        return self._execution.list_awaited()

    def find_difference(self) -> ErrorFactory | None:
        """Return the failure of a call whose results differ, once all digests are there."""
        digests, ranks = self._digests.tolist(), self._execution.peers
        if len(set(digests)) == 1:
            return None
        usual, count = Counter(digests).most_common(1)[0]
        others = [rank for rank, one in zip(ranks, digests, strict=True) if one != usual]
        # Without a majority nobody can tell who is wrong.
        culprits = others if 2 * count > len(digests) else ranks
        return call_errors.make_results_differ_factory(tuple(culprits), self._execution.sequence)


class _ClosedChecker:
    """The checker of a closed group."""

    def on_corrupt_frame(self, peer: int, key: MessageKey) -> None:
        """Do nothing: the group's calls have ended."""

    def on_corruption_report(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None:
        """Do nothing: the group's calls have ended."""


def compute_digest(request: CollectiveRequest) -> int:
    """Return the digest of a call's result for comparison; 0 where results differ by rank."""
    crc = 0
    if request.primitive.has_same_result:
        for array in request.targets:
            crc = crc32(view_as_bytes(array), crc)
    return crc


def count_result_bytes(request: CollectiveRequest) -> int:
    """Return over how many bytes a digest goes."""
    same = request.primitive.has_same_result
    return sum(array.nbytes for array in request.targets) if same else 0
