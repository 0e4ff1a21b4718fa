"""Owners of journals, and what they have written."""

import asyncio
from collections.abc import Iterable, Iterator

from allhands_server.log.errors import LogError, LogFull
from allhands_server.log.journal import Journal
from allhands_server.log.recovery import RestoredLog, read_log
from allhands_server.machine.changes import Change, KeyPut
from support.faulty_log import FaultyEngine


def put(number: int, nbytes: int = 1) -> tuple[Change, ...]:
    return (KeyPut("j", f"k{number}", bytes(nbytes), number, number, 1),)


class Owner:
    """What a journal has told its owner; the state is the changes themselves."""

    def __init__(self) -> None:
        self.durable = 0
        self.refused: list[LogFull] = []
        self.lost: list[LogError] = []
        self.state: list[Change] = []
        self.heard = asyncio.Condition()

    def on_durable(self, commits: int) -> None:
        self.durable += commits
        self._wake()

    def on_refused(self, error: LogFull) -> None:
        self.refused.append(error)
        self._wake()

    def on_lost(self, error: LogError) -> None:
        self.lost.append(error)
        self._wake()

    def copy_state(self) -> Iterator[Change]:
        return iter(list(self.state))

    def restore(self, changes: Iterable[Change]) -> None:
        self.state.extend(changes)

    def _wake(self) -> None:
        async def wake() -> None:
            async with self.heard:
                self.heard.notify_all()

        self._waking = asyncio.create_task(wake())

    async def until(self, *, durable: int = 0, refused: int = 0, lost: int = 0) -> None:
        def is_so() -> bool:
            counts = len(self.refused) >= refused and len(self.lost) >= lost
            return counts and self.durable >= durable

        async with asyncio.timeout(10), self.heard:
            await self.heard.wait_for(is_so)


async def reopen(engine: FaultyEngine) -> tuple[list[Change], RestoredLog]:
    owner = Owner()
    restored = await read_log(engine, owner.restore)
    return owner.state, restored


async def write(engine: FaultyEngine, numbers: Iterable[int]) -> None:
    """Write a frame for each number."""
    _, restored = await reopen(engine)
    owner = Owner()
    journal = Journal(engine, restored, owner)
    for done, number in enumerate(numbers, 1):
        journal.append(put(number))
        await owner.until(durable=done)
    await journal.close()
