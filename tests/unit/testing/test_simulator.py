"""The simulator keeps the law, and lets no broken schedule pass."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise as adjacent
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from allhands.collectives.algorithms import (
    bruck,
    dissemination,
    doubling,
    flat,
    halving,
    pairwise,
    ring,
    tree,
    van_de_geijn,
)
from allhands.collectives.schedule import Area, Copy, Recv, Round, Schedule, Send, Span
from allhands.testing import ScheduleError, Traffic, interleave, simulate

Array = NDArray[Any]
Schedules = tuple[Schedule, ...]

INPUT, OUTPUT, SCRATCH = Area.INPUT, Area.OUTPUT, Area.SCRATCH


def one_round(*rounds: Round, scratch: int = 0) -> list[Schedule]:
    """Let rank r do the r-th of these rounds, and nothing else."""
    return [Schedule((step,), scratch) for step in rounds]


def of_zeros(*lengths: int) -> list[Array]:
    return [np.zeros(length, np.int64) for length in lengths]


# -------------------------------------------------------------------- the law


def test_copies_happen_before_sends_and_in_order() -> None:
    outputs = [np.array([1, 2, 3]), np.array([0])]
    move = Round(
        copies=(
            Copy(Span(OUTPUT, 0, 1), Span(OUTPUT, 1, 2)),
            Copy(Span(OUTPUT, 1, 2), Span(OUTPUT, 2, 3)),
        ),
        sends=(Send(1, Span(OUTPUT, 2, 3)),),
    )
    simulate(one_round(move, Round(recvs=(Recv(0, Span(OUTPUT, 0, 1)),))), outputs=outputs)
    assert [output.tolist() for output in outputs] == [[1, 1, 1], [1]]


def test_sends_see_the_buffers_as_they_were_before_any_receive_landed() -> None:
    outputs = [np.array([1]), np.array([2])]
    whole = Span(OUTPUT, 0, 1)
    simulate(
        one_round(
            Round(sends=(Send(1, whole),), recvs=(Recv(1, whole),)),
            Round(sends=(Send(0, whole),), recvs=(Recv(0, whole),)),
        ),
        outputs=outputs,
    )
    assert [output.tolist() for output in outputs] == [[2], [1]]


def test_messages_between_two_ranks_keep_their_order() -> None:
    outputs = [np.array([1, 2]), np.array([0, 0])]
    first, second = Span(OUTPUT, 0, 1), Span(OUTPUT, 1, 2)
    simulate(
        one_round(
            Round(sends=(Send(1, second), Send(1, first))),
            Round(recvs=(Recv(0, first), Recv(0, second))),
        ),
        outputs=outputs,
    )
    assert outputs[1].tolist() == [2, 1]


def test_the_contribution_of_the_lower_rank_is_the_left_operand() -> None:
    outputs = [np.array([10]), np.array([3])]
    whole = Span(OUTPUT, 0, 1)
    simulate(
        one_round(
            Round(sends=(Send(1, whole),), recvs=(Recv(1, whole, reduces=True),)),
            Round(sends=(Send(0, whole),), recvs=(Recv(0, whole, reduces=True),)),
        ),
        outputs=outputs,
        reduce=np.subtract,
    )
    assert [output.tolist() for output in outputs] == [[7], [7]]


def test_traffic_counts_what_each_rank_sends() -> None:
    schedules = [flat.scatter(rank, 3, [2, 0, 5], 0) for rank in range(3)]
    traffic = simulate(schedules, inputs=[np.arange(7), *of_zeros(0, 0)], outputs=of_zeros(2, 0, 5))
    assert traffic == Traffic(rounds=1, messages=(2, 0, 0), elements=(5, 0, 0))


# -------------------------------------------------------------------- refusals by name

HERE, THERE = Span(OUTPUT, 0, 2), Span(OUTPUT, 2, 4)


@pytest.mark.parametrize(
    ("schedules", "text"),
    [
        pytest.param(
            one_round(Round(sends=(Send(1, HERE),)), Round()),
            "round 0: rank 0 sends 2 elements to rank 1, which does not receive them",
            id="lost",
        ),
        pytest.param(
            one_round(Round(sends=(Send(1, Span(OUTPUT, 0, 0)),)), Round()),
            "round 0: rank 0 sends 0 elements to rank 1, which does not receive them",
            id="lost and empty",
        ),
        pytest.param(
            one_round(Round(), Round(recvs=(Recv(0, HERE),))),
            "round 0: rank 1 waits for rank 0, which sends it nothing more",
            id="never sent",
        ),
        pytest.param(
            one_round(Round(sends=(Send(1, HERE),)), Round(recvs=(Recv(0, Span(OUTPUT, 0, 3)),))),
            "round 0: rank 0 sends 2 elements to rank 1, which expects 3",
            id="another length",
        ),
        pytest.param(
            [Schedule((Round(),)), Schedule((Round(), Round()))],
            "rank 0 lists 1 rounds, rank 1 lists 2",
            id="rounds",
        ),
        pytest.param(
            one_round(Round(sends=(Send(2, HERE),)), Round()),
            "round 0: rank 0 speaks with rank 2, which is no other rank of 2",
            id="no such rank",
        ),
        pytest.param(
            one_round(Round(), Round(recvs=(Recv(1, HERE),))),
            "round 0: rank 1 speaks with rank 1, which is no other rank of 2",
            id="itself",
        ),
        pytest.param(
            one_round(Round(sends=(Send(1, Span(OUTPUT, 3, 5)),)), Round(recvs=(Recv(0, HERE),))),
            "round 0: rank 0 sends output[3:5] of 4 elements",
            id="out of bounds",
        ),
        pytest.param(
            one_round(Round(sends=(Send(1, HERE),)), Round(recvs=(Recv(0, Span(INPUT, 0, 2)),))),
            "round 0: rank 1 receives into input[0:2], which is never written",
            id="into input",
        ),
        pytest.param(
            one_round(Round(copies=(Copy(HERE, Span(INPUT, 0, 2)),)), Round()),
            "round 0: rank 0 copies into input[0:2], which is never written",
            id="copy into input",
        ),
        pytest.param(
            one_round(Round(copies=(Copy(HERE, Span(OUTPUT, 2, 3)),)), Round()),
            "round 0: rank 0 copies output[0:2] to output[2:3]",
            id="copy of another length",
        ),
        pytest.param(
            one_round(Round(copies=(Copy(HERE, Span(OUTPUT, 1, 3)),)), Round()),
            "round 0: rank 0 copies output[0:2] onto itself, output[1:3]",
            id="copy onto itself",
        ),
        pytest.param(
            one_round(
                Round(sends=(Send(1, Span(SCRATCH, 0, 2)),)),
                Round(recvs=(Recv(0, HERE),)),
                scratch=2,
            ),
            "round 0: rank 0 sends scratch[0:2] before it was written",
            id="undefined scratch",
        ),
        pytest.param(
            one_round(
                Round(sends=(Send(1, HERE),)),
                Round(recvs=(Recv(0, Span(SCRATCH, 0, 2), reduces=True),)),
                scratch=2,
            ),
            "round 0: rank 1 reduces into scratch[0:2] before it was written",
            id="reduce into undefined scratch",
        ),
        pytest.param(
            one_round(
                Round(sends=(Send(1, HERE), Send(1, THERE))),
                Round(recvs=(Recv(0, HERE, reduces=True), Recv(0, Span(OUTPUT, 1, 3)))),
            ),
            "round 0: rank 1 receives output[0:2] from rank 0 and, over it, output[1:3] from",
            id="one over the other",
        ),
    ],
)
def test_what_breaks_the_law_is_refused_by_name(schedules: list[Schedule], text: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        simulate(schedules, inputs=None, outputs=of_zeros(4, 4))
    assert text in str(refusal.value)


def test_an_output_is_undefined_where_there_is_an_input() -> None:
    schedules = one_round(Round(sends=(Send(1, HERE),)), Round(recvs=(Recv(0, HERE),)))
    with pytest.raises(ScheduleError, match=r"rank 0 sends output\[0:2\] before it was written"):
        simulate(schedules, inputs=of_zeros(2, 2), outputs=of_zeros(2, 2))


def test_two_receives_may_reduce_into_one_span() -> None:
    schedules = one_round(
        Round(recvs=(Recv(1, HERE, reduces=True), Recv(2, HERE, reduces=True))),
        Round(sends=(Send(0, HERE),)),
        Round(sends=(Send(0, HERE),)),
    )
    outputs: list[Array] = [np.array([1, 1]), np.array([10, 20]), np.array([100, 200])]
    simulate(schedules, outputs=outputs)
    assert outputs[0].tolist() == [111, 221]


def test_one_buffer_a_schedule_is_asked_for() -> None:
    with pytest.raises(ValueError, match="2 schedules, 2 inputs and 1 outputs"):
        simulate([Schedule(()), Schedule(())], outputs=of_zeros(1))


# -------------------------------------------------------------------- deadlock

either = pytest.mark.parametrize("rendezvous", [False, True])


@either
@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_wait_for_each_other_are_named(seed: int, rendezvous: bool) -> None:
    receive = [Round(recvs=(Recv(1 - rank, HERE),)) for rank in range(2)]
    send = [Round(sends=(Send(1 - rank, HERE),)) for rank in range(2)]
    schedules = [Schedule((receive[0], send[0])), Schedule((receive[1], send[1]))]
    with pytest.raises(ScheduleError) as deadlock:
        interleave(schedules, outputs=of_zeros(2, 2), seed=seed, rendezvous=rendezvous)
    assert str(deadlock.value) == (
        "nobody can move: rank 0 waits in round 0 to receive from rank 1; "
        "rank 1 waits in round 0 to receive from rank 0"
    )


def test_only_a_rendezvous_blocks_a_send_that_nobody_takes() -> None:
    schedules = [
        Schedule((Round(sends=(Send(1, HERE),)), Round())),
        Schedule((Round(), Round(recvs=(Recv(0, HERE),)))),
    ]
    with pytest.raises(ScheduleError) as blocked:
        interleave(schedules, outputs=of_zeros(2, 2), rendezvous=True)
    assert "rank 0 waits in round 0 to send to rank 1" in str(blocked.value)
    with pytest.raises(ScheduleError) as starved:
        interleave(schedules, outputs=of_zeros(2, 2))
    assert str(starved.value) == "nobody can move: rank 1 waits in round 1 to receive from rank 0"


def test_a_message_left_over_at_the_end_is_named() -> None:
    with pytest.raises(ScheduleError, match="rank 0 sends 2 elements to rank 1, which does not"):
        interleave(one_round(Round(sends=(Send(1, HERE),)), Round()), outputs=of_zeros(2, 2))


# -------------------------------------------------------------------- seeded faults

SIZE = 5
LENGTH = 13
COUNTS = [3, 1, 4, 2, 3]
DATA = np.random.default_rng(5).integers(-(2**40), 2**40, (SIZE, LENGTH))
OWN = [DATA[rank, :count] for rank, count in enumerate(COUNTS)]
POISON = -(2**62)


@dataclass(frozen=True)
class Collective:
    schedules: Schedules
    inputs: Sequence[Array] | None
    outputs: Sequence[Array]
    """At first."""
    results: Sequence[Array]

    def goes_wrong(self, schedules: Schedules, play: Callable[..., object] = simulate) -> bool:
        """Return whether an error or the result betrays wrong schedules."""
        outputs = [output.copy() for output in self.outputs]
        try:
            play(schedules, inputs=self.inputs, outputs=outputs)
        except ScheduleError:
            return True
        return not all(map(np.array_equal, outputs, self.results))


def of_all(algorithm: Callable[..., Schedule], *args: Any, **options: Any) -> Schedules:
    return tuple(algorithm(rank, SIZE, *args, **options) for rank in range(SIZE))


def undefined(lengths: Sequence[int]) -> list[Array]:
    return [np.full(length, POISON) for length in lengths]


def in_place(schedules: Schedules, results: Sequence[Array]) -> Collective:
    return Collective(schedules, None, list(DATA), results)


def into(schedules: Schedules, inputs: Sequence[Array], results: Sequence[Array]) -> Collective:
    return Collective(schedules, inputs, undefined([len(result) for result in results]), results)


TOTAL = DATA.sum(axis=0)
NOTHING = DATA[0, :0]
AT_ROOT = [TOTAL if rank == 2 else NOTHING for rank in range(SIZE)]
SHARES = np.split(TOTAL, np.cumsum(COUNTS)[:-1])
GATHERED = np.concatenate(OWN)
ROOTS_BLOCKS = np.split(DATA[2], np.cumsum(COUNTS)[:-1])
EACH_TWO = [2] * SIZE
EXCHANGED = [DATA[:, 2 * rank : 2 * rank + 2].ravel() for rank in range(SIZE)]
PAIRS = [row[: 2 * SIZE] for row in DATA]

COLLECTIVES = {
    "ring all_reduce": in_place(of_all(ring.all_reduce, LENGTH), [TOTAL] * SIZE),
    "doubling all_reduce": in_place(of_all(doubling.all_reduce, LENGTH), [TOTAL] * SIZE),
    "halving all_reduce": in_place(of_all(halving.all_reduce, LENGTH), [TOTAL] * SIZE),
    "tree broadcast": in_place(of_all(tree.broadcast, LENGTH, 2), [DATA[2]] * SIZE),
    "van_de_geijn broadcast": in_place(of_all(van_de_geijn.broadcast, LENGTH, 2), [DATA[2]] * SIZE),
    "tree reduce": into(of_all(tree.reduce, LENGTH, 2), list(DATA), AT_ROOT),
    "ring all_gather": into(of_all(ring.all_gather, COUNTS), OWN, [GATHERED] * SIZE),
    "bruck all_gather": into(of_all(bruck.all_gather, COUNTS), OWN, [GATHERED] * SIZE),
    "ring reduce_scatter": into(of_all(ring.reduce_scatter, COUNTS), list(DATA), SHARES),
    "pairwise reduce_scatter": into(of_all(pairwise.reduce_scatter, COUNTS), list(DATA), SHARES),
    "flat gather": into(
        of_all(flat.gather, COUNTS, 2),
        OWN,
        [GATHERED if rank == 2 else NOTHING for rank in range(SIZE)],
    ),
    "flat scatter": into(of_all(flat.scatter, COUNTS, 2), list(DATA), ROOTS_BLOCKS),
    "pairwise all_to_all": into(
        of_all(pairwise.all_to_all, EACH_TWO, EACH_TWO, in_one_round=False), PAIRS, EXCHANGED
    ),
    "all_to_all together": into(
        of_all(pairwise.all_to_all, EACH_TWO, EACH_TWO, in_one_round=True), PAIRS, EXCHANGED
    ),
    "dissemination barrier": into(
        of_all(dissemination.barrier), [NOTHING] * SIZE, [NOTHING] * SIZE
    ),
}


def moved(span: Span) -> Span:
    return replace(span, start=span.start + 1, stop=span.stop + 1)


def stretched(span: Span) -> Span:
    return replace(span, stop=span.stop + 1)


def wrong_rounds(step: Round, rank: int) -> Iterator[tuple[str, Round]]:
    """Yield rounds of one rank with a single fault each."""

    def other(peer: int) -> int:
        return next(one % SIZE for one in range(peer + 1, peer + 3) if one % SIZE != rank)

    for at, copy in enumerate(step.copies):
        before, after = step.copies[:at], step.copies[at + 1 :]
        yield "copy lost", replace(step, copies=before + after)
        off = replace(copy, target=moved(copy.target))
        yield "copy to a wrong span", replace(step, copies=(*before, off, *after))
        off = replace(copy, source=moved(copy.source))
        yield "copy of a wrong span", replace(step, copies=(*before, off, *after))
    for at, send in enumerate(step.sends):
        first, last = step.sends[:at], step.sends[at + 1 :]
        yield "send lost", replace(step, sends=first + last)
        yield "send twice", replace(step, sends=(*first, send, send, *last))
        for what, broken in (
            ("send to a wrong peer", replace(send, peer=other(send.peer))),
            ("send of a wrong span", replace(send, span=moved(send.span))),
            ("send of another length", replace(send, span=stretched(send.span))),
        ):
            yield what, replace(step, sends=(*first, broken, *last))
    for at, recv in enumerate(step.recvs):
        head, tail = step.recvs[:at], step.recvs[at + 1 :]
        yield "receive lost", replace(step, recvs=head + tail)
        for name, wrong in (
            ("receive from a wrong peer", replace(recv, peer=other(recv.peer))),
            ("receive into a wrong span", replace(recv, span=moved(recv.span))),
            ("receive of another length", replace(recv, span=stretched(recv.span))),
            ("reduce for overwrite", replace(recv, reduces=not recv.reduces)),
        ):
            if len(recv.span) or "reduce" not in name:  # of nothing, both are the same
                yield name, replace(step, recvs=(*head, wrong, *tail))


def faults(schedules: Schedules) -> Iterator[tuple[str, Schedules]]:
    """Yield all ranks' schedules with a single fault each."""
    for rank, schedule in enumerate(schedules):
        rounds = schedule.rounds

        def broken(*steps: Round, rank: int = rank, schedule: Schedule = schedule) -> Schedules:
            mutant = replace(schedule, rounds=steps)
            return (*schedules[:rank], mutant, *schedules[rank + 1 :])

        for index, step in enumerate(rounds):
            for what, wrong in wrong_rounds(step, rank):
                yield (
                    f"{what}: rank {rank}, round {index}",
                    broken(*rounds[:index], wrong, *rounds[index + 1 :]),
                )
        for index, (step, following) in enumerate(adjacent(rounds)):
            if step != following:
                yield (
                    f"wrong order: rank {rank}, rounds {index} and {index + 1}",
                    broken(*rounds[:index], following, step, *rounds[index + 2 :]),
                )
        if schedule.scratch:
            mutant = replace(schedule, scratch=0)
            yield (
                f"no scratch: rank {rank}",
                (*schedules[:rank], mutant, *schedules[rank + 1 :]),
            )


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_single_fault_in_a_schedule_is_caught(name: str) -> None:
    collective = COLLECTIVES[name]
    assert not collective.goes_wrong(collective.schedules)
    mutants = list(faults(collective.schedules))
    assert len(mutants) > 20
    assert [what for what, mutant in mutants if not collective.goes_wrong(mutant)] == []


@either
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_lost_message_or_a_wrong_order_is_caught_at_any_pace(name: str, rendezvous: bool) -> None:
    collective = COLLECTIVES[name]
    for seed, (what, mutant) in enumerate(faults(collective.schedules)):
        if what.startswith(("send lost: rank 1", "receive lost: rank 1", "wrong order: rank 1")):
            play = partial(interleave, seed=seed, rendezvous=rendezvous)
            assert collective.goes_wrong(mutant, play), what
