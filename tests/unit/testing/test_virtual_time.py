"""Virtual time: waits end at once."""

import asyncio
import threading
import time

import pytest

from allhands.testing import virtual_time
from allhands.testing.virtual_time import Standstill


def test_an_hour_of_timers_passes_in_order_and_to_the_instant() -> None:
    async def main() -> list[tuple[str, float]]:
        said: list[tuple[str, float]] = []

        async def speak(text: str, late: float) -> None:
            await asyncio.sleep(late)
            said.append((text, time.monotonic()))

        await asyncio.gather(speak("second", 3600.0), speak("first", 0.25))
        return said

    assert virtual_time.run(main()) == [("first", 0.25), ("second", 3600.0)]


def test_a_deadline_passes_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == 30


def test_waiting_for_what_cannot_come_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Standstill):
        virtual_time.run(main())


def test_other_threads_keep_the_real_clock_and_everybody_has_it_afterwards() -> None:
    real = time.monotonic
    seen: list[float] = []

    async def main() -> None:
        thread = threading.Thread(target=lambda: seen.append(time.monotonic()))
        thread.start()
        thread.join()
        seen.append(time.monotonic())

    begun = time.monotonic()
    virtual_time.run(main())
    assert seen[0] >= begun
    assert seen[1] == 0
    assert time.monotonic is real
