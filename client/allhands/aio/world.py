"""Joining a world on an asyncio event loop, and making groups in that world."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from allhands import config
from allhands.aio.group import AsyncGroup
from allhands.api.default_world import get_thread_state
from allhands.api.joining import join_world
from allhands.api.world import NewGroupOptions, World
from allhands.group.non_member import NonMember
from allhands.stores import Store


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    rank: int = -1,
    world_size: int = -1,
    timeout: float | timedelta = config.DEFAULT_TIMEOUT,
    job: str | None = None,
    token: str | None = None,
    tls: str | None = None,
    insecure: bool = False,
    backend: str = "auto",
    label: str | None = None,
    heartbeat_window: float | None = None,
    deterministic: bool = False,
    on_failure: str = "raise",
    retryable: bool = False,
    min_size: int = 1,
    max_size: int = 0,
    abort_on_exception: bool = True,
    verify: bool = False,
    allow_pickle: bool = False,
    store: Store | None = None,
) -> AsyncIterator["AsyncWorld"]:
    """Join a world for the duration of a block; options of `init_process_group`.

    Left in order when the block ends well; when it raises, the others are told why.
    """
    world = await asyncio.to_thread(
        join_world,
        *get_thread_state(),
        init_method=url,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        job=job,
        token=token,
        tls=tls,
        insecure=insecure,
        backend=backend,
        label=label,
        heartbeat_window=heartbeat_window,
        deterministic=deterministic,
        on_failure=on_failure,
        retryable=retryable,
        min_size=min_size,
        max_size=max_size,
        abort_on_exception=abort_on_exception,
        verify=verify,
        allow_pickle=allow_pickle,
        store=store,
    )
    world.install_termination_handler()
    try:
        yield AsyncWorld(world)
    except BaseException as error:
        await asyncio.to_thread(world.fail, error)
        raise
    await asyncio.to_thread(world.close)


class AsyncWorld(AsyncGroup):
    """The group of all ranks, with `new_group`."""

    def __init__(self, world: World) -> None:
        super().__init__(world.group)
        self._world = world

    async def new_group(
        self,
        ranks: Sequence[int] | None = None,
        tag: str | None = None,
        use_local_synchronization: bool = False,
        timeout: float | None = None,
        *,
        on_failure: str = "raise",
        retryable: bool = False,
        verify: bool | None = None,
        allow_pickle: bool | None = None,
    ) -> AsyncGroup | None:
        """Make a group of some ranks of the world; None on ranks outside the group.

        Arguments and errors are those of `allhands.new_group`.
        """
        chosen = range(self.size) if ranks is None else ranks
        options = NewGroupOptions(timeout, on_failure, retryable, verify, allow_pickle)
        group = await asyncio.to_thread(
            self._world.new_group, chosen, tag, use_local_synchronization, options
        )
        return None if isinstance(group, NonMember) else AsyncGroup(group)

    def abort(self, reason: str) -> None:
        """End all groups on all ranks: calls raise `GroupAborted` from then on."""
        self._world.abort(reason)
