"""Admission of workers to a world, and the choice of ranks.

A rank given by the worker is a claim; a rank chosen by the coordinator, the lowest free, is an
assignment. In a forming world a claim displaces an assignment, whose worker has to join again. So
a world of claimed and assigned ranks forms in any order of arrival.
"""

from collections.abc import Mapping
from itertools import count

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine import limits
from allhands_server.machine.formatting import join_names
from allhands_server.machine.limits import check_job, check_name
from allhands_server.machine.member_messages import Join
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.values import Presence
from allhands_server.machine.world.member import Member, describe_process

_RECORD_NBYTES = 128
"""Bytes of a member's record without its texts, at most."""
_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RankChoice:
    """Rank of a new member, and the displaced member, if any."""

    rank: int
    displaced: Member | None


def check_join(join: Join) -> None:
    """Refuse an invalid Join."""
    check_job(join.job)
    check_name("the name of the host", join.host)
    check_name("the label", join.label, empty=True)
    if join.rank < -1:
        raise _refuse_invalid(f"rank {join.rank}: give one from 0 on, or -1 to be assigned one")
    if not 0 <= join.world_size <= limits.LARGEST_WORLD:
        raise _refuse_invalid(f"world size {join.world_size}: {limits.LARGEST_WORLD:,} is the most")
    if join.rank >= (join.world_size or limits.LARGEST_WORLD):
        raise _refuse_invalid(
            f"rank {join.rank} is outside a world of {join.world_size}: "
            f"its ranks are 0 to {(join.world_size or limits.LARGEST_WORLD) - 1}"
        )
    window = join.heartbeat_window
    if window and not limits.WINDOW_LEAST <= window <= limits.WINDOW_MOST:
        raise _refuse_invalid(
            f"heartbeat window {window:g} s: give one from {limits.WINDOW_LEAST:g} "
            f"to {limits.WINDOW_MOST:g} s, or 0 for {limits.WINDOW_DEFAULT:g} s"
        )


def measure_join(join: Join) -> int:
    """Return the bytes that a member's record takes, at most."""
    names = (join.job, join.host, join.address, join.label, join.memory, join.pid_namespace)
    texts = (*names, join.start_ticks, join.stack_channel)
    return _RECORD_NBYTES + sum(len(one.encode()) for one in texts)


def check_members_nbytes(join: Join, nbytes: int) -> None:
    """Refuse a member with which a world's members would take too many bytes."""
    if nbytes > limits.LARGEST_MEMBERS:
        raise Refused(
            Status.RESOURCE_EXHAUSTED,
            f"with {_describe_joiner(join)} the members of job {join.job} would take {nbytes:,} "
            f"bytes; {limits.LARGEST_MEMBERS:,} is the most: use shorter names and labels, or "
            "fewer ranks",
        )


def check_size(join: Join, sized: Member | None) -> None:
    """Refuse a world size unlike `sized`'s, or a rank outside of the world."""
    if sized is None:
        return
    size = sized.join.world_size
    if join.world_size not in (0, size):
        raise Refused(
            Status.FAILED_PRECONDITION,
            f"{_describe_joiner(join)} brings world size {join.world_size} to job {join.job}, "
            f"but {sized} brought {size}",
        )
    if join.rank >= size:
        raise _refuse_invalid(
            f"rank {join.rank} ({describe_process(join)}) is outside the world of job {join.job}: "
            f"{sized} brought world size {size}"
        )


def choose_rank(
    join: Join, members: Mapping[int, Member], *, is_sized: bool, taken_below: int
) -> RankChoice:
    """Choose a rank in a forming world, or refuse.

    In a world that `is_sized` no rank is outside its size. All ranks below `taken_below` are taken.
    """
    if join.world_size and not is_sized:
        outside = max(members, default=-1)
        if outside >= join.world_size:
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{_describe_joiner(join)} brings world size {join.world_size} to job {join.job}, "
                f"in which there is no place for {members[outside]}, who has joined",
            )
    if join.rank < 0:
        free = next(rank for rank in count(taken_below) if rank not in members)
        if join.world_size and free >= join.world_size:
            some = join_names([str(one) for _, one in sorted(members.items())], quoted=False)
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{_describe_joiner(join)} brings world size {join.world_size} to job {join.job}, "
                f"in which there is no place left beside {some}",
            )
        return RankChoice(free, None)
    holder = members.get(join.rank)
    if holder is not None and not holder.is_assigned:
        raise refuse_taken_rank(join, holder)
    return RankChoice(join.rank, holder)


def refuse_taken_rank(join: Join, holder: Member) -> Refused:
    return Refused(
        Status.ALREADY_EXISTS,
        f"rank {join.rank} of job {join.job} is taken: "
        f"{describe_process(join)} claims it, but {holder} has joined with it",
    )


def make_displacement(member: Member, claimant: Join) -> Refusal:
    """Make the refusal for a member whose assigned rank a newcomer claims."""
    return Refusal(
        Status.UNAVAILABLE,
        f"{member} had its rank by assignment, and host {claimant.host}, pid {claimant.pid} "
        "claims it: join again for another",
    )


def refuse_late_joiner(
    join: Join, members: Mapping[int, Member], present: Mapping[int, Member], size: int
) -> Refused:
    """Make the refusal for a worker without a place in a formed world.

    It is one for now where the worker's rank has left: the ranks of a world that ends leave
    moments apart, and the first may come to the job's next world before the last has left.
    """
    if (holder := present.get(join.rank)) is not None:
        return refuse_taken_rank(join, holder)
    some = join_names([str(member) for _, member in sorted(present.items())], quoted=False)
    gone = f", of them {len(present)} left" if len(present) < size else ""
    before = [members[join.rank]] if join.rank in members else list(members.values())
    is_ending = any(one.presence is Presence.LEFT for one in before)
    return Refused(
        Status.FAILED_PRECONDITION,
        f"job {join.job} has its world of {size}{gone}: {some}; "
        "wait until it has ended, give another job name, or let it grow (max_size=, grow)",
        retry_after=_RETRY_SECONDS if is_ending else None,
    )


def refuse_for_now(join: Join, window: float) -> Refused:
    """Make the refusal for a worker that may replace a silent world soon."""
    return Refused(
        Status.UNAVAILABLE,
        f"job {join.job} has a world of which no member is heard: those that are not heard within "
        f"{window:g} s are lost, join again then",
        retry_after=_RETRY_SECONDS,
    )


def _describe_joiner(join: Join) -> str:
    return f"{f'rank {join.rank}' if join.rank >= 0 else 'a worker'} ({describe_process(join)})"


def _refuse_invalid(text: str) -> Refused:
    return Refused(Status.INVALID_ARGUMENT, text)
