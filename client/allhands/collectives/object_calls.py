"""Collectives on objects, as bytes of which the sizes travel first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.collectives import vector
from allhands.collectives.composite_call import Chain, Moves, Steps
from allhands.collectives.signature import Call
from allhands.data.serializer import Objects, Octets, checked_size


def all_gather(data: Octets, objects: Objects) -> Chain:
    """Give every rank the objects of all."""

    def steps(moves: Moves) -> Steps:
        found: Any = yield from vector.all_gather(data).steps(moves)
        return [objects.decode(one) for one in found]

    return Chain(Call("all_gather_object"), steps)


def gather(data: Octets, root: int, objects: Objects) -> Chain:
    """Give the objects of all ranks to one; None to the others."""

    def steps(moves: Moves) -> Steps:
        found: Any = yield from vector.gather(data, root).steps(moves)
        return None if found is None else [objects.decode(one) for one in found]

    return Chain(Call("gather_object", root=root), steps)


def scatter(data: Sequence[Octets] | None, root: int, objects: Objects) -> Chain:
    """Give each rank its object of those that the root has."""

    def steps(moves: Moves) -> Steps:
        found: Any = yield from vector.scatter(data, root).steps(moves)
        return objects.decode(found)

    return Chain(Call("scatter_object", root=root), steps)


def broadcast(data: Octets | None, root: int, values: list[Any], objects: Objects) -> Chain:
    """Overwrite the items of a list with those of the root, which has them as `data`."""

    def steps(moves: Moves) -> Steps:
        size = np.array([0 if data is None else len(data)], np.int64)
        yield moves.broadcast(size, root)
        place = np.empty(checked_size(int(size[0])), np.uint8) if data is None else data.copy()
        yield moves.broadcast(place, root)
        if data is None:
            values[:] = objects.decode(place)
        return values

    return Chain(Call("broadcast_object_list", count=len(values), root=root), steps)
