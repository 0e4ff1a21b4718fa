"""Algorithms that want a power of two, made to work for any size."""

from collections.abc import Callable

from allhands.collectives.schedule import Recv, Round, Schedule, Send, Span


def fold_to_power_of_two(
    rank: int, size: int, whole: Span, core: Callable[[int, int], tuple[Round, ...]]
) -> Schedule:
    """All-reduce `whole` by `core(rank, power)`, which knows only powers of two.

    The ranks from the largest power of two up hand their contribution to one below, sit idle, and
    are handed the result: two rounds more unless `size` is a power of two.
    Source: Rabenseifner & Traeff, "More efficient reduction algorithms for non-power-of-two number
    of processors in message-passing parallel systems", EuroPVM/MPI 2004.
    """
    power = 1 << (size.bit_length() - 1)
    if size == power:
        return Schedule(core(rank, power))
    if rank >= power:
        idle = (Round(),) * len(core(0, power))
        host = rank - power
        before, after = Round(sends=(Send(host, whole),)), Round(recvs=(Recv(host, whole),))
        return Schedule((before, *idle, after))
    before, after = Round(), Round()
    if (guest := rank + power) < size:
        before = Round(recvs=(Recv(guest, whole, reduces=True),))
        after = Round(sends=(Send(guest, whole),))
    return Schedule((before, *core(rank, power), after))
