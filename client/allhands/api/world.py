"""Membership of a process in one world, and its groups; for any thread."""

import atexit
import math
import operator
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from allhands.collectives.arguments import AnyArray
from allhands.config import ON_FAILURE, WorldConfig
from allhands.coordinator.endpoint import Endpoint
from allhands.data.codec import DataclassRegistry
from allhands.data.serializer import ObjectSerializer
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.errors import AllhandsError, CollectiveTimeout, ForkedProcess
from allhands.group.call_hooks import CallHooks
from allhands.group.call_spans import CallSpans
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.group.registry import GroupKey, GroupRegistry, check_tag
from allhands.membership.survivors import RecoveryService
from allhands.membership.worker import Worker
from allhands.recorder.record import OperationRecord
from allhands.runtime import stack_dump, termination
from allhands.runtime.end_order import find_causes, wait_ended
from allhands.runtime.exit_notice import LAUNCH_VARIABLE
from allhands.runtime.loop_thread import LoopThread
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands.membership.resilient_group import ResilientGroup


@dataclass(frozen=True, slots=True)
class NewGroupOptions:
    """Options of a new group's calls; see `init_process_group`."""

    timeout: float | None = None
    """Seconds that a call may take; None: as in the world."""
    on_failure: str = "raise"
    retryable: bool = False
    verify: bool | None = None
    allow_pickle: bool | None = None
    """Of this and the one before, None is what the world has."""

    def __post_init__(self) -> None:
        if self.on_failure not in ON_FAILURE:
            known = ", ".join(map(repr, ON_FAILURE))
            raise ValueError(f"on_failure must be one of {known}, not {self.on_failure!r}")
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(
                f"timeout must be a positive number of seconds, not {self.timeout}; "
                "None is the world's"
            )


class ThreadRank(Protocol):
    """A thread's place among threads that are ranks."""

    def resolve_rank(self, rank: int, world_size: int) -> tuple[str, int, int]:
        """Return the meeting URL, rank and world size; -1: not given.

        Raises:
            ValueError: this thread is another one, or there are more or fewer of them.
        """

    def join(self, config: WorldConfig) -> "World":
        """Join and wait until the world is complete."""


