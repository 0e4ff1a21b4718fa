"""Calls in the queue of a resilient group, and the group's reaction to failures."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from types import CodeType

import numpy as np

from allhands.collectives import plan
from allhands.collectives.buffer import Array
from allhands.collectives.part import Part
from allhands.collectives.primitive_call import BuildParts
from allhands.collectives.primitive_table import PRIMITIVES
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import Result
from allhands.engine.work.work import Work
from allhands.errors import PeerFailed
from allhands.group.group import Group
from allhands.group.interfaces import Submitter
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Reaction of a group to lost ranks; see `config.WorldConfig`."""

    on_failure: str = "raise"
    min_size: int = 1


@dataclass(slots=True, eq=False)
class FailedCall:
    """A call that failed on its caller's thread."""

    failure: int
    """Number of the failure."""
    number: int
    """Of the call in the group as it is now; its confirmation has the next one."""
    error: BaseException
    """Of a signal handler, if it is no AllhandsError."""
    is_computed: bool
    """Whether this rank had the result."""
    was_left: bool
    """Whether the confirmation was left, and is to be gone on with."""
    backup: memoryview
    """Bytes of the outputs before the call, one behind the other."""
    confirming: Work | None = None
    """The confirmation over links; None: it was not begun, or has a number in shared memory."""
    queued: "QueuedCall | None" = None
    """What it is in the queue."""

    def split_backup(self, targets: Sequence[Array]) -> list[Array]:
        """Return what each of the outputs held."""
        backups, at = [], 0
        for target in targets:
            end = at + target.nbytes
            old = (
                np.frombuffer(self.backup[at:end], np.uint8) if end > at else np.empty(0, np.uint8)
            )
            backups.append(old.view(target.dtype))
            at = end
        assert at == self.backup.nbytes, "the core copies what the request names"
        return backups


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A call in the queue."""

    work: Work
    request: CollectiveRequest
    build: BuildParts
    result: Result
    label: str | None
    timeout: float
    root: int
    """The root's rank in the job, whichever place it has in the group now; -1: none."""
    has_blocks: bool
    """Whether an argument has an item for each rank."""
    current_work: Work | None = None
    """The call on the group as it is now, while it can be cancelled."""
    backups: list[Array] = field(default_factory=list)
    """What the call's arrays were before it."""
    is_cancelled: bool = False
    group: Group | None = None
    """The group when the program made the call: its arrays and ranks are for this one."""
    epoch: int = 0
    """The epoch of that group."""
    seen_epoch: int = 0
    """The epoch that the program had heard of when it made the call."""
    source: tuple[CodeType | None, int] = (None, 0)
    """Where the program made it."""
    begin: Callable[[Submitter], Work] | None = None
    """What it is on the group as it is now, if that is not a collective."""
    failed: FailedCall | None = None
    """Of a call that failed on its caller's thread: how."""
    is_queued: bool = False
    """Whether it came to the queue."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the changed group may make the call again by itself.

        Calls that name ranks, or have something for each, are not: ranks whose call before was done
        when the group changed make them with the new ranks in mind, those already in them did not.
        """
        primitive = PRIMITIVES.get(self.request.kind)  # a composite may have the name of one
        return primitive is not None and primitive.is_repeatable

    def set_call_site(self, work: Work) -> None:
        """Record where the program made the call, for a work of it."""
        work._set_call_site(*self.source)

    def reserve_backups(self, spare: list[Array]) -> None:
        """Reserve memory for copies of the outputs: that of another call, if it fits."""
        targets = self.request.targets
        if [(one.dtype, one.size) for one in spare] != [(one.dtype, one.size) for one in targets]:
            spare = [np.empty_like(one) for one in targets]
        self.backups = spare

    def back_up(self) -> None:
        """Copy the outputs."""
        copy_arrays(self.backups, self.request.targets)

    def roll_back(self) -> None:
        """Give the outputs what they held before the call."""
        copy_arrays(self.request.targets, self.backups)


def change_root(
    request: CollectiveRequest, root: int, group: Group
) -> tuple[CollectiveRequest, BuildParts]:
    """Return the call with its root renumbered for the changed group."""
    changed = replace(request, root=root)

    def build(rank: int, size: int) -> list[Part]:
        ordered = request.is_ordered(size, group.deterministic)
        return plan.build_parts(changed, rank, size, ordered, group.submitter.engine.link_cost)

    return changed, build


def copy_arrays(targets: Sequence[Array], sources: Sequence[Array]) -> None:
    """Copy each array into the one at its place."""
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)


def make_final_error(failure: PeerFailed) -> PeerFailed:
    """Return the error of calls of a group that cannot go on."""
    error = PeerFailed(str(failure), failure.failed_ranks)
    error.is_final = True
    return error
