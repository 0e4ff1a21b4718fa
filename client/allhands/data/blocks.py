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
    found[...] = x
    return found
