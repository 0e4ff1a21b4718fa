"""Schedules of all ranks in one process, round by round: the proof of an algorithm."""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from allhands.collectives.schedule import Schedule
from allhands.testing.replica import Array, Reduce, Replica, ScheduleError, make_replicas
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages and bytes of a collective; each tuple by rank."""

    rounds: int
    """In which anybody sends."""
    messages: tuple[int, ...]
    """Sent by each rank, empty ones included."""
    elements: tuple[int, ...]
    """Sent by each rank; times the size of an element for bytes."""


def simulate(
    schedules: Sequence[Schedule],
    *,
    outputs: Sequence[Array],
    inputs: Sequence[Array] | None = None,
    reduce: Reduce = np.add,
) -> Traffic:
    """Run the schedules of all ranks, given by rank, and check the law of a round.

    `outputs` are 1-D arrays that receive the results in place. Where the operation itself is in
    place there are no `inputs`, and `outputs` hold what goes in; otherwise `outputs` count as
    undefined at first. A list of arrays is given as one array, its elements end to end.

    Raises:
        ScheduleError: ranks list different numbers of rounds; a message is not received, not
            sent, or of another length than expected; a span is out of bounds; INPUT is written,
            or undefined memory read; receives of a round overwrite each other. The outputs are
            undefined then.
    """
    ranks = make_replicas(schedules, inputs, outputs, reduce)
    messages = [0] * len(ranks)
    elements = [0] * len(ranks)
    rounds = 0
    for index in range(len(schedules[0].rounds) if schedules else 0):
        for replica in ranks:
            replica.begin(index)
        _exchange(index, ranks)
        rounds += any(replica.rounds[index].sends for replica in ranks)
        for rank, replica in enumerate(ranks):
            sends = replica.rounds[index].sends
            messages[rank] += len(sends)
            elements[rank] += sum(len(send.span) for send in sends)
    return Traffic(rounds, tuple(messages), tuple(elements))


def _exchange(index: int, ranks: Sequence[Replica]) -> None:
    underway: defaultdict[tuple[int, int], deque[Array]] = defaultdict(deque)
    for replica in ranks:
        for send in replica.rounds[index].sends:
            underway[replica.rank, send.peer].append(replica.read_send(index, send))
    for replica in ranks:
        for recv in replica.rounds[index].recvs:
            waiting = underway[recv.peer, replica.rank]
            if not waiting:
                raise ScheduleError(
                    f"round {index}: rank {replica.rank} waits for rank {recv.peer}, "
                    "which sends it nothing more"
                )
            replica.apply_receive(index, recv, waiting.popleft())
    for (sender, target), lost in underway.items():
        if lost:
            raise ScheduleError(
                f"round {index}: rank {sender} sends {len(lost[0])} elements to rank {target}, "
                "which does not receive them"
            )
