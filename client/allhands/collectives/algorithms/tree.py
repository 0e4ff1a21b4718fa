"""Binomial trees: ceil(log2(size)) rounds, the whole array along every edge.

Ranks are counted from the root on. The parent of a place is that place without its lowest bit; a
place with lowest bit b speaks with its parent at distance b, and with its children below that.
Source: Thakur, Rabenseifner & Gropp (2005).
"""

from allhands.collectives.schedule import Area, Copy, Recv, Round, Schedule, Send, Span


def broadcast(rank: int, size: int, length: int, root: int) -> Schedule:
    """Spread the root's OUTPUT to everybody's, the farthest subtree first."""
    place = (rank - root) % size
    whole = Span(Area.OUTPUT, 0, length)
    rounds = []
    for distance in reversed(list_distances(size)):
        if is_parent(place, distance, size):
            rounds.append(Round(sends=(Send((rank + distance) % size, whole),)))
        elif is_child(place, distance):
            rounds.append(Round(recvs=(Recv((rank - distance) % size, whole),)))
        else:
            rounds.append(Round())
    return Schedule(tuple(rounds))


def reduce(rank: int, size: int, length: int, root: int) -> Schedule:
    """Combine everybody's INPUT into the root's OUTPUT, the nearest first.

    Elsewhere OUTPUT is not touched: inner places of the tree gather in scratch, leaves send INPUT.
    """
    place = (rank - root) % size
    given = Span(Area.INPUT, 0, length)
    # Whoever has a child has one at distance 1, so the first round is where gathering begins.
    is_leaf = not is_parent(place, 1, size)
    if place == 0:
        gathered = Span(Area.OUTPUT, 0, length)
    else:
        gathered = given if is_leaf else Span(Area.SCRATCH, 0, length)
    begin = () if gathered == given else (Copy(given, gathered),)
    if size == 1:
        return Schedule((Round(copies=begin),))
    rounds = []
    for distance in list_distances(size):
        copies = begin if distance == 1 else ()
        if is_parent(place, distance, size):
            recv = Recv((rank + distance) % size, gathered, reduces=True)
            rounds.append(Round(copies=copies, recvs=(recv,)))
        elif is_child(place, distance):
            rounds.append(Round(sends=(Send((rank - distance) % size, gathered),)))
        else:
            rounds.append(Round())
    return Schedule(tuple(rounds), scratch=length if gathered.area is Area.SCRATCH else 0)


def list_distances(size: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... below `size`: the lengths of the tree's edges."""
    return tuple(1 << step for step in range((size - 1).bit_length()))


def is_parent(relative_rank: int, distance: int, size: int) -> bool:
    """Return whether a place in the tree has a child at that distance."""
    return relative_rank % (2 * distance) == 0 and relative_rank + distance < size


def is_child(relative_rank: int, distance: int) -> bool:
    """Return whether a place in the tree has its parent at that distance."""
    return relative_rank % (2 * distance) == distance
