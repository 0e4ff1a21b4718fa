"""Collectives on objects, as bytes of which the sizes travel first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.collectives import vector
from allhands.collectives.composite_call import CompositeCall, StepBuilder, StepGenerator
from allhands.collectives.signature import CallSignature
from allhands.data.serializer import ObjectSerializer, UInt8Array, check_size


def all_gather(data: UInt8Array, objects: ObjectSerializer) -> CompositeCall:
    """Give every rank the objects of all."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        found: Any = yield from vector.all_gather(data).generate_steps(builder)
        return [objects.decode(one) for one in found]

    return CompositeCall(CallSignature("all_gather_object"), generate_steps)


def gather(data: UInt8Array, root: int, objects: ObjectSerializer) -> CompositeCall:
    """Send the objects of all ranks to the root, whose result is their list; None elsewhere."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        found: Any = yield from vector.gather(data, root).generate_steps(builder)
        return None if found is None else [objects.decode(one) for one in found]

    return CompositeCall(CallSignature("gather_object", root=root), generate_steps)


def scatter(
    data: Sequence[UInt8Array] | None, root: int, objects: ObjectSerializer
) -> CompositeCall:
    """Send each rank its object of the root's list."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        found: Any = yield from vector.scatter(data, root).generate_steps(builder)
        return objects.decode(found)

    return CompositeCall(
        CallSignature("scatter_object", root=root), generate_steps, has_blocks=True
    )


def broadcast(
    data: UInt8Array | None, root: int, values: list[Any], objects: ObjectSerializer
) -> CompositeCall:
    """Overwrite the items of a list with those of the root, which has them as `data`."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        size = np.array([0 if data is None else len(data)], np.int64)
        yield builder.broadcast(size, root)
        place = np.empty(check_size(int(size[0])), np.uint8) if data is None else data.copy()
        yield builder.broadcast(place, root)
        if data is None:
            values[:] = objects.decode(place)
        return values

    return CompositeCall(
        CallSignature("broadcast_object_list", count=len(values), root=root), generate_steps
    )
