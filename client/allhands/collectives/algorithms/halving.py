"""Recursive halving, then doubling: few rounds and little data, for arrays in between."""

from allhands.collectives.algorithms.blocks import join_spans, lay_blocks, split_evenly
from allhands.collectives.algorithms.folding import fold_to_power_of_two
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span


def all_reduce(rank: int, size: int, length: int) -> Schedule:
    """Reduce ever smaller halves, then gather the halves, in place on OUTPUT.

    2*log2(size) rounds in which each rank sends 2*length*(size-1)/size elements; where `size` is
    no power of two, two rounds more with the whole array. Every part is combined along one tree
    and then copied, so all ranks hold the same bits.
    Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
    """

    def halve_and_double(rank: int, power: int) -> tuple[Round, ...]:
        parts = lay_blocks(Area.OUTPUT, split_evenly(length, power))

        def find_half(of: int, distance: int) -> Span:
            """Return the run of `distance` parts around part `of`: kept, or held, by that rank."""
            first = of - of % distance
            return join_spans(parts[first : first + distance])

        distances = [1 << step for step in range(power.bit_length() - 1)]
        halving = tuple(
            Round(
                sends=(Send(rank ^ distance, find_half(rank ^ distance, distance)),),
                recvs=(Recv(rank ^ distance, find_half(rank, distance), reduces=True),),
            )
            for distance in reversed(distances)
        )
        doubling = tuple(
            Round(
                sends=(Send(rank ^ distance, find_half(rank, distance)),),
                recvs=(Recv(rank ^ distance, find_half(rank ^ distance, distance)),),
            )
            for distance in distances
        )
        return halving + doubling

    return fold_to_power_of_two(rank, size, Span(Area.OUTPUT, 0, length), halve_and_double)
