"""Memory of results: blocks are used again once nobody has them, and not before."""

import numpy as np
import pytest

from allhands.data import blocks
from allhands.runtime import native_core

needs_core = pytest.mark.skipif(native_core.find()[0] is None, reason="no native core")


@needs_core
def test_memory_that_nobody_has_any_more_is_used_again() -> None:
    first = blocks.allocate_bytes(1 << 16)
    address = first.ctypes.data
    del first
    assert blocks.allocate_bytes(1 << 16).ctypes.data == address


@needs_core
def test_memory_is_not_used_again_while_a_view_of_it_lives() -> None:
    first = blocks.allocate_bytes(1 << 16)
    part = first[5:].view(np.uint8)
    part[:] = 7
    del first
    others = [blocks.allocate_bytes(1 << 16) for _ in range(4)]
    for other in others:
        other[:] = 1
    assert (part == 7).all()


@needs_core
@pytest.mark.parametrize("nbytes", [0, 1, (1 << 14) - 1, 1 << 14, (1 << 20) + 1, (1 << 22) + 1])
def test_a_block_has_as_many_bytes_as_were_asked_for(nbytes: int) -> None:
    found = blocks.allocate_bytes(nbytes)
    found[:] = 3
    assert found.shape == (nbytes,)
    assert found.flags.writeable
    assert found.ctypes.data % 16 == 0 or nbytes < 1 << 14


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (300, 100)])
def test_a_copy_is_equal_and_apart(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).T
    copied = blocks.copy_array(x)
    assert copied.dtype == x.dtype
    assert copied.flags.c_contiguous
    assert not np.shares_memory(copied, x)
    np.testing.assert_array_equal(copied, x)
