"""Joining a world on an asyncio event loop, and making groups in that world."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

from allhands.aio.group import AsyncGroup
from allhands.api.default_world import get_thread_state
from allhands.api.joining import JoinOptions, check_join_options, join_world, show_join_options
from allhands.api.world import NewGroupOptions, World
from allhands.group.non_member import NonMember


@show_join_options
def connect(
    url: str | None = None, **options: Unpack[JoinOptions]
) -> AbstractAsyncContextManager["AsyncWorld"]:
    """Join a world for the duration of a block.

    Left in order after a successful block; if the block raises, the other ranks get the reason.

    Args:
        url: `init_method` of `init_process_group`, whose errors this raises too.
        options: see `JoinOptions`.
    """
    check_join_options("connect", options)
    return _stay_joined(url, options)


@asynccontextmanager
async def _stay_joined(url: str | None, options: JoinOptions) -> AsyncIterator["AsyncWorld"]:
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise RuntimeError(
            "connect() needs a running event loop of asyncio; trio is not supported"
        ) from error
    world = await asyncio.to_thread(join_world, *get_thread_state(), url, options)
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
