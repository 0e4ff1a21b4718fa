"""Calls of groups within one loop, for tests of failures."""

from collections.abc import Sequence

import numpy as np

from allhands.group.group import Group
from allhands.testing.inproc_world import InprocWorld, wait_results


async def assert_usable(world: InprocWorld, members: Sequence[Group] | None = None) -> None:
    """Check that the next call gives the right result on all ranks."""
    members = world.groups if members is None else members
    for length in (1, 150):
        xs = [np.arange(length) * (group.rank + 1) for group in members]
        await wait_results(group.all_reduce(x) for group, x in zip(members, xs, strict=True))
        wanted = np.arange(length) * sum(range(1, len(members) + 1))
        for x in xs:
            np.testing.assert_array_equal(x, wanted)


def ones(length: int, dtype: str = "float64") -> np.ndarray:
    return np.ones(length, dtype)
