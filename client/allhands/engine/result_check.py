"""Verification of a group with `verify=True`: detects corrupt data and compares results."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from allhands.collectives import plan
from allhands.collectives.buffer import Array, view_as_bytes
from allhands.collectives.part import Part
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.two_level_plan import TwoLevelPlan
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.hosts.two_level import CallIdentity, TwoLevelCalls, TwoLevelRun
from allhands.engine.links.executor import Execution
from allhands.engine.links.native_calls import NativeCall, Remainder
from allhands.transport.frame import FrameError, MessageKey
from allhands.transport.mesh import Mesh
from allhands_proto.quick_dataclass import dataclass

INLINE_DIGEST_BYTES = 1 << 20
"""Up to which a digest is made where the loop runs; that takes 0.1 to 0.4 ms for so many."""
COMPARISON_PART = 1 << 31
"""Of the exchange of digests; those of the call itself, and of its phases, are below."""
_MAX_AHEAD = 64
"""How far ahead of this rank's calls a frame is believed to be."""


class Checksum(Protocol):
    """CRC-32 of data behind that whose CRC-32 is `value`."""

    def __call__(self, data: memoryview, value: int = 0, /) -> int: ...


def load_checksum() -> Checksum:
    """Load the fastest CRC-32 of this platform; all of them give the same values."""
    try:
        from isal.isal_zlib import crc32
    except ImportError:  # there is none for every processor
        from zlib import crc32
    return crc32


Digests = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class DigestExchange:
    """Exchange of the digests of a call's results, and the memory that it works on."""

    mine: Digests
    """This rank's, followed by room for those of its host where that is needed."""
    digests: Digests
    """Of all ranks."""
    plan: Part | TwoLevelPlan


class ResultCheck:
    """Lives on the loop."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        group: int,
        two_level: TwoLevelCalls | None,
        get_last_ended: Callable[[], int],
        interrupt_call: Callable[[int, ErrorFactory], None],
    ) -> None:
        """With `two_level` the ranks of a host exchange digests in memory.

        `interrupt_call` ends a call, if it is under way; those up to `get_last_ended()` are over.
        """
        self._mesh = mesh
        self._ranks = tuple(ranks)
        self._rank = rank
        self._group = group
        self.two_level = two_level
        self._get_last_ended = get_last_ended
        self._interrupt_call = interrupt_call
        self._corrupted_links: dict[int, tuple[int, int]] = {}
        self.checksum = load_checksum()
        """Digest of a result, for the native core."""
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

    def give_up(self, sequence: int) -> None:
        """Let the ranks of this host know that this one compares no result of a call."""
        if self.two_level is not None:
            self.two_level.board.give_up(sequence)

    def close(self, lost_ranks: Collection[int]) -> None:
        """Detach from the group; its late frames are still checked, and dropped.

        World ranks in `lost_ranks` are gone and release no memory.
        """
        self._mesh.enable_digests(self._group, _ClosedChecker())
        if self.two_level is not None:
            self.two_level.close(lost_ranks)

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

    def compute_digest(self, request: CollectiveRequest) -> int:
        """Return the digest of a call's result for comparison; 0 where results differ by rank."""
        digest = 0
        if request.primitive.has_same_result:
            for array in request.targets:
                digest = self.checksum(view_as_bytes(array), digest)
        return digest

    def begin_comparison(self, call: CallIdentity, digest: int) -> "Comparison":
        """Begin to compare the result of a call successful so far, by its digest."""
        exchange = self.plan_exchange()
        exchange.mine[0] = digest
        under_way = self._begin(call, exchange, None)
        return Comparison(self._ranks, call.sequence, exchange.digests, under_way)

    def go_on_comparing(
        self, call: CallIdentity, mine: Digests, digests: Digests, native: NativeCall | None
    ) -> "Comparison":
        """Go on with a comparison that the native core began, on its memory.

        `native` None: it has ended there.
        """
        exchange = self._plan_exchange(mine, digests)
        if native is None:
            return Comparison(self._ranks, call.sequence, exchange.digests, None)
        is_across = isinstance(exchange.plan, Part) or (exchange.plan.is_head and native.is_across)
        left = native.withdraw()
        under_way = self._begin(call, exchange, left if is_across else None)
        return Comparison(self._ranks, call.sequence, exchange.digests, under_way)

    def plan_exchange(self) -> DigestExchange:
        """Plan the exchange of the ranks' digests."""
        near = 0 if self.two_level is None else len(self.two_level.layout.local_ranks)
        digests = np.zeros(len(self._ranks), np.uint64)
        return self._plan_exchange(np.zeros(1 + near, np.uint64), digests)

    def _plan_exchange(self, memory: Digests, digests: Digests) -> DigestExchange:
        """Plan it on this memory."""
        mine, of_host = memory[:1], memory[1:]
        request = CollectiveRequest(
            "all_gather_into_tensor", mine.dtype, 1, sources=[mine], targets=[digests]
        )
        two_level = self.two_level
        if two_level is None or not two_level.applies_to(request):
            [part] = plan.all_gather(self._rank, len(self._ranks), mine, [digests])
            return DigestExchange(memory, digests, part)

        def allocate(sizes: Sequence[int]) -> Sequence[Array]:
            rooms = [of_host, digests]
            assert [room.nbytes for room in rooms] == list(sizes)
            return [room.view(np.uint8) for room in rooms]

        return DigestExchange(memory, digests, two_level.plan(request, allocate, None))

    def _begin(
        self, call: CallIdentity, exchange: DigestExchange, remainder: Remainder | None
    ) -> Execution | TwoLevelRun:
        if isinstance(exchange.plan, TwoLevelPlan):
            assert self.two_level is not None
            return TwoLevelRun(self.two_level, exchange.plan, call, [], remainder)
        execution = Execution(
            self._mesh,
            peers=self._ranks,
            rank=self._rank,
            group=self._group,
            sequence=call.sequence,
            signature=call.signature,
            first_part=COMPARISON_PART,
        )
        execution.begin([exchange.plan], remainder=remainder)
        return execution

    def _record_corruption(self, sequence: int, link: tuple[int, int]) -> None:
        if sequence > self._get_last_ended() and sequence not in self._corrupted_links:
            self._corrupted_links[sequence] = link
            self._interrupt_call(sequence, call_errors.make_link_corrupted_factory(link, sequence))


