"""State of MPI in this process: the world, its messages, and whether it is initialized."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from allhands.errors import GroupAborted, PeerFailed
from allhands.group.group import Group
from allhands.mpi import errors
from allhands.mpi.constants import THREAD_MULTIPLE
from allhands.mpi.progress.channel import Channel
from allhands.mpi.progress.engine import Engine
from allhands.mpi.startup import join_world, leave_world, open_messages

logger = logging.getLogger(__name__)


class Runtime:
    """What `Init` makes and `Finalize` ends."""

    engine: Engine
    """The messages of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: Group | None = None
        self.is_initialized = False
        self.is_finalized = False
        self.thread_level = THREAD_MULTIPLE
        self.main_thread = threading.main_thread().ident
        self.next_context = 16
        """Number of the next communicator, as far as this rank knows; lower ones are predefined."""
        self.at_finalize: list[Callable[[], object]] = []
        self.world: Any = None
        """The communicator of all ranks, once there is one."""
        self.storage: dict[str, Any] = {}
        """State of parts of the interface: added error classes, keyvals, buffers."""
        self._owns_world = False

    @property
    def group(self) -> Group:
        """The group of all ranks of the world."""
        if self._group is None:
            raise RuntimeError("MPI is not initialized: call MPI.Init() first")
        return self._group

    def __getattr__(self, name: str) -> Any:
        # `engine` is an attribute, which calls find sooner than a property, once there is one.
        if name == "engine":
            raise RuntimeError("MPI is not initialized: call MPI.Init() first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def initialize(self, required: int = THREAD_MULTIPLE) -> int:
        """Join the world; return the level of thread support, which is as required."""
        with self._lock:
            if self.is_initialized:
                raise RuntimeError("MPI is initialized already")
            self._group, self._owns_world = join_world()
            self.engine = Engine(Channel(open_messages()), lambda: self.group.timeout)
            self.is_initialized = True
            self.thread_level = required
            self.main_thread = threading.get_ident()
        return required

    def finalize(self) -> None:
        """Leave the world, after all ranks have come here; what is under way ends first."""
        with self._lock:
            if not self.is_initialized or self.is_finalized:
                return
            self.is_finalized = True
        for act in reversed(self.at_finalize):
            act()
        try:
            self.engine.flush()
            self.group.here.barrier().wait()
        except (PeerFailed, GroupAborted, errors.Exception) as error:
            # The others have gone, as after a `Shrink`: there is nobody to leave with.
            logger.warning("MPI was finalized without ranks that are lost: %s", error)
        self.engine.close()
        if self._owns_world:
            leave_world()


runtime = Runtime()
