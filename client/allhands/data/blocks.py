"""New memory for what calls return: from the native core's blocks, which are used again.

Pages fresh from the kernel cost several times what it takes to fill them.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allhands.runtime import native_core

BLOCK_BYTES: Final = 1 << 14
"""Of the smallest block: less is as well allocated by NumPy."""
_core, _ = native_core.find()


def allocate_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Return a new array of any content."""
    if _core is None:
        return np.empty(nbytes, np.uint8)
    found: NDArray[np.uint8] = _core.allocate_bytes(nbytes)
    return found


def copy_array(x: NDArray[Any]) -> NDArray[Any]:
    """Return a new C-contiguous array with the content of another one."""
    if x.nbytes < BLOCK_BYTES:
        return x.copy()
    found: NDArray[Any] = np.ndarray(x.shape, x.dtype, allocate_bytes(x.nbytes).data)
    copy_into(found, x)
    return found


def copy_into(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Overwrite an array with the content of another one, of the same shape or broadcast to it.

    By the native core where it can: NumPy copies at a tenth of the speed on some processors, as
    `native/kernels/copy.h` says.
    """
    if (
        _core is None
        or target.nbytes < BLOCK_BYTES
        or target.nbytes != source.nbytes
        or target.dtype != source.dtype
        or not (target.flags.c_contiguous and source.flags.c_contiguous)
        or np.may_share_memory(target, source)
    ):
        np.copyto(target, source)
    else:
        _core.copy(target, source, False)
