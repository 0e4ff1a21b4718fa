"""Recursive doubling: the fewest rounds, the whole array in each; for small arrays."""

from allhands.collectives.algorithms.folding import fold_to_power_of_two
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span


def all_reduce(rank: int, size: int, length: int) -> Schedule:
    """Exchange whole partial results at distances 1, 2, 4, ..., in place on OUTPUT.

    log2(size) rounds, and two more where `size` is no power of two. Both ends of an exchange
    compute the same thing with the same operands, so all ranks hold the same bits.
    Source: Thakur, Rabenseifner & Gropp (2005).
    """
    whole = Span(Area.OUTPUT, 0, length)

    def exchange(rank: int, power: int) -> tuple[Round, ...]:
        peers = (rank ^ (1 << step) for step in range(power.bit_length() - 1))
        return tuple(
            Round(sends=(Send(peer, whole),), recvs=(Recv(peer, whole, reduces=True),))
            for peer in peers
        )

    return fold_to_power_of_two(rank, size, whole, exchange)