class World:
    """Membership from joining to leaving; owns the I/O thread."""

    def __init__(self, thread: LoopThread, worker: Worker) -> None:
        self._thread = thread
        self._worker = worker
        self._lock = threading.Lock()
        self.registry = GroupRegistry()
        self.call_hooks = CallHooks()
        if worker.config.traces_calls:
            spans = CallSpans()
            self.call_hooks.add(spans.begin, spans.end)
        self._closed = False
        self.callbacks = thread.callbacks
        """What runs functions once calls have ended."""
        self._recovery = RecoveryService(worker, thread)
        self._resilient_groups: list[ResilientGroup] = []
        self.types = DataclassRegistry()
        """The dataclasses of which objects may be sent."""
        config = worker.config
        self.group = self._apply_options(
            Group(worker.world, thread, config.timeout, self._recovery),
            NewGroupOptions(on_failure=config.on_failure, retryable=config.retryable),
        )
        """All ranks."""
        self._is_terminated = False
        atexit.register(self._at_exit)
        self.install_termination_handler()

    @classmethod
    def join(cls, config: WorldConfig) -> "World":
        """Join and wait until the world is complete; errors are those of `Worker.start`."""
        thread = LoopThread(f"allhands {config.job}")
        try:
            return cls(thread, thread.run(Worker.start(config)))
        except BaseException:
            thread.stop()
            raise

    @property
    def job(self) -> str:
        return self._worker.config.job

    @property
    def backend(self) -> str:
        """What carries calls, as `init_process_group` was given it."""
        return self._worker.config.backend

    @property
    def is_inherited(self) -> bool:
        """Whether this world belongs to the process this process was forked from."""
        return self._thread.is_inherited

    @property
    def is_closed(self) -> bool:
        """Whether this process has left, or was forked from a rank."""
        return self._closed or self.is_inherited

    @property
    def endpoint(self) -> Endpoint:
        """The coordinator of this world."""
        return self._worker.rendezvous.endpoint

    def new_group(
        self,
        ranks: Sequence[int],
        tag: str | None = None,
        use_local_synchronization: bool = False,
        options: NewGroupOptions | None = None,
    ) -> Group | NonMember:
        """Make a group of some ranks of the world; see `api.groups.new_group`.

        Raises:
            ValueError: no ranks, a rank twice, or one that the world does not have.
        """
        wanted = [operator.index(rank) for rank in ranks]
        if use_local_synchronization:
            wanted.sort()
        return self.make_subgroup(self.group, wanted, tag, options)

    def make_subgroup(
        self,
        parent: Group,
        group_ranks: Sequence[int],
        tag: str | None = None,
        options: NewGroupOptions | None = None,
    ) -> Group | NonMember:
        """Make a group of some ranks of a parent group, given as parent ranks.

        Raises:
            ValueError: no ranks, a rank twice, or one that the parent does not have.
        """
        self._check_not_forked()
        if not group_ranks or len(set(group_ranks)) != len(group_ranks):
            raise ValueError(
                f"a group needs each of its ranks once, and at least one: {group_ranks}"
            )
        if strangers := [place for place in group_ranks if not 0 <= place < parent.size]:
            what = "the world" if parent is self.group else f"group {parent.name!r}"
            raise ValueError(f"ranks {strangers} are not in {what}, which has {parent.size} ranks")
        ranks = tuple(parent.ranks[place] for place in group_ranks)
        members = [parent.members[place] for place in group_ranks]
        if members == [self.group.members[rank] for rank in ranks if rank < self.group.size]:
            parent, group_ranks = self.group, ranks  # as if its ranks had been named at once
        lineage = GroupKey(parent.name, tuple(group_ranks), check_tag(tag))
        if parent.rank not in group_ranks:
            name = lineage.base_name if lineage.tag else self.registry.make_name(lineage)
            return NonMember(name, ranks)
        options = options or NewGroupOptions()
        with self.registry.creation_lock if lineage.tag else nullcontext():
            if lineage.tag and (known := self.registry.find_by_key(lineage)) is not None:
                return known
            name = self.registry.make_name(lineage)
            seconds = options.timeout or self._worker.config.timeout
            opening = self._worker.open_group(name, members, seconds, ranks, options.verify)
            plain = Group(self._thread.run(opening), self._thread, seconds, self._recovery)
            group = self._apply_options(plain, options)
            self.registry.add(group, lineage)
        return group

    def is_open(self, group: Group) -> bool:
        """Return whether a group belongs to this world and neither is closed."""
        return not self.is_closed and all(self._worker.is_open(part.name) for part in group.parts)

    def empty(self, shape: "int | tuple[int, ...]", dtype: npt.DTypeLike) -> AnyArray:
        """Return an array in memory shared by this host's ranks; see `ah.empty`."""
        self._check_not_forked()
        found = np.dtype(dtype)
        if found.hasobject:
            raise TypeError(f"{found} arrays hold Python objects, which cannot be shared")
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(lengths)
        if any(length < 0 for length in lengths):
            raise ValueError(f"no array has the shape {lengths}")
        memory = self._worker.allocate(count * found.itemsize)
        return np.frombuffer(memory, found, count).reshape(lengths)

    def get_failure(self, group: Group) -> AllhandsError | None:
        """Return the known reason for failing calls on a group, or None."""
        parts = [self._thread.run(self._worker.get_failure(part.name)) for part in group.parts]
        return next((one for one in parts if one is not None), None)

    @property
    def rank(self) -> int:
        """This process's rank in the job, unchanged when ranks are lost."""
        return self._worker.rank

    def get_members(self) -> dict[str, tuple[int, ...]]:
        """Return the job ranks of each open group, by group name, in rank order."""
        return self._worker.get_groups()

    def get_records(self) -> list[OperationRecord]:
        """Return this rank's records, oldest first."""
        return self._worker.get_records()

    def close_group(self, group: Group, failure: ErrorFactory | None = None) -> None:
        """Forget a group and its tag after its calls; later calls raise `failure`."""
        if self.is_inherited:
            return
        for part in group.parts:
            self.registry.remove(part)
            self._thread.run(self._worker.close_group(part.name, failure))

    def abort(self, reason: str, group: str = "") -> None:
        """Release all ranks of a group, or of the world; return once all are notified."""
        self._thread.run(self._worker.abort_and_flush(group, reason))

    def fail(self, error: BaseException) -> None:
        """Leave because of an exception; aborts the peers unless configured otherwise."""
        if self._is_terminated:
            self.close()
            return
        if isinstance(error, CollectiveTimeout) and error.verdict is not None:
            self._worker.notify_launcher(error.verdict)
        said = f"{type(error).__name__}: {error}"
        self.close(said, stack_dump.format_error(error), self._worker.config.abort_on_exception)

    def close(self, error: str = "", traceback: str = "", aborts: bool = False) -> None:
        """Leave; sent messages are received first, unless `error` is given. Idempotent.

        A rank that hosts the coordinator waits for the others to leave, 30 s at most. In a forked
        child it does nothing: the membership is its parent's.
        """
        if self.is_inherited:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._at_exit)
        if self._is_terminated:
            error = error or "SIGTERM"
        try:
            if not error:
                for group in self._resilient_groups:
                    self._thread.run(group.wait_idle())
            self._thread.run(self._worker.leave(error, traceback, aborts))
        finally:
            termination.uninstall(self._terminate)
            self._thread.stop()

    def install_termination_handler(self) -> None:
        """Let SIGTERM from `allhands run` end blocked calls by an exception.

        For the main thread; not if the program handles the signal.
        """
        if LAUNCH_VARIABLE in os.environ:
            termination.install(self._terminate)

    def _check_not_forked(self) -> None:
        """Refuse to be used in a forked child.

        Raises:
            ForkedProcess: it is one.
        """
        if self.is_inherited:
            raise ForkedProcess("this world")

    def _terminate(self) -> None:
        """End the calls of all threads, on a request to terminate."""
        self._is_terminated = True
        with suppress(RuntimeError):  # the thread is gone, and no call is left
            self._thread.call(self._worker.terminate)

    def _apply_options(self, group: Group, options: NewGroupOptions) -> Group:
        """Return the group with options applied, as callers see it."""
        pickles = options.allow_pickle
        group.objects = ObjectSerializer(
            self.types, self._worker.config.allow_pickle if pickles is None else pickles
        )
        if options.on_failure == "raise" and not options.retryable:
            self.call_hooks.attach(group)
            return group
        # Few worlds have one: here, so that the ranks of the others do not load it.
        from allhands.membership.queued_call import FailurePolicy
        from allhands.membership.resilient_group import ResilientGroup

        policy = FailurePolicy(options.on_failure, self._worker.config.min_size)
        resilient = ResilientGroup(group, self._worker, self._thread, policy)
        self._resilient_groups.append(resilient)
        self.call_hooks.attach(resilient)
        return resilient

    def _at_exit(self) -> None:
        # What ended the interpreter, if it was an exception: the others should know.
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is None:
            self.close()
        else:
            self.fail(error)
            if LAUNCH_VARIABLE not in os.environ:  # `allhands run` knows who was first
                wait_ended(self._worker.find_processes(find_causes(error)))
