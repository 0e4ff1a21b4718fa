"""Which calls over links are so small that they work on a copy of their outputs."""

import numpy as np
import pytest

from allhands.collectives.request import CollectiveRequest
from allhands.engine.links.output_guard import is_staged

MIB = 1 << 20


@pytest.mark.parametrize(
    ("kind", "size", "nbytes", "wanted"),
    [
        ("all_reduce", 4, MIB, True),
        ("all_reduce", 4, MIB + 8, False),
        ("all_gather", 4, MIB // 2, True),
        ("all_gather", 4, MIB // 2 + 8, False),
        ("gather", 4, MIB, True),
        ("gather", 4, MIB + 8, False),
        ("scatter", 2, MIB, True),
        ("scatter", 2, MIB + 8, False),
        ("gather", 8, MIB // 2, True),
        ("gather", 8, MIB // 2 + 8, False),
    ],
)
def test_up_to_a_size_calls_work_on_a_copy(kind: str, size: int, nbytes: int, wanted: bool) -> None:
    request = CollectiveRequest(kind, np.dtype(np.float64), nbytes // 8)
    assert is_staged(request, size) is wanted
