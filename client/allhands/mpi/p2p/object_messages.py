"""Objects in messages: pickled by the program's own pickle, as in mpi4py."""

from typing import Any

import numpy as np

from allhands.mpi.objects import pickle
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Transfer


def dump_object(obj: Any) -> Bytes:
    """Return an object as the bytes of a message."""
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def load_bytes(data: Bytes) -> Any:
    """Return the object of a message's bytes; None: there are none."""
    return pickle.loads(data.data) if data.size else None


def load_object(transfer: Transfer) -> Any:
    """Return the object of a receive that has ended."""
    result = transfer.result
    return None if result is None else load_bytes(result)


class ObjectBuffer:
    """Memory of the program for the bytes of an object: the target of a receive."""

    def __init__(self, memory: Any) -> None:
        self._memory: Bytes = np.frombuffer(memory, np.uint8)
        if not self._memory.flags.writeable:
            raise BufferError("the buffer of a receive must be writable")
        self.nbytes = self._memory.size

    def target(self) -> Bytes:
        return self._memory

    def unpack(self, data: Bytes) -> None:
        self._memory[: data.size] = data

    def load(self, transfer: Transfer) -> Any:
        """Return the object of a receive into this memory."""
        return load_bytes(self._memory[: transfer.nbytes])
