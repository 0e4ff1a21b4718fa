"""Blocks of PyTorch's coalescing manager: collected calls start together at the end."""

import threading
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from allhands.engine.work.work import Work as NativeWork
from allhands.errors import CollectiveTimeout, PeerFailed
from allhands.group.coalescing import CoalescedWork, coalesce
from allhands.group.group import Group
from allhands.torch.error_text import append_gloo_text
from allhands.torch.options import to_limit


class CoalescingBlock:
    """Calls of one thread on a group, collected until the end of the block.

    Messages from point to point are made at once; what is no collective of one step is refused.
    """

    def __init__(self, group: Group) -> None:
        """Begin.

        Raises:
            RuntimeError: calls of the group are being collected already.
        """
        self._coalescing = coalesce(group, threading.get_ident())

    def end(self) -> "TorchCoalescedWork":
        """Start the collected calls; adjacent calls of a kind are merged."""
        self._coalescing.end()
        return TorchCoalescedWork(self._coalescing.submit_all())


class TorchCoalescedWork(dist.Work):  # type: ignore[misc]
    """The calls of a block in flight; safe from any thread."""

    def __init__(self, works: Sequence[NativeWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all calls have ended; return True or raise the first failure."""
        for work in self._works:
            try:
                work.wait(to_limit(timeout))
            except (CollectiveTimeout, PeerFailed) as error:
                is_over = error is work.exception()
                append_gloo_text(error, work.operation, None if is_over else to_limit(timeout))
                raise
            if isinstance(work, CoalescedWork) and work.on_success is not None:
                work.on_success()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        errors = (work.exception() for work in self._works)
        return next((append_gloo_text(error) for error in errors if error is not None), None)
