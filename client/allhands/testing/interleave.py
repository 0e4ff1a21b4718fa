"""Simulation of all ranks' schedules at independent paces: the search for deadlocks."""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from allhands.collectives.schedule import Round, Schedule, Send
from allhands.testing.replica import Array, Reduce, Replica, ScheduleError, make_replicas

Channel = tuple[int, int, int]
"""Sender, receiver, round: what a message is matched by."""


def interleave(
    schedules: Sequence[Schedule],
    *,
    outputs: Sequence[Array],
    inputs: Sequence[Array] | None = None,
    reduce: Reduce = np.add,
    seed: int = 0,
    rendezvous: bool = False,
) -> None:
    """Play the schedules as a network might: ranks and messages move in an order drawn by `seed`.

    Buffers are as in `simulate`. A rank goes on to its next round when all its receives have
    landed and all its sends are complete: at once over channels that hold any number of messages,
    or, with `rendezvous`, not before the receiver has come to that round and taken the message
    from the sender's buffer.

    Raises:
        ScheduleError: nobody can move any more (the text says who waits for whom); a message is
            left over; or one of the causes that `simulate` names.
    """
    walk = _ScheduleRun(make_replicas(schedules, inputs, outputs, reduce), rendezvous)
    pace = random.Random(seed)
    while steps := walk.list_steps():
        pace.choice(steps)()
    walk.check_end()


class _RankProgress:
    """Progress of one rank through the rounds of a schedule."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.rank = replica.rank
        self.index = 0
        self.has_begun = False
        self.unsent: list[Send] = []
        self.expected: Counter[int] = Counter()
        """How many messages of this round come from which rank."""

    @property
    def has_finished(self) -> bool:
        return self.index == len(self.replica.rounds)

    @property
    def round(self) -> Round:
        return self.replica.rounds[self.index]

    def begin(self) -> None:
        self.replica.begin(self.index)
        self.has_begun = True
        self.unsent = list(self.round.sends)
        self.expected = Counter(recv.peer for recv in self.round.recvs)


class _ScheduleRun:
    def __init__(self, ranks: Sequence[Replica], rendezvous: bool) -> None:
        self._ranks = [_RankProgress(replica) for replica in ranks]
        self._rendezvous = rendezvous
        self._arrived: defaultdict[Channel, deque[Array]] = defaultdict(deque)

    def list_steps(self) -> list[Callable[[], None]]:
        """Return all possible next steps."""
        steps: list[Callable[[], None]] = []
        for one in self._ranks:
            if one.has_finished:
                continue
            if not one.has_begun:
                steps.append(one.begin)
            elif not one.unsent and not self._find_missing(one):
                steps.append(partial(self._end, one))
            for send in _pick_first_to_each(one.unsent):
                if self._is_ready(one, send):
                    steps.append(partial(self._move, one, send))
        return steps

    def check_end(self) -> None:
        """Tell deadlock and messages left over from a good end."""
        stuck = [one for one in self._ranks if not one.has_finished]
        if stuck:
            raise ScheduleError("nobody can move: " + "; ".join(map(self._describe_wait, stuck)))
        for (sender, target, index), left in self._arrived.items():
            if left:
                raise ScheduleError(
                    f"round {index}: rank {sender} sends {len(left[0])} elements to rank "
                    f"{target}, which does not receive them"
                )

    def _is_ready(self, sender: _RankProgress, send: Send) -> bool:
        if not self._rendezvous:
            return True
        target = self._ranks[send.peer]
        arrived = self._arrived[sender.rank, send.peer, sender.index]
        return (
            target.has_begun
            and target.index == sender.index
            and len(arrived) < target.expected[sender.rank]
        )

    def _move(self, sender: _RankProgress, send: Send) -> None:
        sender.unsent.remove(send)  # the first that is equal, and equal ones are alike
        values = sender.replica.read_send(sender.index, send)
        self._arrived[sender.rank, send.peer, sender.index].append(values)

    def _end(self, one: _RankProgress) -> None:
        for recv in one.round.recvs:
            values = self._arrived[recv.peer, one.rank, one.index].popleft()
            one.replica.apply_receive(one.index, recv, values)
        one.index += 1
        one.has_begun = False

    def _find_missing(self, one: _RankProgress) -> list[int]:
        """Return the ranks with messages of this round still to arrive."""
        return [
            peer
            for peer, count in one.expected.items()
            if len(self._arrived[peer, one.rank, one.index]) < count
        ]

    def _describe_wait(self, one: _RankProgress) -> str:
        waits = [f"to receive from rank {peer}" for peer in self._find_missing(one)]
        waits += [f"to send to rank {send.peer}" for send in _pick_first_to_each(one.unsent)]
        return f"rank {one.rank} waits in round {one.index} {' and '.join(waits)}"


def _pick_first_to_each(sends: Sequence[Send]) -> list[Send]:
    """Return the next message for each peer: order per peer is kept."""
    first: dict[int, Send] = {}
    for send in sends:
        first.setdefault(send.peer, send)
    return list(first.values())
