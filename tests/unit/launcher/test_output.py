"""Output of ranks around a failure: the failing rank's last lines come first."""

import asyncio

from allhands.launcher.output import OutputPriority


async def may_speak(floor: OutputPriority, rank: int) -> bool:
    turn = asyncio.ensure_future(floor.wait_turn(rank))
    await asyncio.sleep(0)
    try:
        return turn.done()
    finally:
        turn.cancel()


async def test_everybody_may_speak_at_first() -> None:
    assert await may_speak(OutputPriority(), 0)


async def test_the_holders_speak_one_after_the_other_and_nobody_else() -> None:
    floor = OutputPriority()
    floor.grant(2)
    floor.grant(1)
    assert [await may_speak(floor, rank) for rank in range(3)] == [False, False, True]
    floor.release(2)
    assert [await may_speak(floor, rank) for rank in range(3)] == [False, True, False]


async def test_the_others_go_on_when_the_last_holder_is_released() -> None:
    floor = OutputPriority()
    floor.grant(1)
    floor.grant(2)
    waiting = asyncio.ensure_future(floor.wait_turn(0))
    floor.release(1)
    await asyncio.sleep(0)
    assert not waiting.done()
    floor.release(2)
    await waiting


async def test_a_place_in_the_row_is_kept_when_the_floor_is_given_again() -> None:
    floor = OutputPriority()
    floor.grant(1)
    floor.grant(2)
    floor.grant(1)
    floor.release(1)
    assert await may_speak(floor, 2)


async def test_releasing_a_rank_that_waits_in_the_row_lets_the_holder_speak_on() -> None:
    floor = OutputPriority()
    floor.grant(1)
    floor.grant(2)
    floor.release(2)
    assert await may_speak(floor, 1)
    assert not await may_speak(floor, 0)
