"""Objects as bytes: the pickle of the lower-case calls, which a program may replace.

That is the interface of mpi4py: what a member of the job sends is unpickled here. Groups of
allhands' own calls do so only where a program has asked for it.
"""

import os
import pickle as _pickle
from collections.abc import Callable, Iterable
from typing import Any

from allhands.mpi.memory.buffer import buffer

_PROTOCOL = int(os.environ.get("MPI4PY_PICKLE_PROTOCOL", _pickle.HIGHEST_PROTOCOL))
_THRESHOLD = int(os.environ.get("MPI4PY_PICKLE_THRESHOLD", 1 << 18))


class Pickle:
    """A way to make bytes of objects and objects of bytes."""

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[..., Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        """Set the functions; by default those of `pickle`.

        Args:
            dumps: gets the object, and the protocol if there is one.
            loads: gets a buffer.
            threshold: bytes from which buffers are kept apart by `dumps_oob`.
        """
        self._dumps = _pickle.dumps if dumps is None else dumps
        self._loads = _pickle.loads if loads is None else loads
        self.PROTOCOL = protocol
        self.THRESHOLD = threshold

    @property
    def PROTOCOL(self) -> int | None:
        """Protocol of the pickles; None: the function takes none."""
        return self._protocol

    @PROTOCOL.setter
    def PROTOCOL(self, protocol: int | None) -> None:
        is_own = self._dumps is _pickle.dumps
        self._protocol = _PROTOCOL if protocol is None and is_own else protocol

    @property
    def THRESHOLD(self) -> int:
        """Bytes from which buffers are kept apart by `dumps_oob`."""
        return self._threshold

    @THRESHOLD.setter
    def THRESHOLD(self, threshold: int | None) -> None:
        self._threshold = _THRESHOLD if threshold is None else threshold

    def dumps(self, obj: Any) -> bytes:
        """Return the bytes of an object."""
        if self._protocol is None:
            return self._dumps(obj)
        return self._dumps(obj, self._protocol)

    def loads(self, data: Any) -> Any:
        """Return the object of bytes."""
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[buffer]]:
        """Return the bytes of an object, and its large buffers apart."""
        buffers: list[buffer] = []

        def keep(found: Any) -> bool:
            view = buffer(found)
            if view.nbytes < self._threshold:
                return True
            buffers.append(view)
            return False

        protocol = max(_PROTOCOL if self._protocol is None else self._protocol, 5)
        return self._dumps(obj, protocol, buffer_callback=keep), buffers

    def loads_oob(self, data: Any, buffers: Iterable[Any]) -> Any:
        """Return the object of bytes and of buffers apart."""
        return self._loads(data, buffers=buffers)


pickle = Pickle()
"""How the lower-case calls make bytes of objects."""
