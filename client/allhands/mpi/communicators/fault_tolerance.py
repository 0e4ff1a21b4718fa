"""What goes on after a rank was lost: names of ULFM (MPI Forum ticket 20) on what allhands has."""

import contextlib
from typing import Any

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import ERR_COMM
from allhands.mpi.groups import Group
from allhands.mpi.p2p.requests import Request
from allhands.mpi.progress.frames import FrameKind
from allhands.mpi.progress.transfers import InThread
from allhands.mpi.runtime import runtime


class FaultTolerance:
    """Revocation, agreement and survivors of a communicator; mixin of `Comm`."""

    _context: int
    _ranks: tuple[int, ...]
    _peers: tuple[int, ...]
    _acknowledged: int

    @property
    def _everyone(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self._ranks, *self._peers)))

    def Revoke(self) -> None:
        """Let all ranks' calls on it fail from now on, those under way included."""
        if self._context < 0:
            raise errors.make_error(ERR_COMM, "a null communicator cannot be revoked")
        engine = runtime.engine
        with engine.lock:
            if self._context in engine.revoked:
                return
            engine.revoked.add(self._context)
        for rank in self._everyone:
            if rank != engine.rank:
                engine.send_frame(rank, FrameKind.REVOKE, self._context, (), None)
        self._abort_calls()

    def _abort_calls(self) -> None:
        """End the collectives that are under way."""

    def Is_revoked(self) -> bool:
        """Say whether it was revoked, as far as is known here."""
        if self._context < 0:
            raise errors.make_error(ERR_COMM, "the communicator is null")
        with contextlib.suppress(errors.Exception):  # after a loss: those that wait are told
            runtime.engine.progress()
        return self._context in runtime.engine.revoked

    def Get_failed(self) -> Group:
        """Return the group of the lost ranks that are known here."""
        engine = runtime.engine
        return Group._of(tuple(one for one in self._everyone if engine.has_lost(one)))

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Take note of lost ranks, all that are known or so many; return how many were noted."""
        failed = self.Get_failed().Get_size()
        wanted = failed if num_to_ack is None else num_to_ack
        self._acknowledged = max(self._acknowledged, min(wanted, failed))
        return self._acknowledged

    def Agree(self, flag: int) -> int:
        """Return the bitwise AND of all remaining ranks' flags, also after losses."""
        survivors = self._open_survivors()
        value = np.array([flag], np.int64)
        survivors.all_reduce(value, "band").wait()
        return int(value[0])

    def Iagree(self, flag: Any) -> Request:
        """Begin an `Agree` on the number in a buffer, which has the result when it has ended."""
        memory = memoryview(flag)
        if memory.format != "i" or memory.nbytes != memory.itemsize or memory.readonly:
            raise ValueError("flag: expecting a writable buffer of one int")
        return Request._of(InThread("Iagree", lambda: self._agree_in(memory)))

    def _agree_in(self, memory: memoryview) -> None:
        memory[0] = self.Agree(memory[0])

    def Shrink(self) -> Any:
        """Return a communicator of the remaining ranks, in order; a collective call of them."""
        raise NotImplementedError

    def Ishrink(self) -> tuple[Any, Request]:
        """Begin a `Shrink`; its result is null until the request has ended."""
        made = type(self)()

        def shrink() -> None:
            made.__dict__.update(self.Shrink().__dict__)

        return made, Request._of(InThread("Ishrink", shrink))

    def _open_survivors(self) -> Any:
        """Return a group of allhands of the remaining ranks, for one use."""
        raise NotImplementedError
