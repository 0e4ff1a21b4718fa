"""Whether all ranks mean the same, asked once instead of failing later."""

import hashlib

import numpy as np

from allhands.api import calls, collectives
from allhands.group.group import Group

_NBYTES = 32


def check_consistency(group: Group, what: str, description: object) -> None:
    """Compare the `repr` of a description among the ranks of a group.

    Raises:
        ValueError: they differ; on every rank.
    """
    calls.refuse_while_coalescing(group, "making a Reducer")
    own = hashlib.blake2b(repr(description).encode(), digest_size=_NBYTES).digest()
    digests = np.empty((group.size, _NBYTES), np.uint8)
    collectives.all_gather_into_tensor(digests, np.frombuffer(own, np.uint8), group, label=what)
    others = [rank for rank in range(group.size) if (digests[rank] != digests[0]).any()]
    if others:
        ranks = ", ".join(str(group.ranks[rank]) for rank in others)
        raise ValueError(
            f"{what} of rank{'' if len(others) == 1 else 's'} {ranks} differ from those of rank "
            f"{group.ranks[0]}: all ranks must give the same; here they are {description!r:.500}"
        )