class Comparison:
    """The comparison of a call's result with those of the other ranks, under way."""

    def __init__(
        self,
        ranks: Sequence[int],
        sequence: int,
        digests: Digests,
        exchange: Execution | TwoLevelRun | None,
    ) -> None:
        """Wait for the `exchange` of `digests`; None: all are there."""
        self._ranks = ranks
        self._sequence = sequence
        self._digests = digests
        self._exchange = exchange
        self.completion: asyncio.Future[None]
        """Ends as the exchange does."""
        if exchange is None:
            self.completion = asyncio.get_running_loop().create_future()
            self.completion.set_result(None)
        else:
            self.completion = exchange.completion

    @property
    def goes_by_messages(self) -> bool:
        """Whether it goes on when the links are read, without the loop."""
        return self._exchange is None or self._exchange.goes_by_messages

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""
        if self._exchange is not None:
            self._exchange.stop()

    def list_awaited(self) -> list[int]:
        """Return the group's ranks whose digests are missing."""
        return [] if self._exchange is None else self._exchange.list_awaited()

    def find_difference(self) -> ErrorFactory | None:
        """Return the failure of a call whose results differ, once all digests are there."""
        digests, ranks = self._digests.tolist(), self._ranks
        if len(set(digests)) == 1:
            return None
        usual, count = Counter(digests).most_common(1)[0]
        others = [rank for rank, one in zip(ranks, digests, strict=True) if one != usual]
        # Without a majority nobody can tell who is wrong.
        culprits = others if 2 * count > len(digests) else ranks
        return call_errors.make_results_differ_factory(tuple(culprits), self._sequence)


class _ClosedChecker:
    """The checker of a closed group."""

    def on_corrupt_frame(self, peer: int, key: MessageKey) -> None:
        """Do nothing: the group's calls have ended."""

    def on_corruption_report(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None:
        """Do nothing: the group's calls have ended."""


def count_digest_bytes(size: int) -> int:
    """Return the bytes of the digests of so many ranks."""
    return size * np.dtype(np.uint64).itemsize


def count_result_bytes(request: CollectiveRequest) -> int:
    """Return over how many bytes a digest goes."""
    same = request.primitive.has_same_result
    return sum(array.nbytes for array in request.targets) if same else 0
