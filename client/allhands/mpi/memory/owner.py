"""Base of the classes whose objects are buffers, before Python 3.12 gave them `__buffer__`."""

from typing import TYPE_CHECKING, Any

from allhands.runtime import native_core

if TYPE_CHECKING:

    class MemoryOwner:
        """An object that is the buffer of its `tomemory()`; without the native core it is none."""

else:
    _core: Any = native_core.find()[0]
    MemoryOwner = object if _core is None else _core.MemoryOwner
